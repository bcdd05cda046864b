// Package locks has the commands that take, give back and look at locks: a file for each.
package locks

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
)

// cmd is what the commands of this package share.
type cmd struct{ *app.App }

func on(build func(cmd) *cobra.Command) func(*app.App) *cobra.Command {
	return func(a *app.App) *cobra.Command { return build(cmd{a}) }
}

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{
		{Name: "guard", Build: on(newGuard)},
		{Name: "lock", Build: on(newLock)},
		{Name: "unlock", Build: on(newUnlock)},
		{Name: "status", Build: on(newStatus)},
		{Name: "exists", Build: on(newExists)},
		{Name: "why", Build: on(newWhy)},
		{Name: "freeze", Build: on(newFreeze)},
		{Name: "unfreeze", Build: on(newUnfreeze)},
	}
}

func newExists(a cmd) *cobra.Command {
	return &cobra.Command{
		Use:   "exists NAME",
		Short: "Tell by the exit code whether a lock is held",
		Long: "Say nothing and end with 0 if somebody holds the lock now, with 3 if nobody does. What has expired, or whose\n" +
			"process is dead, is not held; nor is a lock that is only frozen.",
		Example:           "  if lokt exists deploy; then echo busy; fi",
		Args:              app.OneName,
		ValidArgsFunction: a.CompleteNames,
		RunE:              func(_ *cobra.Command, args []string) error { return a.runExists(args[0]) },
	}
}

func (a cmd) runExists(name string) error {
	b, err := a.Open(name)
	if err != nil {
		return err
	}
	s, err := b.Get(context.Background(), name)
	if err != nil {
		return a.Repairable(err, name)
	}
	held := len(s.Live()) > 0
	if a.JSON {
		err = a.Print(struct {
			Name string `json:"name"`
			Held bool   `json:"held"`
		}{name, held})
	}
	if err != nil || held {
		return err
	}
	return app.Exit(app.ExitNotFound)
}
