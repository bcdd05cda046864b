package manager_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// open returns a manager over memory.
func open(t *testing.T, c jobs.Config) jobs.Service { return openWith(t, manager.Options{Config: c}) }

func openWith(t *testing.T, o manager.Options) *manager.Manager {
	t.Helper()
	m, err := manager.Open(t.Context(), memstore.NewJobs(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

func TestManagerOverMemoryKeepsEveryPromise(t *testing.T) { jobstest.TestService(t, open) }

func TestManagerOverMemoryKeepsItsPromisesInRealTime(t *testing.T) {
	t.Parallel()
	jobstest.TestServiceInRealTime(t, open)
}

func TestManagerThatTakesLocksElsewhereKeepsEveryPromise(t *testing.T) {
	jobstest.TestService(t, func(t *testing.T, c jobs.Config) jobs.Service {
		return openWith(t, manager.Options{Config: c, Locks: lokt.NewManager(memstore.New())})
	})
}

func TestManagerOverAStoreWithLocksKeepsEveryPromise(t *testing.T) {
	jobstest.TestService(t, func(t *testing.T, c jobs.Config) jobs.Service {
		locks := memstore.New()
		m, err := manager.Open(t.Context(), locks.Jobs(), manager.Options{Config: c, Locks: lokt.NewManager(locks), OneStore: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	})
}

// submit queues a job and returns its ID.
func submit(t *testing.T, m jobs.Service, edits ...func(*jobs.Spec)) string {
	t.Helper()
	s := jobs.NewSpec()
	for _, edit := range edits {
		edit(&s)
	}
	r, err := m.Submit(t.Context(), []jobs.Spec{s})
	if err != nil {
		t.Fatal(err)
	}
	return r[0].JobID
}

func grant(t *testing.T, m jobs.Service, a jobs.Request) jobs.Grant {
	t.Helper()
	g, err := m.Request(t.Context(), a)
	if err != nil || g.Denied != nil {
		t.Fatalf("%s was answered with %+v, %v", a.WorkerID, g.Denied, err)
	}
	return g
}

func complete(t *testing.T, m jobs.Service, g jobs.Grant) {
	t.Helper()
	if ok, err := m.Complete(t.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: g.Lease.WorkerID, Status: jobs.Completed}); err != nil || !ok {
		t.Fatalf("completion was answered with %v, %v", ok, err)
	}
}

// Promise S-141. The daemon before had a shorter TTL, and so its locks have.
func TestLocksAreHeldThoughTheTTLIsLongerNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store := lokt.NewManager(memstore.New()), memstore.NewJobs()
		var g jobs.Grant
		for i, ttl := range []time.Duration{5 * time.Second, 4 * time.Minute} {
			m, err := manager.Open(t.Context(), store, manager.Options{Config: jobs.Config{TTL: ttl}, Locks: locks})
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				submit(t, m, func(s *jobs.Spec) { s.Locks = []string{"a"} })
				g = grant(t, m, jobs.Request{WorkerID: "w"})
			}
			for range 100 * i {
				time.Sleep(time.Second)
				synctest.Wait()
				if s, err := locks.Get(t.Context(), "a"); err != nil || len(s.Live()) != 1 || s.Live()[0].LeaseID != g.Lease.ID {
					t.Errorf("the lock is held by %+v, %v", s.Live(), err)
				}
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestLocksAreHeldUnderTheLeaseWhileAJobIsLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := lokt.NewManager(memstore.New())
		store := memstore.NewJobs()
		open := func() *manager.Manager {
			m, err := manager.Open(t.Context(), store, manager.Options{Locks: locks})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		m := open()
		id := submit(t, m, func(s *jobs.Spec) { s.Locks = []string{"b", "a"} })
		g := grant(t, m, jobs.Request{WorkerID: "w"})
		holds := func(name string, want bool) {
			t.Helper()
			synctest.Wait()
			s, err := locks.Get(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			live := s.Live()
			if want != (len(live) == 1 && live[0].LeaseID == g.Lease.ID && live[0].Owner.ID == "job:"+id) {
				t.Fatalf("lock %s is held by %+v", name, live)
			}
		}
		holds("a", true)
		holds("b", true)
		beat := func() {
			t.Helper()
			if _, err := m.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"}); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 {
			time.Sleep(30 * time.Second)
			beat()
			holds("a", true)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		m = open()
		for range 20 {
			time.Sleep(30 * time.Second)
			beat()
			holds("a", true)
			holds("b", true)
		}
		complete(t, m, g)
		holds("a", false)
		holds("b", false)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAJobWaitsForALockThatSomebodyElseHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := lokt.NewManager(memstore.New())
		m := openWith(t, manager.Options{Locks: locks})
		claim := lokt.Claim{Name: "b", LeaseID: "x", Owner: lokt.Owner{ID: "human"}}
		if _, err := locks.Acquire(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		id := submit(t, m, func(s *jobs.Spec) { s.Locks = []string{"a", "b"} })
		if g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w"}); err != nil || g.Denied == nil || g.Denied.Code != jobs.DeniedEligible {
			t.Fatalf("answered with %+v, %v", g, err)
		}
		if v, err := m.Get(t.Context(), id); err != nil || v.WaitingFor != "lock:b" || v.Job.State != jobs.Queued {
			t.Errorf("waits for %q, %v", v.WaitingFor, err)
		}
		if s, err := locks.Get(t.Context(), "a"); err != nil || len(s.Live()) != 0 {
			t.Errorf("lock a is kept in vain: %+v, %v", s, err)
		}
		begin := time.Now()
		go func() {
			time.Sleep(4500 * time.Millisecond)
			_, _ = locks.Release(t.Context(), lokt.Target{Name: "b", LeaseID: "x", Owner: claim.Owner})
		}()
		g := grant(t, m, jobs.Request{WorkerID: "w", Wait: jobs.MaxWait})
		if d := time.Since(begin); g.Job.ID != id || d < 4500*time.Millisecond || d > 4600*time.Millisecond {
			t.Errorf("granted %s after %v", g.Job.ID, d)
		}
		complete(t, m, g)
	})
}

// Promise S-148.
func TestAParkedRequestGetsAJobTheMomentThatItsLockCanBeHad(t *testing.T) {
	human := lokt.Owner{ID: "human"}
	for _, c := range []struct {
		name string
		hold func(t *testing.T, locks *lokt.Manager, end time.Duration) // for that long, more or less
	}{
		{"a hold that is over", func(t *testing.T, locks *lokt.Manager, end time.Duration) {
			if _, err := locks.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "l", Owner: human, TTL: end}); err != nil {
				t.Fatal(err)
			}
		}},
		{"a hold that is renewed, and given back", func(t *testing.T, locks *lokt.Manager, end time.Duration) {
			if _, err := locks.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "l", Owner: human, TTL: time.Minute}); err != nil {
				t.Fatal(err)
			}
			go func() {
				for range 10 {
					time.Sleep(end / 10)
					_, _ = locks.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: "l"})
				}
				_, _ = locks.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "l", Owner: human})
			}()
		}},
		{"a freeze", func(t *testing.T, locks *lokt.Manager, end time.Duration) {
			if _, err := locks.Freeze(t.Context(), "x", lokt.Freeze{Owner: human, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(end, func() { _, _ = locks.Unfreeze(t.Context(), lokt.Target{Name: "x", Owner: human}) })
		}},
	} {
		for _, end := range []time.Duration{20 * time.Millisecond, 700 * time.Millisecond, 10*time.Second + 300*time.Millisecond} {
			t.Run(fmt.Sprint(c.name, " of ", end), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					locks := lokt.NewManager(memstore.New())
					m := openWith(t, manager.Options{Locks: locks})
					c.hold(t, locks, end)
					submit(t, m, func(s *jobs.Spec) { s.Locks = []string{"x"} })
					begin := time.Now()
					g := grant(t, m, jobs.Request{WorkerID: "w", Wait: jobs.MaxWait})
					if d := time.Since(begin); d < end || d > end+100*time.Millisecond {
						t.Errorf("granted after %v", d)
					}
					complete(t, m, g)
				})
			})
		}
	}
}

