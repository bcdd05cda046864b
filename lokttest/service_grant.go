package lokttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
)

var grantTests = []serviceTest{
	{"a free lock is granted as it was claimed", func(e *env) {
		c := e.claim("x", "a", limit(3), priority(2), maxHold(30*time.Minute), strict)
		c.Metadata, c.Weight = map[string]string{"why": "tests", "größe": "“groß”"}, lokt.Weight{Takes: 2, Of: 3}
		h := e.grant(c)
		if h.LeaseID != c.LeaseID || h.Owner.ID != "a" || h.Owner.Session != c.Owner.Session || h.Limit != 3 || h.Priority != 2 ||
			!h.Strict || h.Slot != 1 || h.Weight != c.Weight || h.TTL != time.Hour || h.MaxHold != 30*time.Minute || !maps.Equal(h.Metadata, c.Metadata) {
			e.Errorf("granted %+v", h)
		}
		if !h.HeldSince.Equal(h.AcquiredAt) || !h.ExpiresAt.Equal(h.HeldSince.Add(30*time.Minute)) || h.Renewals != 0 || !h.Pending.IsZero() {
			e.Errorf("granted %+v", h)
		}
		snap := e.get("x")
		if len(snap.Lock.Holders) != 1 || snap.Lock.Holders[0].Token != h.Token || snap.Lock.Token != h.Token || !maps.Equal(snap.Lock.Holders[0].Metadata, c.Metadata) {
			e.Errorf("on record is %+v", snap.Lock)
		}
		if _, stale := snap.Stale(snap.Lock.Holders[0]); stale || snap.Now.Before(h.HeldSince) {
			e.Errorf("at %v it is stale: %v", snap.Now, stale)
		}
	}},
	{"a denial says who holds the lock and leaves nothing behind", func(e *env) {
		c := e.claim("x", "a")
		c.Metadata = map[string]string{"why": "tests"}
		h := e.grant(c)
		blocked := e.deny(e.claim("x", "b"))
		if blocked.Name != "x" || len(blocked.Holders) != 1 || blocked.Freeze != nil || len(blocked.Ahead) != 0 || blocked.Now.IsZero() || blocked.TimedOut != 0 {
			e.Fatalf("denied with %+v", blocked)
		}
		in := blocked.Holders[0]
		if in.Owner.ID != "a" || in.Owner.Host != "suite.example" || in.Token != h.Token || !in.ExpiresAt.Equal(h.ExpiresAt) ||
			!in.HeldSince.Equal(h.HeldSince) || in.TTL != time.Hour || in.Metadata["why"] != "tests" {
			e.Errorf("in the way is %+v", in)
		}
		if !strings.Contains(blocked.Error(), `"x"`) || !strings.Contains(blocked.Error(), "a@suite.example") {
			e.Errorf("people read %q", blocked)
		}
		e.expect("x", "a", "")
		e.release(h)
		if h2 := e.grant(e.claim("x", "b")); h2.Token <= h.Token {
			e.Errorf("token %d after %d", h2.Token, h.Token)
		}
	}},
	{"an owner re-enters, and each hold ends by itself", func(e *env) {
		first, second := e.grant(e.claim("x", "a")), e.grant(e.claim("x", "a"))
		if second.Token <= first.Token || second.LeaseID == first.LeaseID {
			e.Errorf("granted %+v and %+v", first, second)
		}
		e.release(first)
		_ = e.deny(e.claim("x", "b"))
		e.release(second)
		e.grant(e.claim("x", "b"))
	}},
	{"another session of the same ID is another owner, unless the ID was chosen on purpose", func(e *env) {
		e.grant(e.claim("x", "a"))
		other := func(c *lokt.Claim) { c.Owner.Session = "another" }
		_ = e.deny(e.claim("x", "a", other))
		e.grant(e.claim("x", "a", other, func(c *lokt.Claim) { c.Owner.AnySession = true }))
	}},
	{"a refresh renews the owner's hold on new terms", func(e *env) {
		first := e.grant(e.claim("x", "a", ttl(time.Minute)))
		again := e.grant(e.claim("x", "a", ttl(2*time.Hour), refresh))
		if again.LeaseID != first.LeaseID || again.Token != first.Token || again.TTL != 2*time.Hour || again.Renewals != 1 || !again.HeldSince.Equal(first.HeldSince) {
			e.Errorf("refreshed %+v to %+v", first, again)
		}
		e.expect("x", "a", "")
		forEver := e.grant(e.claim("x", "a", ttl(0), refresh))
		if !forEver.ExpiresAt.IsZero() {
			e.Errorf("refreshed to %+v", forEver)
		}
		e.release(forEver)
		e.grant(e.claim("z", "a", maxHold(time.Hour)))
		if kept := e.grant(e.claim("z", "a", refresh)); kept.MaxHold != time.Hour || kept.ExpiresAt.IsZero() {
			e.Errorf("the maximum hold went: %+v", kept)
		}
		guard := e.grant(e.claim("x", "a", strict))
		if lease := e.grant(e.claim("x", "a", refresh)); lease.Token == guard.Token {
			e.Errorf("the strict hold was refreshed: %+v", lease)
		}
	}},
	{"a claim that is sent again is answered alike", func(e *env) {
		c := e.claim("x", "a")
		first, again := e.grant(c), e.grant(c)
		if again.Token != first.Token || again.ExpiresAt.Before(first.ExpiresAt) || !again.HeldSince.Equal(first.HeldSince) {
			e.Errorf("answered %+v, then %+v", first, again)
		}
		e.expect("x", "a", "")
		stolen := e.claim("x", "b")
		stolen.LeaseID = c.LeaseID
		if h, err := e.s.Acquire(e.Context(), stolen); !errors.Is(err, lokt.ErrInvalid) {
			e.Errorf("another's lease ID is answered %+v, %v", h, err)
		}
		e.release(first)
	}},
	{"a claim without a lease ID is given one", func(e *env) {
		c, d := e.claim("x", "a"), e.claim("y", "a")
		c.LeaseID, d.LeaseID = "", ""
		h, other := e.grant(c), e.grant(d)
		if h.LeaseID == other.LeaseID || len(h.LeaseID) < 16 {
			e.Errorf("lease IDs are %q and %q", h.LeaseID, other.LeaseID)
		}
		e.release(h)
		e.release(other)
	}},
	{"a strict hold that shares keeps its number, and the next one has the lowest that is free", func(e *env) {
		var holds []lokt.Holder
		for i, who := range []string{"a", "b", "a"} {
			holds = append(holds, e.grant(e.claim("x", who, limit(3), strict)))
			if holds[i].Slot != i+1 {
				e.Errorf("hold %d has the number %d", i+1, holds[i].Slot)
			}
		}
		p := e.enqueue(e.claim("x", "c", limit(3), strict))
		e.release(holds[1])
		if h := p.granted(); h.Slot != 2 {
			e.Errorf("granted %+v", h)
		}
		if h, err := e.renew(holds[2]); err != nil || h.Slot != 3 {
			e.Errorf("renewed to %+v, %v", h, err)
		}
		e.release(holds[0])
		if h := e.grant(e.claim("x", "d", limit(3), strict)); h.Slot != 1 {
			e.Errorf("granted %+v", h)
		}
	}},
	{"weights fill up, and are free again with their holds", func(e *env) {
		a := e.grant(e.claim("x", "a", ofFive(3)))
		if blocked := e.deny(e.claim("x", "b", ofFive(3))); owners(blocked.Holders) != "a" {
			e.Errorf("denied with %+v", blocked)
		}
		c := e.grant(e.claim("x", "c", ofFive(2)))
		p := e.enqueue(e.claim("x", "b", ofFive(3)))
		e.pass(a, e.claim("x", "d").Owner, "d") // with what it takes
		e.expect("x", "c d", "b")
		e.ends(lokt.Target{Name: "x", Owner: e.claim("x", "d").Owner}, "d")
		if h := p.granted(); h.Weight.Takes != 3 || h.Weight.Of != 5 {
			e.Errorf("granted %+v", h)
		}
		_ = e.deny(e.claim("x", "e", ofFive(1)))
		e.release(c)
		e.grant(e.claim("x", "e", ofFive(1)))
	}},
	{"tokens rise with every grant, and only then", func(e *env) {
		last := uint64(0)
		rises := func(h lokt.Holder) lokt.Holder {
			e.Helper()
			if h.Token <= last {
				e.Errorf("token %d after %d", h.Token, last)
			}
			last = h.Token
			return h
		}
		e.release(rises(e.grant(e.claim("x", "a"))))
		rises(e.grant(e.claim("x", "b", strict)))
		if _, err := e.s.Release(e.Context(), lokt.Target{Name: "x", Force: true, Owner: lokt.Owner{ID: "root"}}); err != nil {
			e.Error(err)
		}
		a := rises(e.grant(e.claim("x", "a", limit(2))))
		rises(e.grant(e.claim("x", "b", limit(2))))
		if h, err := e.renew(a); err != nil || h.Token != a.Token {
			e.Errorf("renewed to %+v, %v", h, err)
		}
		p := e.enqueue(e.claim("x", "c", limit(2)))
		e.release(a)
		rises(p.granted())
		if l := e.get("x").Lock; l.Token != last {
			e.Errorf("on record is token %d, not %d", l.Token, last)
		}
	}},
	{"of sixty-four who claim at once, one is granted", func(e *env) {
		for round := range 3 {
			name := fmt.Sprintf("x%d", round)
			var winners atomic.Int32
			var winner atomic.Value
			together(64, func(i int) {
				h, err := e.s.Acquire(e.Context(), e.claim(name, fmt.Sprint("claimant ", i)))
				switch {
				case err == nil:
					winners.Add(1)
					winner.Store(h)
				case !errors.Is(err, lokt.ErrHeld):
					e.Errorf("claimant %d: %v", i, err)
				}
			})
			if winners.Load() != 1 {
				e.Fatalf("%d were granted", winners.Load())
			}
			h := winner.Load().(lokt.Holder)
			e.expect(name, h.Owner.ID, "")
			e.release(h)
		}
	}},
	{"invalid requests are refused", func(e *env) {
		ctx := e.Context()
		refused := func(what string, err error) {
			e.Helper()
			if !errors.Is(err, lokt.ErrInvalid) {
				e.Errorf("%s: %v", what, err)
			}
		}
		for _, name := range []string{"", "a/b", "..", "a..b", "a b", "ä", "a\x00", strings.Repeat("n", lokt.MaxNameLen+1)} {
			_, acquire := e.s.Acquire(ctx, e.claim(name, "a"))
			_, renew := e.s.Renew(ctx, lokt.Renewal{Name: name, LeaseID: "1"})
			_, release := e.s.Release(ctx, lokt.Target{Name: name, LeaseID: "1"})
			_, freeze := e.s.Freeze(ctx, name, lokt.Freeze{Owner: lokt.Owner{ID: "a"}})
			_, unfreeze := e.s.Unfreeze(ctx, lokt.Target{Name: name, Owner: lokt.Owner{ID: "a"}})
			_, prune := e.s.Prune(ctx, name)
			_, get := e.s.Get(ctx, name)
			wait := e.s.Wait(ctx, lokt.Watch{Name: name, Seen: 1})
			for i, err := range []error{acquire, renew, release, freeze, unfreeze, prune, get, wait} {
				refused(fmt.Sprintf("request %d about %q", i, name), err)
			}
		}
		for what, edit := range map[string]func(*lokt.Claim){
			"an empty owner":          func(c *lokt.Claim) { c.Owner.ID = "" },
			"a long owner":            func(c *lokt.Claim) { c.Owner.ID = strings.Repeat("o", lokt.MaxIDLen+1) },
			"a line break":            func(c *lokt.Claim) { c.Owner.ID = "a\nb" },
			"a negative limit":        limit(-1),
			"a negative TTL":          ttl(-1),
			"a tiny TTL":              ttl(lokt.MinTTL - 1),
			"a negative maximum":      maxHold(-1),
			"a negative grace":        preempt(-1),
			"too much metadata":       func(c *lokt.Claim) { c.Metadata = map[string]string{"k": strings.Repeat("v", lokt.MaxMetadata)} },
			"an empty metadata key":   func(c *lokt.Claim) { c.Metadata = map[string]string{"": "v"} },
			"a lease ID that is long": func(c *lokt.Claim) { c.LeaseID = strings.Repeat("1", lokt.MaxIDLen+1) },
		} {
			_, err := e.s.Acquire(ctx, e.claim("x", "a", edit))
			refused(what, err)
		}
		_, err := e.s.Freeze(ctx, "x", lokt.Freeze{})
		refused("a freeze by nobody", err)
		if l := e.get("x").Lock; !l.Free() {
			e.Errorf("invalid requests left %+v", l)
		}
	}},
	{"a request whose context has ended does nothing", func(e *env) {
		ctx, cancel := context.WithCancel(e.Context())
		cancel()
		if h, err := e.s.Acquire(ctx, e.claim("x", "a")); !errors.Is(err, context.Canceled) {
			e.Errorf("answered %+v, %v", h, err)
		}
		e.expectFree("x")
	}},
	{"unknown locks are free, and lists show the others in order", func(e *env) {
		if snap := e.get("unknown"); !snap.Lock.Free() || snap.Lock.Name != "unknown" || snap.Now.IsZero() {
			e.Errorf("got %+v", snap)
		}
		for _, name := range []string{"b", "a-2", "a-1", "c"} {
			e.grant(e.claim(name, "owner of "+name))
		}
		e.enqueue(e.claim("a-2", "w"))
		list := func(f lokt.Filter) string {
			var all []string
			for snap, err := range e.s.List(e.Context(), f) {
				if err != nil {
					e.Fatal(err)
				}
				all = append(all, snap.Lock.Name+":"+owners(snap.Live()))
			}
			return strings.Join(all, ", ")
		}
		for f, want := range map[lokt.Filter]string{
			{}:                            "a-1:owner of a-1, a-2:owner of a-2, b:owner of b, c:owner of c",
			{Prefix: "a-"}:                "a-1:owner of a-1, a-2:owner of a-2",
			{Queued: true}:                "a-2:owner of a-2",
			{Prefix: "z"}:                 "",
			{Prefix: "b", Queued: true}:   "",
			{Prefix: "a-2", Queued: true}: "a-2:owner of a-2",
		} {
			if got := list(f); got != want {
				e.Errorf("list %+v: %s", f, got)
			}
		}
	}},
	{"a watcher is woken by a change", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		seen := e.get("x").Lock.Revision
		woken := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(e.Context(), patience)
			defer cancel()
			for { // it may wake early
				if err := e.s.Wait(ctx, lokt.Watch{Name: "x", Seen: seen}); err != nil {
					woken <- err
					return
				}
				if snap, err := e.s.Get(ctx, "x"); err != nil || snap.Lock.Free() {
					woken <- err
					return
				}
			}
		}()
		e.release(h)
		if err := <-woken; err != nil {
			e.Error(err)
		}
	}},
}
