// Package app is what all commands of lokt share: where the locks are, in files or on a server, how a command line is run,
// errors and exit codes, and words for people.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/identity"
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

// Command builds one command of the tree. Only the one that is called is built: building all of them costs more than a
// command takes.
type Command struct {
	Name    string
	Build   func(*App) *cobra.Command
	Place   Place
	Program string // that carries the command out, which is found as those of git are; empty for this one
}

// On returns what builds a command of a package whose commands are methods of a type C of its own, which has an App and nothing else.
func On[C ~struct{ *App }](build func(C) *cobra.Command) func(*App) *cobra.Command {
	return func(a *App) *cobra.Command { return build(C{a}) }
}

func (c Command) build(a *App) *cobra.Command {
	if c.Program == "" {
		return c.Build(a)
	}
	cmd := Describe(c.Name, &cobra.Command{
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { // flags came first
			return a.HandOver(c.Program, append([]string{c.Name}, args...))
		},
	})
	cmd.Long += "\n\nIt is a command of the program " + c.Program + ", which tells its flags: lokt " + c.Name + " --help."
	return cmd
}

// Place says where a command finds what it is about.
type Place int

// Places.
const (
	Anywhere Place = iota // on a server if one is named, in files otherwise
	Nowhere               // it is about neither
	OnServer              // on a server only
)

// App is what the commands share.
type App struct {
	Streams
	all         []Command
	RootFlag    string
	ServerFlag  string
	ServerGiven bool // --server stands on the command line, even if empty
	JSON        bool
	JSONErrors  bool     // --json stands on a command line that may not parse
	Words       []string // the command line, without the program's name
	Help        string   // the command line that tells of the command that runs; empty for lokt help
	Opened      *Backend
	unsaid      error // why the first thing that could not be said was not
	client      *httpapi.Client
}

// Asker returns who runs this command, for commands that only look or end things.
func (a *App) Asker() lokt.Owner { return a.Who().Owner }

// Who returns who runs this command, and how that was found out.
func (a *App) Who() identity.Who { return identity.Of(a.Getenv, a.Notes, len(a.ServerURLs()) > 0) }

// Notes returns the directory in which hooks note the sessions of agents for the commands that those start; empty if there is none.
func (a *App) Notes() string {
	root, err := a.FindRoot()
	if err != nil {
		return ""
	}
	return filepath.Join(root.Path, "agents")
}

// Claimant returns who runs this command, with a kernel lock in the store that lasts as long as the process does.
func (a *App) Claimant(b *Backend) (o lokt.Owner, err error) {
	o = a.Asker()
	if b.Store != nil { // which alone sees processes: elsewhere a hold ends in time, or by a word
		o.Process, err = b.Store.Self()
	}
	return o, err
}

// Print writes v as one line of JSON to standard output.
func (a *App) Print(v any) error {
	line, err := lokt.Marshal(v)
	if err != nil {
		return fmt.Errorf("JSON: %w", err)
	}
	return a.Write(string(line) + "\n")
}

// Answer says how a command ended: in JSON if that was asked for, in a line for people otherwise.
func (a *App) Answer(v any, format string, args ...any) error {
	if a.JSON {
		return a.Print(v)
	}
	return a.Write(Printable(fmt.Sprintf(format, args...)) + "\n")
}

// Granted is Answer for a hold. One that was new and could not be told of is given back: nobody knows that it is there.
func (a *App) Granted(b *Backend, h lokt.Holder, v any, format string, args ...any) error {
	signal.Ignore(syscall.SIGPIPE) // the write fails then
	err := a.Answer(v, format, args...)
	if err == nil || h.Renewals > 0 {
		return err
	}
	if _, held := b.Release(context.Background(), lokt.Target{Name: h.Name, LeaseID: h.LeaseID, Owner: h.Owner}); held != nil {
		return Hint(errors.Join(err, held), "it may be held: %s", a.CommandLine("unlock", h.Name))
	}
	return Hint(err, "what was granted has been given back")
}

// Say writes a line to standard output. The command fails in the end if that cannot be done.
func (a *App) Say(format string, args ...any) {
	a.unsaid = cmp.Or(a.unsaid, a.Write(Printable(fmt.Sprintf(format, args...))+"\n"))
}

// minTTL is the shortest TTL of the command line: older programs count in seconds.
const minTTL = time.Second

// TTL returns the TTL to use for the one that was given, raised if it is too short to be told to older programs.
func (a *App) TTL(d time.Duration) (time.Duration, error) {
	switch {
	case d < 0:
		return 0, Usagef("--ttl %v is negative", d)
	case d > 0 && d < minTTL:
		a.Tell("warning: --ttl %v is too short: using %v", d, minTTL)
		return minTTL, nil
	}
	return d, nil
}

// completionTime is how long a shell may have to wait for names.
const completionTime = 2 * time.Second

// CompleteNames offers the names of the locks on record.
func (a *App) CompleteNames(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	b, err := a.Backend()
	if err != nil || lokt.ValidatePrefix(prefix) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	ctx, stop := context.WithTimeout(context.Background(), completionTime)
	defer stop()
	for s, err := range b.List(ctx, lokt.Filter{Prefix: prefix}) {
		if err == nil {
			names = append(names, s.Lock.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// NoArgs checks that there are no arguments: what stands there may have been meant as a flag's value.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("%s takes flags alone, and there is %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// Plain builds a command that takes flags alone.
func Plain(command string, run func(*cobra.Command) error) *cobra.Command {
	return Describe(command, &cobra.Command{Args: NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd) }})
}

// Named builds a command about the lock that its only argument names, in the place where the locks are. Flags are for
// PreRunE to check, before that is opened.
func (a *App) Named(command string, run func(cmd *cobra.Command, b *Backend, name string) error) *cobra.Command {
	return Describe(command, &cobra.Command{
		Args: OneName, ValidArgsFunction: a.CompleteNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.Open(args[0])
			if err != nil {
				return err
			}
			return a.Repairable(run(cmd, b, args[0]), args[0])
		},
	})
}

// NotEmpty refuses each of the flags that is given without a value, as by a variable of a script that is not set.
func NotEmpty(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flag(name); f.Changed && f.Value.String() == "" {
			return Usagef("--%s is empty", name)
		}
	}
	return nil
}

// OneName checks that there is one argument, the name of a lock.
func OneName(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return Usagef("give the name of a lock: lokt %s NAME", cmd.Name())
	case len(args) > 1:
		return Usagef("one name is enough, and there are %d: %s", len(args), strings.Join(args, " "))
	}
	return ValidNames(args...)
}

// Pause waits, and reports whether ctx has not ended meanwhile.
func Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Agent reports whether a program asks that goes by what lokt prime says, as far as can be told.
func (a *App) Agent() bool { return a.Getenv("LOKT_AGENT_ID") != "" && a.Getenv("LOKT_OWNER") == "" }

// ValidNames checks the names of locks before any file is touched.
func ValidNames(names ...string) error {
	for _, name := range names {
		if err := lokt.ValidateName(name); err != nil {
			return Usage(err)
		}
	}
	return nil
}
