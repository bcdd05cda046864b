package lokttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/lokt-dev/lokt"
)

// Recorder is a Service that passes requests on to another and remembers questions, answers and times. Check then tells
// whether the answers are linearizable: whether one lock per name explains them, taken and given back one step at a
// time, with a token that rises with every grant, and lost by no lease before its time to live is over.
//
// It understands exclusive claims whose owner has no other hold of that name at the same time, their renewal, and
// releases that name the lease. It may be used by many goroutines.
type Recorder struct {
	lokt.Service

	// Slack is how far the service's clock may run ahead of this process's between two requests. Leases may end that
	// much earlier.
	Slack time.Duration

	*record
}

// record is a history.
type record struct {
	start time.Time
	mu    sync.Mutex
	seq   int
	ops   []*operation
	alien error // the first request that Check does not understand
}

// NewRecorder returns a recorder without a history.
func NewRecorder(s lokt.Service) *Recorder {
	return &Recorder{Service: s, record: &record{start: time.Now()}}
}

// For returns a recorder with the same history that passes requests on to another Service over the same locks.
func (r *Recorder) For(s lokt.Service) *Recorder { return &Recorder{s, r.Slack, r.record} }

// kind says what an operation did to the lock.
type kind int

const (
	acquired    kind = iota // the lock became the lease's
	denied                  // somebody else had it
	renewed                 // it was the lease's, and stayed so
	released                // it was the lease's, and no longer is
	gone                    // it was not the lease's
	mayAcquire              // if it was free it became the lease's, or nothing happened
	mayRelease              // if it was the lease's it no longer is
	expired                 // the same, by time
	notRecorded             // it tells nothing
)

func (k kind) String() string {
	return [...]string{"acquired", "denied", "renewed", "released", "gone", "may have acquired", "may have released", "may have expired", "?"}[k]
}

// operation is a request and its answer.
type operation struct {
	kind         kind
	name, lease  string
	token        uint64
	ttl, maxHold time.Duration
	over         bool // when it returned, it had been undone if it had happened at all
	call, ret    moment
}

// moment orders what happened at the same time, as it does in bubbles, by when it was recorded.
type moment struct {
	at  time.Duration
	seq int
}

func (m moment) compare(o moment) int {
	return cmp.Or(cmp.Compare(m.at, o.at), cmp.Compare(m.seq, o.seq))
}

// never is the return of an operation whose outcome is unknown: it may take effect at any time.
var never = moment{at: math.MaxInt64}

// now returns the present moment.
func (r *Recorder) now() moment {
	r.seq++
	return moment{time.Since(r.start), r.seq}
}

func (r *Recorder) called() moment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now()
}

// returned records the operation.
func (r *Recorder) returned(op operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.ret = r.now()
	if (op.kind == mayAcquire || op.kind == mayRelease) && !op.over {
		op.ret = never
	}
	if op.kind != notRecorded {
		r.ops = append(r.ops, &op)
	}
}

// refuse remembers a request that the checker has no model for.
func (r *Recorder) refuse(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.alien == nil {
		r.alien = fmt.Errorf(format, args...)
	}
}

// Acquire passes the claim on and records it.
func (r *Recorder) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	if c.LeaseID == "" {
		c.LeaseID = lokt.NewLeaseID()
	}
	if c.Limit > lokt.Exclusive || c.Refresh {
		r.refuse("a claim of %q is not exclusive, or a refresh", c.Name)
	}
	op := operation{name: c.Name, lease: c.LeaseID, ttl: c.TTL, maxHold: c.MaxHold, call: r.called()}
	h, err := r.Service.Acquire(ctx, c)
	lasted := r.called().at - op.call.at
	var blocked *lokt.BlockedError
	// A grant from the queue ends when nobody takes it up in time; and any, where the machine is busy or the answer is lost, before anybody could.
	missed := c.Wait != 0 && lasted > lokt.OfferTTL || r.Slack > 0 && c.TTL > 0 && lasted > c.TTL-r.Slack
	switch {
	case err == nil:
		op.kind, op.token = acquired, h.Token
		if h.LeaseID != c.LeaseID {
			r.refuse("lease %s of %q was granted as %s", c.LeaseID, c.Name, h.LeaseID)
		}
	case errors.As(err, &blocked) && blocked.Unsure:
		op.kind = mayAcquire
	case errors.Is(err, lokt.ErrHeld):
		op.kind = denied
	case errors.Is(err, lokt.ErrFrozen), errors.Is(err, lokt.ErrInvalid):
		op.kind = notRecorded
	default:
		op.kind = mayAcquire
	}
	if missed && (op.kind == acquired || op.kind == denied) {
		// A claim that waits may be granted the lock, not get to run, or not be heard of, in time, and wait again.
		granted := op
		granted.kind, granted.over = mayAcquire, true
		r.returned(granted)
	}
	r.returned(op)
	return h, err
}

