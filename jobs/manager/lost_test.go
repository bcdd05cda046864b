package manager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/jobs/worker"
	"github.com/lokt-dev/lokt/store/memstore"
)

// deafLocks are locks of which nothing can be found out.
type deafLocks struct {
	lokt.Service
	deaf atomic.Bool
}

func (d *deafLocks) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	if d.deaf.Load() {
		<-ctx.Done()
		return lokt.Snapshot{}, lokt.ErrUnavailable
	}
	return d.Service.Get(ctx, name)
}

func breakLock(t *testing.T, locks lokt.Service, name string) {
	t.Helper()
	if gone, err := locks.Release(t.Context(), lokt.Target{Name: name, Owner: lokt.Owner{ID: "person"}, Force: true}); err != nil || len(gone) != 1 {
		t.Fatalf("%+v, %v", gone, err)
	}
}

// Promise S-146.
func TestEveryHeartbeatAfterALockWasBrokenSaysSoWhoeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, locks := &common{base: memstore.NewJobs()}, &deafLocks{Service: lokt.NewManager(memstore.New())}
		a, b := c.openWith(t, locks), c.openWith(t, locks)
		submit(t, a, func(s *jobs.Spec) { s.Locks = []string{"y", "x", "z"} })
		submit(t, a)
		g, other := grant(t, a, jobs.Request{WorkerID: "w"}), grant(t, a, jobs.Request{WorkerID: "w"})
		told := func(want ...string) {
			t.Helper()
			synctest.Wait()
			for i, m := range []*manager.Manager{a, b, a} {
				answer, err := m.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w", Checkpoint: []byte(fmt.Sprint(i / 2))})
				if err != nil || !slices.Equal(answer.LostLocks, want) {
					t.Errorf("manager %d tells of %q, not %q, %v", i, answer.LostLocks, want, err)
				}
				all, err := m.HeartbeatAll(t.Context(), "w", []string{"none", other.Lease.ID, g.Lease.ID})
				if err != nil || len(all) != 3 || all[0].LostLocks != nil || all[1].LostLocks != nil || !slices.Equal(all[2].LostLocks, want) {
					t.Errorf("manager %d tells of %+v, not of %q, %v", i, all, want, err)
				}
			}
		}
		told()
		for range 3 { // they are renewed
			time.Sleep(30 * time.Second)
			told()
		}
		breakLock(t, locks, "x")
		told("x")
		locks.deaf.Store(true)
		begin := time.Now()
		if answer, err := a.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"}); err != nil || answer.LostLocks != nil || time.Since(begin) > 2*time.Second {
			t.Errorf("what is not known is told: %+v, %v after %v", answer, err, time.Since(begin))
		}
		locks.deaf.Store(false)
		for range 3 {
			time.Sleep(30 * time.Second)
			told("x")
		}
		if s, err := locks.Get(t.Context(), "x"); err != nil || len(s.Live()) != 1 || s.Live()[0].LeaseID != g.Lease.ID {
			t.Errorf("the lock was not taken again: %+v, %v", s.Lock, err)
		}
		breakLock(t, locks, "z")
		if _, err := locks.Acquire(t.Context(), lokt.Claim{Name: "z", Owner: lokt.Owner{ID: "person"}, TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		told("x", "z")
		complete(t, b, g)
		synctest.Wait()
		for _, name := range []string{"x", "y"} {
			if s, err := locks.Get(t.Context(), name); err != nil || len(s.Live()) != 0 {
				t.Errorf("%s is held after the end: %+v, %v", name, s.Lock, err)
			}
		}
	})
}

