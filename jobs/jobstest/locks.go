package jobstest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// TestLockTokens checks what workers are told of the fencing tokens of the locks that their jobs name, across
// the death of the manager's process: they are those of the locks when the job was granted, and stay so whatever
// becomes of the locks. open returns a new, empty store, which the suite closes, and a service that has no locks
// yet: of the same store if there is one, or elsewhere. It runs in a bubble of testing/synctest, as TestRestart does.
func TestLockTokens(t *testing.T, one bool, open func(t *testing.T) (jobs.Store, lokt.Service)) {
	synctest.Test(t, func(t *testing.T) {
		store, locks := open(t)
		lockTokensSurvive(newRestarts(t, store, locks, one))
	})
}

// TestLocks checks that a job's locks can be had as soon as its end is answered, by jobs and by everybody else
// (promise S-141). open returns a new, empty store, which the suite closes, and a service without locks: of the
// same store if there is one, or elsewhere.
func TestLocks(t *testing.T, one bool, open func(t *testing.T) (jobs.Store, lokt.Service)) {
	for _, test := range []struct {
		name string
		run  func(e *env, service lokt.Service)
		jobs.Config
	}{
		{name: "of jobs with the same locks none waits", run: nobodyWaits},
		{name: "what is freed goes to whoever waits for it", run: freedIsHandedOn},
		{name: "a job has all its locks or none", run: allLocksOrNone},
		{name: "jobs share slots with whoever has one, and what is refused does not count for the rate", run: slotsAreShared},
		{"a job has its turn at locks that others always wait for", turnsAtLocks, jobs.Config{ReserveAfter: 50 * time.Millisecond}},
		{"a job gives way to who holds one of its locks and wants the other", givesWay, jobs.Config{ReserveAfter: 50 * time.Millisecond}},
	} {
		t.Run(test.name, func(t *testing.T) {
			store, service := open(t)
			t.Cleanup(func() { _ = store.Close() })
			m, err := manager.Open(storeContext(t), store, manager.Options{Config: test.Config, Locks: service, OneStore: one})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = m.Close() })
			test.run(&env{T: t, s: m}, service)
		})
	}
}

// outside has somebody else take a lock, and returns its lease.
func (e *env) outside(service lokt.Service, name string, wait time.Duration) (lokt.Target, error) {
	c := lokt.Claim{Name: name, LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: "outside"}, Wait: wait}
	_, err := service.Acquire(e.within(), c)
	return lokt.Target{Name: name, LeaseID: c.LeaseID}, err
}

func nobodyWaits(e *env, service lokt.Service) {
	for _, names := range [][]string{{"a"}, {"b", "a"}, {"d", "c", "b", "a"}} {
		for range 12 {
			e.submit(locks(names...))
		}
		for i := range 12 {
			e.complete(e.grant(ask("w")), jobs.Completed)
			held, err := e.outside(service, names[i%len(names)], 0)
			if err != nil {
				e.Fatalf("after the end: %v", err)
			}
			_, err = service.Release(e.within(), held)
			e.must(err)
		}
	}
}

func freedIsHandedOn(e *env, service lokt.Service) {
	e.submit(locks("a", "b"))
	g := e.grant(ask("w"))
	got := make(chan lokt.Target, 1)
	go func() {
		held, err := e.outside(service, "b", patience)
		if err != nil {
			e.Errorf("who waited was answered with %v", err)
		}
		got <- held
	}()
	for queued := false; !queued && len(got) == 0; time.Sleep(time.Millisecond) {
		s, err := service.Get(e.within(), "b")
		e.must(err)
		queued = len(s.Lock.Queue) > 0
	}
	e.complete(g, jobs.Completed)
	held := <-got
	id := e.submit(locks("b"))
	if d := e.deny(jobs.DeniedEligible, ask("w")); d.RetryAfter > 2*time.Second {
		e.Errorf("while another has the lock it was answered %+v", d)
	}
	e.waitsFor(id, jobs.WaitingLock+"b")
	time.AfterFunc(10*time.Millisecond, func() { _, _ = service.Release(e.within(), held) })
	e.complete(e.grant(ask("w", waiting(jobs.MaxWait))), jobs.Completed)
}

func allLocksOrNone(e *env, service lokt.Service) {
	_, err := e.outside(service, "b", 0)
	e.must(err)
	e.submit(locks("a", "b", "c"))
	e.grantOf(e.submit(locks("c")), ask("w", waiting(jobs.MaxWait)))
	for name, want := range map[string]int{"a": 0, "b": 1, "c": 1} {
		if s, err := service.Get(e.within(), name); err != nil || len(s.Live()) != want {
			e.Errorf("%s is held by %+v, %v", name, s.Live(), err)
		}
	}
}