// busyLocks seem to be free, but are granted to nobody.
type busyLocks struct {
	lokt.Service
	asked atomic.Int64
}

func (b *busyLocks) Acquire(context.Context, lokt.Claim) (lokt.Holder, error) {
	b.asked.Add(1)
	return lokt.Holder{}, lokt.ErrHeld
}

func TestALockThatSeemsFreeAndIsRefusedIsNotAskedForWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := &busyLocks{Service: lokt.NewManager(memstore.New())}
		m := openWith(t, manager.Options{Locks: locks})
		submit(t, m, func(s *jobs.Spec) { s.Locks = []string{"x"} })
		if g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w", Wait: 10 * time.Second}); err != nil || g.Denied == nil {
			t.Fatalf("answered with %+v, %v", g, err)
		}
		if n := locks.asked.Load(); n < 10 || n > 250 {
			t.Errorf("asked for %d times in 10 s", n)
		}
	})
}

// Each try is a change of the store, and thousands of jobs may wait, each for another lock.
func TestALockThatSomebodyHoldsIsSeldomTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := lokt.NewManager(memstore.New())
		if _, err := held.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "l", Owner: lokt.Owner{ID: "human"}}); err != nil {
			t.Fatal(err)
		}
		locks := &busyLocks{Service: held}
		m := openWith(t, manager.Options{Locks: locks})
		submit(t, m, func(s *jobs.Spec) { s.Locks = []string{"x"} })
		if g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w", Wait: 25 * time.Second}); err != nil || g.Denied == nil || g.Denied.RetryAfter > 2*time.Second {
			t.Fatalf("answered with %+v, %v", g, err)
		}
		if n := locks.asked.Load(); n < 2 || n > 5 {
			t.Errorf("asked for %d times in 25 s", n)
		}
	})
}

