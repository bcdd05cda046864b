package jobs

import (
	"maps"
	"testing"
	"time"
)

// lockingWorld has rules that order locks.
func lockingWorld(t *testing.T) *world {
	w := newWorld(t, Config{Total: 5, locking: true})
	w.submit("a", func(s *Spec) { s.Units, s.Locks = 3, []string{"x", "y"} })
	return w
}

// order plays an ask, and returns what it makes the rules order.
func (w *world) order(id uint64, a Request, leaseID string) lockOrder {
	w.Helper()
	out := w.turn(request{id, askOp{Request: a, leaseID: leaseID}})
	if len(out.orders) != 1 || out.orders[0].kind != lockTake || len(out.replies) != 0 {
		w.Fatalf("an ask brought %+v, and orders %+v", out.replies, out.orders)
	}
	return out.orders[0]
}

func TestAJobWithLocksIsGrantedWhenTheyAreTaken(t *testing.T) {
	w := lockingWorld(t)
	o := w.order(1, Request{WorkerID: "w"}, "L")
	w.want("lease", o.leaseID, "L")
	w.want("job", o.jobID, "a")
	s := w.do(statusOp{}).(Snapshot)
	w.want("leased before", s.Leased, 0)
	w.submit("b", func(s *Spec) { s.Units = 3 })
	w.want("capacity that is kept", w.ask("v", "M"), DeniedCapacity)
	w.want("waiting", w.do(getOp{"a"}).(View).WaitingFor, "lock:x")
	tokens := map[string]uint64{"x": 3, "y": 8}
	out := w.turn(request{2, lockedOp{o, tokens, ""}})
	g, ok := out.replies[0].result.(Grant)
	if !ok || g.Denied != nil || g.Job.ID != "a" || !maps.Equal(g.Lease.LockTokens, tokens) || g.Lease.ID != "L" || out.replies[0].id != 1 {
		t.Fatalf("answered with %+v", out.replies)
	}
	out = w.turn(request{3, completeOp{Completion{LeaseID: "L", WorkerID: "w", Status: Completed}}})
	if len(out.orders) != 1 || out.orders[0].kind != lockFree || out.orders[0].leaseID != "L" {
		t.Fatalf("the end ordered %+v", out.orders)
	}
	w.submit("c", func(s *Spec) { s.Locks = []string{"y"} })
	w.want("lock that is being given back", w.do(getOp{"c"}).(View).WaitingFor, "lock:y")
	w.turn(request{4, unlockedOp{"L"}})
	w.want("job", w.order(5, Request{WorkerID: "w", Types: []string{"generic"}, MaxUnits: 1}, "N").jobID, "c")
}

func TestAJobWhoseLockIsHeldElsewhereIsPassedOverForASecond(t *testing.T) {
	w := lockingWorld(t)
	o := w.order(1, Request{WorkerID: "w"}, "L")
	w.submit("b", func(s *Spec) { s.Priority = Background })
	out := w.turn(request{2, lockedOp{o, nil, "y"}})
	g, ok := out.replies[0].result.(Grant)
	if !ok || g.Denied != nil || g.Job.ID != "b" || len(out.orders) != 0 {
		t.Fatalf("answered with %+v, orders %+v", out.replies, out.orders)
	}
	w.want("waiting", w.do(getOp{"a"}).(View).WaitingFor, "lock:y")
	w.want("ask", w.ask("v", "M"), DeniedEligible)
	w.want("next look", w.e.next()-w.now.mono, time.Second)
	w.pass(time.Second)
	o = w.order(3, Request{WorkerID: "v", Wait: MaxWait}, "N")
	w.turn(request{4, lockedOp{o, nil, "y"}})
	w.pass(time.Second)
	out = w.turn()
	if len(out.orders) != 1 || out.orders[0].leaseID != "N" {
		t.Fatalf("after a second there are orders %+v", out.orders)
	}
}

func TestLocksTakenForNobodyAreGivenBack(t *testing.T) {
	for name, gone := range map[string]op{"withdrawn": withdrawOp{1}, "cancelled": cancelOp{"a", ""}, "drained": drainOp{}, "forgotten": nil} {
		w := lockingWorld(t)
		o := w.order(1, Request{WorkerID: "w", Wait: MaxWait}, "L")
		if gone == nil {
			w.e = newEngine(w.e.cfg) // what was not stored
		} else {
			w.turn(request{2, gone})
		}
		out := w.turn(request{3, lockedOp{o, nil, ""}})
		if len(out.orders) != 1 || out.orders[0].kind != lockFree || out.orders[0].leaseID != "L" {
			t.Errorf("%s: ordered are %+v", name, out.orders)
		}
		for _, r := range out.replies {
			if g, ok := r.result.(Grant); ok && g.Denied == nil {
				t.Errorf("%s: granted %+v", name, g)
			}
		}
		w.turn(request{4, unlockedOp{"L"}})
		if s := w.do(statusOp{}).(Snapshot); s.Leased != 0 || w.e.kept != 0 || len(w.e.unlocking) != 0 {
			t.Errorf("%s: left is %+v, and %d units are kept", name, s, w.e.kept)
		}
	}
}

func TestOfTwinsOnlyOneAsksWhileLocksAreTaken(t *testing.T) {
	w := lockingWorld(t)
	w.submit("b")
	o := w.order(1, Request{WorkerID: "w", RequestID: "r", Wait: MaxWait}, "L")
	if out := w.turn(request{2, askOp{Request: Request{WorkerID: "w", RequestID: "r", Wait: MaxWait}, leaseID: "M"}}); len(out.replies) != 0 {
		t.Fatalf("the twin was answered with %+v", out.replies)
	}
	out := w.turn(request{3, lockedOp{o, nil, ""}})
	if len(out.replies) != 2 || out.replies[0].result.(Grant).Lease.ID != "L" || out.replies[1].result.(Grant).Lease.ID != "L" {
		t.Errorf("answered with %+v", out.replies)
	}
}

// A program from before, on the same store, extends a lease without knowing of the tokens.
func TestALeaseThatIsExtendedElsewhereKeepsTheTokensOfItsLocks(t *testing.T) {
	w := lockingWorld(t)
	o := w.order(1, Request{WorkerID: "w"}, "L")
	out := w.turn(request{2, lockedOp{o, map[string]uint64{"x": 3, "y": 8}, ""}})
	l := out.changes.Leases[0]
	l.LockTokens, l.ExpiresAt = nil, l.ExpiresAt.Add(time.Minute)
	w.e.follow(&Changes{Leases: []Lease{l}}, w.now)
	if v := w.do(getOp{"a"}).(View); v.Lease.LockTokens["y"] != 8 || !v.Lease.ExpiresAt.Equal(l.ExpiresAt) {
		t.Errorf("the lease is %+v", v.Lease)
	}
}
