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
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/easy"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/store/filestore"
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

func (c Command) build(a *App) *cobra.Command {
	if c.Program == "" {
		return c.Build(a)
	}
	cmd := Describe(c.Name, &cobra.Command{
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return Hint(fmt.Errorf("there is no program %s beside lokt or on the path", c.Program), "install it with lokt: it comes in the same archive")
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
	client      *httpapi.Client
}

// Backend is where the locks are: in files, or on a server.
type Backend struct {
	lokt.Service
	Store *filestore.Store // nil on a server
	Root  RootDir
	Far   *httpapi.Client // nil with files
	URLs  []string
}

// Where says in a word or two where the locks are.
func (b *Backend) Where() string {
	if b.Far != nil {
		return "on " + ShownURLs(b.URLs)
	}
	return "in " + b.Root.Path
}

// FindRoot finds the directory of the locks. The working directory need not be there any more if it does not matter.
func (a *App) FindRoot() (RootDir, error) {
	env := a.Getenv("LOKT_ROOT")
	if given := cmp.Or(a.RootFlag, env); given == MethodUser || given == MethodSystem {
		path, err := easy.Root(given)
		return RootDir{Path: path, Method: given}, err
	}
	if filepath.IsAbs(cmp.Or(a.RootFlag, env)) {
		return findRoot("", a.RootFlag, env), nil
	}
	dir, err := a.Dir()
	if err != nil {
		return RootDir{}, fmt.Errorf("working directory: %w", err)
	}
	r := findRoot(dir, a.RootFlag, env)
	if at := filepath.Dir(r.Path); r.Method == MethodLocal && filepath.Dir(at) == at {
		return r, Hint(fmt.Errorf("the working directory is %s, and locks there would be those of every directory", at), "name a directory for them with LOKT_ROOT or --root")
	}
	return r, nil
}

// Backend opens the locks that the command line, the environment and the working directory name.
func (a *App) Backend() (*Backend, error) {
	if a.Opened != nil {
		return a.Opened, nil
	}
	if urls := a.ServerURLs(); len(urls) > 0 {
		far, err := a.Client()
		if err != nil {
			return nil, err
		}
		a.Opened = &Backend{Service: far, Far: far, URLs: urls}
		return a.Opened, nil
	}
	root, err := a.FindRoot()
	if err != nil {
		return nil, err
	}
	if root.Method == MethodSystem && os.Geteuid() != 0 {
		return nil, Hint(fmt.Errorf("the locks of this host, in %s, are root's", root.Path), "run this as root, or keep your own with --user")
	}
	if root.Warning != "" {
		a.Tell("%s", root.Warning)
	}
	store, err := filestore.Open(root.Path, filestore.Options{Warn: func(err error) { a.Tell("warning: %v", err) }})
	if err != nil {
		return nil, err
	}
	a.Opened = &Backend{Service: lokt.NewManager(store), Store: store, Root: root}
	return a.Opened, nil
}

// Open checks the names of locks, and opens the locks, before any file is touched.
func (a *App) Open(names ...string) (*Backend, error) {
	if err := ValidNames(names...); err != nil {
		return nil, err
	}
	return a.Backend()
}

// Asker returns who runs this command, for commands that only look or end things.
func (a *App) Asker() lokt.Owner {
	o := lokt.Owner{ID: a.Getenv("LOKT_OWNER"), Session: a.Getenv("LOKT_AGENT_ID"), Process: process.Self()}
	o.Host, _ = os.Hostname()
	o.AnySession = o.ID != ""
	if o.ID == "" {
		o.ID = process.UserName()
	}
	if o.Session == "" {
		o.Session = process.Session()
		if process.BootID() == "" && len(a.ServerURLs()) > 0 {
			o.Session += "-" + o.Host // nothing else in it differs between hosts
		}
	}
	return o
}

// Claimant returns who runs this command, with a kernel lock in the store that lasts as long as the process does.
func (a *App) Claimant(b *Backend) (lokt.Owner, error) {
	o := a.Asker()
	if b.Store == nil { // which sees no processes: what is held ends in time, or by a word
		return o, nil
	}
	self, err := b.Store.Self()
	if err != nil {
		return o, err
	}
	o.Process = self
	return o, nil
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
	a.Say(format, args...)
	return nil
}

// Say writes a line to standard output.
func (a *App) Say(format string, args ...any) {
	fmt.Fprintln(a.Out, Printable(fmt.Sprintf(format, args...)))
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

// NotRun reports a command that could not be started.
func (a *App) NotRun(err error) error {
	var e *guard.NotFoundError
	if !errors.As(err, &e) {
		return err
	}
	if a.JSON {
		return errors.Join(a.Print(errorBody("command", e.Error())), Exit(e.Code))
	}
	a.Tell("%v", e)
	return Exit(e.Code)
}

// NoArgs checks that there are no arguments: what stands there may have been meant as a flag's value.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("%s takes flags alone, and there is %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// Named makes a command one about the lock that its only argument names.
func (a *App) Named(cmd *cobra.Command, run func(name string) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = OneName, a.CompleteNames
	cmd.RunE = func(_ *cobra.Command, args []string) error { return run(args[0]) }
	return cmd
}

// OneName checks that there is one argument, the name of a lock.
func OneName(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return Usagef("give the name of a lock: lokt %s NAME", cmd.Name())
	case len(args) > 1:
		return Usagef("one name is enough, and there are %d: %s", len(args), strings.Join(args, " "))
	}
	return nil
}

// Strings returns the texts of a list of names.
func Strings[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, t := range list {
		all[i] = string(t)
	}
	return all
}

// Pause waits, and reports whether ctx has not ended meanwhile.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Seconds rounds a duration up to whole seconds.
func Seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Short rounds a duration for people.
func Short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 100*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// IsTerminal reports whether a person sees what is written to w.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && fi.Name() != "null"
}

// UTC returns a time for JSON: in UTC, and zero if it is out of what JSON can tell.
func UTC(t time.Time) time.Time {
	if t = t.UTC(); t.IsZero() || t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}

// Age returns the whole seconds since a time.
func Age(now, since time.Time) int64 {
	if since.IsZero() {
		return 0
	}
	return int64(max(now.Sub(since), 0) / time.Second)
}

// Remaining returns the seconds until a deadline, rounded up, 0 once it is over, or nil if there is none.
func Remaining(now, deadline time.Time) *int64 {
	if deadline.IsZero() {
		return nil
	}
	left := Seconds(max(deadline.Sub(now), 0))
	return &left
}

// Shown returns what a lease ID is shown as.
func (b *Backend) Shown(leaseID string) string {
	if b.Far == nil {
		return leaseID
	}
	return httpapi.Shown(leaseID)
}

// OneLine replaces what could confuse a terminal, or a reader of lines.
func OneLine(s string) string {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] >= 0x7f {
			return strings.Map(func(r rune) rune {
				if r == '\n' || r == '\t' {
					return ' '
				}
				return r
			}, Printable(s))
		}
	}
	return s
}

