// Package cli is the lokt command line: one file per command, each an options struct, a constructor that binds flags to
// it, and a run function that knows nothing of flags.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Streams are what a command reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
	Environ  func() []string
	Dir      func() (string, error)
}

// System returns the streams of this process.
func System() Streams {
	return Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Environ: os.Environ, Dir: os.Getwd}
}

// command builds one command of the tree. Only the one that is called is built: building all of them costs more than a
// command takes.
type command struct {
	name  string
	build func(*app) *cobra.Command
}

func commands() []command {
	return []command{
		{"guard", newGuard},
		{"lock", newLock},
		{"unlock", newUnlock},
		{"status", newStatus},
		{"exists", newExists},
		{"why", newWhy},
		{"freeze", newFreeze},
		{"unfreeze", newUnfreeze},
		{"audit", newAudit},
		{"metrics", newMetrics},
		{"doctor", newDoctor},
		{"prime", newPrime},
		{"demo", newDemo},
		{"version", newVersion},
		{"completion", newCompletion},
		{cmdProveWorker, newProveWorker},
		{cmdDemoWorker, newDemoWorker},
	}
}

// Main runs the command line and returns its exit code.
func Main(args []string, s Streams) (code int) {
	a := &app{Streams: s, jsonErrors: wantsJSON(args), words: args}
	defer func() {
		if r := recover(); r != nil { // an uncaught panic would exit 2, which scripts read as "held"
			fmt.Fprintf(s.Err, "lokt: internal error: %v\n%s", r, debug.Stack())
			code = exitError
		}
	}()
	if len(args) > 0 && args[0] == "--version" {
		args = append([]string{"version"}, args[1:]...)
	}
	cmd := a.rootCommand(args)
	cmd.SetArgs(args)
	return a.finish(cmd.Execute())
}

// rootCommand returns the command tree: with one branch if args call for one, whole otherwise.
func (a *app) rootCommand(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "lokt",
		Short: "Locks and leases for people and programs that share things",
		Long: "lokt lets one process at a time touch what only one may touch. Locks live in files: of the repository,\n" +
			"of the directory, or wherever LOKT_ROOT says. No daemon is needed.",
		Example:       "  lokt guard build --ttl 5m -- make build",
		Args:          usageArgs(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetHelpCommand(newHelp())
	a.setHelp(root)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.PersistentFlags().StringVar(&a.rootFlag, "root", "", "directory of the locks (default: $LOKT_ROOT, .git/lokt or .lokt)")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "write JSON to standard output")
	all := commands()
	if len(args) > 0 {
		if i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] }); i >= 0 {
			all = all[i : i+1]
		}
	}
	for _, c := range all {
		root.AddCommand(c.build(a))
	}
	return root
}

// Tree returns all commands, for documentation.
func Tree() *cobra.Command {
	return (&app{Streams: System()}).rootCommand(nil)
}

// wantsJSON reports whether the arguments ask for JSON, even if they cannot be parsed.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		switch {
		case arg == "--":
			return false
		case arg == "--json" || arg == "--json=true":
			return true
		}
	}
	return false
}

// usageArgs makes what a check of arguments finds a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{err}
		}
		return nil
	}
}

// oneName checks that there is one argument, the name of a lock.
func oneName(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usagef("give the name of a lock: lokt %s NAME", cmd.Name())
	case len(args) > 1:
		return usagef("one name is enough, and there are %d: %s", len(args), strings.Join(args, " "))
	}
	return nil
}

// finish reports how a command ended and returns the exit code for it.
func (a *app) finish(err error) int {
	var e *silentError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	}
	return a.report(err)
}
