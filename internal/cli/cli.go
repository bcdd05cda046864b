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
	place place
}

// place says where a command finds what it is about.
type place int

const (
	anywhere place = iota // on a server if one is named, in files otherwise
	nowhere               // it is about neither
	onServer              // on a server only
)

func commands() []command {
	return []command{
		{name: "guard", build: newGuard},
		{name: "lock", build: newLock},
		{name: "unlock", build: newUnlock},
		{name: "status", build: newStatus},
		{name: "exists", build: newExists},
		{name: "why", build: newWhy},
		{name: "freeze", build: newFreeze},
		{name: "unfreeze", build: newUnfreeze},
		{name: "audit", build: newAudit},
		{name: "metrics", build: newMetrics},
		{name: "doctor", build: newDoctor},
		{name: "prime", build: newPrime},
		{name: "worker", build: newWorker, place: onServer},
		{name: "job", build: newJob, place: onServer},
		{name: "demo", build: newDemo, place: nowhere},
		{name: "version", build: newVersion, place: nowhere},
		{name: "completion", build: newCompletion, place: nowhere},
		{name: cmdProveWorker, build: newProveWorker, place: nowhere},
		{name: cmdDemoWorker, build: newDemoWorker, place: nowhere},
		{name: cmdRunJob, build: newRunJob, place: nowhere},
	}
}

// Main runs the command line and returns its exit code.
func Main(args []string, s Streams) int { return run(args, s, dial) }

func run(args []string, s Streams, dial func(Server) (Remote, error)) (code int) {
	a := &app{Streams: s, dial: dial, jsonErrors: wantsJSON(args), words: args}
	defer func() {
		if r := recover(); r != nil { // an uncaught panic would exit 2, which scripts read as "held"
			fmt.Fprintf(s.Err, "lokt: internal error: %v\n%s", r, debug.Stack())
			code = exitError
		}
	}()
	if len(args) > 0 && args[0] == "--version" {
		args = append([]string{"version"}, args[1:]...)
	}
	defer func() {
		if a.dialled != nil {
			_ = a.dialled.Close() // all that was asked has been answered
		}
	}()
	if path := further(args); path != "" {
		return a.finish(a.replaceBy(path, args[1:]))
	}
	cmd := a.rootCommand(args)
	cmd.SetArgs(args)
	run, err := cmd.ExecuteC()
	if run.HasParent() && run.Name() != "help" {
		a.help = run.CommandPath() + " --help"
	}
	return a.finish(err)
}

// rootCommand returns the command tree: with one branch if args call for one, whole otherwise.
func (a *app) rootCommand(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "lokt",
		Short: "Locks and leases for people and programs that share things",
		Long: "lokt lets one process at a time touch what only one may touch. Locks live in files: of the repository,\n" +
			"of the directory, or wherever LOKT_ROOT says. No daemon is needed. For several hosts, a server keeps them,\n" +
			"which LOKT_SERVER names: see loktd.\n\n" +
			"lokt NAME runs the program lokt-NAME, beside lokt or on the path, if there is no such command.",
		Example: "  lokt guard build --ttl 5m -- make build",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(cmd, args[0])
			}
			return nil
		},
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetHelpCommand(newHelp())
	a.setHelp(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if word := firstWord(args); cmd == root && word != "" { // its flags are beside the point
			return unknown(cmd, word)
		}
		return &usageError{plainFlagError(err)}
	})
	root.PersistentFlags().StringVar(&a.rootFlag, "root", "", "directory of the locks (default: $LOKT_ROOT, .git/lokt or .lokt)")
	root.PersistentFlags().Func("server", "`URL` of the server that keeps the locks; an empty one means files (default: $LOKT_SERVER)", func(url string) error {
		a.serverFlag, a.serverGiven = url, true
		return nil
	})
	root.PersistentFlags().BoolVar(&a.json, "json", false, "write JSON to standard output")
	all := commands()
	if len(args) > 0 {
		if i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] }); i >= 0 {
			all = all[i : i+1]
		}
	}
	for _, c := range all {
		cmd := c.build(a)
		root.AddCommand(cmd)
		if c.place != nowhere {
			cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return a.checkPlace(c.place) }
		}
	}
	return root
}

// plainFlagError says what a flag's value should be, where the error says what a parser of Go stumbled over.
func plainFlagError(err error) error {
	what, why, _ := strings.Cut(err.Error(), " flag: ")
	switch {
	case strings.HasPrefix(why, "time: "):
		return fmt.Errorf("%s: that is no duration: write 90s, 5m or 1h30m", what)
	case strings.HasPrefix(why, "strconv.ParseInt: "):
		return fmt.Errorf("%s: that is no whole number", what)
	}
	return err
}

// firstWord returns the first argument that is neither a flag of all commands nor the value of one; empty if there is none
// or another flag comes first.
func firstWord(args []string) string {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--root" || arg == "--server":
			i++
		case arg == "--":
			return ""
		case !strings.HasPrefix(arg, "-"):
			return arg
		}
	}
	return ""
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

// noArgs checks that there are no arguments: what stands there may have been meant as a flag's value.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes flags alone, and there is %q", cmd.CommandPath(), args[0])
	}
	return nil
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