// Renew passes the renewal on and records it.
func (r *Recorder) Renew(ctx context.Context, n lokt.Renewal) (lokt.Holder, error) {
	op := operation{name: n.Name, lease: n.LeaseID, call: r.called()}
	h, err := r.Service.Renew(ctx, n)
	switch {
	case err == nil:
		op.kind, op.token = renewed, h.Token
	case errors.Is(err, lokt.ErrNotFound), errors.Is(err, lokt.ErrNotOwner):
		op.kind = gone
	default: // if it was renewed, it lives the longer
		op.kind = notRecorded
	}
	r.returned(op)
	return h, err
}

// Release passes the request on and records it.
func (r *Recorder) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	if t.LeaseID == "" || t.Stale {
		r.refuse("a release of %q names no lease", t.Name)
	}
	op := operation{name: t.Name, lease: t.LeaseID, call: r.called()}
	ended, err := r.Service.Release(ctx, t)
	switch {
	case err == nil && len(ended) == 1:
		op.kind, op.token = released, ended[0].Token
	case errors.Is(err, lokt.ErrNotFound), errors.Is(err, lokt.ErrNotOwner):
		op.kind = gone
	default:
		op.kind = mayRelease
	}
	r.returned(op)
	return ended, err
}

// Len returns how many answers were recorded. Histories of one name that are much longer than 350 take long to check.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ops)
}

// ErrTooLong says that a history is not known to be wrong. On a machine that stands still now and then too much of it
// may or may not have happened.
var ErrTooLong = errors.New("could not be explained in the time that there was")

// Check returns an error if the answers to the requests about some name cannot be explained, or if no explanation was
// found within the time limit for each name. It must not run in a bubble, where time does not pass while it thinks.
func (r *Recorder) Check(limit time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.alien != nil {
		return fmt.Errorf("the history cannot be checked: %w", r.alien)
	}
	for name, ops := range r.byName() {
		// What may have happened makes the search long, and is seldom needed: first without.
		sure := slices.DeleteFunc(slices.Clone(ops), func(op *operation) bool { return op.kind == mayAcquire })
		if porcupine.CheckEventsTimeout(model, events(append(sure, r.ghosts(sure)...)), limit) == porcupine.Ok {
			continue
		}
		ops = append(ops, r.ghosts(ops)...)
		switch result := porcupine.CheckEventsTimeout(model, events(ops), limit); result {
		case porcupine.Ok:
		case porcupine.Unknown:
			return fmt.Errorf("the history of %q %w:\n%s", name, ErrTooLong, story(ops))
		default:
			return fmt.Errorf("the history of %q is %s:\n%s", name, strings.ToLower(string(result)), story(ops))
		}
	}
	return nil
}

// Draw writes the history of the first name, in order, that Check cannot explain as a page for a browser; of none if there is
// none.
func (r *Recorder) Draw(w io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	byName := r.byName()
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all := append(byName[name], r.ghosts(byName[name])...)
		if result, info := porcupine.CheckEventsVerbose(model, events(all), 10*time.Second); result != porcupine.Ok {
			return porcupine.Visualize(model, info, w)
		}
	}
	return nil
}

// byName returns the operations by name of the lock.
func (r *Recorder) byName() map[string][]*operation {
	all := map[string][]*operation{}
	for _, op := range r.ops {
		all[op.name] = append(all[op.name], op)
	}
	return all
}