func TestObserverSeesEventsInOrder(t *testing.T) {
	var seen []jobs.EventType
	last := uint64(0)
	m := openWith(t, manager.Options{Observe: func(events []jobs.Event) {
		for _, e := range events {
			if e.Seq != last+1 {
				t.Errorf("event %d follows %d", e.Seq, last)
			}
			last = e.Seq
			seen = append(seen, e.Type)
		}
	}})
	submit(t, m)
	complete(t, m, grant(t, m, jobs.Request{WorkerID: "w"}))
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	want := []jobs.EventType{jobs.EventSubmit, jobs.EventGrant, jobs.EventRunning, jobs.EventComplete}
	if !slices.Equal(seen, want) {
		t.Errorf("seen are %v", seen)
	}
}

func TestDrainEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openWith(t, manager.Options{})
		done := make(chan jobs.Grant)
		go func() {
			g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w", Wait: jobs.MaxWait})
			if err != nil {
				t.Errorf("ask: %v", err)
			}
			done <- g
		}()
		synctest.Wait()
		begin := time.Now()
		if err := m.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if g := <-done; g.Denied == nil || time.Since(begin) != 0 {
			t.Errorf("answered with %+v after %v", g, time.Since(begin))
		}
		submit(t, m)
		if g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w"}); err != nil || g.Denied == nil {
			t.Errorf("answered with %+v, %v", g, err)
		}
	})
}

// slowStore is a store that tells of each step that it has stored, before anybody else hears of it.
type slowStore struct {
	*memstore.Jobs
	stored func(c jobs.Changes)
}

// Update implements jobs.Store.
func (s *slowStore) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	var c jobs.Changes
	err := s.Jobs.Update(ctx, func(f jobs.Facts) jobs.Changes {
		c = turn(f)
		return c
	})
	s.stored(c)
	return err
}

