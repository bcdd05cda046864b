package sqlstore

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// Databases of benchmarks are on a disk: flushing is what they measure.
func benchPlace(b *testing.B) string { return filepath.Join(b.TempDir(), "lokt.db") }

// BenchmarkLocks takes and gives back locks, each goroutine its own; and renews.
func BenchmarkLocks(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("acquire+release/%d", n), func(b *testing.B) {
			m := lokt.NewManager(start(b, benchPlace(b), Options{}).Locks())
			ctx := context.Background()
			share(b, n, func(g, _ int) {
				name := fmt.Sprint("lock-", g)
				h, err := m.Acquire(ctx, lokt.Claim{Name: name, Owner: lokt.Owner{ID: "o", Host: "h"}, TTL: time.Minute})
				if err == nil {
					_, err = m.Release(ctx, lokt.Target{Name: name, LeaseID: h.LeaseID, Owner: h.Owner})
				}
				if err != nil {
					b.Error(err)
				}
			})
		})
		b.Run(fmt.Sprintf("renew/%d", n), func(b *testing.B) {
			m := lokt.NewManager(start(b, benchPlace(b), Options{}).Locks())
			ctx := context.Background()
			for g := range n {
				if _, err := m.Acquire(ctx, lokt.Claim{Name: fmt.Sprint("lock-", g), LeaseID: fmt.Sprint("lease-", g), Owner: lokt.Owner{ID: "o"}, TTL: time.Minute}); err != nil {
					b.Fatal(err)
				}
			}
			share(b, n, func(g, _ int) {
				if _, err := m.Renew(ctx, lokt.Renewal{Name: fmt.Sprint("lock-", g), LeaseID: fmt.Sprint("lease-", g)}); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// BenchmarkView reads one lock.
func BenchmarkView(b *testing.B) {
	s := start(b, benchPlace(b), Options{}).Locks()
	if _, err := lokt.NewManager(s).Acquire(b.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "o"}}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.View(b.Context(), "x"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkJobs submits, leases and completes jobs.
func BenchmarkJobs(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("submit+request+complete/%d", n), func(b *testing.B) {
			m, err := manager.Open(b.Context(), start(b, benchPlace(b), Options{}).Jobs(), manager.Options{Config: jobs.Config{Total: 1000}})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = m.Close() }()
			ctx := context.Background()
			share(b, n, func(g, _ int) {
				worker := fmt.Sprint("w", g)
				_, err := m.Submit(ctx, []jobs.Spec{jobs.NewSpec()})
				var grant jobs.Grant
				if err == nil {
					grant, err = m.Request(ctx, jobs.Request{WorkerID: worker, Wait: time.Second})
				}
				if err == nil && grant.Denied == nil {
					_, err = m.Complete(ctx, jobs.Completion{LeaseID: grant.Lease.ID, WorkerID: worker, Status: jobs.Completed})
				}
				if err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// BenchmarkHandOver hands one lock over among so many who wait for it: each gives it back, and asks again.
func BenchmarkHandOver(b *testing.B) {
	for _, n := range []int{1, 100, 2000} {
		b.Run(fmt.Sprintf("waiting/%d", n), func(b *testing.B) {
			m := lokt.NewManager(start(b, benchPlace(b), Options{}).Locks())
			ctx, cancel := context.WithCancel(b.Context())
			var over atomic.Int64
			var wg sync.WaitGroup
			done, full := make(chan struct{}), make(chan struct{})
			for g := range n + 1 {
				wg.Go(func() {
					for {
						h, err := m.Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: fmt.Sprint("o", g)}, TTL: time.Minute, Wait: -1})
						if err != nil {
							return
						}
						<-full
						if over.Add(1) == int64(b.N) {
							close(done)
						}
						if _, err := m.Release(ctx, lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
							return
						}
					}
				})
			}
			for {
				if s, err := m.Get(ctx, "x"); err != nil || len(s.Lock.Queue) == n {
					break
				}
				time.Sleep(time.Millisecond)
			}
			var mem runtime.MemStats
			runtime.ReadMemStats(&mem)
			b.ResetTimer()
			close(full)
			<-done
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
			b.ReportMetric(float64(mem.HeapInuse)/float64(n)/1024, "KiB/waiter")
			cancel()
			wg.Wait()
		})
	}
}

// BenchmarkLoad reads 100,000 queued jobs and 10,000 leases, as a server does when it starts.
func BenchmarkLoad(b *testing.B) {
	path := benchPlace(b)
	db := start(b, path, Options{})
	now := time.Now().UTC().Truncate(time.Millisecond)
	for begin := 0; begin < 110_000; begin += 1000 {
		c := jobs.Changes{}
		for i := begin; i < begin+1000; i++ {
			r := &jobs.Record{Job: jobs.Job{
				Spec: jobs.NewSpec(), ID: fmt.Sprintf("%032x", i), State: jobs.Queued, CreatedAt: now, UpdatedAt: now, ReadyAt: now,
				Seq: uint64(i + 1), Ord: int64(i), Revision: uint64(i + 1),
			}}
			if i%11 == 0 {
				r.State, r.Attempt, r.Token, r.LeaseID = jobs.Leased, 1, 1, fmt.Sprintf("lease-%016x", i)
				r.Lease = &jobs.Lease{
					ID: r.LeaseID, JobID: r.ID, WorkerID: "w", RequestID: "r", Units: 1, Token: 1, Attempt: 1, IssuedAt: now, ExpiresAt: now.Add(time.Minute),
					LastHeartbeat: now, TTL: time.Minute, Interval: 20 * time.Second,
				}
			}
			c.Jobs = append(c.Jobs, r)
		}
		if err := db.Jobs().Update(b.Context(), func(jobs.Facts) jobs.Changes { return c }); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("jobs", func(b *testing.B) {
		for b.Loop() {
			if all, err := db.Jobs().Load(b.Context()); err != nil || len(all.Jobs) != 110_000 {
				b.Fatal(len(all.Jobs), err)
			}
		}
	})
	shutB(b, db)
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			db, err := Open(b.Context(), "sqlite:"+path, Options{})
			if err != nil {
				b.Fatal(err)
			}
			shutB(b, db)
		}
	})
}

func shutB(b *testing.B, db io.Closer) {
	if err := db.Close(); err != nil {
		b.Error(err)
	}
}
