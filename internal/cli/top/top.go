// Package top shows locks, jobs and workers in a terminal while they change. It is linked into a program of its own, which
// lokt runs: a guard need not wait for a library that draws screens.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
)

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{{Name: "top", Build: newTop, Place: app.Anywhere}}
}

// Main runs the command line of this process and returns its exit code.
func Main(args []string) int { return app.MainOf(Commands()[0], args[1:]) }

// Tree returns the command, for documentation.
func Tree() *cobra.Command { return app.New(Commands(), app.System()).Tree(nil) }

// options are the flags.
type options struct {
	plain              bool
	view, filter, sort string
}

func newTop(a *app.App) *cobra.Command {
	var o options
	cmd := app.Plain("top", func(cmd *cobra.Command) error { return run(cmd.Context(), a, o) })
	fs := cmd.Flags()
	fs.BoolVar(&o.plain, "plain", false, "write a line for each change instead of drawing a screen")
	fs.StringVar(&o.view, "view", locksView, "what is shown first: locks, jobs or workers")
	fs.StringVar(&o.filter, "filter", "", "only rows with this text")
	fs.StringVar(&o.sort, "sort", "", "`COLUMN` to sort by; what needs attention comes first otherwise")
	// The error is for a flag that there is not.
	_ = cmd.RegisterFlagCompletionFunc("view", cobra.FixedCompletions(views(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// run shows what there is until it is told to end.
func run(ctx context.Context, a *app.App, o options) error {
	if !slices.Contains(views(), o.view) {
		return app.Usagef("--view is locks, jobs or workers, not %q", o.view)
	}
	column := slices.IndexFunc(columns(o.view), func(c string) bool { return strings.EqualFold(c, o.sort) })
	if o.sort != "" && column < 0 {
		return app.Usagef("--sort is a column of the %s, not %q: %s", o.view, o.sort, strings.ToLower(strings.Join(columns(o.view), ", ")))
	}
	b, err := a.Backend()
	if err != nil {
		return err
	}
	s := &source{App: a, b: b}
	if b.Far != nil {
		s.jobs = b.Far.Jobs()
	}
	if s.jobs == nil && o.view != locksView {
		return app.Hint(errors.New("jobs are kept by a server"), "say which with LOKT_SERVER or --server")
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if terminal := a.Getenv("TERM"); o.plain || a.JSON || terminal == "" || terminal == "dumb" || !app.IsTerminal(a.Out) {
		return s.follow(ctx, o)
	}
	return show(ctx, newModel(s, b.Where(), o, column), a.Out)
}

// show draws the model on the terminal until it or a signal ends it. Whatever does, the terminal is as it was then.
func show(ctx context.Context, m model, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m.ctx = ctx
	p := tea.NewProgram(m, tea.WithOutput(out), tea.WithoutSignalHandler())
	by, done := ending(p.Kill)
	go stopping(p)
	_, err := p.Run()
	done()
	switch s := by.Load(); {
	case s != nil:
		return app.Exit(128 + int(*s))
	case errors.Is(err, tea.ErrProgramPanic):
		return fmt.Errorf("internal error: %w", err)
	case errors.Is(err, tea.ErrProgramKilled):
		return fmt.Errorf("the terminal: %w", err)
	}
	return err
}

// ending calls end when a signal asks this process to end, and says which it was. Done stops that.
func ending(end func()) (by *atomic.Pointer[syscall.Signal], done func()) {
	by = new(atomic.Pointer[syscall.Signal])
	got := make(chan os.Signal, 1)
	signal.Notify(got, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	over := make(chan struct{})
	go func() {
		select {
		case s := <-got:
			number, _ := s.(syscall.Signal)
			by.Store(&number)
			end()
		case <-over:
		}
	}()
	return by, func() {
		signal.Stop(got)
		close(over)
	}
}

// follow writes a line for each row that is new or has changed, until a signal ends it or nobody reads.
func (s *source) follow(ctx context.Context, o options) error {
	ctx, stop := app.WhileRead(ctx, s.Out)
	defer stop()
	by, done := ending(stop)
	defer done()
	ended := make(chan error, 1)
	go func() { ended <- s.write(ctx, o) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case <-ended: //nolint:errcheck // it was told to end
	case <-time.After(lookEvery): // a line that nobody takes is not waited for
	}
	if n := by.Load(); n != nil && *n != syscall.SIGINT {
		return app.Exit(128 + int(*n))
	}
	return nil
}

// write writes the lines until ctx ends.
func (s *source) write(ctx context.Context, o options) error {
	before, failing := map[string]row{}, ""
	for first := true; ; first = false {
		began := time.Now()
		shot := s.look(ctx, o.view, "")
		switch {
		case ctx.Err() != nil:
			return nil
		case shot.err != nil && first:
			return shot.err
		case shot.err != nil:
			if failing != shot.err.Error() {
				failing = shot.err.Error()
				s.Tell("warning: %v; trying again", shot.err)
			}
		default:
			now := map[string]row{}
			for _, r := range matching(shot.rows, o.filter) {
				if now[r.key] = r; before[r.key].text != r.text {
					if err := s.line(o.view, r); err != nil {
						return err
					}
				}
				delete(before, r.key)
			}
			for _, key := range slices.Sorted(maps.Keys(before)) {
				if gone := before[key].gone; gone != nil {
					if err := s.line(o.view, *gone); err != nil {
						return err
					}
				}
			}
			before, failing = now, ""
		}
		if !app.Pause(ctx, pause(began)) {
			return nil
		}
	}
}

// line writes what a row has become.
func (s *source) line(view string, r row) error {
	now := time.Now()
	if s.JSON {
		return s.Print(map[string]any{"time": now.UTC(), strings.TrimSuffix(view, "s"): r.value})
	}
	return s.Write(now.Format(time.TimeOnly) + " " + app.OneLine(cut(r.text)) + "\n")
}

// How often to look: every lookEvery, unless looking takes long, which it may do for one part in lookShare of the time.
const (
	lookEvery = 400 * time.Millisecond
	lookShare = 10
)

// pause returns for how long to wait after a look that began then.
func pause(began time.Time) time.Duration { return max(lookEvery, lookShare*time.Since(began)) }