func TestAGrantThatNobodyHearsOfIsTakenBack(t *testing.T) {
	for _, request := range []string{"", "r"} {
		for _, locks := range []lokt.Service{nil, lokt.NewManager(memstore.New())} {
			synctest.Test(t, func(t *testing.T) {
				ctx, hangUp := context.WithCancel(t.Context())
				store := &slowStore{memstore.NewJobs(), func(c jobs.Changes) {
					if len(c.Jobs) > 0 && c.Jobs[0].Lease != nil {
						hangUp()
						time.Sleep(time.Second)
					}
				}}
				m, err := manager.Open(t.Context(), store, manager.Options{Locks: locks})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				id := submit(t, m, func(s *jobs.Spec) { s.Locks = []string{"l"} })
				later := submit(t, m)
				g, err := m.Request(ctx, jobs.Request{WorkerID: "w", Wait: time.Second, RequestID: request})
				synctest.Wait()
				v, bad := m.Get(t.Context(), id)
				if bad != nil {
					t.Fatal(bad)
				}
				if request != "" {
					if again := grant(t, m, jobs.Request{WorkerID: "w", RequestID: request}); v.Job.State != jobs.Leased || again.Job.ID != id {
						t.Errorf("answered with %+v, %v; again with %+v; the job is %s", g, err, again, v.Job.State)
					}
					return
				}
				if !errors.Is(err, context.Canceled) || v.Job.State != jobs.Queued || v.Job.Attempt != 0 || len(v.Attempts) != 0 {
					t.Errorf("answered with %+v, %v; the job is %+v", g, err, v)
				}
				if s, err := m.Status(t.Context()); err != nil || s.Leased != 0 {
					t.Errorf("leased are %+v, %v", s, err)
				}
				time.Sleep(2 * time.Second)
				for _, want := range []string{id, later} {
					g := grant(t, m, jobs.Request{WorkerID: "w"})
					if g.Job.ID != want || g.Lease.Attempt != 1 || want == id && g.Lease.Token != 2 {
						t.Errorf("granted is %+v", g.Lease)
					}
				}
			})
		}
	}
}

// lostLocks is a lock service that takes nothing back, as if who asks it had been killed before.
type lostLocks struct{ lokt.Service }

func (lostLocks) Release(context.Context, lokt.Target) ([]lokt.Holder, error) {
	return nil, lokt.ErrUnavailable
}

func TestLocksOfAManagerThatWasKilledAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store := lokt.NewManager(memstore.New()), memstore.NewJobs()
		other := lokt.Claim{Name: "c", LeaseID: "x", Owner: lokt.Owner{ID: "job:of another store"}}
		if _, err := locks.Acquire(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		first, err := manager.Open(t.Context(), store, manager.Options{Locks: lostLocks{locks}})
		if err != nil {
			t.Fatal(err)
		}
		name := func(lock string) func(*jobs.Spec) { return func(s *jobs.Spec) { s.Locks = []string{lock} } }
		ended, running := submit(t, first, name("a")), submit(t, first, name("b"))
		complete(t, first, grant(t, first, jobs.Request{WorkerID: "w"}))
		kept := grant(t, first, jobs.Request{WorkerID: "w"})
		next, foreign := submit(t, first, name("a")), submit(t, first, name("c"))
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}

		m, err := manager.Open(t.Context(), store, manager.Options{Locks: locks})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		synctest.Wait()
		if g := grant(t, m, jobs.Request{WorkerID: "v"}); g.Job.ID != next {
			t.Errorf("granted is %s; %s has ended, %s runs", g.Job.ID, ended, running)
		}
		for lock, want := range map[string]string{"b": kept.Lease.ID, "c": "x"} {
			if s, err := locks.Get(t.Context(), lock); err != nil || len(s.Live()) != 1 || s.Live()[0].LeaseID != want {
				t.Errorf("lock %s is held by %+v, %v", lock, s.Live(), err)
			}
		}
		if g, err := m.Request(t.Context(), jobs.Request{WorkerID: "v"}); err != nil || g.Denied == nil {
			t.Errorf("granted is %+v, %v, and %s waits for a lock of others", g, err, foreign)
		}
	})
}

