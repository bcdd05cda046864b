package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/lokt-dev/lokt"
)

// ticket is with what a claim outlives who waits for it: its lease, and the number of the process that asks; 0 for none.
type ticket struct {
	lease  string
	number int
}

// ticketKey finds, in a context, the ticket of a request.
type ticketKey struct{}

// withTicket gives some of the actions that wait a ticket, and has them give up.
func withTicket(r *rand.Rand, a action) action {
	if r.IntN(3) == 0 && a.o.Wait > 0 && len(a.names) == 1 {
		a.ticket = ticket{fmt.Sprintf("%032x", 1<<40+int64(a.id)), 1}
		a.gives = randomly(r, time.Millisecond, 20*time.Second)
	}
	return a
}

// ticketed is a service whose claims and releases have the ticket with which the client is at work.
type ticketed struct {
	lokt.Service
	c *client
}

// Acquire implements lokt.Service.
func (s ticketed) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	if t := s.c.ticket; t.number > 0 {
		c.LeaseID, c.Ticket, ctx = t.lease, t.number, context.WithValue(ctx, ticketKey{}, t)
	}
	return s.Service.Acquire(ctx, c)
}

// Renew implements lokt.Service.
func (s ticketed) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	h, err := s.Service.Renew(ctx, r)
	if s.c.w.mu.Lock(); err == nil {
		s.c.heard = grant{r.LeaseID, h.Token}
	}
	s.c.w.mu.Unlock()
	return h, err
}

// Release implements lokt.Service.
func (s ticketed) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	if s.c.ticket.lease == t.LeaseID {
		t.Ticket, ctx = s.c.ticket.number, context.WithValue(ctx, ticketKey{}, s.c.ticket)
	}
	return s.Service.Release(ctx, t)
}

// goOn has another process go on with the action's ticket when this one gives up, while its requests are under way, or is dead. It
// returns what says whether this one has had its answer before.
func (w *world) goOn(ctx context.Context, c *client, a action) (answered func() bool) {
	if c.ticket = a.ticket; a.ticket.number == 0 {
		return func() bool { return true }
	}
	a.ticket.number++
	a.gives *= 4 // or none would ever have the time
	c.todo = append([]action{a}, c.todo...)
	return context.AfterFunc(ctx, func() {
		if c.pass(c.ctx, pointWork, "leaves its ticket to another process") == fine {
			c.asks = nil
			w.count(ticketGoesOn)
			w.revive(c)
		}
	})
}

// checkTicket looks whether what an earlier process has sent changes what is on record for a later one of its ticket.
func (w *world) checkTicket(ctx context.Context, before lokt.Snapshot, after *lokt.Lock) {
	by, _ := ctx.Value(ticketKey{}).(ticket)
	was, held := before.Lock.Holder(by.lease)
	is, holds := after.Holder(by.lease)
	at, queued := before.Lock.Position(by.lease)
	var same bool
	if _, stale := before.Stale(was); held && was.Ticket > by.number && !stale {
		is.Yield = was.Yield
		same = reflect.DeepEqual(was, is)
	} else if queued && before.Lock.Queue[at].Ticket > by.number && !before.Now.After(before.Lock.Queue[at].Until) {
		q := before.Lock.Queue[at]
		i, waits := after.Position(by.lease)
		same = holds && is.Ticket == q.Ticket || waits && reflect.DeepEqual(q, after.Queue[i])
	} else {
		return
	}
	if w.count(ticketIsLate); !same {
		w.broke("tickets", "lock %s: process %d of a ticket comes late, and changes what a later one has", after.Name, by.number)
	}
}
