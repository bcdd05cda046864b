package sqlstore

// Group commit: requests that arrive while a transaction is being flushed to the disk share the next one.

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// request is something to be stored. At most one of its functions is set; none if it is only to be found out whether anything can be.
type request struct {
	name   string // of the lock that change is for
	change func(lokt.Snapshot) lokt.Change
	turn   func(jobs.Facts) jobs.Changes
	write  func(context.Context, querier) error // within the transaction
	fold   bool                                 // the tables are to be complete, before that

	taken    atomic.Bool // by the goroutine that commits, or by its caller who gave up
	turned   bool        // the turn has been run
	changes  jobs.Changes
	panicked any
	settled  bool // it is stored, or failed by itself
	err      error
	done     chan struct{} // closed when it is known what became of it
}

// group collects requests and has those that arrive together stored in one transaction. Who finds nobody storing does it himself:
// passing a request on to another goroutine and waiting for it takes longer than a fast disk does. What has arrived meanwhile is left
// to the group's own goroutine, so that nobody waits for the requests of others after his own.
type group struct {
	commit func([]*request) error // stores requests in one transaction; those that fail by themselves have their error set

	mu     sync.Mutex
	queue  []*request
	busy   bool // somebody commits, or is about to
	passed bool // it is the group's goroutine
	closed bool
	poke   chan struct{} // there is something for the goroutine to look at
	ended  chan struct{} // the goroutine has returned

	left []*request // what a goroutine that a request has ended leaves to the next
}

func newGroup(commit func([]*request) error) *group {
	return &group{commit: commit, poke: make(chan struct{}, 1), ended: make(chan struct{})}
}

// perform has the request stored, and returns when that is done or has failed. If ctx ends before the request is looked at,
// it is dropped.
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
	if !g.busy {
		g.busy = true
		g.mu.Unlock()
		g.alone(r)
		return r.outcome()
	}
	g.queue = append(g.queue, r)
	g.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-r.done
	}
	return r.outcome()
}

// outcome returns what became of a request that is done.
func (r *request) outcome() error {
	switch r.panicked {
	case nil:
		return r.err
	case errEnded:
		runtime.Goexit()
	}
	panic(r.panicked)
}

// alone stores a request that found nobody storing, and passes on what has arrived since, even if the request ends its goroutine.
func (g *group) alone(r *request) {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.passed = len(g.queue) > 0; !g.passed {
			g.busy = false
		}
		if g.passed || g.closed {
			g.wake()
		}
	}()
	r.taken.Store(true)
	g.serve([]*request{r})
}

func (g *group) wake() {
	select {
	case g.poke <- struct{}{}:
	default:
	}
}

// loop commits what is passed on to it, until the database is closed.
func (g *group) loop() {
	over := false
	defer func() {
		if over {
			close(g.ended)
		} else { // a request has ended this goroutine
			go g.loop()
		}
	}()
	left := g.left
	g.left = nil
	g.serve(left)
	for {
		g.mu.Lock()
		for g.passed && len(g.queue) > 0 {
			queue := g.queue
			g.queue = nil
			g.mu.Unlock()
			taken := queue[:0]
			for _, r := range queue {
				if r.taken.CompareAndSwap(false, true) {
					taken = append(taken, r)
				}
			}
			g.serve(taken)
			g.mu.Lock()
		}
		if g.passed {
			g.passed, g.busy = false, false
		}
		over = g.closed && !g.busy
		g.mu.Unlock()
		if over {
			return
		}
		<-g.poke
	}
}

// serve stores the requests in one transaction. If what one of them wants cannot be stored, or there is no room for all of it, each gets its own.
func (g *group) serve(rs []*request) {
	if len(rs) == 0 {
		return
	}
	done := false
	defer func() {
		if done {
			return
		}
		for _, r := range rs {
			if r.settled || r.err != nil || r.panicked != nil {
				close(r.done)
			} else {
				g.left = append(g.left, r)
			}
		}
	}()
	err := g.commit(rs)
	if err != nil && (single(err) || isCramped(err)) && len(rs) > 1 {
		for _, r := range rs {
			if r.err == nil && r.panicked == nil {
				r.err = g.commit([]*request{r})
			}
			r.settled = true
		}
		err = nil
	}
	for _, r := range rs {
		if err != nil && r.err == nil {
			r.err = err
		}
		close(r.done)
	}
	done = true
}

// close lets no more requests in, and returns when those that are in have been stored.
func (g *group) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wake()
	<-g.ended
}
