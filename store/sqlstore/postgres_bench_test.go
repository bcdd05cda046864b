//go:build unix

package sqlstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// serverCPU returns how much CPU the server's processes have used, as Linux counts it.
func serverCPU() (sum time.Duration) {
	b, _ := os.ReadFile(filepath.Join(server.Dir, "data", "postmaster.pid"))
	first, _, _ := strings.Cut(string(b), "\n")
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		b, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(b), ") ")
		fields := strings.Fields(rest) // state, parent, …
		if len(fields) < 15 {
			continue
		}
		counts := fields[11:13] // user, system
		if filepath.Base(filepath.Dir(path)) == first {
			counts = fields[11:15] // and those of children that have ended
		} else if fields[1] != first {
			continue
		}
		for _, count := range counts {
			ticks, _ := strconv.Atoi(count)
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}

func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measured reports the CPU of this process and of the server for each operation.
func measured(b *testing.B, n int, round func(g, i int)) {
	b.Helper()
	own, servers := ownCPU(), serverCPU()
	share(b, n, round)
	b.StopTimer()
	b.ReportMetric(float64((ownCPU()-own).Microseconds())/float64(b.N), "go-µs/op")
	b.ReportMetric(float64((serverCPU()-servers).Microseconds())/float64(b.N), "server-µs/op")
}

// BenchmarkPostgreSQL does what the benchmarks of SQLite do, by one server and by two. The server of the tests does not flush: what is
// measured is everything else.
func BenchmarkPostgreSQL(b *testing.B) {
	for _, c := range []struct{ servers, goroutines int }{{1, 1}, {1, 64}, {2, 64}, {2, 256}} {
		b.Run(fmt.Sprintf("acquire+release/%d/%d", c.servers, c.goroutines), func(b *testing.B) {
			url := schemaURL(b)
			var all []*lokt.Manager
			for range c.servers {
				all = append(all, lokt.NewManager(openPG(b, url, Options{}).Locks()))
			}
			ctx := context.Background()
			measured(b, c.goroutines, func(g, _ int) {
				m, name := all[g%len(all)], fmt.Sprint("lock-", g)
				h, err := m.Acquire(ctx, lokt.Claim{Name: name, Owner: lokt.Owner{ID: "o", Host: "h"}, TTL: time.Minute})
				if err == nil {
					_, err = m.Release(ctx, lokt.Target{Name: name, LeaseID: h.LeaseID, Owner: h.Owner})
				}
				if err != nil {
					b.Error(err)
				}
			})
		})
		b.Run(fmt.Sprintf("submit+ask+complete/%d/%d", c.servers, c.goroutines), func(b *testing.B) {
			url := schemaURL(b)
			var all []*manager.Manager
			for range c.servers {
				m, err := manager.Open(b.Context(), openPG(b, url, Options{}).Jobs(), manager.Options{Config: jobs.Config{Total: 1000, Shared: true}})
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = m.Close() }()
				all = append(all, m)
			}
			ctx := context.Background()
			measured(b, c.goroutines, func(g, _ int) {
				m, worker := all[g%len(all)], fmt.Sprint("w", g)
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

// BenchmarkPostgreSQLHandOver has so many wait for a lock, each of whom gives it back as soon as it has it.
func BenchmarkPostgreSQLHandOver(b *testing.B) {
	for _, n := range []int{1, 100, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			locks := openPG(b, schemaURL(b), Options{}).Locks()
			m := lokt.NewManager(locks)
			ctx := b.Context()
			var took time.Duration
			for b.Loop() {
				first, err := m.Acquire(ctx, claim("x", "first", time.Hour))
				if err != nil {
					b.Fatal(err)
				}
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() {
						h, err := m.Poll(ctx, &lokt.Claim{Name: "x", Owner: lokt.Owner{ID: fmt.Sprint("o", i)}, TTL: time.Hour, Wait: time.Hour})
						if err == nil {
							_, err = m.Release(ctx, lokt.Target{Name: "x", LeaseID: h.LeaseID, Owner: h.Owner})
						}
						if err != nil {
							b.Error(err)
						}
					})
				}
				for waiting := 0; waiting < n; {
					snap, err := locks.View(ctx, "x")
					if err != nil {
						b.Fatal(err)
					}
					waiting = len(snap.Lock.Queue)
				}
				begin := time.Now()
				if _, err := m.Release(ctx, lokt.Target{Name: "x", LeaseID: first.LeaseID, Owner: first.Owner}); err != nil {
					b.Fatal(err)
				}
				wg.Wait()
				took += time.Since(begin)
			}
			b.ReportMetric(float64(n*b.N)/took.Seconds(), "handovers/s")
		})
	}
}
