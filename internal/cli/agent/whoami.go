package agent

import (
	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
)

func newWhoami(a cmd) *cobra.Command {
	return app.Describe("whoami", &cobra.Command{Args: app.NoArgs, RunE: func(*cobra.Command, []string) error { return a.runWhoami() }})
}

func (a cmd) runWhoami() error {
	w := a.Who()
	return a.Answer(struct {
		Owner      string `json:"owner"`
		Session    string `json:"session"` // "agent_id" in records
		AnySession bool   `json:"any_session,omitzero"`
		Host       string `json:"host"`
		Method     string `json:"method"`
		Program    string `json:"program,omitzero"`   // whose process told
		PID        int    `json:"pid,omitzero"`       // of that process, or of the one that began the session
		PIDStart   int64  `json:"pid_start,omitzero"` // as in records
		Message    string `json:"message"`
	}{w.ID, w.Session, w.AnySession, w.Host, w.Method, w.Name, w.PID, w.Start, w.String()}, "%s", w)
}
