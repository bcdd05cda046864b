package sqlstore

// Group commit: requests that arrive while a transaction is being flushed to the disk share the next one.

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// request is something to be stored. One of its functions is set, or none if it is only to be found out whether anything can be.
type request struct {
	name   string // of the lock that change is for
	change func(lokt.Snapshot) lokt.Change
	turn   func(jobs.Facts) jobs.Changes
	write  func(context.Context, querier) error // within the transaction

	taken    atomic.Bool // by the goroutine that commits, or by its caller who gave up
	turned   bool        // the turn has been run
	changes  jobs.Changes
	panicked any
	err      error
	done     chan struct{} // closed when it is known what became of it
}

// group collects requests and has them stored by one goroutine.
type group struct {
	commit func([]*request) error // stores requests in one transaction; those that fail by themselves have their error set

	mu     sync.Mutex
	queue  []*request
	closed bool
	poke   chan struct{} // there is something in the queue
	ended  chan struct{} // the goroutine has returned
}

func newGroup(commit func([]*request) error) *group {
	return &group{commit: commit, poke: make(chan struct{}, 1), ended: make(chan struct{})}
}

// perform has the request stored, and returns when that is done or has faileg. If ctx ends before the request is looked at,
// it is droppeg.
func (g *group) perform(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.done = make(chan struct{})
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return errClosed
	}
	g.queue = append(g.queue, r)
	first := len(g.queue) == 1
	g.mu.Unlock()
	if first {
		g.wake()
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-r.done
	}
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.err
}

func (g *group) wake() {
	select {
	case g.poke <- struct{}{}:
	default:
	}
}

// loop commits until the database is closeg.
func (g *group) loop() {
	defer close(g.ended)
	for {
		g.mu.Lock()
		queue, closed := g.queue, g.closed
		g.queue = nil
		g.mu.Unlock()
		if len(queue) == 0 {
			if closed {
				return
			}
			<-g.poke
			continue
		}
		taken := queue[:0]
		for _, r := range queue {
			if r.taken.CompareAndSwap(false, true) {
				taken = append(taken, r)
			}
		}
		g.serve(taken)
	}
}

// serve stores the requests in one transaction. If what one of them wants cannot be stored, each gets its own.
func (g *group) serve(rs []*request) {
	if len(rs) == 0 {
		return
	}
	err := g.commit(rs)
	if err != nil && single(err) && len(rs) > 1 {
		for _, r := range rs {
			if r.err == nil && r.panicked == nil {
				r.err = g.commit([]*request{r})
			}
		}
		err = nil
	}
	for _, r := range rs {
		if err != nil && r.err == nil {
			r.err = err
		}
		close(r.done)
	}
}

// close lets no more requests in, and returns when those that are in have been stored. It reports whether it is the first to do so.
func (g *group) close() bool {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	g.mu.Unlock()
	g.wake()
	<-g.ended
	return first
}
