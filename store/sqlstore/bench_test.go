package sqlstore

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// Databases of benchmarks are on a disk: flushing is what they measure.
func benchPlace(b *testing.B) string { return filepath.Join(b.TempDir(), "lokt.db") }

// share runs b.N rounds in n goroutines.
func share(b *testing.B, n int, round func(g, i int)) {
	b.ResetTimer()
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			for i := g; i < b.N; i += n {
				round(g, i)
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}

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
		b.Run(fmt.Sprintf("submit+ask+complete/%d", n), func(b *testing.B) {
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

// BenchmarkLoad reads 100,000 queued jobs and 10,000 leases, as a server does when it starts.
func BenchmarkLoad(b *testing.B) {
	db := start(b, benchPlace(b), Options{})
	ctx := context.Background()
	now := time.Now()
	for begin := 0; begin < 110_000; begin += 1000 {
		var c jobs.Changes
		for i := begin; i < begin+1000; i++ {
			j := jobs.Job{
				Spec: jobs.NewSpec(), ID: fmt.Sprintf("job-%016x", i), State: jobs.Queued, CreatedAt: now, UpdatedAt: now, ReadyAt: now,
				Seq: uint64(i + 1), Ord: int64(i), Revision: uint64(i + 1),
			}
			j.Tags = []string{"nightly", "needs:gpu"}
			if i >= 100_000 {
				j.State, j.LeaseID, j.Attempt = jobs.Leased, fmt.Sprint("lease-", i), 1
				c.Leases = append(c.Leases, jobs.Lease{ID: j.LeaseID, JobID: j.ID, WorkerID: "w", Units: 1, Token: 1, Attempt: 1, IssuedAt: now, ExpiresAt: now, LastHeartbeat: now})
			}
			c.Jobs = append(c.Jobs, jobs.JobChange{Job: j, What: jobs.New | jobs.Moved})
		}
		if err := db.Jobs().Update(ctx, func(jobs.Facts) jobs.Changes { return c }); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		rows, err := db.Jobs().Load(ctx)
		if err != nil || len(rows.Jobs) != 110_000 || len(rows.Leases) != 10_000 {
			b.Fatal(len(rows.Jobs), len(rows.Leases), err)
		}
	}
}

// BenchmarkFold writes the rows of what 64 turns changed, in which 384 jobs were submitted, leased, and completed.
func BenchmarkFold(b *testing.B) {
	const each = 384
	now := time.Now()
	turnsFrom := func(first uint64) (all []*jobs.Changes) {
		for i := range uint64(64) {
			c := &jobs.Changes{Time: now}
			for n := range uint64(each / 64) {
				seq := first + i*each/64 + n
				j := jobs.Job{
					Spec: jobs.NewSpec(), ID: fmt.Sprintf("job-%016x", seq), State: jobs.Completed, CreatedAt: now, UpdatedAt: now, ReadyAt: now,
					StartedAt: now, EndedAt: now, Attempt: 1, Token: seq, Seq: seq, Ord: int64(seq), Revision: 4 * seq,
				}
				lease, worker := fmt.Sprintf("lease-%016x", seq), fmt.Sprint("worker-", n)
				for k, what := range []jobs.EventType{jobs.EventSubmit, jobs.EventGrant, jobs.EventRunning, jobs.EventComplete} {
					c.Events = append(c.Events, jobs.Event{Seq: 4*seq + uint64(k), Time: now, Type: what, JobID: j.ID, LeaseID: lease, WorkerID: worker, Attempt: 1, Token: seq})
				}
				c.Unleased = append(c.Unleased, lease)
				c.Attempts = append(c.Attempts, jobs.Attempt{
					JobID: j.ID, Number: 1, Token: seq, LeaseID: lease, WorkerID: worker, Units: 1, State: jobs.Completed, IssuedAt: now, FirstBeat: now, EndedAt: now,
				})
				c.Ended = append(c.Ended, j)
				c.Counters = jobs.Counters{Seq: seq, Revision: j.Revision, Event: 4*seq + 3}
			}
			all = append(all, c)
		}
		return all
	}
	db := start(b, benchPlace(b), Options{})
	ctx := context.Background()
	first := uint64(1)
	for b.Loop() {
		b.StopTimer()
		all := turnsFrom(first)
		db.jobs.folded = first - 1
		first += each
		b.StartTimer()
		if err := atomically(ctx, db.writer, func() error { return db.jobs.fold(ctx, db.writer, all) }); err != nil {
			b.Fatal(err)
		}
	}
}
