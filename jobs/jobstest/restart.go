package jobstest

import (
	"cmp"
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
)

// TestRestart checks what a manager over the store promises across the death of its process, and when the store fails.
// open returns a new, empty store; the suite closes it. Each subtest runs in a bubble of testing/synctest, so the store
// waits for nothing but package time outside of system calls.
func TestRestart(t *testing.T, open func(t *testing.T) jobs.Store) {
	for _, test := range []struct {
		name string
		run  func(r *restarts)
	}{
		{"everything acknowledged is there after a kill, and what heartbeats reported a second before", randomGame},
		{"every live lease gets a full life from the moment the server is back", leasesLiveOn},
		{"the order of the queue is the same after a kill", orderSurvives},
		{"tokens rise across kills, and an old lease ends nothing", tokensRiseAcross},
		{"keys, requests, backoffs and freezes survive", memoriesSurvive},
		{"jobs that run after others go on to wait for them", afterSurvives},
		{"slots are held, and rates go on", ratesSurvive},
		{"there is one job for each tick of a schedule, whenever the manager is killed", cronSurvives},
		{"there is one job for each tick of a schedule that could not be stored", cronInDoubt},
		{"what a worker reported is stored when the manager is closed", closeStoresTheRest},
		{"a store that fails fails requests, and nothing is lost or done twice", failingStore},
		{"a store that fails after it has stored leaves nothing in doubt", failingAnswers},
		{"heartbeats are answered while the store is away, and no lease ends", beatsWithoutStore},
		{"old jobs are forgotten in the background, by age and by number", retention},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test.run(newRestarts(t, open(t), nil, false)) })
		})
	}
}

// newRestarts opens a manager over the store, which the end of the test closes. Locks may be nil.
func newRestarts(t *testing.T, s jobs.Store, locks lokt.Service, one bool) *restarts {
	r := &restarts{env: &env{T: t, bubble: true, ttl: time.Minute}, store: s}
	r.o = manager.Options{Config: jobs.Config{Total: 10, TTL: r.ttl}, Locks: locks, OneStore: one}
	r.start()
	t.Cleanup(func() { _ = r.store.Close() })
	t.Cleanup(func() { _ = r.m.Close() })
	return r
}

// restarts is an environment whose manager can be killed.
type restarts struct {
	*env
	store jobs.Store
	o     manager.Options
	cut   *cut
	m     *manager.Manager
}

// start opens a manager over the store.
func (r *restarts) start() {
	r.Helper()
	r.cut = &cut{Store: r.store}
	m, err := manager.Open(r.Context(), r.cut, r.o)
	r.must(err)
	r.m, r.s = m, m
}

// kill ends the manager without letting it store anything more, as the death of its process does, and opens another.
func (r *restarts) kill(away time.Duration) {
	r.Helper()
	r.cut.set(func(bool) error { return errCut })
	if err := r.m.Close(); err != nil && !errors.Is(err, lokt.ErrUnavailable) {
		r.Fatal(err)
	}
	time.Sleep(away)
	r.start()
}

var errCut = fmt.Errorf("%w: cut off", lokt.ErrUnavailable)

// cut is a store that fails as it is told: before an update, or after it was stored.
type cut struct {
	jobs.Store
	mu   sync.Mutex
	fail func(stored bool) error // nil if all is well
}

func (c *cut) set(fail func(stored bool) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = fail
}

func (c *cut) check(stored bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail == nil {
		return nil
	}
	return c.fail(stored)
}

// Update implements jobs.Store.
func (c *cut) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	var lost error
	empty := false
	err := c.Store.Update(ctx, func(f jobs.Facts) jobs.Changes {
		changes := turn(f)
		if empty = changes.Empty(); empty {
			return changes
		}
		if lost = c.check(false); lost != nil {
			return jobs.Changes{}
		}
		return changes
	})
	switch {
	case err != nil:
		return err
	case lost != nil:
		return lost
	case empty:
		return nil
	}
	return c.check(true)
}

