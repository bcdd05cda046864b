package sqlstore

import (
	"context"
	"strings"
	"sync"
	"time"
)

// notices are what other processes are to be told of: at once if they were not just told something, and otherwise together with what
// changes within notifyEvery. They are told after the change was stored, in a transaction of their own, because PostgreSQL lets only one
// transaction with a notification commit at a time. They are hints: who waits looks by itself.
type notices struct {
	poke chan struct{}

	mu     sync.Mutex
	names  map[string]struct{} // locks that changed
	events bool                // there are events, maybe of locks that did not change
	turns  bool                // jobs changed
}

const notifyEvery = 5 * time.Millisecond

// locks adds locks that changed.
func (n *notices) locks(names []string, events bool) {
	if len(names) == 0 && !events {
		return
	}
	n.mu.Lock()
	if n.names == nil {
		n.names = map[string]struct{}{}
	}
	for _, name := range names {
		n.names[name] = struct{}{}
	}
	n.events = n.events || events
	n.mu.Unlock()
	n.wake()
}

// turn adds that jobs changed.
func (n *notices) turn() {
	n.mu.Lock()
	n.turns = true
	n.mu.Unlock()
	n.wake()
}

func (n *notices) wake() {
	select {
	case n.poke <- struct{}{}:
	default:
	}
}

// take returns what is to be told, in as many bytes as a notification has, and forgets it.
func (n *notices) take(origin string) (payloads []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.names) > 0 || n.events {
		var b strings.Builder
		b.WriteString(origin)
		for name := range n.names {
			b.WriteString(" " + name)
		}
		if payloads = []string{b.String()}; b.Len() > 7900 {
			payloads[0] = origin + " *"
		}
	}
	if n.turns {
		payloads = append(payloads, origin+" !")
	}
	n.names, n.events, n.turns = nil, false, false
	return payloads
}

// tell notifies the other processes, until the database is closed.
func (d *serverDB) tell(ctx context.Context) {
	for {
		select {
		case <-d.notice.poke:
		case <-ctx.Done():
			return
		}
		payloads := d.notice.take(d.origin)
		if len(payloads) == 0 {
			continue
		}
		_ = d.using(ctx, presenceOp, func(ctx context.Context, c *pgConn) error { return d.notify(ctx, c, payloads) })
		select {
		case <-time.After(notifyEvery):
		case <-ctx.Done():
			return
		}
	}
}

// lastWords tells what is left to tell, when the database is closed.
func (d *serverDB) lastWords() {
	if payloads := d.notice.take(d.origin); len(payloads) > 0 && d.writer != nil && !d.writer.IsClosed() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = d.notify(ctx, d.writer, payloads)
	}
}

func (d *serverDB) notify(ctx context.Context, c *pgConn, payloads []string) error {
	return c.query(ctx, "SELECT pg_notify(?, p)::text FROM unnest(?::text[]) AS p", []any{d.channel, payloads}, func(*row) error { return nil })
}
