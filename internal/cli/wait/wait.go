// Package wait has what waits for locks: for how long, what is said meanwhile, and the ticket with which another command goes on
// in the same place.
package wait

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/identity"
	"github.com/lokt-dev/lokt/internal/rows"
)

// Times of waiting.
const (
	defaultTimeout = 10 * time.Minute
	noteEvery      = 30 * time.Second // how often a claim that waits says what it waits for
	historyTime    = 2 * time.Second  // how long looking for earlier holds may take
	historyHolds   = 40               // how many of them count
)

// Flags say whether and for how long a command waits for locks, and carry its ticket.
type Flags struct {
	Wait    bool
	Timeout time.Duration // 0 is without end

	ticket string // with which to go on, if the wait has ended without a grant
}

// Bind adds the flags to a command, which waits until something is so.
func (f *Flags) Bind(cmd *cobra.Command, until string) {
	cmd.Flags().BoolVar(&f.Wait, "wait", false, "wait in the queue until "+until)
	cmd.Flags().DurationVar(&f.Timeout, "timeout", defaultTimeout, "with --wait: give up after this long; 0 never does")
}

// Check refuses flags that make no sense.
func (f *Flags) Check(cmd *cobra.Command) error {
	switch {
	case cmd.Flags().Changed("timeout") && !f.Wait:
		return app.Usagef("--timeout says how long to wait: it needs --wait")
	case f.Timeout < 0:
		return app.Usagef("--timeout %v is negative", f.Timeout)
	}
	return nil
}

// Patience returns how long to queue, as claims have it.
func (f *Flags) Patience() time.Duration {
	switch {
	case !f.Wait:
		return 0
	case f.Timeout == 0:
		return -1
	}
	return f.Timeout
}

// Ticket returns the ticket of a wait that has ended without a grant, and the command that goes on with it; empty if there
// is none.
func (f *Flags) Ticket() (id, line string) {
	if f.ticket == "" {
		return "", ""
	}
	return f.ticket, goOnWith + f.ticket
}

// goOnWith is the command that goes on with a ticket, without its ID.
const goOnWith = "lokt wait --ticket "

// Outcome adds to the text on what is in the way of a claim how its wait has ended.
func Outcome(e *lokt.BlockedError, text string) string {
	if e.TimedOut > 0 {
		text = fmt.Sprintf("gave up after %s: %s", app.Short(e.TimedOut), text)
	}
	if e.Unsure {
		text += lokt.UnsureText
	}
	return text
}

// GoOn says how to go on with a ticket, by its command.
func GoOn(line string) string {
	return "go on in the same place within " + app.Short(lokt.TicketTTL) + ": " + line
}

// Service returns a service whose claims, while they wait, say on standard error what for, in the words of text. Those of coding
// agents, whose tools end commands that take long, have a ticket.
func (f *Flags) Service(a *app.App, b *app.Backend, text func(*lokt.BlockedError) string) lokt.Service {
	w := &waiting{Service: b.Service, a: a, b: b, flags: f, text: text}
	if f.Wait && (a.Getenv(TicketVar) != "" || a.Getenv(identity.FromAgent) != "" || identity.Find().Method == identity.Agent) {
		w.ticket, w.err = newTicket(a)
	}
	return w
}

// Acquire claims a lock for a command that ends when it has it. A signal ends the wait, or a request that may take long, and is the
// error. One that comes after the grant is too late: the command is about to say what it has.
func (f *Flags) Acquire(ctx context.Context, a *app.App, b *app.Backend, c lokt.Claim, text func(*lokt.BlockedError) string) (h lokt.Holder, err error) {
	if c.Wait = f.Patience(); c.Wait != 0 || b.Far != nil {
		signals := guard.Notify()
		defer func() {
			if err != nil {
				signals.Stop()
			}
		}()
		var stop func()
		ctx, stop = signals.Context(ctx)
		defer stop()
		if c.Owner, err = a.Claimant(b); err != nil {
			return h, err
		}
	}
	return f.Service(a, b, text).Acquire(ctx, c)
}

// waiting is a service that tells of claims that wait.
type waiting struct {
	lokt.Service
	a       *app.App
	b       *app.Backend
	flags   *Flags
	text    func(*lokt.BlockedError) string
	ticket  *ticket         // nil if it has none
	err     error           // why it cannot go on with the one that it was given
	history []time.Duration // how long the latest holds lasted; nil before it was looked for
}

// Acquire implements lokt.Service.
func (w *waiting) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	if w.ticket != nil {
		c.Ticket = w.ticket.Wait
	}
	switch {
	case w.err != nil:
		return lokt.Holder{}, w.err
	case c.Wait == 0:
		return w.Service.Acquire(ctx, c)
	}
	c.LeaseID = cmp.Or(c.LeaseID, lokt.NewLeaseID())
	if w.ticket != nil {
		w.ticket.claim(&c, w.b.Far)
	}
	stop := w.announce(ctx, c)
	h, err := w.insist(ctx, c)
	stop()
	var blocked *lokt.BlockedError
	timedOut := errors.As(err, &blocked) && blocked.TimedOut > 0 && len(blocked.Cycle) == 0
	switch t, ended := w.ticket, timedOut || err != nil && ctx.Err() != nil; {
	case t == nil:
	case err == nil:
		t.Held[c.Name], t.own = c.LeaseID, append(t.own, c.Name)
		if delete(t.Places, c.Name); len(t.Places) == 0 {
			t.drop()
		}
	case blocked != nil && !ended:
		t.drop()
	default:
		clear(t.Held) // which is given back
		if _, none := os.Stat(t.file); (ended || none == nil) && t.save() {
			w.flags.ticket = filepath.Base(t.file)
		}
	}
	return h, err
}

