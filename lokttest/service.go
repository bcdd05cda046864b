package lokttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
)

// TestService checks what lokt.Service promises, about time to the moment. open returns a service without locks. Each
// subtest, open included, runs in a bubble of testing/synctest: the service takes its time from package time and waits
// for nothing outside the process. Other services have TestServiceInRealTime.
//
// Each promise is checked for claims of the same paths, too.
//
// Promises S-2, S-4, S-6, S-7, S-27, S-190, S-198, S-200, S-201, S-220, S-225.
func TestService(t *testing.T, open func(t *testing.T) lokt.Service) {
	for _, test := range slices.Concat(grantTests, queueTests, endTests, timeTests, bubbleTests) {
		for name, paths := range map[string][]string{test.name: nil, test.name + ", of paths": {"src/**"}} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					test.run(&env{T: t, s: open(t), bubble: true, short: 10 * time.Second, paths: paths})
				})
			})
		}
	}
	t.Run("what many clients were answered can be explained", func(t *testing.T) {
		checkHistories(t, open, true)
	})
}

// TestServiceInRealTime checks what TestService does, but for what only a bubble can show. Leases that are to expire do
// so after 300 ms; nothing depends on a test being fast. Subtests run in parallel.
func TestServiceInRealTime(t *testing.T, open func(t *testing.T) lokt.Service) {
	for _, test := range slices.Concat(grantTests, queueTests, endTests, timeTests) {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(&env{T: t, s: open(t), short: 300 * time.Millisecond})
		})
	}
	t.Run("what many clients were answered can be explained", func(t *testing.T) {
		t.Parallel()
		checkHistories(t, open, false)
	})
}

// serviceTest is a promise and how to check it.
type serviceTest struct {
	name string
	run  func(e *env)
}

// env is what a test of a service has.
type env struct {
	*testing.T
	s      lokt.Service
	bubble bool
	short  time.Duration // how long leases live that are to expire
	paths  []string      // of all claims that share with nobody or with all
}

// slack is how much later than announced something may happen in a bubble, where computing takes no time.
const slack = time.Second

// claim returns an exclusive claim of an owner of that name, with a long life.
func (e *env) claim(name, who string, edits ...func(*lokt.Claim)) lokt.Claim {
	c := lokt.Claim{
		Name: name, LeaseID: lokt.NewLeaseID(), TTL: time.Hour,
		Owner: lokt.Owner{ID: who, Session: "session of " + who, Host: "suite.example"},
	}
	for _, edit := range edits {
		edit(&c)
	}
	if c.Limit == 0 || c.Limit == lokt.Exclusive || c.Limit == lokt.Shared {
		c.Paths = e.paths
	}
	return c
}

func limit(n int) func(*lokt.Claim)             { return func(c *lokt.Claim) { c.Limit = n } }
func ttl(d time.Duration) func(*lokt.Claim)     { return func(c *lokt.Claim) { c.TTL = d } }
func maxHold(d time.Duration) func(*lokt.Claim) { return func(c *lokt.Claim) { c.MaxHold = d } }
func waits(d time.Duration) func(*lokt.Claim)   { return func(c *lokt.Claim) { c.Wait = d } }
func priority(n int) func(*lokt.Claim)          { return func(c *lokt.Claim) { c.Priority = n } }
func preempt(d time.Duration) func(*lokt.Claim) { return func(c *lokt.Claim) { c.Preempt = d } }
func inside(ids ...string) func(*lokt.Claim)    { return func(c *lokt.Claim) { c.Within = ids } }
func strict(c *lokt.Claim)                      { c.Strict = true }
func refresh(c *lokt.Claim)                     { c.Refresh = true }
func ticket(c *lokt.Claim)                      { c.Ticket++ }
func newest(c *lokt.Claim)                      { c.Newest = true }
func process(pid int) func(*lokt.Claim)         { return func(c *lokt.Claim) { c.Owner.Process.PID = pid } }
func ofFive(takes int64) func(*lokt.Claim) {
	return func(c *lokt.Claim) { c.Limit, c.Weight = 9, lokt.Weight{Takes: takes, Of: 5} }
}

// grant acquires what must be granted.
func (e *env) grant(c lokt.Claim) lokt.Holder {
	e.Helper()
	h, err := e.s.Acquire(e.Context(), c)
	if err != nil {
		e.Fatalf("%s of %s was not granted: %v", c.Name, c.Owner.ID, err)
	}
	if h.Name != c.Name || h.Token == 0 || h.LeaseID == "" {
		e.Fatalf("%s was granted to %s as %+v", c.Name, c.Owner.ID, h)
	}
	return h
}

// deny acquires what must be denied because it is held.
func (e *env) deny(c lokt.Claim) *lokt.BlockedError {
	e.Helper()
	h, err := e.s.Acquire(e.Context(), c)
	var blocked *lokt.BlockedError
	if !errors.As(err, &blocked) || !errors.Is(err, lokt.ErrHeld) {
		e.Fatalf("%s was not denied to %s: %+v, %v", c.Name, c.Owner.ID, h, err)
	}
	return blocked
}

