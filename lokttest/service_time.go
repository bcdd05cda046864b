package lokttest

import (
	"errors"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt"
)

// lasts checks that what ends by itself has lasted for the short time, and in a bubble no longer.
func (e *env) lasts(what string, asked time.Time, p *pending) lokt.Holder {
	e.Helper()
	h := p.granted()
	if took := p.at.Sub(asked); took < e.short || e.bubble && took > e.short+slack {
		e.Errorf("%s of %v took %v", what, e.short, took)
	}
	return h
}

// stale returns a hold of a on the lock when it has expired.
func (e *env) stale(name string) lokt.Holder {
	e.Helper()
	h := e.grant(e.claim(name, "a", ttl(e.short)))
	time.Sleep(e.short)
	e.eventually("the lease is stale", func() bool { return len(e.get(name).Live()) == 0 })
	return h
}

// timeTests let leases expire. On real time they demand only that nothing happens too early, and that it happens.
var timeTests = []serviceTest{
	{"a lease is passed on after its time to live, and not before", func(e *env) {
		asked := time.Now()
		a := e.grant(e.claim("x", "a", ttl(e.short)))
		p := e.begin(e.claim("x", "b", waits(-1)))
		b := e.lasts("a lease", asked, p)
		if b.Token <= a.Token {
			e.Errorf("token %d after %d", b.Token, a.Token)
		}
		e.noRenewal("by who lost it", a, lokt.ErrNotOwner)
		e.noRelease("by who lost it", lokt.Target{Name: "x", LeaseID: a.LeaseID, Owner: a.Owner}, lokt.ErrNotOwner)
		if in := e.get("x").Lock.Holders; len(in) != 1 || in[0].Token != b.Token {
			e.Errorf("late calls changed the holders to %+v", in)
		}
		e.release(b)
		e.expectFree("x")
	}},
	{"an expired lease is stale, is not renewed, and is pruned", func(e *env) {
		e.noRenewal("of an expired lease", e.stale("x"), lokt.ErrNotFound)
		e.stale("y")
		removed, err := e.s.Prune(e.Context(), "y")
		if err != nil || len(removed) != 1 || removed[0].Holder.Owner.ID != "a" || removed[0].Reason != lokt.ReasonExpired || removed[0].Waiter {
			e.Errorf("pruned %+v, %v", removed, err)
		}
		e.expectFree("y")
		e.stale("z")
		e.ends(lokt.Target{Name: "z", Stale: true, Owner: root}, "a")
	}},
	{"a renewal starts the time to live again", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		for i := range 3 {
			time.Sleep(2 * time.Millisecond)
			again, err := e.renew(h)
			if err != nil || !again.ExpiresAt.After(h.ExpiresAt) || !again.ExpiresAt.Equal(again.AcquiredAt.Add(time.Hour)) ||
				again.Renewals != i+1 || again.Token != h.Token || !again.HeldSince.Equal(h.HeldSince) {
				e.Fatalf("renewed %+v to %+v, %v", h, again, err)
			}
			h = again
		}
	}},
	{"no renewal passes the maximum hold", func(e *env) {
		asked := time.Now()
		h := e.grant(e.claim("x", "a", maxHold(e.short)))
		p := e.begin(e.claim("x", "b", waits(-1)))
		for {
			again, err := e.renew(h)
			if err != nil {
				if !errors.Is(err, lokt.ErrNotFound) && !errors.Is(err, lokt.ErrNotOwner) {
					e.Error(err)
				}
				break
			}
			if !again.ExpiresAt.Equal(h.HeldSince.Add(e.short)) {
				e.Fatalf("renewed to %+v", again)
			}
			time.Sleep(e.short / 20)
		}
		e.lasts("a maximum hold", asked, p)
	}},
	{"a freeze ends after its time", func(e *env) {
		asked := time.Now()
		f, err := e.s.Freeze(e.Context(), "x", lokt.Freeze{Owner: root, TTL: e.short})
		if err != nil || !f.ExpiresAt.Equal(f.At.Add(e.short)) {
			e.Fatalf("frozen as %+v, %v", f, err)
		}
		e.lasts("a freeze", asked, e.begin(e.claim("x", "a", waits(-1))))
		_, err = e.s.Unfreeze(e.Context(), lokt.Target{Name: "x", Owner: root})
		e.failsWith("unfreezing what is not frozen", err, lokt.ErrNotFound)
	}},
	{"a holder is asked to leave by a more important claim, and has its grace", func(e *env) {
		h := e.grant(e.claim("x", "low"))
		p := e.enqueue(e.claim("x", "high", priority(1), preempt(e.short)))
		asked := time.Now()
		told, err := e.renew(h)
		if err != nil || told.Yield == nil || told.Yield.To.ID != "high" || !told.ExpiresAt.Equal(h.ExpiresAt) || !told.Yield.Deadline.Equal(told.AcquiredAt.Add(e.short)) {
			e.Fatalf("renewed to %+v, %v", told, err)
		}
		for range 2 { // before the first the answer may have been lost
			if again, err := e.renew(told); err == nil && (!again.Yield.Heard || !again.ExpiresAt.Equal(told.Yield.Deadline)) {
				e.Errorf("renewing moved the end from %v to %v", told.Yield.Deadline, again.ExpiresAt)
			}
		}
		e.lasts("a grace", asked, p)
		e.noRenewal("by who had to leave", h, lokt.ErrNotOwner)
	}},
}

