package manager_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// common is a store that several managers share, each through a replica.
type common struct {
	mu       sync.Mutex
	base     *memstore.Jobs
	log      []jobs.Changes
	set      time.Duration // by how much the store's clock was set
	ttl      time.Duration // of leases; 0 for the default
	stands   time.Duration // how long the next turn stands still after the clock was read
	replicas []*replica
}

// replica is one manager's view of a common store.
type replica struct {
	*memstore.Jobs
	c       *common
	seen    int
	changed chan struct{}
}

func (c *common) open(t *testing.T) *manager.Manager { return c.openWith(t, nil) }

func (c *common) openWith(t *testing.T, locks lokt.Service) *manager.Manager {
	t.Helper()
	return c.openOn(t, c.replica(), locks)
}

func (c *common) replica() *replica {
	r := &replica{Jobs: c.base, c: c, changed: make(chan struct{}, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replicas = append(c.replicas, r)
	return r
}

func (c *common) openOn(t *testing.T, s jobs.Store, locks lokt.Service) *manager.Manager {
	t.Helper()
	m, err := manager.Open(t.Context(), s, manager.Options{Config: jobs.Config{Total: 10, TTL: c.ttl, Shared: true}, Locks: locks})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// Changed implements jobs.Sharer.
func (r *replica) Changed() <-chan struct{} { return r.changed }

// Load implements jobs.Store.
func (r *replica) Load(ctx context.Context) (jobs.Changes, error) {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.seen = len(r.c.log)
	living, err := r.c.base.Load(ctx)
	living.Now = time.Now().Add(r.c.set)
	return living, err
}

// others returns what was stored since, each record and memo as it is now; nil if nothing.
func (c *common) others(since int) *jobs.Changes {
	if since == len(c.log) {
		return nil
	}
	all := c.log[len(c.log)-1]
	all.Jobs, all.Memos = nil, nil
	seen := map[string]bool{}
	for i := len(c.log) - 1; i >= since; i-- {
		for _, j := range slices.Backward(c.log[i].Jobs) {
			if !seen["job "+j.ID] {
				seen["job "+j.ID] = true
				all.Jobs = append(all.Jobs, new(*j))
			}
		}
		for _, m := range c.log[i].Memos {
			if !seen[m.ID] {
				seen[m.ID] = true
				all.Memos = append(all.Memos, m)
			}
		}
	}
	slices.Reverse(all.Jobs)
	return &all
}

// Update implements jobs.Store.
func (r *replica) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().Add(c.set)
	time.Sleep(c.stands)
	c.stands = 0
	return c.base.Update(ctx, func(f jobs.Facts) jobs.Changes {
		changes := turn(jobs.Facts{Now: now, Others: c.others(r.seen), Locks: f.Locks})
		if !changes.Empty() {
			c.log = append(c.log, changes)
			for _, o := range c.replicas {
				if o != r {
					select {
					case o.changed <- struct{}{}:
					default:
					}
				}
			}
		}
		r.seen = len(c.log)
		return changes
	})
}

// Promise S-284.
func TestALeaseOfASharedStoreBeginsNoEarlierThanItWasAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &common{base: memstore.NewJobs()}
		m := c.open(t)
		submit(t, m)
		c.mu.Lock()
		c.stands = 5 * time.Second
		c.mu.Unlock()
		go func() { _, _ = m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}) }()
		time.Sleep(4 * time.Second)
		asked := time.Now()
		g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w"})
		if err != nil || g.Denied != nil {
			t.Fatal(g, err)
		}
		if end := asked.Add(g.Lease.TTL).Truncate(time.Millisecond); g.Lease.ExpiresAt.Before(end) {
			t.Errorf("it ends for others %v before its worker knows", end.Sub(g.Lease.ExpiresAt))
		}
	})
}

func TestManagersThatShareAStoreAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &common{base: memstore.NewJobs()}
		a, b := c.open(t), c.open(t)

		got := make(chan jobs.Grant)
		go func() {
			g, err := b.Request(t.Context(), jobs.Request{WorkerID: "w", Wait: jobs.MaxWait})
			if err != nil {
				t.Errorf("ask: %v", err)
			}
			got <- g
		}()
		synctest.Wait()
		id := submit(t, a)
		g := <-got
		if g.Denied != nil || g.Job.ID != id {
			t.Fatalf("a request that waits elsewhere was answered with %+v", g)
		}

		time.Sleep(40 * time.Second)
		if _, err := a.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		told := make(chan jobs.HeartbeatAnswer)
		go func() {
			answer, err := b.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w", Wait: jobs.MaxWait})
			if err != nil {
				t.Errorf("heartbeat: %v", err)
			}
			told <- answer
		}()
		synctest.Wait()
		if s, err := a.Cancel(t.Context(), id, ""); err != nil || s != jobs.Running {
			t.Errorf("cancellation was answered with %v, %v", s, err)
		}
		if answer := <-told; !answer.Cancel {
			t.Errorf("a heartbeat that waits elsewhere was answered with %+v", answer)
		}
		time.Sleep(time.Minute)
		for _, m := range []*manager.Manager{a, b} {
			if s, err := m.Status(t.Context()); err != nil || s.Leased != 0 {
				t.Errorf("after the deadline there is %+v, %v", s, err)
			}
			if v, err := m.Get(t.Context(), id); err != nil || v.Job.State != jobs.Cancelled {
				t.Errorf("the job is %s, %v", v.Job.State, err)
			}
			if _, err := m.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"}); !errors.Is(err, jobs.ErrLeaseNotFound) {
				t.Errorf("heartbeat: %v", err)
			}
		}
	})
}

func TestAStepOfASharedStoresClockEndsNoLease(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			c := &common{base: memstore.NewJobs()}
			a, b := c.open(t), c.open(t)
			submit(t, a)
			g := grant(t, a, jobs.Request{WorkerID: "w"})
			time.Sleep(50 * time.Second)
			c.mu.Lock()
			c.set += step
			c.mu.Unlock()
			for range 3 {
				for _, m := range []*manager.Manager{b, a} {
					if s, err := m.Status(t.Context()); err != nil || s.Leased != 1 {
						t.Errorf("after a step of %v there is %+v, %v", step, s, err)
					}
				}
			}
			time.Sleep(50 * time.Second) // every lease has a full life from the step
			if _, err := b.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			for _, m := range []*manager.Manager{b, a} {
				if s, err := m.Status(t.Context()); err != nil || s.Leased != 0 {
					t.Errorf("after the deadline there is %+v, %v", s, err)
				}
			}
			if d, err := a.Decisions(t.Context(), 1); err != nil || d.Events[jobs.EventClock] == 0 {
				t.Errorf("events are %+v, %v", d.Events, err)
			}
		})
	}
}

func TestWorkersOfManagersThatShareAStoreDoEveryJobOnce(t *testing.T) {
	c := &common{base: memstore.NewJobs()}
	managers := []*manager.Manager{c.open(t), c.open(t), c.open(t)}
	const n = 200
	for i := range n {
		submit(t, managers[i%3], func(s *jobs.Spec) { s.Units, s.Priority = 1+i%4, jobs.Priorities()[i%4] })
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	done, units := map[string]int{}, 0
	for w := range 9 {
		wg.Go(func() {
			for i := 0; ; i++ {
				g, err := managers[(w+i)%3].Request(t.Context(), jobs.Request{WorkerID: fmt.Sprint("w", w), Wait: 50 * time.Millisecond})
				switch {
				case err != nil:
					t.Errorf("ask: %v", err)
					return
				case g.Denied != nil && g.Denied.Code == jobs.DeniedEmpty:
					return
				case g.Denied != nil:
					continue
				}
				mu.Lock()
				if units += g.Lease.Units; units > 10 {
					t.Errorf("%d units are out", units)
				}
				done[g.Job.ID]++
				mu.Unlock()
				if _, err := managers[(w+i+1)%3].Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: g.Lease.WorkerID}); err != nil {
					t.Errorf("heartbeat: %v", err)
				}
				mu.Lock()
				units -= g.Lease.Units
				mu.Unlock()
				if ok, err := managers[(w+i+2)%3].Complete(t.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: g.Lease.WorkerID, Status: jobs.Completed}); err != nil || !ok {
					t.Errorf("completion: %v, %v", ok, err)
				}
			}
		})
	}
	wg.Wait()
	for id, times := range done {
		if times != 1 {
			t.Errorf("job %s was done %d times", id, times)
		}
	}
	for i, m := range managers {
		if s, err := m.Status(t.Context()); err != nil || s.Leased != 0 || s.Queue.Sum() != 0 || len(done) != n {
			t.Errorf("manager %d has %+v, %v; %d jobs are done", i, s, err, len(done))
		}
	}
}