// Table returns rows as a table for people.
func Table(rows [][]string) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = cmp.Or(OneLine(cell), "-")
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a builder takes everything
	return out.String()
}

// Table writes rows as a table to standard output.
func (a *App) Table(rows [][]string) error { return a.Write(Table(rows)) }

// Write writes text to standard output as it is.
func (a *App) Write(text string) error {
	if _, err := io.WriteString(a.Out, text); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// Agent reports whether a program asks that goes by what lokt prime says, as far as can be told.
func (a *App) Agent() bool { return a.Getenv("LOKT_AGENT_ID") != "" && a.Getenv("LOKT_OWNER") == "" }

// MakeRoot makes the directory of the locks if it is not there yet, and says so if it is one that other directories do
// not share.
func (a *App) MakeRoot(b *Backend) {
	if b.Store != nil && b.Root.Method == MethodLocal && os.Mkdir(b.Root.Path, 0o700) == nil {
		a.Tell("made %s: locks of this directory and of those below it; --user keeps one place for all, LOKT_ROOT names another", b.Root.Path)
	}
}

// ValidNames checks the names of locks before any file is touched.
func ValidNames(names ...string) error {
	for _, name := range names {
		if err := lokt.ValidateName(name); err != nil {
			return Usage(err)
		}
	}
	return nil
}

// Record appends an event of this process to the audit log.
func (b *Backend) Record(e lokt.Event) error {
	if b.Store == nil {
		return nil
	}
	return audit.Open(b.Store.Root(), audit.Options{}).Append(audit.Encode([]lokt.Event{e}))
}

// LiveFile returns the descriptor whose inheritance makes a command's life count as the guard's.
func (b *Backend) LiveFile() *os.File {
	if b.Store == nil {
		return nil
	}
	return b.Store.LiveFile()
}
