// Package cli is the lokt command line. Its packages have a file for each command: an options struct, a constructor that
// binds flags to it, and a run function that knows nothing of flags.
package cli

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/care"
	"github.com/lokt-dev/lokt/internal/cli/job"
	"github.com/lokt-dev/lokt/internal/cli/locks"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// Commands returns all commands.
func Commands() []app.Command {
	return slices.Concat(locks.Commands(), job.Commands(), care.Commands(), further(), app.Commands())
}

// further returns the commands of lokt-agent, a program of its own because it takes longer to start.
func further() []app.Command {
	const program = "lokt-agent"
	return []app.Command{
		{Name: "hook", Program: program, Place: app.Nowhere, Short: "Answer the hook of a coding agent, before it runs a command"},
	}
}

// Main runs the command line of this process and returns its exit code.
func Main(args []string) int {
	debug.SetTraceback("crash") // what the runtime cannot go on from ends with a signal: its exit code 2 means "held"
	if err := enoughFiles(); err != nil {
		fmt.Fprintln(os.Stderr, "lokt:", err)
		return app.ExitError
	}
	return app.Run(Commands(), args, app.System(), app.Dial)
}

// filesNeeded is more than the runtime and a command on lock files have open at once, besides what they were given.
const filesNeeded = 8

// enoughFiles reports an error if this process may not open as many files as it is going to: where the runtime can open
// none it ends the process without a word that anybody understands.
func enoughFiles() (err error) {
	for range filesNeeded {
		f, e := vfs.Open(os.DevNull, os.O_RDONLY, 0)
		if e != nil {
			return fmt.Errorf("%d more open files are needed: %w (see `ulimit -n`)", filesNeeded, e)
		}
		defer f.Close()
	}
	return nil
}

// Tree returns all commands, for documentation.
func Tree() *cobra.Command { return app.New(Commands(), app.System(), app.Dial).Tree(nil) }
