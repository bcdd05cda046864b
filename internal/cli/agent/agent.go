// Package agent has the commands that enrol coding agents and those who work beside them: what their programs ask before
// they act, who they are, and which paths are whose. It is linked into a program of its own, which lokt runs, because a
// guard need not wait for a shell's parser to be loaded.
package agent

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/turns"
)

// cmd is what the commands of this package share.
type cmd struct{ *app.App }

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{
		{Name: "init", Build: app.On(newInit), Place: app.Nowhere},
		{Name: "hook", Build: app.On(newHook), Place: app.Nowhere},
		{Name: "reserve", Build: app.On(newReserve)},
		{Name: "whoami", Build: app.On(newWhoami), Place: app.Nowhere},
	}
}

// Main runs the command line of this process and returns its exit code. Under the name of another program it is that
// program's shim.
func Main(args []string) int {
	if name := strings.TrimSuffix(filepath.Base(args[0]), ".exe"); name != program {
		return shim(cmd{app.New(nil, app.System())}, name, args[1:])
	}
	rules := []app.Command{{Name: "guard", Build: turns.Guard}, {Name: "why", Build: turns.Why}} // which lokt hands over, where there are some
	return app.Main(append(Commands(), rules...), args[1:])
}

// program is the name of this program.
const program = "lokt-agent"

// Tree returns the commands, for documentation.
func Tree() *cobra.Command { return app.New(Commands(), app.System()).Tree(nil) }

// in returns the same as seen from another directory.
func (a cmd) in(dir string) cmd {
	other := *a.App
	other.Opened = nil
	other.Dir = func() (string, error) { return dir, nil }
	if here, err := a.Dir(); err == nil && a.RootFlag != "" && a.RootFlag != app.MethodUser && a.RootFlag != app.MethodSystem {
		other.RootFlag = app.Against(here, a.RootFlag) // seen from where the command runs
	}
	return cmd{&other}
}

// loktPath returns how to call lokt: by its name if the path leads to the one beside this program, or nowhere.
func loktPath() string {
	beside := app.LookUp("lokt")
	here, err := os.Stat(beside)
	if found, _ := exec.LookPath("lokt"); err == nil && found != "" {
		if there, err := os.Stat(found); err == nil && os.SameFile(here, there) {
			return "lokt"
		}
	}
	return cmp.Or(beside, "lokt")
}

func newWhoami(a cmd) *cobra.Command {
	return app.Plain("whoami", func(*cobra.Command) error {
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
	})
}
