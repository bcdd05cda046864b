// Package care has the commands that watch over locks and explain them: what happened, what is wrong, how many there are.
package care

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
		{Name: "audit", Build: on(newAudit)},
		{Name: "metrics", Build: on(newMetrics)},
		{Name: "doctor", Build: on(newDoctor)},
		{Name: "prime", Build: on(newPrime)},
		{Name: "demo", Build: on(newDemo), Place: app.Nowhere},
		{Name: cmdAddOne, Build: on(newAddOne), Place: app.Nowhere},
	}
}
