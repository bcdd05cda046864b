// Package cli is the lokt command line. Its packages have a file for each command: an options struct, a constructor that
// binds flags to it, and a run function that knows nothing of flags.
package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/care"
	"github.com/lokt-dev/lokt/internal/cli/job"
	"github.com/lokt-dev/lokt/internal/cli/locks"
)

// Commands returns all commands.
func Commands() []app.Command {
	return slices.Concat(locks.Commands(), job.Commands(), care.Commands(), app.Commands())
}

// Main runs the command line of this process and returns its exit code.
func Main(args []string) int { return app.Run(Commands(), args, app.System(), app.Dial) }

// Tree returns all commands, for documentation.
func Tree() *cobra.Command { return app.New(Commands(), app.System(), app.Dial).Tree(nil) }