// Load implements jobs.Store.
func (c *cut) Load(ctx context.Context) (jobs.Changes, error) {
	if err := c.check(false); err != nil {
		return jobs.Changes{}, err
	}
	return c.Store.Load(ctx)
}

func leasesLiveOn(r *restarts) {
	id := r.submit(atMost(2 * time.Minute))
	g := r.grant(ask("w"))
	time.Sleep(r.ttl - time.Second)
	r.kill(time.Hour)
	r.expect(id, jobs.Leased)
	time.Sleep(r.ttl - time.Nanosecond)
	b := r.beat(g)
	if b.ExpiresAt.Before(time.Now().Add(r.ttl - time.Millisecond)) {
		r.Errorf("the lease lasts until %v only", b.ExpiresAt)
	}
	r.kill(0)
	time.Sleep(r.ttl - time.Nanosecond)
	r.leased(1)
	time.Sleep(time.Nanosecond)
	r.leased(0)
	if v := r.view(id); !v.Job.State.Ended() {
		r.Errorf("it has not ended: %+v", v)
	}
}

func orderSurvives(r *restarts) {
	for i := range 12 {
		r.submit(class(jobs.Priorities()[i%4]), attempts(2), backoff(0))
		time.Sleep(time.Minute)
	}
	first := r.grant(ask("w"))
	r.complete(first, jobs.Failed) // back to its place
	queue := r.list(jobs.Filter{}).Jobs
	slices.SortFunc(queue, func(a, b jobs.View) int {
		return cmp.Or(cmp.Compare(a.Job.Ord, b.Job.Ord), cmp.Compare(a.Job.Seq, b.Job.Seq))
	})
	if queue[0].Job.ID != first.Job.ID {
		r.Errorf("first comes %s, not %s", queue[0].Job.ID, first.Job.ID)
	}
	for i, v := range queue {
		if i%3 == 0 {
			r.kill(time.Minute)
		}
		r.complete(r.grantOf(v.Job.ID, ask("w")), jobs.Completed)
	}
}

func tokensRiseAcross(r *restarts) {
	id := r.submit(attempts(10), backoff(0))
	last := uint64(0)
	for range 5 {
		g := r.grantOf(id, ask("w"))
		if g.Lease.Token <= last {
			r.Errorf("token %d follows %d", g.Lease.Token, last)
		}
		last = g.Lease.Token
		r.kill(time.Second)
		r.complete(g, jobs.Failed)
		r.kill(0)
		r.over(jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed})
		r.gone(g)
	}
}

func memoriesSurvive(r *restarts) {
	kept := r.submit(key("k"))
	g := r.grant(ask("w", request("r")))
	r.kill(0)
	if r.submit(key("k")) != kept {
		r.Error("the key of a living job was forgotten")
	}
	if again := r.grant(ask("w", request("r"))); again.Lease.ID != g.Lease.ID {
		r.Error("the request of a living lease was forgotten")
	}
	r.complete(g, jobs.Completed)
	r.kill(time.Minute)
	if r.submit(key("k")) != kept {
		r.Error("the key of an ended job was forgotten")
	}
	if again := r.grant(ask("w", request("r"))); again.Lease.ID != g.Lease.ID || again.Job.State != jobs.Completed {
		r.Error("the request of an ended lease was forgotten")
	}
	back := r.submit(attempts(2), backoff(10*time.Second))
	r.complete(r.grant(ask("w")), jobs.Failed)
	later := r.submit(notBefore(time.Now().Add(20 * time.Second)))
	r.kill(4 * time.Second)
	r.waitsFor(back, jobs.WaitingRunAt)
	begin := time.Now()
	r.grantOf(back, ask("w", waiting(jobs.MaxWait)))
	if d := time.Since(begin).Round(time.Millisecond); d != 6*time.Second {
		r.Errorf("the backoff took %v more", d)
	}
	r.grantOf(later, ask("w", waiting(jobs.MaxWait)))
	if d := time.Since(begin).Round(10 * time.Millisecond); d != 16*time.Second {
		r.Errorf("the time to run came after %v more", d)
	}
	r.must(r.s.Freeze(r.Context(), "a"))
	frozen := r.submit(kind("a"))
	r.kill(0)
	r.waitsFor(frozen, jobs.WaitingFrozen)
	r.deny(jobs.DeniedEligible, ask("w"))
}