// bubbleTests need a clock that stands still while tests compute, and that passes an hour in no time.
var bubbleTests = []serviceTest{
	{"a lease holds to the very end of its time, renewal by renewal", func(e *env) {
		h := e.grant(e.claim("x", "a", ttl(e.short)))
		for range 3 {
			time.Sleep(e.short - 1)
			_ = e.deny(e.claim("x", "b"))
			time.Sleep(time.Nanosecond)
			_ = e.deny(e.claim("x", "b"))
			var err error
			if h, err = e.renew(h); err != nil {
				e.Fatal(err)
			}
		}
		time.Sleep(e.short + 1)
		e.grant(e.claim("x", "b"))
	}},
	{"who waits for an hour keeps its place", func(e *env) {
		h := e.grant(e.claim("x", "a", ttl(0)))
		var queue []*pending
		for i := range 3 {
			queue = append(queue, e.enqueue(e.claim("x", fmt.Sprint("w", i), ttl(0))))
		}
		time.Sleep(time.Hour)
		e.expect("x", "a", "w0 w1 w2")
		e.release(h)
		for _, p := range queue {
			h = p.granted()
			time.Sleep(2 * lokt.QueueTTL) // a grant that was taken up stays
			if owner := owners(e.get("x").Live()); owner != h.Owner.ID {
				e.Fatalf("held by %q, not %q", owner, h.Owner.ID)
			}
			e.release(h)
		}
		e.expectFree("x")
	}},
	{"a release wakes who is next at once", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		p := e.enqueue(e.claim("x", "b"))
		time.Sleep(time.Minute)
		released := time.Now()
		e.release(h)
		p.granted()
		if took := p.at.Sub(released); took > 10*time.Millisecond {
			e.Errorf("it took %v", took)
		}
	}},
	{"leases that expire one after another pass the lock on in order", func(e *env) {
		e.grant(e.claim("x", "a", ttl(e.short)))
		start := time.Now()
		var queue []*pending
		for i := range 5 {
			queue = append(queue, e.enqueue(e.claim("x", fmt.Sprint("w", i), ttl(e.short))))
		}
		for i, p := range queue { // nobody releases
			p.granted()
			if took, due := p.at.Sub(start), time.Duration(i+1)*e.short; took < due-slack || took > due+time.Duration(i+1)*slack {
				e.Errorf("w%d was granted after %v, not %v", i, took, due)
			}
		}
	}},
}
