package jobstest

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// TestLockTokens checks what workers are told of the fencing tokens of the locks that their jobs name, across the death of
// the manager's process: they are those of the locks when the job was granted, and stay so whatever becomes of the locks.
// open returns a new, empty store, which the suite closes, and a service that has no locks yet. It runs in a bubble of
// testing/synctest, as TestRestart does.
func TestLockTokens(t *testing.T, open func(t *testing.T) (jobs.Store, lokt.Service)) {
	synctest.Test(t, func(t *testing.T) {
		store, locks := open(t)
		lockTokensSurvive(newRestarts(t, store, locks))
	})
}

func lockTokensSurvive(r *restarts) {
	service := r.o.Locks
	last := map[string]uint64{}
	for i := range 4 {
		names := []string{"b", "a"}[:1+i%2]
		r.submit(func(s *jobs.Spec) { s.Locks = names })
		g := r.grant(ask("w", request(fmt.Sprint("r", i))))
		if len(g.Lease.LockTokens) != len(names) {
			r.Fatalf("told of %v are %v", names, g.Lease.LockTokens)
		}
		for name, token := range g.Lease.LockTokens {
			s, err := service.Get(r.Context(), name)
			if h, held := s.Lock.Holder(g.Lease.ID); err != nil || !held || h.Token != token || s.Lock.Token != token || token <= last[name] {
				r.Errorf("%s: told is %d after %d, the lock is %+v, %v", name, token, last[name], s.Lock, err)
			}
			last[name] = token
		}
		same := func(when string) {
			r.Helper()
			if again := r.grant(ask("w", request(fmt.Sprint("r", i)))); again.Lease.ID != g.Lease.ID || !maps.Equal(again.Lease.LockTokens, g.Lease.LockTokens) {
				r.Errorf("%s told are %v, not %v", when, again.Lease.LockTokens, g.Lease.LockTokens)
			}
		}
		same("again")
		r.kill(time.Second)
		same("after a kill")
		r.beat(g)
		if v := r.view(g.Job.ID); !maps.Equal(v.Lease.LockTokens, g.Lease.LockTokens) {
			r.Errorf("shown are %v, not %v", v.Lease.LockTokens, g.Lease.LockTokens)
		}
		if i == 3 { // one of them is broken, held by another for a while, and taken again
			if _, err := service.Release(r.Context(), lokt.Target{Name: "b", Force: true}); err != nil {
				r.Fatal(err)
			}
			other, err := service.Acquire(r.Context(), lokt.Claim{Name: "b", Owner: lokt.Owner{ID: "somebody"}})
			if err != nil || other.Token <= last["b"] {
				r.Fatalf("the other's token is %d, %v", other.Token, err)
			}
			time.Sleep(r.ttl / 2)
			r.beat(g)
			same("while another has the lock,")
			if _, err := service.Release(r.Context(), lokt.Target{Name: "b", LeaseID: other.LeaseID}); err != nil {
				r.Fatal(err)
			}
			time.Sleep(r.ttl * 3 / 4)
			r.beat(g)
			s, err := service.Get(r.Context(), "b")
			if h, held := s.Lock.Holder(g.Lease.ID); err != nil || !held || h.Token <= other.Token {
				r.Errorf("the lock was not taken again: %+v, %v", s.Lock, err)
			}
			same("after it was taken again,")
			r.kill(0)
			same("after that and a kill,")
		}
		r.complete(g, jobs.Completed)
		same("after the end")
		r.kill(0)
		same("after the end and a kill")
	}
	r.submit()
	if g := r.grant(ask("w")); g.Lease.LockTokens != nil {
		r.Errorf("a job without locks was told %v", g.Lease.LockTokens)
	}
}
