package sqlstore

// Group commit: requests that arrive while a transaction is being flushed to the disk share the next one.

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// request is something to be stored. At most one of its functions is set; none if it is only to be found out whether
// anything can be.
type request struct {
	name   string // of the lock that change is for
	change func(lokt.Snapshot) lokt.Change
	turn   func(jobs.Facts) jobs.Changes
	write  func() error // within the transaction; it may run again

	taken    atomic.Bool // by the goroutine that commits, or by its caller who gave up
	turned   bool        // the turn has been run
	over     bool        // what became of it is known, whatever became of the others
	later    bool        // it is to be stored with those that come next
	panicked any
	err      error
	done     chan struct{} // closed when it is known what became of it
}

// errEnded is what a function that ends its goroutine (runtime.Goexit, testing.T.Fatal) counts as having panicked
// with.
var errEnded = errors.New("change ended its goroutine")

// guard runs what others wrote, on a goroutine of its own, which they may end. It keeps what they panicked with, and
// reports whether they did not.
func (r *request) guard(run func()) (returned bool) {
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		run()
		returned = true
	}()
	if r.panicked = <-done; r.panicked == nil && !returned {
		r.panicked = errEnded
	}
	return returned
}

// group collects requests, and has those that arrive together stored in one transaction by a goroutine of its own.
type group struct {
	commit func(rs []*request, more func() []*request) error // those that fail by themselves have their error set

	mu     sync.Mutex
	queue  []*request
	closed bool
	poke   chan struct{} // there is something to look at
	ended  chan struct{} // the goroutine has returned
	busy   []*request    // of the goroutine: those that it stores
}

func newGroup(commit func(rs []*request, more func() []*request) error) *group {
	return &group{commit: commit, poke: make(chan struct{}, 1), ended: make(chan struct{})}
}

// perform has the request stored, and returns when that is done or has failed. If ctx ends before the request is
// looked at, it is dropped. What its function panics with, the caller does.
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
	g.mu.Unlock()
	poke(g.poke)
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

// outcome is what the caller gets: what the request's function panicked with, he does.
func (r *request) outcome() error {
	switch r.panicked {
	case nil:
		return r.err
	case errEnded:
		runtime.Goexit()
	}
	panic(r.panicked)
}

// loop stores what there is, until the group is closed.
func (g *group) loop() {
	defer close(g.ended)
	for {
		switch some, closed := g.take(); {
		case some || len(g.busy) > 0:
			g.serve()
			runtime.Gosched() // who was just answered and goes on at once is in the next transaction together
		case closed:
			return
		default:
			<-g.poke
		}
	}
}

// take makes those requests busy that have come. It reports whether there were any, and whether none will come any more.
func (g *group) take() (some, closed bool) {
	g.mu.Lock()
	queue := g.queue
	g.queue, closed = nil, g.closed
	g.mu.Unlock()
	left := slices.DeleteFunc(queue, func(r *request) bool { return !r.taken.CompareAndSwap(false, true) })
	g.busy = append(g.busy, left...)
	return len(queue) > 0, closed
}

// judging is how long it may take to run what is stored together: a crowd is granted a lock in parts.
const judging = 250 * time.Millisecond

// linger is how long a transaction waits for others of which nobody waits for the end.
const linger = time.Millisecond

// more returns requests that come soon and are to be in the transaction that is not stored yet.
func (g *group) more() []*request {
	had, over := len(g.busy), time.After(linger)
	for {
		if some, closed := g.take(); some || closed {
			return g.busy[had:]
		}
		select {
		case <-g.poke:
		case <-over:
			return nil
		}
	}
}

// serve stores the requests that are busy in one transaction. If what one of them wants cannot be stored, each gets
// its own.
func (g *group) serve() {
	if len(g.busy) == 0 { // all have given up
		return
	}
	err := g.commit(g.busy, g.more)
	alone := err != nil && single(err) && len(g.busy) > 1
	g.busy = slices.DeleteFunc(g.busy, func(r *request) bool {
		switch {
		case r.over:
		case r.later:
			r.later = false
			return false
		case alone && r.err == nil && r.panicked == nil && !r.turned: // a turn is run once
			if err := g.commit([]*request{r}, nil); err != nil {
				r.err = err
			}
		case r.err == nil:
			r.err = err
		}
		close(r.done)
		return true
	})
}

// close lets no more requests in, and returns when those that are in have been stored.
func (g *group) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	poke(g.poke)
	<-g.ended
}
