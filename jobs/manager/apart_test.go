package manager_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// wire is what is between a manager and a store: a request, or its answer, takes as long as fate says, and may be lost.
type wire struct {
	mu   sync.Mutex
	fate func(what string, answer bool) (late time.Duration, lost bool)
	shut chan struct{} // closed when the manager goes on; nil if it does not stand still
}

// stop lets the manager stand still for a while.
func (w *wire) stop(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shut != nil {
		return
	}
	w.shut = make(chan struct{})
	time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		close(w.shut)
		w.shut = nil
	})
}

func (w *wire) set(fate func(what string, answer bool) (late time.Duration, lost bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fate = fate
}

func (w *wire) pass(what string, answer bool) error {
	w.mu.Lock()
	fate := w.fate
	w.mu.Unlock()
	late, lost := fate(what, answer)
	time.Sleep(late)
	w.mu.Lock()
	shut := w.shut
	w.mu.Unlock()
	if shut != nil {
		<-shut
	}
	if lost {
		return lokt.ErrUnavailable
	}
	return nil
}

func over[T any](w *wire, what string, do func() (T, error)) (v T, err error) {
	if err = w.pass(what, false); err != nil {
		return v, err
	}
	v, err = do()
	if lost := w.pass(what, true); lost != nil {
		return *new(T), lost
	}
	return v, err
}

// farLocks and farJobs are stores at the other end of a wire.
type farLocks struct {
	lokt.Service
	w      *wire
	leases *sync.Map // IDs of those of jobs
}

// asked is over. Time limits are none for a manager that stands still; only who stands in a queue need not wait for the answer,
// and the request goes on.
func asked[T any](ctx context.Context, f farLocks, what, leaseID string, do func(context.Context) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	got := make(chan answer, 1)
	go func() {
		v, err := over(f.w, what, func() (T, error) { return do(context.WithoutCancel(ctx)) })
		got <- answer{v, err}
	}()
	left := ctx.Done()
	if _, job := f.leases.Load(leaseID); job {
		left = nil
	}
	select {
	case a := <-got:
		return a.v, a.err
	case <-left:
		return *new(T), ctx.Err()
	}
}

func (f farLocks) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	if c.Strict {
		f.leases.Store(c.LeaseID, true)
	}
	return asked(ctx, f, "acquire", c.LeaseID, func(ctx context.Context) (lokt.Holder, error) { return f.Service.Acquire(ctx, c) })
}

func (f farLocks) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	return asked(ctx, f, "renew", r.LeaseID, func(ctx context.Context) (lokt.Holder, error) { return f.Service.Renew(ctx, r) })
}

func (f farLocks) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	return asked(ctx, f, "release", t.LeaseID, func(ctx context.Context) ([]lokt.Holder, error) { return f.Service.Release(ctx, t) })
}

func (f farLocks) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	return over(f.w, "get", func() (lokt.Snapshot, error) { return f.Service.Get(ctx, name) })
}

type farJobs struct {
	*replica
	w *wire
}

func (f farJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := over(f.w, "turn", func() (int, error) { return 0, f.replica.Update(context.WithoutCancel(ctx), turn) })
	return err
}

// apart is several managers of one store whose locks are in another.
type apart struct {
	*common
	*testing.T
	locks    lokt.Service
	wires    []*wire
	managers []*manager.Manager
}

func newApart(t *testing.T, n int, ttl time.Duration) *apart {
	a := &apart{common: &common{base: memstore.NewJobs(), ttl: ttl}, T: t, locks: lokt.NewManager(memstore.New())}
	for range n {
		w := &wire{fate: func(string, bool) (time.Duration, bool) { return 0, false }}
		a.wires = append(a.wires, w)
		a.managers = append(a.managers, a.openOn(t, farJobs{a.replica(), w}, farLocks{a.locks, w, &sync.Map{}}))
	}
	synctest.Wait()
	return a
}

// onX names the lock x.
func onX(s *jobs.Spec) { s.Locks = []string{"x"} }

// free checks that a lock is held by nobody at the latest after so long.
func (a *apart) free(within time.Duration) {
	a.Helper()
	begin := time.Now()
	for {
		s, err := a.locks.Get(a.Context(), "x")
		if err != nil {
			a.Fatal(err)
		}
		if len(s.Live()) == 0 {
			return
		}
		if time.Since(begin) > within {
			a.Fatalf("after %v the lock is held by %+v", time.Since(begin), s.Live())
		}
		time.Sleep(time.Second / 10)
	}
}

// once returns a fate: that of the first request of its kind, or its answer.
func once(what string, answer bool, then func() (time.Duration, bool)) func(string, bool) (time.Duration, bool) {
	var first sync.Once
	return func(w string, a bool) (late time.Duration, lost bool) {
		if w == what && a == answer {
			first.Do(func() { late, lost = then() })
		}
		return late, lost
	}
}

// Promise S-310.
func TestAJobIsNotBegunIfItsLocksEndedBeforeItWasGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApart(t, 2, 0)
		a.wires[0].set(once("acquire", true, func() (time.Duration, bool) {
			a.wires[0].stop(5 * time.Minute) // longer than a lock lasts that nobody renews
			return 0, false
		}))
		submit(t, a.managers[0], onX)
		answer := make(chan jobs.Grant, 1)
		go func() {
			g, err := a.managers[0].Request(t.Context(), jobs.Request{WorkerID: "w", Wait: jobs.MaxWait})
			if err != nil {
				t.Error(err)
			}
			answer <- g
		}()
		time.Sleep(4 * time.Minute)
		person, err := a.locks.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "person", Owner: lokt.Owner{ID: "person"}, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if g := <-answer; g.Denied == nil {
			t.Fatalf("with token %d of the person, the job was granted with %v", person.Token, g.Lease.LockTokens)
		}
		if _, err := a.locks.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "person"}); err != nil {
			t.Fatal(err)
		}
		g := grant(t, a.managers[0], jobs.Request{WorkerID: "w", Wait: jobs.MaxWait})
		if g.Lease.Attempt != 1 || g.Lease.LockTokens["x"] <= person.Token {
			t.Errorf("granted then is %+v", g.Lease)
		}
		complete(t, a.managers[1], g)
		a.free(0)
	})
}

