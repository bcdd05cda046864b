package wait

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
)

// Commands returns the command of this package.
func Commands() []app.Command { return []app.Command{{Name: "wait", Build: newWait}} }

func newWait(a *app.App) *cobra.Command {
	var ticket string
	var one bool
	var timeout time.Duration
	cmd := app.Describe("wait", &cobra.Command{ValidArgsFunction: a.CompleteNames})
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		others := one || cmd.Flags().Changed("timeout")
		switch {
		case ticket != "" && (len(args) > 0 || others):
			return app.Usagef("--ticket goes on with a command as it was begun: it goes with nothing else")
		case ticket != "":
			return goOn(a, ticket)
		case len(args) == 0:
			return app.Usagef("give the name of a lock: lokt wait NAME, or a ticket: lokt wait --ticket T")
		case timeout < 0:
			return app.Usagef("--timeout %v is negative", timeout)
		}
		b, err := a.Open(args...)
		if err != nil {
			return err
		}
		return until(a, b, args, one, timeout)
	}
	cmd.Flags().StringVar(&ticket, "ticket", "", "go on with the command that gave this `TICKET`, in the same place")
	cmd.Flags().BoolVar(&one, "any", false, "until one of the locks is free, and print its name; without, until all of them are")
	cmd.Flags().DurationVar(&timeout, "timeout", defaultTimeout, "give up after this long; 0 never does")
	return cmd
}

// goOn makes this process the command of the ticket.
func goOn(a *app.App, id string) error {
	t, err := read(id)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err = cmp.Or(err, t.enter(), os.Setenv(TicketVar, id)); err != nil {
		return err
	}
	if a.JSON && !slices.Contains(t.Args, "--json") {
		t.Args = append([]string{"--json"}, t.Args...)
	}
	return a.ReplaceBy(self, t.Args)
}

// until waits until one of the locks, or all of them at a time, could be had by who asks, alone. It takes none. Once it has had an answer,
// it rides out as long without a server as a claim that waits.
func until(a *app.App, b *app.Backend, names []string, one bool, timeout time.Duration) error {
	signals := guard.Notify()
	defer signals.Stop()
	ctx, stop := signals.Context(context.Background())
	defer stop()
	if timeout > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeoutCause(ctx, timeout, errors.New("no answer within "+app.Short(timeout)))
		defer end()
	}
	// taken and answered are of the last answer; silent is a server that has not answered since, though it had the time.
	for taken, answered, silent := names, (time.Time{}), true; ; {
		var free, busy []string
		var seen []lokt.Snapshot
		var away error
		for _, name := range names {
			s, err := b.Get(ctx, name)
			if away = err; err != nil {
				break
			}
			seen = append(seen, s)
			if s.WouldGrant(lokt.Claim{Name: name, LeaseID: lokt.NewLeaseID(), Owner: a.Asker(), Strict: true}) == nil {
				free = append(free, name)
			} else {
				busy = append(busy, name)
			}
		}
		var signal *guard.SignalError
		switch {
		case errors.As(context.Cause(ctx), &signal):
			return app.Exit(signal.Code())
		case ctx.Err() == nil && errors.Is(away, lokt.ErrUnavailable) && time.Since(answered) < lokt.QueueTTL:
			silent = true
			app.Pause(ctx, time.Second)
			continue
		case away != nil && (ctx.Err() == nil || silent && errors.Is(away, lokt.ErrUnavailable)):
			return away
		case ctx.Err() != nil: // and what was read is nothing
			return errors.Join(a.Answer(told{"blocked", taken}, "gave up after %s: not free: %s", app.Short(timeout), strings.Join(taken, " ")), app.Exit(app.ExitBlocked))
		case len(busy) == 0 || one && len(free) > 0:
			return a.Answer(told{"free", free}, "%s", strings.Join(free, "\n"))
		}
		taken, answered, silent = busy, time.Now(), false
		change(ctx, b, seen)
	}
}

// told is how it is told to programs which locks are free, or not.
type told struct {
	Status string   `json:"status"` // free or blocked
	Names  []string `json:"names"`
}

// change returns when one of the locks may have changed, or its time has come.
func change(ctx context.Context, b *app.Backend, seen []lokt.Snapshot) {
	ctx, stop := context.WithTimeout(ctx, lokt.WaitRefresh) // what no store tells, such as death, is looked for now and then
	defer stop()
	done := make(chan error, len(seen))
	for _, s := range seen {
		go func() {
			long := lokt.WaitRefresh
			if next := s.NextChange(); !next.IsZero() {
				long = next.Sub(s.Now) + time.Millisecond
			}
			ctx, stop := context.WithTimeout(ctx, long)
			defer stop()
			done <- b.Wait(ctx, lokt.Watch{Name: s.Lock.Name, Seen: s.Lock.Revision})
		}()
	}
	if err := <-done; err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
		app.Pause(ctx, time.Second) // the store may come back
	}
}
