package jobstest

import (
	"fmt"
	"maps"
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
// yet. It runs in a bubble of testing/synctest, as TestRestart does.
func TestLockTokens(t *testing.T, open func(t *testing.T) (jobs.Store, lokt.Service)) {
	synctest.Test(t, func(t *testing.T) {
		store, locks := open(t)
		lockTokensSurvive(newRestarts(t, store, locks))
	})
}

// TestLocks checks that a job's locks can be had as soon as its end is answered, by jobs and by everybody else
// (promise S-141). open returns a new, empty store, which the suite closes, and a service without locks: of the
// same store, or of another one.
func TestLocks(t *testing.T, open func(t *testing.T) (jobs.Store, lokt.Service)) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, m *manager.Manager, locks lokt.Service)
	}{
		{"of jobs with the same locks none waits", nobodyWaits},
		{"what is freed goes to whoever waits for it", freedIsHandedOn},
		{"a job has all its locks or none", allLocksOrNone},
	} {
		t.Run(test.name, func(t *testing.T) {
			store, locks := open(t)
			t.Cleanup(func() { _ = store.Close() })
			m, err := manager.Open(storeContext(t), store, manager.Options{Locks: locks})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = m.Close() })
			test.run(t, m, locks)
		})
	}
}

// submitLocking submits a job with locks, and returns its ID.
func submitLocking(t *testing.T, m *manager.Manager, names ...string) string {
	t.Helper()
	s := spec()
	s.Locks = names
	r, err := m.Submit(storeContext(t), []jobs.Spec{s})
	if err != nil {
		t.Fatal(err)
	}
	return r[0].JobID
}

// leased asks for a lease, which there must be.
func leased(t *testing.T, m *manager.Manager, wait time.Duration) jobs.Grant {
	t.Helper()
	g, err := m.Request(storeContext(t), jobs.Request{WorkerID: "w", Wait: wait})
	if err != nil || g.Denied != nil {
		t.Fatalf("denied: %+v, %v", g.Denied, err)
	}
	return g
}

func completed(t *testing.T, m *manager.Manager, g jobs.Grant) {
	t.Helper()
	if ok, err := m.Complete(storeContext(t), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w",
		Status: jobs.Completed}); err != nil || !ok {
		t.Fatalf("completion was answered with %v, %v", ok, err)
	}
}

func nobodyWaits(t *testing.T, m *manager.Manager, locks lokt.Service) {
	for _, names := range [][]string{{"a"}, {"b", "a"}, {"d", "c", "b", "a"}} {
		for range 12 {
			submitLocking(t, m, names...)
		}
		for i := range 12 {
			completed(t, m, leased(t, m, 0))
			outside := lokt.Claim{Name: names[i%len(names)], LeaseID: lokt.NewLeaseID(),
				Owner: lokt.Owner{ID: "outside"}}
			if _, err := locks.Acquire(storeContext(t), outside); err != nil {
				t.Fatalf("after the end: %v", err)
			}
			if _, err := locks.Release(storeContext(t), lokt.Target{Name: outside.Name,
				LeaseID: outside.LeaseID}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func freedIsHandedOn(t *testing.T, m *manager.Manager, locks lokt.Service) {
	submitLocking(t, m, "a", "b")
	g := leased(t, m, 0)
	got := make(chan error, 1)
	outside := lokt.Claim{Name: "b", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: "outside"}, Wait: patience}
	go func() {
		_, err := locks.Acquire(storeContext(t), outside)
		got <- err
	}()
	for queued := false; !queued; time.Sleep(time.Millisecond) {
		s, err := locks.Get(storeContext(t), "b")
		if err != nil {
			t.Fatal(err)
		}
		queued = len(s.Lock.Queue) > 0
	}
	completed(t, m, g)
	if err := <-got; err != nil {
		t.Fatalf("who waited was answered with %v", err)
	}
	id := submitLocking(t, m, "b")
	if d, err := m.Request(storeContext(t), jobs.Request{WorkerID: "w"}); err != nil || d.Denied == nil ||
		d.Denied.RetryAfter > 2*time.Second {
		t.Errorf("while another has the lock it was answered %+v, %v", d, err)
	}
	if v, err := m.Get(storeContext(t), id); err != nil || v.WaitingFor != jobs.WaitingLock+"b" {
		t.Errorf("it waits for %q, %v", v.WaitingFor, err)
	}
	time.AfterFunc(10*time.Millisecond, func() {
		_, _ = locks.Release(storeContext(t), lokt.Target{Name: "b",
			LeaseID: outside.LeaseID})
	})
	completed(t, m, leased(t, m, jobs.MaxWait))
}

func allLocksOrNone(t *testing.T, m *manager.Manager, locks lokt.Service) {
	outside := lokt.Claim{Name: "b", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: "outside"}}
	if _, err := locks.Acquire(storeContext(t), outside); err != nil {
		t.Fatal(err)
	}
	submitLocking(t, m, "a", "b", "c")
	other := submitLocking(t, m, "c")
	if g := leased(t, m, jobs.MaxWait); g.Job.ID != other {
		t.Errorf("granted is %s", g.Job.ID)
	}
	for name, want := range map[string]int{"a": 0, "b": 1, "c": 1} {
		if s, err := locks.Get(storeContext(t), name); err != nil || len(s.Live()) != want {
			t.Errorf("%s is held by %+v, %v", name, s.Live(), err)
		}
	}
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
