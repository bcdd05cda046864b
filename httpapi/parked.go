package httpapi

import (
	"context"
	"errors"
	"fmt"
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
func (c *call) park(wait time.Duration) (context.Context, func(), error) {
	free, err := c.s.parked.take(c.who())
	if err != nil {
		return nil, nil, err
	}
	timed, stop := context.WithTimeoutCause(c.r.Context(), wait, errWaitOver)
	ctx, cancel := context.WithCancelCause(timed)
	if c.s.Stop != nil {
		go func() {
			select {
			case <-c.s.Stop:
				cancel(errStopping)
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() {
		cancel(nil)
		stop()
		free()
	}, nil
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

// brief bounds what is to be answered at once.
func (c *call) brief() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.r.Context(), c.s.Limits.Request)
}

// maxTakenBack is how many operations a server remembers that were taken back.
const maxTakenBack = 4096

// polls knows which claims are being worked on, by the operation that their client gave them, so that a client that takes
// a claim back can be sure that no copy of its request, delayed on the way or not told yet that its connection is gone,
// claims again afterwards.
type polls struct {
	mu        sync.Mutex
	running   map[string][]*poll
	takenBack map[string]bool
	oldest    []string // of takenBack, in order
}

// poll is one request for a claim.
type poll struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// begin notes that the operation is worked on until the returned function is called. It is an error if it was taken back.
// The empty operation is nobody's.
func (p *polls) begin(ctx context.Context, operation string) (context.Context, func(), error) {
	if operation == "" {
		return ctx, func() {}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.takenBack[operation] {
		return nil, nil, errTakenBack
	}
	ctx, cancel := context.WithCancelCause(ctx)
	me := &poll{cancel: cancel, done: make(chan struct{})}
	if p.running == nil {
		p.running = map[string][]*poll{}
	}
	p.running[operation] = append(p.running[operation], me)
	return ctx, func() {
		cancel(nil)
		close(me.done)
		p.mu.Lock()
		defer p.mu.Unlock()
		var rest []*poll
		for _, other := range p.running[operation] {
			if other != me {
				rest = append(rest, other)
			}
		}
		if rest == nil {
			delete(p.running, operation)
		} else {
			p.running[operation] = rest
		}
	}, nil
}

// takeBack ends what works on the operation, waits until it has ended, and keeps it from being begun again.
func (p *polls) takeBack(ctx context.Context, operation string) {
	if operation == "" {
		return
	}
	p.mu.Lock()
	if !p.takenBack[operation] {
		if p.takenBack == nil {
			p.takenBack = map[string]bool{}
		}
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