// slowLocks is a lock service that takes its time for each claim.
type slowLocks struct{ lokt.Service }

func (s slowLocks) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	time.Sleep(4 * time.Second)
	return s.Service.Acquire(ctx, c)
}

// Promise S-141.
func TestLocksThatAreTakenSlowlyAreAllHeldWhenTheJobIsGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := lokt.NewManager(memstore.New())
		m := openWith(t, manager.Options{Config: jobs.Config{TTL: time.Second}, Locks: slowLocks{locks}}) // each lock lives for 30 s
		var names []string
		for i := range jobs.MaxLocks {
			names = append(names, fmt.Sprintf("l%02d", i))
		}
		submit(t, m, func(s *jobs.Spec) { s.Locks = names })
		asked := time.Now()
		g := grant(t, m, jobs.Request{WorkerID: "w"})
		if d := time.Since(asked); d != time.Minute+4*time.Second {
			t.Errorf("it was granted after %v", d)
		}
		for _, name := range names {
			s, err := locks.Get(t.Context(), name)
			if live := s.Live(); err != nil || len(live) != 1 || live[0].LeaseID != g.Lease.ID || live[0].Token != g.Lease.LockTokens[name] {
				t.Errorf("%s is held by %+v, %v", name, live, err)
			}
		}
		complete(t, m, g)
	})
}

// stuckStore is a store that does not come back once it is told so.
type stuckStore struct {
	*memstore.Jobs
	stuck chan struct{} // closed: from now on
	freed chan struct{} // closed: not any more
}

func (s *stuckStore) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	err := s.Jobs.Update(ctx, turn)
	select {
	case <-s.stuck:
		<-s.freed
	default:
	}
	return err
}