func slotsAreShared(e *env, service lokt.Service) {
	held, err := e.outside(service, "x", 0)
	e.must(err)
	two := jobs.Limit{Slots: 2, Starts: 2, Per: 24 * time.Hour, Burst: 2}
	a, b, c := e.submit(limit(two)), e.submit(limit(two)), e.submit(limit(two))
	for range 3 {
		e.deny(jobs.DeniedEligible, ask("w"))
	}
	_, err = service.Release(e.within(), held)
	e.must(err)
	_, err = service.Acquire(e.within(), lokt.Claim{Name: "x", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: "outside"}, Limit: 2})
	e.must(err)
	g := e.grant(ask("w", waiting(jobs.MaxWait)))
	e.deny(jobs.DeniedEligible, ask("w"))
	e.waitsFor(b, jobs.WaitingLock+"x")
	e.complete(g, jobs.Completed)
	e.complete(e.grant(ask("w", waiting(jobs.MaxWait))), jobs.Completed)
	e.waitsFor(c, jobs.WaitingRate+"x")
	e.expect(a, jobs.Completed)
}

// turnsAtLocks has two outside take turns at each of two locks, so that one of them always waits (promise S-313).
func turnsAtLocks(e *env, service lokt.Service) {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(e.Context())
	defer stop()
	names := []string{"x", "y"}
	for i, name := range []string{"x", "x", "y", "y"} {
		all.Go(func() {
			for ctx.Err() == nil {
				held := lokt.Target{Name: name, LeaseID: lokt.NewLeaseID()}
				_, err := service.Acquire(e.within(), lokt.Claim{Name: name, LeaseID: held.LeaseID, Owner: lokt.Owner{ID: fmt.Sprint("outside", i)}, Wait: patience})
				for queued := false; err == nil && !queued && ctx.Err() == nil; time.Sleep(time.Millisecond) {
					s, err := service.Get(ctx, name)
					queued = err == nil && len(s.Lock.Queue) > 0
				}
				if _, err = service.Release(e.within(), held); err != nil {
					e.Errorf("giving back: %v", err)
				}
			}
		})
	}
	for _, name := range names {
		for held, end := false, time.Now().Add(patience); !held; time.Sleep(time.Millisecond) {
			s, err := service.Get(e.within(), name)
			if e.must(err); time.Now().After(end) {
				e.Fatalf("nobody waits for %s: %+v", name, s)
			}
			held = len(s.Live()) > 0 && len(s.Lock.Queue) > 0
		}
	}
	id := e.submit(locks(names...))
	for range 2 {
		g := e.grant(ask("w", waiting(jobs.MaxWait)))
		for _, name := range names {
			s, err := service.Get(e.within(), name)
			e.must(err)
			for _, h := range s.Live() {
				if h.Owner.ID != jobs.OwnerPrefix+g.Job.ID {
					e.Errorf("beside the job, %s is held by %s", name, h.Owner)
				}
			}
		}
		e.complete(g, jobs.Completed)
		e.expect(id, jobs.Completed)
		id = e.submit(locks(names...))
	}
}

// givesWay has a job that keeps one lock and waits for another, whose holder wants the first (promise S-313).
func givesWay(e *env, service lokt.Service) {
	y, err := e.outside(service, "y", 0)
	e.must(err)
	id := e.submit(locks("x", "y"))
	time.Sleep(100 * time.Millisecond) // it has waited for long enough at the first try: the second comes after ten seconds
	for kept, end := false, time.Now().Add(patience); !kept; time.Sleep(time.Millisecond) {
		e.deny(jobs.DeniedEligible, ask("w"))
		s, err := service.Get(e.within(), "x")
		if e.must(err); time.Now().After(end) {
			e.Fatalf("x is not kept for the job: %+v", s)
		}
		kept = len(s.Live()) > 0
	}
	x := lokt.Claim{Name: "x", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: "outside"}, Wait: patience, Within: []string{y.LeaseID}}
	if _, err = service.Acquire(e.within(), x); err != nil {
		e.Errorf("who holds y does not get x: %v", err)
	}
	_, err = service.Release(e.within(), lokt.Target{Name: "x", LeaseID: x.LeaseID})
	e.must(err)
	_, err = service.Release(e.within(), y)
	e.must(err)
	e.complete(e.grant(ask("w", waiting(jobs.MaxWait))), jobs.Completed)
	e.expect(id, jobs.Completed)
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
			if h, held := s.Lock.Holder(g.Lease.ID); err != nil || !held || h.Token != token ||
				s.Lock.Token != token || token <= last[name] {
				r.Errorf("%s: told is %d after %d, the lock is %+v, %v", name, token, last[name], s.Lock, err)
			}
			last[name] = token
		}
		same := func(when string) {
			r.Helper()
			if again := r.grant(ask("w", request(fmt.Sprint("r", i)))); again.Lease.ID != g.Lease.ID ||
				!maps.Equal(again.Lease.LockTokens, g.Lease.LockTokens) {
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
			var other lokt.Holder
			for end := time.Now().Add(patience); other.Token == 0; { // the job's manager may be sooner
				_, err := service.Release(r.Context(), lokt.Target{Name: "b", Force: true})
				r.must(err)
				other, err = service.Acquire(r.Context(), lokt.Claim{Name: "b", Owner: lokt.Owner{ID: "somebody"}})
				if err != nil && time.Now().After(end) {
					r.Fatalf("the other does not get the lock: %v", err)
				}
			}
			if other.Token <= last["b"] {
				r.Fatalf("the other's token is %d", other.Token)
			}
			time.Sleep(r.ttl / 2)
			r.beat(g)
			same("while another has the lock,")
			_, err := service.Release(r.Context(), lokt.Target{Name: "b", LeaseID: other.LeaseID})
			r.must(err)
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
