// Package cli is the lokt command line. A command of its packages is an options struct, a constructor that binds flags to
// it, and a run function that knows nothing of flags; what its help says stands in app/help.md.
package cli

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/care"
	"github.com/lokt-dev/lokt/internal/cli/job"
	"github.com/lokt-dev/lokt/internal/cli/locks"
	"github.com/lokt-dev/lokt/internal/cli/talk"
	"github.com/lokt-dev/lokt/internal/cli/wait"
)

// Commands returns all commands.
func Commands() []app.Command {
	return slices.Concat(locks.Commands(), talk.Commands(), wait.Commands(), job.Commands(), care.Commands(), further(), app.Commands())
}

// further returns the commands of programs of their own, which take longer to start.
func further() (all []app.Command) {
	for _, name := range []string{"init", "hook", "reserve", "whoami"} {
		all = append(all, app.Command{Name: name, Program: "lokt-agent", Place: app.Nowhere})
	}
	for _, name := range []string{"bench", "jobserver", "mcp", "sim", "top"} { // which look at the place themselves, if they need one
		all = append(all, app.Command{Name: name, Program: "lokt-" + name, Place: app.Nowhere})
	}
	return all
}

// filesNeeded is more than the runtime and a command on lock files have open at once, besides what they were given.
const filesNeeded = 8

// Main runs the command line of this process and returns its exit code.
func Main(args []string) int {
	if err := app.EnoughFiles(filesNeeded); err != nil {
		fmt.Fprintln(os.Stderr, "lokt:", err)
		return app.ExitError
	}
	return app.Main(Commands(), args)
}

// Tree returns all commands, for documentation.
func Tree() *cobra.Command { return app.New(Commands(), app.System()).Tree(nil) }
