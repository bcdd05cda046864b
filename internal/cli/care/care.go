// Package care has the commands that watch over locks and explain them: what happened, what is wrong, how many there are.
package care

import "github.com/lokt-dev/lokt/internal/cli/app"

// cmd is what the commands of this package share.
type cmd struct{ *app.App }

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{
		{Name: "audit", Build: app.On(newAudit)},
		{Name: "metrics", Build: app.On(newMetrics)},
		{Name: "doctor", Build: app.On(newDoctor)},
		{Name: "prime", Build: app.On(newPrime)},
		{Name: "demo", Build: app.On(newDemo), Place: app.Nowhere},
		{Name: cmdAddOne, Build: app.On(newAddOne), Place: app.Nowhere},
	}
}
