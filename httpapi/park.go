package httpapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
)

// Causes with which a request's context ends before its client hangs up.
var (
	errWaitOver  = errors.New("the wait is over")
	errTakenBack = fmt.Errorf("%w: the request was taken back by its client", lokt.ErrInvalid)
	errStopping  = fmt.Errorf("%w: the server is going down", lokt.ErrUnavailable)
	errCrowded   = fmt.Errorf("%w: too many large answers are being sent already", lokt.ErrUnavailable)
	errFull      = fmt.Errorf("%w: too many requests wait already", lokt.ErrUnavailable)
)

// park lets the request wait: its context ends when the wait is over, with errWaitOver as cause, when its client hangs
// up, and when the server stops. The returned function ends the wait. The error is that of slots.take.
func (c *call) park(most time.Duration) (context.Context, func(), error) {
	free, err := c.s.parked.take(c.who())
	if err != nil {
		return nil, nil, err
	}
	c.in = nil // others can use the memory better
	c.done()
	timed, stop := context.WithTimeoutCause(c.r.Context(), most, errWaitOver)
	ctx, cancel := context.WithCancelCause(timed)
	unstop := context.AfterFunc(c.s.Stop, func() { cancel(errStopping) })
	if c.s.Stop.Err() != nil {
		cancel(errStopping)
	}
	return ctx, func() {
		unstop()
		cancel(nil)
		stop()
		free()
		c.bound()
	}, nil
}

// room says why nothing new is taken in.
func (c *call) room() error {
	if c.s.Full == nil {
		return nil
	}
	return c.s.Full()
}

// waitFor lets the request wait for a change. That there was none in that time is no error.
func (c *call) waitFor(most time.Duration, change func(context.Context) error) error {
	ctx, done, err := c.park(most)
	if err != nil {
		return err
	}
	defer done()
	err = change(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if errors.Is(err, errWaitOver) {
		return nil
	}
	return err
}

// slots bound what many do at the same time, all together and each caller alone. Requests of which the caller is not
// known count only among all.
type slots struct {
	what string // in the plural, for people
	most int
	each int

	mu    sync.Mutex
	taken int
	by    map[string]int
}

func newSlots(what string, most, each int) *slots {
	if each <= 0 {
		each = (most + 1) / 2
	}
	return &slots{what: what, most: most, each: min(each, most), by: map[string]int{}}
}

// shareRetry is when a caller that has its share may ask again.
const shareRetry = time.Second

// take takes a slot for the caller, who gives it back by calling the returned function, once. The error is errFull, or
// a *RateLimitedError if the caller has as many as one may have.
func (s *slots) take(who string) (free func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.taken >= s.most:
		return nil, errFull
	case who != "" && s.by[who] >= s.each:
		why := fmt.Sprintf("%d %s of %s are open already, as many as one caller may have", s.each, s.what, who)
		return nil, &RateLimitedError{RetryAfter: shareRetry, Why: why}
	}
	s.taken++
	s.by[who]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
		if s.by[who]--; s.by[who] == 0 {
			delete(s.by, who)
		}
	}, nil
}

// inUse returns how many are taken.
func (s *slots) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// maxTakenBack is how many operations a server remembers that were taken back.
const maxTakenBack = 16384

// claims knows which claims are being worked on, by the operation that their client gave them. A client that takes a
// claim back can be sure that no copy of its request, delayed on the way, claims again afterwards.
type claims struct {
	mu        sync.Mutex
	running   map[string][]*attempt
	takenBack map[string]bool
	oldest    []string // of takenBack, in order
}

// attempt is one request for a claim.
type attempt struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// begin notes that the operation is worked on until the returned function is called. It is an error if it was taken
// back. The empty operation is nobody's.
func (p *claims) begin(ctx context.Context, operation string) (context.Context, func(), error) {
	if operation == "" {
		return ctx, func() {}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.takenBack[operation] {
		return nil, nil, errTakenBack
	}
	ctx, cancel := context.WithCancelCause(ctx)
	me := &attempt{cancel: cancel, done: make(chan struct{})}
	p.running[operation] = append(p.running[operation], me)
	return ctx, func() {
		cancel(nil)
		close(me.done)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running[operation] = slices.DeleteFunc(slices.Clone(p.running[operation]), func(a *attempt) bool { return a == me })
		if len(p.running[operation]) == 0 {
			delete(p.running, operation)
		}
	}, nil
}

// takeBack ends what works on the operation, waits until it has ended, and keeps it from being begun again.
func (p *claims) takeBack(ctx context.Context, operation string) {
	if operation == "" {
		return
	}
	p.mu.Lock()
	if !p.takenBack[operation] {
		if len(p.oldest) == maxTakenBack {
			delete(p.takenBack, p.oldest[0])
			p.oldest = p.oldest[1:]
		}
		p.takenBack[operation] = true
		p.oldest = append(p.oldest, operation)
	}
	running := p.running[operation]
	p.mu.Unlock()
	for _, r := range running {
		r.cancel(errTakenBack)
	}
	for _, r := range running {
		select {
		case <-r.done:
		case <-ctx.Done():
			return
		}
	}
}

// MaxPlaces is how many places in one lock's queue a caller may have whom a Gate tells from others: places outlive the
// requests that took them, and nobody is to keep the others out of the queue.
const MaxPlaces = lokt.MaxWaiters / 4

// crowded notes a claim that may wait until the returned function is called, or returns an error that wraps lokt.ErrFull if it would take
// one place more than its caller may have.
func (c *call) crowded(claim *lokt.Claim) (leave func(), err error) {
	if c.who() == "" {
		return func() {}, nil
	}
	snap, _ := c.s.Locks.Get(c.ctx, claim.Name) // what is wrong, the claim itself will be told
	p, key := &c.s.places, [2]string{string(c.view()), claim.Name}
	p.mu.Lock()
	defer p.mu.Unlock()
	asking := p.asking[key]
	n, has := len(asking), asking[claim.LeaseID] > 0
	if n+len(snap.Lock.Queue) >= MaxPlaces {
		for _, w := range snap.Lock.Queue {
			has = has || w.LeaseID == claim.LeaseID
			if asking[w.LeaseID] == 0 && strings.HasPrefix(w.Owner.ID, key[0]) {
				n++
			}
		}
	}
	if n >= MaxPlaces && !has {
		return nil, fmt.Errorf("%w: %d claims of your token wait for %q already", lokt.ErrFull, n, claim.Name)
	}
	if asking == nil {
		asking = map[string]int{}
		p.asking[key] = asking
	}
	asking[claim.LeaseID]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if asking[claim.LeaseID]--; asking[claim.LeaseID] == 0 {
			delete(asking, claim.LeaseID)
		}
		if len(asking) == 0 {
			delete(p.asking, key)
		}
	}, nil
}

// places are the claims that may be about to take a place in a queue, or have one: leases of requests under way, by caller and lock. Of many
// that come at once, none is in the queue yet.
type places struct {
	mu     sync.Mutex
	asking map[[2]string]map[string]int
}