// Promise S-146.
func TestAHandlersContextEndsWhenALockOfItsJobIsLost(t *testing.T) {
	for name, keep := range map[string]bool{"ends": false, "goes on": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := lokt.NewManager(memstore.New())
				m := openWith(t, manager.Options{Locks: locks})
				finish := make(chan struct{})
				var cause error
				w, err := worker.NewWorker(m, func(ctx context.Context, r *worker.Run) (any, error) {
					select {
					case <-ctx.Done():
						cause = context.Cause(ctx)
						return nil, ctx.Err()
					case <-finish:
						return r.LostLocks(), nil
					}
				}, worker.WorkerOptions{KeepWithoutLocks: keep})
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- w.Run(t.Context()) }()
				id := submit(t, m, func(s *jobs.Spec) { s.Locks, s.MaxAttempts = []string{"x"}, 1 })
				synctest.Wait()
				time.Sleep(time.Minute)
				breakLock(t, locks, "x")
				time.Sleep(jobs.MaxWait + time.Second)
				close(finish)
				synctest.Wait()
				v, err := m.Get(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				if keep {
					if v.Job.State != jobs.Completed || string(v.Job.Output.Result) != `["x"]` {
						t.Errorf("it ended as %+v", v.Job)
					}
				} else {
					var failure struct {
						Code string
						Lost []string `json:"lost_locks"`
					}
					if err := json.Unmarshal(v.Job.Output.Error, &failure); err != nil || v.Job.State != jobs.Failed || failure.Code != worker.CodeLostLocks || !slices.Equal(failure.Lost, []string{"x"}) {
						t.Errorf("it ended as %s with %s, %v", v.Job.State, v.Job.Output.Error, err)
					}
					if !errors.Is(cause, worker.ErrLockLost) || errors.Is(cause, lokt.ErrLost) || !strings.Contains(cause.Error(), "lost the lock x") {
						t.Errorf("the cause is %v", cause)
					}
				}
				w.Stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Promises S-146, S-198, S-235.
func TestAHandlersContextEndsBeforeALockOfItsJobGoesToAnother(t *testing.T) {
	other := lokt.Owner{ID: "person"}
	wants := map[string]func(context.Context, lokt.Service) error{
		"preempted": func(ctx context.Context, locks lokt.Service) error {
			_, err := locks.Acquire(ctx, lokt.Claim{Name: "x", Owner: other, TTL: time.Hour, Wait: -1, Priority: 1, Preempt: time.Second})
			return err
		},
		"passed on": func(ctx context.Context, locks lokt.Service) error {
			_, err := locks.Tell(ctx, lokt.Target{Name: "x", Owner: other, Force: true}, lokt.Message{Pass: &lokt.Claim{Owner: other, TTL: time.Hour}})
			return err
		},
	}
	for name, want := range wants {
		for _, one := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/one store %v", name, one), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := memstore.New()
					locks := lokt.NewManager(store)
					o, kept := manager.Options{Locks: locks, OneStore: one}, store.Jobs()
					if !one {
						kept = memstore.NewJobs()
					}
					m, err := manager.Open(t.Context(), kept, o)
					if err != nil {
						t.Fatal(err)
					}
					defer m.Close()
					var ended atomic.Bool
					w, err := worker.NewWorker(m, func(ctx context.Context, _ *worker.Run) (any, error) {
						<-ctx.Done()
						time.Sleep(2 * time.Second)
						ended.Store(true)
						return nil, context.Cause(ctx)
					}, worker.WorkerOptions{})
					if err != nil {
						t.Fatal(err)
					}
					done := make(chan error, 1)
					go func() { done <- w.Run(t.Context()) }()
					id := submit(t, m, func(s *jobs.Spec) { s.Locks = []string{"x"} })
					time.Sleep(time.Minute)
					if err := want(t.Context(), locks); err != nil {
						t.Fatal(err)
					}
					for {
						s, err := locks.Get(t.Context(), "x")
						if err != nil {
							t.Fatal(err)
						}
						if live := s.Live(); len(live) == 1 && live[0].Owner.ID == other.ID {
							break
						}
						time.Sleep(time.Second)
						if _, err := locks.Sweep(t.Context()); err != nil { // as a daemon does
							t.Fatal(err)
						}
					}
					if v, err := m.Get(t.Context(), id); !ended.Load() || err != nil || !strings.Contains(string(v.Job.Output.Error), worker.CodeLostLocks) {
						t.Errorf("the lock is another's, and the handler has ended: %v; the job: %+v, %v", ended.Load(), v.Job, err)
					}
					w.Stop()
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// slowRenewals are locks of a service that is far away.
type slowRenewals struct {
	lokt.Service
	slow atomic.Bool
}

func (s *slowRenewals) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	if s.slow.Load() {
		time.Sleep(100 * time.Millisecond)
	}
	return s.Service.Renew(ctx, r)
}

// Promise S-141.
func TestLocksOfManyJobsAreRenewedInTimeThoughEachTakesAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		locks := &slowRenewals{Service: lokt.NewManager(memstore.New())}
		m := openWith(t, manager.Options{Config: jobs.Config{Total: n, TTL: 10 * time.Second}, Locks: locks})
		var leases []string
		for i := range n {
			submit(t, m, func(s *jobs.Spec) { s.Locks = []string{fmt.Sprint("lock-", i)} })
			leases = append(leases, grant(t, m, jobs.Request{WorkerID: "w"}).Lease.ID)
		}
		locks.slow.Store(true)
		for range 30 {
			time.Sleep(3 * time.Second)
			all, err := m.HeartbeatAll(t.Context(), "w", leases)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range all {
				if a.Err != nil || len(a.LostLocks) > 0 {
					t.Fatalf("it has lost %q, %v", a.LostLocks, a.Err)
				}
			}
		}
	})
}