// insist claims a lock, again and again while files do not say in time that the claim is on record: too many ask at once, or somebody
// was stopped in the midst of it.
func (w *waiting) insist(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	for end, told := time.Now().Add(c.Wait), false; ; told = true {
		h, err := w.Service.Acquire(ctx, c)
		var timeout interface{ Timeout() bool }
		late := w.b.Far == nil && errors.Is(err, lokt.ErrUnavailable) && errors.As(err, &timeout) && timeout.Timeout() && ctx.Err() == nil
		if c.Wait > 0 {
			c.Wait = time.Until(end)
			late = late && c.Wait > 0
		}
		if !late {
			return h, err
		}
		if !told {
			w.a.Tell("warning: %v; trying again", err)
		}
	}
}

// Release implements lokt.Service.
func (w *waiting) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	if w.ticket != nil {
		t.Ticket = w.ticket.Wait
	}
	return w.Service.Release(ctx, t)
}

// announce says on standard error what a claim waits for, at once and again while it does, until stop is called.
func (w *waiting) announce(ctx context.Context, c lokt.Claim) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	next := noteEvery
	if !w.note(ctx, c) {
		next = time.Second // it may have to wait all the same
	}
	var telling sync.WaitGroup
	telling.Go(func() {
		for app.Pause(ctx, next) {
			next = noteEvery
			w.note(ctx, c)
		}
	})
	return func() { cancel(); telling.Wait() }
}

// note says what a claim waits for, and reports whether there is something.
func (w *waiting) note(ctx context.Context, c lokt.Claim) bool {
	s, err := w.Get(ctx, c.Name)
	if _, held := s.Lock.Holder(c.LeaseID); err != nil || held {
		return false
	}
	_, queued := s.Lock.Position(c.LeaseID)
	ahead := 0
	for _, q := range s.Lock.Queue {
		if q.LeaseID == c.LeaseID {
			break
		}
		if (queued || q.Priority >= c.Priority) && !s.Away(q) {
			ahead++
		}
	}
	var blocked *lokt.BlockedError
	if !errors.As(s.WouldGrant(c), &blocked) || ctx.Err() != nil {
		return false
	}
	place := ordinal(ahead + 1)
	if w.b.Far != nil && !queued { // the server has yet to say so
		place = "would be " + place
	}
	text := fmt.Sprintf("waiting, %s in the queue: %s%s", place, w.text(blocked), w.estimate(ctx, s.Now, c, blocked, ahead))
	if t := w.ticket; t != nil {
		if t.again && !queued {
			text = fmt.Sprintf("the place is gone, for nobody asked for it within %s; %s", app.Short(lokt.TicketTTL), text)
		}
		if t.again = false; t.save() {
			text += "; if this command is ended, " + GoOn(goOnWith+filepath.Base(t.file))
		}
	}
	w.a.Tell("%s", text)
	return true
}

// estimate says how long it will take, if the holds last as earlier ones did; nothing if too few are known.
func (w *waiting) estimate(ctx context.Context, now time.Time, c lokt.Claim, e *lokt.BlockedError, ahead int) string {
	if w.history == nil {
		w.history = append([]time.Duration{}, w.earlier(ctx, c.Name)...)
	}
	n := len(w.history)
	if n < 3 || e.Freeze != nil {
		return ""
	}
	median := rows.Typical(w.history)
	text := fmt.Sprintf("; holds of %q last %s, median of %d", c.Name, app.Short(median), n)
	if left := rows.Estimate(now, e.Holders, ahead, c.Limit, median); left > 0 {
		text += ": about " + app.Short(left)
	}
	return text
}

// earlier returns how long the latest holds of a lock lasted.
func (w *waiting) earlier(ctx context.Context, name string) (all []time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, historyTime)
	defer cancel()
	q := lokt.EventQuery{Name: name, Types: []lokt.EventType{lokt.EventRelease}, Limit: historyHolds}
	switch {
	case w.b.Store != nil:
		for e, err := range audit.Open(w.b.Store.Root()).Ends(128<<10).Read(ctx, q) { // the claim waits for it
			if err == nil {
				all = rows.Took(all, fmt.Sprint(e.Extra[lokt.ExtraHeld]))
			}
		}
	case w.b.Far != nil:
		q.Latest = true
		page, _ := w.b.Far.ReadEvents(ctx, q) // a server need not keep events
		for _, e := range page.Events {
			all = rows.Took(all, e.Extra[lokt.ExtraHeld])
		}
	}
	return all
}

func ordinal(n int) string {
	suffix := map[int]string{1: "st", 2: "nd", 3: "rd"}[n%10]
	if suffix == "" || n/10%10 == 1 {
		suffix = "th"
	}
	return strconv.Itoa(n) + suffix
}

// Left tells programs and people of the ticket of a wait that a signal has ended, and returns what ends the program.
func (f *Flags) Left(a *app.App, e *guard.SignalError) error {
	id, line := f.Ticket()
	if id == "" {
		return app.Exit(e.Code())
	}
	a.Tell("%v; %s", e, GoOn(line))
	if !a.JSON {
		return app.Exit(e.Code())
	}
	return errors.Join(a.Print(struct {
		Status string `json:"status"` // "waiting"
		Ticket string `json:"ticket"`
		GoOn   string `json:"go_on"` // the command that goes on
	}{"waiting", id, line}), app.Exit(e.Code()))
}
