package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/lokt-dev/lokt"
)

// turns measures a function that takes a lock and gives it back, and reports the 50th and 99th percentile.
func turns(b *testing.B, turn func(i int) error) {
	b.Helper()
	took := make([]time.Duration, 0, b.N)
	i := 0
	for b.Loop() {
		start := time.Now()
		if err := turn(i); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		i++
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// Acquire and release by one client of one node, against etcd's own mutex on the same node. "durable" flushes to the disk.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, durable := range []bool{true, false} {
		c := startCluster(b, 1, durable)
		b.Run(fmt.Sprintf("durable=%v/etcd mutex", durable), func(b *testing.B) {
			session, err := concurrency.NewSession(c.client(b), concurrency.WithTTL(30))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = session.Close() }()
			m := concurrency.NewMutex(session, "/mutex")
			turns(b, func(int) error {
				if err := m.Lock(b.Context()); err != nil {
					return err
				}
				return m.Unlock(b.Context())
			})
		})
		b.Run(fmt.Sprintf("durable=%v/lokt", durable), func(b *testing.B) {
			m := lokt.NewManager(c.open(b, c.url(), Options{}))
			turns(b, func(int) error { return once(b.Context(), m, "x", 0) })
		})
	}
}

func once(ctx context.Context, m lokt.Service, name string, wait time.Duration) error {
	c := lokt.Claim{Name: name, LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: lokt.NewLeaseID()}, TTL: 30 * time.Second, Wait: wait}
	if _, err := m.Acquire(ctx, c); err != nil {
		return err
	}
	_, err := m.Release(ctx, lokt.Target{Name: name, LeaseID: c.LeaseID, Owner: c.Owner})
	return err
}

// Sixteen contenders for one lock, in turn.
func BenchmarkContended(b *testing.B) {
	c := startCluster(b, 1, false)
	b.Run("etcd mutex", func(b *testing.B) {
		cl := c.client(b)
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			session, err := concurrency.NewSession(cl, concurrency.WithTTL(30))
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = session.Close() }()
			m := concurrency.NewMutex(session, "/contended")
			for pb.Next() {
				if err := m.Lock(b.Context()); err != nil {
					b.Error(err)
				}
				if err := m.Unlock(b.Context()); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("lokt", func(b *testing.B) {
		m := lokt.NewManager(c.open(b, c.url(), Options{}))
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := once(b.Context(), m, "x", -1); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

// Many locks at once, one client each.
func BenchmarkManyLocks(b *testing.B) {
	c := startCluster(b, 1, false)
	b.Run("etcd mutex", func(b *testing.B) {
		cl := c.client(b)
		session, err := concurrency.NewSession(cl, concurrency.WithTTL(30))
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = session.Close() }()
		b.SetParallelism(8)
		var n atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			m := concurrency.NewMutex(session, fmt.Sprint("/many/", n.Add(1)))
			for pb.Next() {
				if err := m.Lock(b.Context()); err != nil {
					b.Error(err)
				}
				if err := m.Unlock(b.Context()); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("lokt", func(b *testing.B) {
		m := lokt.NewManager(c.open(b, c.url(), Options{}))
		b.SetParallelism(8)
		var n atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			name := fmt.Sprint("x", n.Add(1))
			for pb.Next() {
				if err := once(b.Context(), m, name, 0); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

func BenchmarkRenew(b *testing.B) {
	c := startCluster(b, 1, false)
	m := lokt.NewManager(c.open(b, c.url(), Options{}))
	h, err := m.Acquire(b.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: 30 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	turns(b, func(int) error {
		_, err := m.Renew(b.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID})
		return err
	})
}