func closeStoresTheRest(r *restarts) {
	id := r.submit()
	g := r.grant(ask("w"))
	r.beat(g)
	r.must(r.m.Close())
	if _, err := r.s.Status(r.Context()); !errors.Is(err, lokt.ErrUnavailable) {
		r.Errorf("a closed manager answered with %v", err)
	}
	if err := r.m.Close(); err != nil {
		r.Errorf("the second close: %v", err)
	}
	r.start()
	r.expect(id, jobs.Running)
}

func failingStore(r *restarts) {
	id := r.submit(units(3))
	r.cut.set(func(stored bool) error { return errCut })
	for _, err := range []error{
		func() error { _, err := r.s.Submit(r.Context(), []jobs.Spec{spec()}); return err }(),
		func() error { _, err := r.s.Cancel(r.Context(), id, ""); return err }(),
		func() error { _, err := r.s.Request(r.Context(), ask("w")); return err }(),
		func() error { _, err := r.s.Status(r.Context()); return err }(),
	} {
		if !errors.Is(err, lokt.ErrUnavailable) || jobs.Code(err) != "unavailable" {
			r.Errorf("with a store that fails: %v", err)
		}
	}
	time.Sleep(time.Minute)
	r.cut.set(nil)
	time.Sleep(10 * time.Second)
	if s := r.status(); s.Queue.Sum() != 1 || s.Leased != 0 {
		r.Errorf("afterwards there is %+v", s)
	}
	r.grantOf(id, ask("w"))
}

func failingAnswers(r *restarts) {
	first, second := r.submit(), r.submit()
	failures := 0
	r.cut.set(func(stored bool) error { // stores the next change, and loses the answer
		if stored && failures == 0 {
			failures++
			return errCut
		}
		return nil
	})
	g := r.grantOf(first, ask("w")) // found by its lease
	if failures != 1 || r.status().ActiveLeases != 1 {
		r.Errorf("after %d failures there is %+v", failures, r.status())
	}
	failures = 0
	if _, err := r.s.Complete(r.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w",
		Status: jobs.Completed}); !errors.Is(err, lokt.ErrUnavailable) {
		r.Errorf("a completion whose outcome is unknown was answered with %v", err)
	}
	r.expect(first, jobs.Completed)
	r.over(jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed})
	r.grantOf(second, ask("w"))
}

func beatsWithoutStore(r *restarts) {
	id := r.submit()
	g := r.grant(ask("w"))
	r.beat(g)
	r.cut.set(func(bool) error { return errCut })
	if _, err := r.s.Submit(r.Context(), []jobs.Spec{spec()}); err == nil {
		r.Error("a submit was acknowledged without a store")
	}
	for range 10 {
		time.Sleep(r.ttl / 2)
		r.beat(g)
	}
	time.Sleep(10 * r.ttl) // nobody can end it now
	r.cut.set(nil)
	time.Sleep(10 * time.Second)
	r.beat(g)
	r.expect(id, jobs.Running)
	r.complete(g, jobs.Completed)
}

// Promise S-394.
func retention(r *restarts) {
	r.o.Keep, r.o.KeepMost = 24*time.Hour, 3
	r.kill(0)
	var all []string
	for range 5 {
		all = append(all, r.submit())
		r.complete(r.grant(ask("w", request(all[len(all)-1]))), jobs.Completed)
	}
	time.Sleep(2 * time.Minute)
	r.deny(jobs.DeniedEligible, ask("w", request(all[0])))
	if got := ids(r.list(jobs.Filter{})); len(got) != 3 || slices.Contains(got, all[1]) || !slices.Contains(got,
		all[2]) {
		r.Errorf("kept are %v of %v", got, all)
	}
	time.Sleep(24 * time.Hour)
	if got := ids(r.list(jobs.Filter{})); len(got) != 0 {
		r.Errorf("kept are %v", got)
	}
}