// ghosts returns the expiries that may have happened: for each lease one, at any time after the call of its last
// acknowledged renewal plus its time to live, and one at any time for a claim of unknown outcome. A lease that had
// certainly been released by then has none, because every operation that may come at any time doubles the work.
func (r *Recorder) ghosts(ops []*operation) []*operation {
	last := map[string]*operation{} // by lease
	var ghosts []*operation
	add := func(lease string, call, ret moment) {
		ghosts = append(ghosts, &operation{kind: expired, lease: lease, call: call, ret: ret})
	}
	ends := map[string]time.Duration{} // of maximum holds, by lease
	vague := map[string]bool{}         // leases that may have been acquired more often than is known
	gaveBack := map[string]*operation{}
	expire := func(lease string, op *operation) {
		at := time.Duration(math.MaxInt64)
		if op.ttl > 0 {
			at = op.call.at + op.ttl
		}
		if end, bounded := ends[lease]; bounded {
			at = min(at, end)
		}
		back := gaveBack[lease]
		over := back != nil && !vague[lease] && op.ret.compare(back.call) < 0 && back.ret.at < at-r.Slack
		if at != math.MaxInt64 && !over {
			add(lease, moment{at - r.Slack, math.MaxInt}, never) // at the very end of its time it is live
		}
	}
	for _, op := range slices.SortedFunc(slices.Values(ops), func(a, b *operation) int { return a.call.compare(b.call) }) {
		switch op.kind {
		case acquired:
			before := last[op.lease]
			if before != nil && before.token != op.token { // it was lost, and taken again
				expire(op.lease, before)
				before = nil
				delete(gaveBack, op.lease)
			}
			if op.maxHold > 0 && before == nil {
				ends[op.lease] = op.call.at + op.maxHold
			}
			last[op.lease] = op
		case renewed:
			if first := last[op.lease]; first != nil {
				again := *op
				again.ttl = first.ttl
				last[op.lease] = &again
			}
		case mayAcquire:
			vague[op.lease] = true
			add(op.lease, op.call, op.ret)
		case released:
			gaveBack[op.lease] = op
		}
	}
	for lease, op := range last {
		expire(lease, op)
	}
	return ghosts
}

// events puts calls and returns in order.
func events(ops []*operation) []porcupine.Event {
	type event struct {
		moment
		porcupine.Event
	}
	var all []event
	for i, op := range ops {
		all = append(all,
			event{op.call, porcupine.Event{ClientId: i, Id: i, Kind: porcupine.CallEvent, Value: op}},
			event{op.ret, porcupine.Event{ClientId: i, Id: i, Kind: porcupine.ReturnEvent, Value: op}})
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.compare(b.moment) })
	history := make([]porcupine.Event, len(all))
	for i, e := range all {
		history[i] = e.Event
	}
	return history
}

// story tells people what was recorded, in the order of the calls.
func story(ops []*operation) string {
	var b strings.Builder
	for _, op := range slices.SortedFunc(slices.Values(ops), func(a, b *operation) int { return a.call.compare(b.call) }) {
		end := fmt.Sprint(op.ret.at)
		if op.ret == never {
			end = "…"
		}
		fmt.Fprintf(&b, "%v - %s: %.8s %v, token %d, TTL %v\n", op.call.at, end, op.lease, op.kind, op.token, op.ttl)
	}
	return b.String()
}

// state is one exclusive lock.
type state struct {
	lease string // of the holder; empty if it is free
	token uint64 // the last one that is known
	vague bool   // the holder's own token is not known
}

// model is the sequential specification of one exclusive lock.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) { return step(before.(state), input.(*operation)) },
	DescribeOperation: func(input, _ any) string {
		op := input.(*operation)
		return fmt.Sprintf("%.8s %v, token %d", op.lease, op.kind, op.token)
	},
}

// step says whether the operation can happen in the state, and what becomes of it.
func step(s state, op *operation) (bool, state) {
	mine := s.lease == op.lease
	same := s.token == op.token || s.vague && op.token > s.token
	switch op.kind {
	case acquired:
		again := mine && same // it was sent twice
		return again || s.lease == "" && op.token > s.token, state{lease: op.lease, token: op.token}
	case renewed:
		return mine && same, state{lease: op.lease, token: op.token}
	case released:
		return mine && same, state{token: op.token}
	case denied:
		return s.lease != "" && !mine, s
	case gone:
		return !mine, s
	case mayAcquire:
		if s.lease == "" {
			return true, state{lease: op.lease, token: s.token, vague: true}
		}
		return true, s
	case mayRelease, expired:
		if mine {
			return true, state{token: s.token}
		}
		return true, s
	}
	return false, s
}
