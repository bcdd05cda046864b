package lokttest

import (
	"errors"

	"github.com/lokt-dev/lokt"
)

// root asks for what only force may do.
var root = lokt.Owner{ID: "root", Host: "suite.example"}

// failsWith checks an error, and that it is none of the others.
func (e *env) failsWith(what string, err, want error) {
	e.Helper()
	for _, sentinel := range []error{lokt.ErrInvalid, lokt.ErrHeld, lokt.ErrFrozen, lokt.ErrNotFound, lokt.ErrNotOwner, lokt.ErrUnavailable} {
		if is := errors.Is(err, sentinel); is != errors.Is(want, sentinel) {
			e.Errorf("%s: got %v, want %v", what, err, want)
			return
		}
	}
}

var endTests = []serviceTest{
	{"a lease is released once", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		e.release(h)
		e.noRelease("again", lokt.Target{Name: "x", LeaseID: h.LeaseID, Owner: h.Owner}, lokt.ErrNotFound)
		e.noRenewal("after release", h, lokt.ErrNotFound)
		b := e.grant(e.claim("x", "b"))
		e.noRelease("of what another holds", lokt.Target{Name: "x", LeaseID: h.LeaseID, Owner: h.Owner}, lokt.ErrNotOwner)
		e.noRenewal("of what another holds", h, lokt.ErrNotOwner)
		if in := e.get("x").Lock.Holders; len(in) != 1 || in[0].Token != b.Token || in[0].Renewals != 0 || !in[0].ExpiresAt.Equal(b.ExpiresAt) {
			e.Errorf("late calls changed another's hold to %+v", in)
		}
	}},
	{"an owner releases its leases, but not its guards, nor another's", func(e *env) {
		e.grant(e.claim("x", "a", limit(lokt.Shared)))
		e.grant(e.claim("x", "a", limit(lokt.Shared)))
		guard := e.grant(e.claim("x", "a", limit(lokt.Shared), strict))
		other := e.grant(e.claim("x", "b", limit(lokt.Shared)))
		e.ends(lokt.Target{Name: "x", Owner: guard.Owner}, "a a")
		e.expect("x", "a b", "")
		e.noRelease("of an owner's guard", lokt.Target{Name: "x", Owner: guard.Owner}, lokt.ErrNotOwner)
		e.noRelease("by a stranger", lokt.Target{Name: "x", Owner: lokt.Owner{ID: "c"}}, lokt.ErrNotOwner)
		e.release(guard)
		e.release(other)
		e.noRelease("of a free lock", lokt.Target{Name: "x", Owner: guard.Owner}, lokt.ErrNotFound)
	}},
	{"force ends all holds, or the one that it names", func(e *env) {
		a := e.grant(e.claim("x", "a", limit(lokt.Shared)))
		b := e.grant(e.claim("x", "b", limit(lokt.Shared), strict))
		c := e.enqueue(e.claim("x", "c"))
		e.ends(lokt.Target{Name: "x", Force: true, Owner: root, LeaseID: a.LeaseID}, "a")
		e.expect("x", "b", "c")
		e.ends(lokt.Target{Name: "x", Force: true, Owner: root}, "b")
		h := c.granted()
		for _, victim := range []lokt.Holder{a, b} {
			e.noRenewal("of what was ended by force", victim, lokt.ErrNotOwner)
		}
		e.release(h)
		e.noRelease("of a free lock by force", lokt.Target{Name: "x", Force: true, Owner: root}, lokt.ErrNotFound)
	}},
	{"a request to end what is stale ends nothing else", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		e.noRelease("of what is live, as stale", lokt.Target{Name: "x", Stale: true, Owner: root}, lokt.ErrHeld)
		removed, err := e.s.Prune(e.Context(), "x")
		if err != nil || len(removed) != 0 {
			e.Errorf("pruned %+v, %v", removed, err)
		}
		e.expect("x", "a", "")
		e.release(h)
		e.noRelease("of a free lock, as stale", lokt.Target{Name: "x", Stale: true, Owner: root}, lokt.ErrNotFound)
	}},
	{"a request that names no lease ends nothing that was granted after it", func(e *env) { // Promise S-285.
		h := e.grant(e.claim("x", "a"))
		late := lokt.Target{Name: "x", Owner: h.Owner, UpTo: h.Token}
		e.ends(late, "a")
		h = e.grant(e.claim("x", "a"))
		e.noRelease("of an owner's later hold", late, lokt.ErrNotOwner)
		_, err := e.s.Tell(e.Context(), late, lokt.Message{Pass: &lokt.Claim{Owner: lokt.Owner{ID: "b"}, TTL: 1 << 40}})
		e.failsWith("passing on a later hold", err, lokt.ErrNotOwner)
		late.Force = true
		e.noRelease("of a later hold by force", late, lokt.ErrHeld)
		e.expect("x", "a", "")
		e.release(h)
	}},
	{"a renewal may name the owner on record, and no other", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		if again, err := e.s.Renew(e.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID, Owner: &h.Owner}); err != nil || again.Renewals != 1 {
			e.Errorf("renewed to %+v, %v", again, err)
		}
		_, err := e.s.Renew(e.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID, Owner: &lokt.Owner{ID: "b", Host: h.Owner.Host}})
		e.failsWith("renewal by another", err, lokt.ErrNotOwner)
		_, err = e.s.Renew(e.Context(), lokt.Renewal{Name: "x", LeaseID: lokt.NewLeaseID()})
		e.failsWith("renewal of an unknown lease", err, lokt.ErrNotOwner)
		_, err = e.s.Renew(e.Context(), lokt.Renewal{Name: "free", LeaseID: h.LeaseID})
		e.failsWith("renewal of a free lock", err, lokt.ErrNotFound)
	}},
	{"a freeze keeps newcomers out and lets holders go on", func(e *env) {
		h := e.grant(e.claim("x", "a", limit(lokt.Shared)))
		w := e.enqueue(e.claim("x", "w"))
		f, err := e.s.Freeze(e.Context(), "x", lokt.Freeze{Owner: root, Reason: "release day"})
		if err != nil || f.Owner.ID != "root" || f.ID == "" || f.At.IsZero() || !f.ExpiresAt.IsZero() {
			e.Fatalf("frozen as %+v, %v", f, err)
		}
		for _, c := range []lokt.Claim{e.claim("x", "b", limit(lokt.Shared)), e.claim("x", "a", limit(lokt.Shared))} {
			_, err := e.s.Acquire(e.Context(), c)
			e.failsWith("claim of "+c.Owner.ID, err, lokt.ErrFrozen)
			var blocked *lokt.BlockedError
			if !errors.As(err, &blocked) || blocked.Freeze == nil || blocked.Freeze.Owner.ID != "root" || blocked.Freeze.Reason != "release day" {
				e.Errorf("denied with %+v", blocked)
			}
		}
		if h, err = e.renew(h); err != nil {
			e.Errorf("a holder's renewal: %v", err)
		}
		e.release(h)
		e.expect("x", "", "w")
		if snap := e.get("x"); snap.Frozen() == nil || snap.Lock.Free() {
			e.Errorf("got %+v", snap.Lock)
		}
		if _, err := e.s.Unfreeze(e.Context(), lokt.Target{Name: "x", Owner: root}); err != nil {
			e.Fatal(err)
		}
		e.release(w.granted())
		e.expectFree("x")
	}},
	{"a freeze belongs to who made it", func(e *env) {
		ctx, other := e.Context(), lokt.Owner{ID: "other"}
		first, err := e.s.Freeze(ctx, "x", lokt.Freeze{Owner: root, Reason: "one"})
		if err != nil {
			e.Fatal(err)
		}
		again, err := e.s.Freeze(ctx, "x", lokt.Freeze{Owner: root, Reason: "two", TTL: 1 << 40})
		if err != nil || again.ID != first.ID || again.Reason != "two" || !again.ExpiresAt.Equal(again.At.Add(1<<40)) {
			e.Errorf("frozen again as %+v, %v", again, err)
		}
		_, err = e.s.Freeze(ctx, "x", lokt.Freeze{Owner: other})
		e.failsWith("another's freeze", err, lokt.ErrFrozen)
		_, err = e.s.Unfreeze(ctx, lokt.Target{Name: "x", Owner: other})
		e.failsWith("another's unfreeze", err, lokt.ErrNotOwner)
		_, err = e.s.Unfreeze(ctx, lokt.Target{Name: "x", LeaseID: lokt.NewLeaseID(), Owner: other, Force: true})
		e.failsWith("a forced unfreeze of a freeze that was replaced", err, lokt.ErrNotOwner)
		seen := e.get("x").Frozen().ID
		if f, err := e.s.Unfreeze(ctx, lokt.Target{Name: "x", LeaseID: seen, Owner: other, Force: true}); err != nil || f.ID != first.ID {
			e.Errorf("forced: %+v, %v", f, err)
		}
		_, err = e.s.Unfreeze(ctx, lokt.Target{Name: "x", Owner: root})
		e.failsWith("unfreezing what is not frozen", err, lokt.ErrNotFound)
		e.expectFree("x")
	}},
}
