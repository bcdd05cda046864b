package lokt_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
)

// BenchmarkHandOver passes one lock on from waiter to waiter, of whom there are so many at first; each that was served asks
// again, so that there are as many all the time.
func BenchmarkHandOver(b *testing.B) {
	for _, waiters := range []int{1, 100, 2000} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) {
			m := lokt.NewManager(memstore.New())
			claim := func(i int) lokt.Claim {
				return lokt.Claim{Name: "x", Owner: lokt.Owner{ID: fmt.Sprint(i), Host: "host.example.com"}, Strict: true, TTL: time.Minute, Wait: -1}
			}
			first, err := m.Acquire(b.Context(), claim(-1))
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			served := make(chan struct{})
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var all sync.WaitGroup
			for i := range waiters {
				all.Go(func() {
					for {
						h, err := m.Acquire(ctx, claim(i))
						if err != nil {
							return
						}
						served <- struct{}{}
						_, _ = m.Release(context.Background(), lokt.Target{Name: "x", LeaseID: h.LeaseID})
					}
				})
			}
			for {
				s, err := m.Get(b.Context(), "x")
				if err != nil {
					b.Fatal(err)
				}
				if len(s.Lock.Queue) == waiters {
					break
				}
				time.Sleep(time.Millisecond)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			perWaiter := float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse) / float64(waiters)
			if _, err := m.Release(b.Context(), lokt.Target{Name: "x", LeaseID: first.LeaseID}); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				<-served
			}
			b.StopTimer()
			b.ReportMetric(perWaiter, "B/waiter")
			cancel()
			go func() { all.Wait(); close(served) }()
			for range served {
			}
		})
	}
}

// Who waits for one lock costs what its claim takes, not a copy of the queue.
func TestMemoryGrowsLinearlyWithTheWaitersOfALock(t *testing.T) {
	m := lokt.NewManager(memstore.New())
	claim := func(i int) lokt.Claim {
		return lokt.Claim{Name: "x", Owner: lokt.Owner{ID: fmt.Sprint(i)}, TTL: time.Minute, Wait: -1}
	}
	if _, err := m.Acquire(t.Context(), claim(-1)); err != nil {
		t.Fatal(err)
	}
	inUse := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc + s.StackInuse
	}
	const waiters, each = 1000, 64 << 10
	ctx, cancel := context.WithCancel(t.Context())
	before := inUse()
	var all sync.WaitGroup
	for i := range waiters {
		all.Go(func() { _, _ = m.Acquire(ctx, claim(i)) })
	}
	for queued := 0; queued < waiters; {
		s, err := m.Get(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		queued = len(s.Lock.Queue)
		runtime.Gosched()
	}
	if after := inUse(); after > before && (after-before)/waiters > each {
		t.Errorf("each of %d waiters takes %d bytes", waiters, (after-before)/waiters)
	}
	cancel()
	all.Wait()
}
