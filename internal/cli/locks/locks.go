// Package locks has the commands that take, give back and look at locks: a file for each.
package locks

import (
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