func TestAHeartbeatThatDoesNotWaitReturnsWhenItsContextEndsWhateverTheStoreDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &stuckStore{memstore.NewJobs(), make(chan struct{}), make(chan struct{})}
		m, err := manager.Open(t.Context(), store, manager.Options{Config: jobs.Config{Shared: true}}) // every heartbeat is stored
		if err != nil {
			t.Fatal(err)
		}
		submit(t, m)
		g := grant(t, m, jobs.Request{WorkerID: "w"})
		close(store.stuck)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		free := time.AfterFunc(time.Minute, func() { close(store.freed) })
		if _, err := m.Heartbeat(ctx, jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > time.Second {
			t.Errorf("it returned %v after %v", err, time.Since(begin))
		}
		if free.Stop() {
			close(store.freed)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Promise S-82.
func TestAJobThatIsTooLargeByNowIsFoundByItsKey(t *testing.T) {
	store := memstore.NewJobs()
	reopen := func(total int) *manager.Manager {
		m, err := manager.Open(t.Context(), store, manager.Options{Config: jobs.Config{Total: total}})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	large := func(key string) jobs.Spec {
		s := jobs.NewSpec()
		s.Units, s.IdempotencyKey = 9, key
		return s
	}
	m := reopen(10)
	first, err := m.Submit(t.Context(), []jobs.Spec{large("k")})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m = reopen(5)
	defer m.Close()
	if again, err := m.Submit(t.Context(), []jobs.Spec{large("k")}); err != nil || again[0] != first[0] {
		t.Errorf("submitted again: %v, %v", again, err)
	}
	other := large("k")
	other.Type = "other"
	for what, all := range map[string][]jobs.Spec{
		"without a key": {large("")}, "with a new key": {jobs.NewSpec(), large("n")}, "twice with a new key": {large("n"), large("n")},
		"another with the key": {other}, "one of them is there": {large("k"), large("n")},
	} {
		var invalid *jobs.InvalidError
		if _, err := m.Submit(t.Context(), all); !errors.As(err, &invalid) || !slices.Equal(invalid.Problems[len(invalid.Problems)-1].Loc[2:], []any{"requested_units"}) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s, err := m.Status(t.Context()); err != nil || s.Queue != (jobs.Depths{Normal: 1}) {
		t.Errorf("queued are %+v, %v", s, err)
	}
}

// doubtfulStore says of one turn that nobody knows what became of it, although it was stored, or was not.
type doubtfulStore struct {
	*memstore.Jobs
	doubt, stored bool
}

func (s *doubtfulStore) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	if !s.doubt {
		return s.Jobs.Update(ctx, turn)
	}
	s.doubt = false
	if s.stored {
		_ = s.Jobs.Update(ctx, turn)
	} else {
		turn(jobs.Facts{})
	}
	return lokt.ErrUnavailable
}

func TestAnAskWhoseTurnIsInDoubtIsGrantedOnce(t *testing.T) {
	for name, stored := range map[string]bool{"it was stored": true, "it was not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &doubtfulStore{Jobs: memstore.NewJobs(), stored: stored}
				m, err := manager.Open(t.Context(), store, manager.Options{})
				if err != nil {
					t.Fatal(err)
				}
				id := submit(t, m)
				synctest.Wait()
				store.doubt = true
				g := grant(t, m, jobs.Request{WorkerID: "w"}) // without a request ID, it could not be found again
				if g.Job.ID != id || g.Lease.Attempt != 1 {
					t.Errorf("granted %+v", g.Lease)
				}
				if s, err := m.Status(t.Context()); err != nil || s.ActiveLeases != 1 {
					t.Errorf("there are %+v, %v", s, err)
				}
				complete(t, m, g)
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestWhatIsNotStoredIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &doubtfulStore{Jobs: memstore.NewJobs()}
		m, err := manager.Open(t.Context(), store, manager.Options{})
		if err != nil {
			t.Fatal(err)
		}
		submit(t, m)
		submit(t, m)
		g := grant(t, m, jobs.Request{WorkerID: "w"})
		beat := jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"}
		if _, err := m.Heartbeat(t.Context(), beat); err != nil {
			t.Fatal(err)
		}
		time.Sleep(8 * time.Second) // until that is stored
		if _, err := m.Heartbeat(t.Context(), beat); err != nil {
			t.Fatal(err)
		}
		before := m.Metrics()
		if before.Heartbeats != 2 {
			t.Errorf("%d heartbeats are counted", before.Heartbeats)
		}
		for what, ask := range map[string]func() error{
			"submit": func() error { _, err := m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); return err },
			"complete": func() error {
				_, err := m.Complete(t.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed})
				return err
			},
			"beats": func() error { _, err := m.HeartbeatAll(t.Context(), "w", []string{g.Lease.ID, "none"}); return err },
		} {
			store.doubt = true
			if err := ask(); !errors.Is(err, lokt.ErrUnavailable) {
				t.Errorf("%s: %v", what, err)
			}
		}
		after := m.Metrics()
		if after.Failures != before.Failures+3 {
			t.Errorf("%d turns failed", after.Failures-before.Failures)
		}
		after.Failures = before.Failures
		if !reflect.DeepEqual(after, before) {
			t.Errorf("counted are\n%+v, before were\n%+v", after, before)
		}
		complete(t, m, g)
		store.doubt = true
		grant(t, m, jobs.Request{WorkerID: "w"}) // when it is asked for the second time
		if after = m.Metrics(); after.Events[jobs.EventGrant] != 2 || after.Wait.Count() != 2 || after.Ended[jobs.CodeCompleted] != 1 || after.Run.Count() != 1 || after.Events[jobs.EventSubmit] != 2 {
			t.Errorf("counted are %+v", after)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}
