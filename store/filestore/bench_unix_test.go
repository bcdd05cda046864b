//go:build unix

package filestore

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt"
)

func benchStore(b *testing.B) *Store {
	b.Helper()
	s, err := Open(b.TempDir(), Options{Warn: func(err error) { b.Error(err) }})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// processorTime returns what the process has used.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkAcquireRelease(b *testing.B) {
	m := lokt.NewManager(benchStore(b))
	claim := lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Minute, Attended: true}
	for b.Loop() {
		h, err := m.Acquire(b.Context(), claim)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := m.Release(b.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			b.Fatal(err)
		}
	}
}

// Heartbeats of 100 locks are to cost 1 % of a core at most, if each is renewed every 5 s, and so are those of 50 that are
// renewed every second.
func BenchmarkRenew(b *testing.B) {
	m := lokt.NewManager(benchStore(b))
	var held []lokt.Holder
	for i := range 100 {
		h, err := m.Acquire(b.Context(), lokt.Claim{Name: fmt.Sprint("x", i), Owner: lokt.Owner{ID: "a"}, TTL: time.Minute, Attended: true})
		if err != nil {
			b.Fatal(err)
		}
		held = append(held, h)
	}
	before, n := processorTime(b), 0
	for b.Loop() {
		h := held[n%len(held)]
		if _, err := m.Renew(b.Context(), lokt.Renewal{Name: h.Name, LeaseID: h.LeaseID}); err != nil {
			b.Fatal(err)
		}
		n++
	}
	each := (processorTime(b) - before).Seconds() / float64(n)
	b.ReportMetric(100*20*each, "%core/100-every-5s")
	b.ReportMetric(100*50*each, "%core/50-every-1s")
}

func BenchmarkList(b *testing.B) {
	const locks = 10_000
	s := benchStore(b)
	m := lokt.NewManager(s)
	for i := range locks {
		if _, err := m.Acquire(b.Context(), lokt.Claim{Name: fmt.Sprint("x", i), Owner: lokt.Owner{ID: "a"}, Attended: true}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		n := 0
		for _, err := range s.List(b.Context(), lokt.Filter{}) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != locks {
			b.Fatalf("%d are listed", n)
		}
	}
}