// Promise S-141.
func TestLocksAreGivenBackThoughItIsNotKnownWhetherTheEndWasStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApart(t, 2, 0)
		submit(t, a.managers[0], onX)
		g := grant(t, a.managers[0], jobs.Request{WorkerID: "w"})
		a.wires[0].set(once("turn", true, func() (time.Duration, bool) { return 0, true }))
		if _, err := a.managers[0].Complete(t.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed}); err == nil {
			t.Fatal("the answer was not lost")
		}
		a.free(time.Second)
	})
}

// Promise S-141.
func TestLocksThatWereBeingTakenWhenAManagerWasClosedAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApart(t, 1, 0)
		submit(t, a.managers[0], onX)
		synctest.Wait()
		a.wires[0].set(func(what string, answer bool) (time.Duration, bool) {
			if what == "turn" && answer {
				return time.Second, false
			}
			return time.Second / 4, false
		})
		go func() { _, _ = a.managers[0].Request(t.Context(), jobs.Request{WorkerID: "w", Wait: jobs.MaxWait}) }()
		time.Sleep(1400 * time.Millisecond) // the locks are being taken
		if err := a.managers[0].Close(); err != nil {
			t.Fatal(err)
		}
		a.free(0)
	})
}

// Promise S-141.
func TestALockThatIsTakenAgainAfterItsJobHasEndedIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApart(t, 2, 0)
		submit(t, a.managers[0], onX)
		g := grant(t, a.managers[1], jobs.Request{WorkerID: "w"})
		var slow atomic.Bool
		then := once("acquire", false, func() (time.Duration, bool) {
			slow.Store(true)
			complete(t, a.managers[1], g)
			return 0, false
		})
		a.wires[0].set(func(what string, answer bool) (time.Duration, bool) {
			if slow.Load() && what == "turn" && !answer {
				return 2 * time.Second, false
			}
			return then(what, answer)
		})
		a.wires[1].set(func(what string, answer bool) (time.Duration, bool) { return 0, what == "renew" })
		breakLock(t, a.locks, "x")
		for !slow.Load() {
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Second)
		a.free(0)
	})
}

// Promises S-141 and S-229.
func TestASlotThatWasLostIsTakenAgainThoughOthersHoldTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApart(t, 2, 0)
		var all []jobs.Grant
		for range 2 {
			submit(t, a.managers[0], onX, func(s *jobs.Spec) { s.Extra = &jobs.Extra{Limits: map[string]jobs.Limit{"x": {Slots: 3}}} })
			all = append(all, grant(t, a.managers[0], jobs.Request{WorkerID: "w"}))
		}
		if _, err := a.locks.Release(t.Context(), lokt.Target{Name: "x", LeaseID: all[0].Lease.ID}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		if s, err := a.locks.Get(t.Context(), "x"); err != nil || len(s.Live()) != 2 {
			t.Errorf("held by %+v, %v", s.Live(), err)
		}
		for _, g := range all {
			complete(t, a.managers[1], g)
		}
		a.free(0)
	})
}

// Promise S-141.
func TestLocksThatCannotBeHadNorGivenBackKeepNobodyWaitingForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApart(t, 1, 0)
		submit(t, a.managers[0], func(s *jobs.Spec) { s.Locks = []string{"x", "y", "z"} })
		a.wires[0].set(func(what string, answer bool) (late time.Duration, lost bool) {
			if lost = what != "turn"; lost {
				late = 5 * time.Second
			}
			return late, lost
		})
		begin := time.Now()
		g, err := a.managers[0].Request(t.Context(), jobs.Request{WorkerID: "w"})
		if d := time.Since(begin); err != nil || g.Denied == nil || d > 12*time.Second {
			t.Errorf("answered is %+v, %v after %v", g.Denied, err, d)
		}
	})
}

// Promise S-141. The lock changes after it was refused, and before the manager looks what it waits for.
func TestASlotThatIsFreedWhileALockIsRefusedIsTakenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApart(t, 1, 0)
		held, err := a.locks.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "outside"}})
		if err != nil {
			t.Fatal(err)
		}
		a.wires[0].set(once("get", false, func() (time.Duration, bool) {
			if _, err := a.locks.Release(t.Context(), lokt.Target{Name: "x", LeaseID: held.LeaseID}); err != nil {
				t.Error(err)
			}
			if _, err := a.locks.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "other"}, Limit: 2}); err != nil {
				t.Error(err)
			}
			return 0, false
		}))
		submit(t, a.managers[0], func(s *jobs.Spec) {
			onX(s)
			s.Extra = &jobs.Extra{Limits: map[string]jobs.Limit{"x": {Slots: 2}}}
		})
		begun := time.Now()
		g := grant(t, a.managers[0], jobs.Request{WorkerID: "w", Wait: jobs.MaxWait})
		if took := time.Since(begun); took > time.Second {
			t.Errorf("one of two slots was free, and the job was granted after %v", took)
		}
		complete(t, a.managers[0], g)
	})
}