// release ends a hold that must be there.
func (e *env) release(h lokt.Holder) {
	e.Helper()
	ended, err := e.s.Release(e.Context(), lokt.Target{Name: h.Name, LeaseID: h.LeaseID, Owner: h.Owner})
	if err != nil || len(ended) != 1 || ended[0].Token != h.Token {
		e.Fatalf("release of %s by %s ended %+v, %v", h.Name, h.Owner.ID, ended, err)
	}
}

func (e *env) renew(h lokt.Holder) (lokt.Holder, error) {
	return e.s.Renew(e.Context(), lokt.Renewal{Name: h.Name, LeaseID: h.LeaseID, Heard: cmp.Or(h.Yield, &lokt.Yield{}).Deadline})
}

// noRenewal renews what must not be renewed.
func (e *env) noRenewal(what string, h lokt.Holder, want error) {
	e.Helper()
	_, err := e.renew(h)
	e.failsWith("renewal "+what, err, want)
}

// noRelease asks to end what must not be ended, or is not there.
func (e *env) noRelease(what string, t lokt.Target, want error) {
	e.Helper()
	_, err := e.s.Release(e.Context(), t)
	e.failsWith("release "+what, err, want)
}

// ends asks to end what must be there: the holds of these owners, in order.
func (e *env) ends(t lokt.Target, who string) {
	e.Helper()
	if ended, err := e.s.Release(e.Context(), t); err != nil || owners(ended) != who {
		e.Errorf("ended %+v, %v; not those of %q", ended, err, who)
	}
}

func (e *env) get(name string) lokt.Snapshot {
	e.Helper()
	snap, err := e.s.Get(e.Context(), name)
	if err != nil {
		e.Fatalf("get %s: %v", name, err)
	}
	return snap
}

// expect compares the live holders and the queue, as owners in order.
func (e *env) expect(name, holders, queue string) {
	e.Helper()
	snap := e.get(name)
	if got := owners(snap.Live()); got != holders {
		e.Errorf("%s is held by %q, not %q", name, got, holders)
	}
	if got := waiting(snap.Lock); got != queue {
		e.Errorf("%s is awaited by %q, not %q", name, got, queue)
	}
}

// expectFree waits until nothing is left of the lock but its token. Services may finish what a cancelled request left after it returned.
func (e *env) expectFree(name string) {
	e.Helper()
	e.eventually(name+" is free", func() bool { return e.get(name).Lock.Free() })
}

func owners(holders []lokt.Holder) string {
	ids := make([]string, len(holders))
	for i, h := range holders {
		ids[i] = h.Owner.ID
	}
	return strings.Join(ids, " ")
}

func waiting(l lokt.Lock) string {
	ids := make([]string, len(l.Queue))
	for i, w := range l.Queue {
		ids[i] = w.Owner.ID
	}
	return strings.Join(ids, " ")
}

// pause is how long to wait before looking again, on real time.
const pause = 2 * time.Millisecond

// eventually waits until the condition holds.
func (e *env) eventually(what string, holds func() bool) {
	e.Helper()
	eventually(e.T, what, pause, holds)
}

// pending is an Acquire that runs.
type pending struct {
	e      *env
	claim  lokt.Claim
	cancel context.CancelFunc
	done   chan struct{}
	holder lokt.Holder
	err    error
	at     time.Time // when it returned
}

// begin acquires in the background.
func (e *env) begin(c lokt.Claim) *pending {
	ctx, cancel := context.WithCancel(e.Context())
	p := &pending{e: e, claim: c, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		defer cancel()
		p.holder, p.err = e.s.Acquire(ctx, c)
		p.at = time.Now()
	}()
	return p
}

// enqueue acquires in the background, and returns when the claim is queued. Without a Wait it waits without end.
func (e *env) enqueue(c lokt.Claim) *pending {
	e.Helper()
	if c.Wait == 0 {
		c.Wait = -1
	}
	p := e.begin(c)
	e.eventually(fmt.Sprintf("%s waits for %s", c.Owner.ID, c.Name), func() bool {
		select {
		case <-p.done:
			e.Fatalf("%s does not wait for %s: %+v, %v", c.Owner.ID, c.Name, p.holder, p.err)
		default:
		}
		return slices.ContainsFunc(e.get(c.Name).Lock.Queue, func(w *lokt.Waiter) bool { return w.Owner.ID == c.Owner.ID })
	})
	return p
}

// wait returns when Acquire has.
func (p *pending) wait() {
	p.e.Helper()
	late := time.NewTimer(time.Hour) // of a bubble's time
	if !p.e.bubble {
		late.Reset(patience)
	}
	defer late.Stop()
	select {
	case <-p.done:
	case <-late.C:
		p.e.Fatalf("%s waits for %s for ever", p.claim.Owner.ID, p.claim.Name)
	}
}

// granted returns what the waiting claim must be granted.
func (p *pending) granted() lokt.Holder {
	p.e.Helper()
	p.wait()
	if p.err != nil {
		p.e.Fatalf("%s was not granted to %s: %v", p.claim.Name, p.claim.Owner.ID, p.err)
	}
	return p.holder
}

// denied returns why the waiting claim was denied, which it must be.
func (p *pending) denied() *lokt.BlockedError {
	p.e.Helper()
	p.wait()
	var blocked *lokt.BlockedError
	if !errors.As(p.err, &blocked) {
		p.e.Fatalf("%s was not denied to %s: %+v, %v", p.claim.Name, p.claim.Owner.ID, p.holder, p.err)
	}
	return blocked
}
