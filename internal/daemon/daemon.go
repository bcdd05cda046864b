// Package daemon is loktd: it reads the configuration, opens the stores, serves the API over them, and ends in order.
//
// It promises that what was answered with success is in the store, that it serves nobody who did not prove who they are
// where that is asked for, and that it ends within Config.Shutdown, and a little, of a signal. Its logs and metrics show
// no token and no lease ID.
package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 64 // EX_USAGE of sysexits.h
)

// version is set by the linker when a release is built.
var version = ""

// Version returns the version of this build, "dev" if it is not known.
func Version() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "dev"
}

// Streams are what the program reads and writes.
type Streams struct {
	Out, Err io.Writer
	Environ  []string
}

// System returns the streams of this process.
func System() Streams { return Streams{Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()} }

func (s Streams) getenv(name string) string {
	for _, e := range slices.Backward(s.Environ) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// command is a subcommand.
type command struct {
	name  string
	args  string
	help  string
	flags func(*flag.FlagSet) any // what it binds is given to run; may be nil
	run   func(ctx context.Context, s Streams, c *Config, args []string, bound any) error
}

func commands() []command {
	return []command{
		{"serve", "", "serve requests until a signal ends it; the default", nil, runServe},
		{"check", "", "check the configuration, and the files that it names, without serving", nil, runCheck},
		{"backup", "PATH", "write a copy of the store to a new file, while the daemon at --listen runs or without one", nil, runBackup},
		{"repair", "FILE", "take what is damaged out of the journals of --store, which no daemon may use, and put it into a new file", nil, runRepair},
		{"health", "", "ask the daemon at --listen whether it is ready", nil, runHealth},
		{"token", "create NAME | list | revoke NAME", "manage the file of bearer tokens", tokenFlags, runToken},
		{"version", "", "show the version", nil, runVersion},
	}
}

// Main runs the program and returns its exit code.
func Main(args []string, s Streams) int {
	name := "serve"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	} else if len(args) > 0 && args[0] == "--version" {
		name, args = "version", args[1:]
	}
	if name == "help" {
		help(s.Out)
		return exitOK
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if i < 0 {
		return fail(s, usagef("%q is no command: see loktd --help", name))
	}
	cmd := all[i]
	var bound any
	c, rest, unknown, err := parse(args, s.Environ, func(fs *flag.FlagSet) {
		if cmd.flags != nil {
			bound = cmd.flags(fs)
		}
	})
	if errors.Is(err, flag.ErrHelp) {
		help(s.Out)
		return exitOK
	}
	if err == nil && len(rest) > 0 && cmd.args == "" {
		err = usagef("loktd %s takes no arguments, and there is %q", cmd.name, rest[0])
	}
	if err != nil {
		return fail(s, err)
	}
	for _, name := range unknown {
		fmt.Fprintf(s.Err, "loktd: warning: %s is set and means nothing to this version; see loktd --help\n", name)
	}
	if err := cmd.run(context.Background(), s, c, rest, bound); err != nil {
		return fail(s, err)
	}
	return exitOK
}

// fail reports an error and returns the exit code for it.
func fail(s Streams, err error) int {
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(s.Err, "loktd: %s\n", strings.TrimRight(line, "\n"))
	}
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

// help writes what can be said on the command line.
func help(w io.Writer) {
	fmt.Fprint(w, "loktd keeps locks and jobs for many hosts, and serves them over HTTP.\n\nUsage:\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  loktd %s\n        %s\n", strings.TrimRight(c.name+" "+c.args, " "), c.help)
	}
	fmt.Fprint(w, "\nSettings, each a flag or an environment variable; the flag wins:\n")
	for _, s := range settings() {
		fmt.Fprintf(w, "  %s  %s\n", strings.TrimRight("--"+s.name+" "+s.what, " "), s.env())
		fmt.Fprintf(w, "        %s", s.help)
		if s.normal != "" {
			fmt.Fprintf(w, " (default %s)", s.normal)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "\nFlags of loktd token create:\n")
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	tokenFlags(fs)
	fs.VisitAll(func(f *flag.Flag) {
		fmt.Fprintf(w, "  --%s\n        %s", f.Name, f.Usage)
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(w, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(w)
	})
	fmt.Fprint(w, "\nExit codes: 0 in order, 1 failed, 2 ended by a defect of loktd, 64 called wrongly.\n")
}

func runServe(ctx context.Context, s Streams, c *Config, _ []string, _ any) error {
	if err := c.validate(); err != nil {
		return &usageError{err}
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ignoreFailures()
	started, restore := CollectLess(s.getenv("GOGC"))
	defer restore()
	log := c.logger(s.Err)
	return serve(ctx, c, log, newNotifier(s.getenv, os.Getpid()), signals, func(url string) {
		fmt.Fprintf(s.Out, "loktd %s listening on %s\n", Version(), url)
		started()
	})
}

func runVersion(_ context.Context, s Streams, _ *Config, _ []string, _ any) error {
	fmt.Fprintf(s.Out, "loktd %s (%s, %s/%s)\n", Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}
