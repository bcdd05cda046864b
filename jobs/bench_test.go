package jobs

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// crowded returns an engine with so many queued jobs of some shapes that nobody who asks may take, and as many leases.
func crowded(b *testing.B, queued, leases int) (*engine, instant) {
	b.Helper()
	e := newEngine(Config{Total: 1 << 30, TTL: 24 * time.Hour})
	now := instant{wall: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	for i := range leases {
		s := NewSpec()
		e.turn(now, []request{{1, submitOp{[]newJob{{Spec: s, id: "L" + strconv.Itoa(i)}}}}})
		e.turn(now, []request{{2, askOp{Request: Request{WorkerID: "busy"}, leaseID: "lease" + strconv.Itoa(i)}}})
	}
	batch := make([]newJob, 0, 1000)
	for i := range queued {
		s := NewSpec()
		s.Type, s.Units, s.Priority = "t"+strconv.Itoa(i%10), 1+i%5, Priorities()[i%4]
		batch = append(batch, newJob{Spec: s, id: "Q" + strconv.Itoa(i)})
		if len(batch) == cap(batch) || i == queued-1 {
			now.mono += time.Millisecond
			now.wall = now.wall.Add(time.Millisecond)
			e.turn(now, []request{{3, submitOp{batch}}})
			batch = batch[:0]
		}
	}
	runtime.GC() // of what came up on the way
	return e, now
}

// sizes are what must not matter.
var sizes = []int{1_000, 1_000_000}

func BenchmarkSubmit(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, now := crowded(b, n, 100)
			ids := make([]string, b.N)
			for i := range ids {
				ids[i] = "N" + strconv.Itoa(i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				e.turn(now, []request{{1, submitOp{[]newJob{{Spec: NewSpec(), id: ids[i]}}}}})
			}
		})
	}
}

// BenchmarkAskComplete grants the first job in order, completes it, and submits one like it.
func BenchmarkAskComplete(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, now := crowded(b, n, 100)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				lease := "G" + strconv.Itoa(i)
				out := e.turn(now, []request{{1, askOp{Request: Request{WorkerID: "w"}, leaseID: lease}}})
				g := out.replies[0].result.(Grant)
				if g.Denied != nil {
					b.Fatal(*g.Denied)
				}
				e.turn(now, []request{{2, completeOp{Completion{LeaseID: lease, WorkerID: "w", Status: Completed}}}})
				e.turn(now, []request{{3, submitOp{[]newJob{{Spec: g.Job.Spec, id: lease}}}}})
			}
		})
	}
}

func BenchmarkDeniedAsk(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, now := crowded(b, n, 100)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				e.turn(now, []request{{1, askOp{Request: Request{WorkerID: "w", Types: []string{"none"}}, leaseID: "G"}}})
			}
		})
	}
}

func BenchmarkStatus(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, now := crowded(b, n, 100)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				e.turn(now, []request{{1, statusOp{}}})
			}
		})
	}
}

func BenchmarkListPage(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, now := crowded(b, n, 100)
			f := Filter{Limit: 200}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				p := e.turn(now, []request{{1, listOp{f}}}).replies[0].result.(livingPage)
				f.After = merge(p, nil, f.Limit).Next
			}
		})
	}
}

func BenchmarkBeat(b *testing.B) {
	for _, n := range []int{64, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, now := crowded(b, 0, n)
			var beats []Heartbeat
			for i := range n {
				beats = append(beats, Heartbeat{LeaseID: "lease" + strconv.Itoa(i), WorkerID: "busy"})
				e.quickBeat(now, &beats[i]) // the first is dearer: the job is running from then on
			}
			now.mono += lazyWrite
			e.turn(now, nil)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				now.mono += time.Microsecond
				if _, ok := e.quickBeat(now, &beats[i%n]); !ok {
					b.Fatal("a heartbeat was not accepted")
				}
			}
		})
	}
}

// BenchmarkMemory reports how much memory a queued job and a live lease take, with what belongs to them.
func BenchmarkMemory(b *testing.B) {
	used := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for _, c := range []struct {
		name           string
		queued, leases int
	}{{"job", 200_000, 0}, {"lease", 0, 100_000}} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				before := used()
				e, now := crowded(b, c.queued, c.leases)
				now.mono += lazyWrite
				e.turn(now, nil)
				b.ReportMetric((used()-before)/float64(c.queued+c.leases), "B/"+c.name)
				runtime.KeepAlive(e)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	e, now := crowded(b, 100_000, 10_000)
	rows := e.rows()
	b.ResetTimer()
	for range b.N {
		load(e.cfg, rows, now)
	}
}
