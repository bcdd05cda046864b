package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
)

// New returns what commands share.
func New(all []Command, s Streams) *App { return &App{Streams: s, all: all} }

// Commands returns the commands that are about lokt itself.
func Commands() []Command {
	return []Command{{Name: "version", Build: newVersion, Place: Nowhere}, {Name: "completion", Build: newCompletion, Place: Nowhere}}
}

// Run runs the command line with the given commands and returns its exit code.
func Run(all []Command, args []string, s Streams) (code int) {
	a := New(all, s)
	a.JSONErrors, a.Words = wantsJSON(args), args
	defer func() {
		if r := recover(); r != nil { // an uncaught panic would exit 2, which scripts read as "held"
			fmt.Fprintf(s.Err, "lokt: internal error: %v\n%s", r, debug.Stack())
			code = ExitError
		}
	}()
	if len(args) > 0 && args[0] == "--version" {
		args = append([]string{"version"}, args[1:]...)
	}
	defer func() {
		if a.client != nil {
			_ = a.client.Close() // all that was asked has been answered
		}
	}()
	if path, rest := a.further(args); path != "" {
		return a.Finish(a.ReplaceBy(path, rest))
	}
	cmd := a.Tree(args)
	cmd.SetArgs(args)
	run, err := cmd.ExecuteC()
	if run.HasParent() && run.Name() != "help" {
		a.Help = run.CommandPath() + " --help"
	}
	return a.Finish(cmp.Or(err, a.unsaid))
}

// Tree returns the command tree: with one branch if args call for one, whole otherwise.
func (a *App) Tree(args []string) *cobra.Command {
	root := Describe("lokt", &cobra.Command{
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(cmd, args[0])
			}
			return nil
		},
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	})
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetHelpCommand(newHelp())
	a.setHelp(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if word := firstWord(args); cmd == root && word != "" { // its flags are beside the point
			return unknown(cmd, word)
		}
		return Usage(plainFlagError(err))
	})
	place := func(root string) error {
		if a.RootFlag != "" && a.RootFlag != root {
			return errors.New("locks are in one place: say --root, --user or --system")
		}
		a.RootFlag = root
		return nil
	}
	root.PersistentFlags().Func("root", "`DIRECTORY` of the locks (default: $LOKT_ROOT, .git/lokt or .lokt)", place)
	root.PersistentFlags().BoolFunc("user", "locks of this user, wherever the command runs: as LOKT_ROOT=user", func(string) error { return place(MethodUser) })
	root.PersistentFlags().BoolFunc("system", "locks of this host, which are root's: as LOKT_ROOT=system", func(string) error { return place(MethodSystem) })
	root.PersistentFlags().Func("server", "`URL` of the server that keeps the locks; an empty one means files (default: $LOKT_SERVER)", func(url string) error {
		a.ServerFlag, a.ServerGiven = url, true
		return nil
	})
	root.PersistentFlags().BoolVar(&a.JSON, "json", false, "write JSON to standard output")
	all := a.all
	if len(args) > 0 {
		if i := slices.IndexFunc(all, func(c Command) bool { return c.Name == args[0] }); i >= 0 {
			all = all[i : i+1]
		}
	}
	for _, c := range all {
		cmd := c.build(a)
		root.AddCommand(cmd)
		if c.Place != Nowhere {
			cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return a.CheckPlace(c.Place) }
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
	case strings.HasPrefix(why, "strconv.ParseBool: "):
		text := what + ": it is said or left out, and has no value"
		if given, waits := strings.CutSuffix(what, ` for "--wait"`); waits {
			text += "; to wait for that long: --wait --timeout " + strings.Trim(strings.TrimPrefix(given, "invalid argument "), `"`)
		}
		return errors.New(text)
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

// wantsJSON reports whether the arguments ask for JSON, even if they cannot be parsed.
func wantsJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
}

// further returns the program that carries out, or completes, a command that is none of lokt's own, as git finds those of its
// own: lokt-NAME beside lokt, else in PATH, with its arguments; an empty path if there is none. Some commands share a program.
func (a *App) further(args []string) (path string, rest []string) {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || lokt.ValidateName(args[0]) != nil {
		return "", nil
	}
	command := args[0]
	if len(args) > 2 && strings.HasPrefix(command, cobra.ShellCompRequestCmd) { // of what stands behind a command
		command = args[1]
	}
	name, rest := "lokt-"+command, args[1:]
	switch i := slices.IndexFunc(a.all, func(c Command) bool { return c.Name == command }); {
	case i >= 0 && a.all[i].Program != "":
		name, rest = a.all[i].Program, args
	case i >= 0 || args[0] == "help" || strings.HasPrefix(args[0], "__"):
		return "", nil
	}
	return LookUp(name), rest
}

// Main runs the command line of this process, and returns its exit code.
func Main(all []Command, args []string) int {
	debug.SetTraceback("crash") // what the runtime cannot go on from ends with a signal: its exit code 2 means "held"
	return Run(all, args, System())
}

// MainOf is Main for a program with one command, which lokt names when it runs the program, and others may leave out.
func MainOf(command Command, args []string) int {
	if len(args) == 0 || args[0] != command.Name && !strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		args = append([]string{command.Name}, args...)
	}
	return Main([]Command{command}, args)
}

// Self returns the path of this program, links resolved.
func Self() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// LookUp returns the path of a program beside this one, else in PATH; empty if there is none.
func LookUp(name string) string {
	beside := ""
	if self, err := Self(); err == nil {
		beside = filepath.Join(filepath.Dir(self), name)
	}
	for _, name := range []string{beside, name} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// HandOver makes this process run another program of lokt's.
func (a *App) HandOver(program string, args []string) error {
	if path := LookUp(program); path != "" {
		return a.ReplaceBy(path, args)
	}
	return Hint(fmt.Errorf("there is no program %s beside lokt or on the path", program), "install it with lokt: it comes in the same archive")
}

// ReplaceBy makes this process run another program, or, where that cannot be, runs it and ends with its exit code.
func (a *App) ReplaceBy(path string, args []string) error {
	err := syscall.Exec(path, append([]string{path}, args...), a.Environ())
	if !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%s: %w", path, err)
	}
	c := exec.CommandContext(context.Background(), path, args...)
	c.Stdin, c.Stdout, c.Stderr, c.Env = a.In, a.Out, a.Err, a.Environ()
	err = c.Run()
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return Exit(ended.ExitCode())
	}
	return err
}

// unknown is the error about a command that there is not. It names those that were probably meant.
func unknown(parent *cobra.Command, word string) error {
	if parent.SuggestionsMinimumDistance <= 0 {
		parent.SuggestionsMinimumDistance = 2
	}
	if near := parent.SuggestionsFor(word); len(near) > 0 {
		return Usagef("unknown command %q for %q: did you mean %s?", word, parent.Name(), strings.Join(near, " or "))
	}
	return Usagef("unknown command %q for %q", word, parent.Name())
}