// heldFor checks for a while that a lock is held by that lease, with that token, or by nobody if there is none.
func heldFor(t *testing.T, locks lokt.Service, name, leaseID string, token uint64, d time.Duration, beat func()) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Second) {
		beat()
		s, err := locks.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if live := s.Live(); leaseID == "" && len(live) != 0 || leaseID != "" && (len(live) != 1 || live[0].LeaseID != leaseID || live[0].Token != token) {
			t.Fatalf("%v before the end the lock is held by %+v, not by %q", time.Until(end), live, leaseID)
		}
	}
}

// Promise S-141.
func TestLocksOfAJobAreKeptAndGivenBackWhicheverManagerLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, locks := &common{base: memstore.NewJobs()}, lokt.NewManager(memstore.New())
		a, b := c.openWith(t, locks), c.openWith(t, locks)
		name := func(s *jobs.Spec) { s.Locks = []string{"x"} }

		submit(t, a, name)
		g := grant(t, a, jobs.Request{WorkerID: "w"})
		beat := func() {
			if _, err := b.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"}); err != nil {
				t.Fatal(err)
			}
		}
		heldFor(t, locks, "x", g.Lease.ID, g.Lease.LockTokens["x"], 10*time.Minute, beat)
		complete(t, b, g) // not where it was granted
		synctest.Wait()
		heldFor(t, locks, "x", "", 0, 10*time.Minute, func() {})

		submit(t, b, name)
		g = grant(t, a, jobs.Request{WorkerID: "w"})
		beat()
		if err := a.Close(); err != nil { // and is not started again
			t.Fatal(err)
		}
		heldFor(t, locks, "x", g.Lease.ID, g.Lease.LockTokens["x"], 10*time.Minute, beat)
		complete(t, b, g)
		synctest.Wait()
		heldFor(t, locks, "x", "", 0, 10*time.Minute, func() {})
	})
}

// A manager was killed after a job had ended, and before it had given its locks back. Promise S-141.
func TestALockThatAnEndedJobLeftBehindKeepsNoJobWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, locks := &common{base: memstore.NewJobs()}, lokt.NewManager(memstore.New())
		a, b := c.openWith(t, lostLocks{locks}), c.openWith(t, locks)
		name := func(s *jobs.Spec) { s.Locks = []string{"x"} }
		submit(t, a, name)
		g := grant(t, a, jobs.Request{WorkerID: "w"})
		complete(t, a, g)
		synctest.Wait()
		if s, err := locks.Get(t.Context(), "x"); err != nil || len(s.Live()) != 1 {
			t.Fatalf("the lock was given back: %+v, %v", s, err)
		}
		submit(t, b, name)
		begin := time.Now()
		again := grant(t, b, jobs.Request{WorkerID: "w", Wait: jobs.MaxWait})
		if d := time.Since(begin); d > 2*time.Second || again.Lease.LockTokens["x"] <= g.Lease.LockTokens["x"] {
			t.Errorf("granted with %v after %v", again.Lease.LockTokens, d)
		}
	})
}

func TestManagersThatShareAStoreRunEachTickOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &common{base: memstore.NewJobs()}
		a, b := c.open(t), c.open(t)
		id := submit(t, a, func(s *jobs.Spec) { s.Extra = &jobs.Extra{Cron: "* * * * *"} })
		last := time.Time{}
		for i := range 20 {
			m := []*manager.Manager{a, b}[i%2]
			time.Sleep(time.Minute)
			g := grant(t, m, jobs.Request{WorkerID: "w"})
			if tick := g.Job.Extra.Ticks; tick.Schedule != id || i > 0 && tick.Tick.Sub(last) != time.Minute {
				t.Errorf("after %v comes %+v", last, tick)
			} else {
				last = tick.Tick
			}
			if s, err := m.Status(t.Context()); err != nil || s.Queue.Sum() != 0 {
				t.Errorf("beside it there is %+v, %v", s, err)
			}
			complete(t, m, g)
		}
		if s, err := b.Cancel(t.Context(), id, ""); err != nil || s != jobs.Cancelled {
			t.Errorf("cancelled is %v, %v", s, err)
		}
		time.Sleep(5 * time.Minute)
		if s, err := a.Status(t.Context()); err != nil || s.Queue.Sum() != 0 {
			t.Errorf("afterwards there is %+v, %v", s, err)
		}
	})
}
