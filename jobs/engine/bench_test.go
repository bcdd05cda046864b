package engine

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// crowded returns an engine with so many queued jobs of some shapes that nobody who asks may take, and as many leases.
func crowded(b testing.TB, queued, leases int) (*Engine, Instant) {
	b.Helper()
	e := newEngine(jobs.Config{Total: 1 << 30, TTL: 24 * time.Hour})
	now := Instant{Wall: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	for i := range leases {
		s := jobs.NewSpec()
		e.Turn(now, []Call{{1, Submit{Jobs: []NewJob{{Spec: s, ID: "L" + strconv.Itoa(i)}}}}}, nil)
		e.Turn(now, []Call{{2, Request{Request: jobs.Request{WorkerID: "busy"}, LeaseID: "lease" + strconv.Itoa(i)}}}, nil)
	}
	batch := make([]NewJob, 0, 1000)
	for i := range queued {
		s := jobs.NewSpec()
		s.Type, s.Units, s.Priority = "t"+strconv.Itoa(i%10), 1+i%5, jobs.Priorities()[i%4]
		batch = append(batch, NewJob{Spec: s, ID: "Q" + strconv.Itoa(i)})
		if len(batch) == cap(batch) || i == queued-1 {
			now.Mono += time.Millisecond
			now.Wall = now.Wall.Add(time.Millisecond)
			e.Turn(now, []Call{{3, Submit{Jobs: batch}}}, nil)
			batch = batch[:0]
		}
	}
	runtime.GC() // of what came up on the way
	return e, now
}

func TestAQueuedJobCostsLittleMemory(t *testing.T) {
	const n, most = 100_000, 680 // bytes; a process has twice as much, because Go collects garbage when what is in use has doubled
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	e, _ := crowded(t, n, 0)
	runtime.ReadMemStats(&after)
	if each := (int(after.HeapAlloc) - int(before.HeapAlloc)) / n; each > most {
		t.Errorf("a queued job takes %d bytes, and may take %d", each, most)
	} else {
		t.Logf("a queued job takes %d bytes", each)
	}
	runtime.KeepAlive(e)
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
				e.Turn(now, []Call{{1, Submit{Jobs: []NewJob{{Spec: jobs.NewSpec(), ID: ids[i]}}}}}, nil)
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
				out := e.Turn(now, []Call{{1, Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: lease}}}, nil)
				g := out.Replies[0].Result.(jobs.Grant)
				if g.Denied != nil {
					b.Fatal(*g.Denied)
				}
				e.Turn(now, []Call{{2, Complete{jobs.Completion{LeaseID: lease, WorkerID: "w", Status: jobs.Completed}}}}, nil)
				e.Turn(now, []Call{{3, Submit{Jobs: []NewJob{{Spec: g.Job.Spec, ID: lease}}}}}, nil)
			}
		})
	}
}

// BenchmarkAskCompleteInTurns does the same with jobs of so many fairness keys.
func BenchmarkAskCompleteInTurns(b *testing.B) {
	for _, keys := range []int{10, 1000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			e, now := newEngine(jobs.Config{}), Instant{Wall: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
			submit := func(i int) {
				s := jobs.NewSpec()
				s.Extra = &jobs.Extra{Fair: strconv.Itoa(i % keys)}
				e.Turn(now, []Call{{3, Submit{Jobs: []NewJob{{Spec: s, ID: "J" + strconv.Itoa(i)}}}}}, nil)
			}
			for i := range 10 * keys {
				submit(i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				lease := "G" + strconv.Itoa(i)
				e.Turn(now, []Call{{1, Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: lease}}}, nil)
				e.Turn(now, []Call{{2, Complete{jobs.Completion{LeaseID: lease, WorkerID: "w", Status: jobs.Completed}}}}, nil)
				submit(10*keys + i)
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
				e.Turn(now, []Call{{1, Request{Request: jobs.Request{WorkerID: "w", Types: []string{"none"}}, LeaseID: "G"}}}, nil)
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
				e.Turn(now, []Call{{1, Status{}}}, nil)
			}
		})
	}
}

func BenchmarkListPage(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, now := crowded(b, n, 100)
			f := jobs.Filter{Limit: 200}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				p := e.Turn(now, []Call{{1, List{f}}}, nil).Replies[0].Result.(LivingPage)
				f.After = Merge(p, nil, f.Limit).Next
			}
		})
	}
}

func BenchmarkBeat(b *testing.B) {
	for _, n := range []int{64, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, now := crowded(b, 0, n)
			ids := make([]string, n)
			beat := func(i int) *Heartbeat { return &Heartbeat{jobs.Heartbeat{WorkerID: "busy"}, ids[i : i+1]} }
			for i := range ids {
				ids[i] = "lease" + strconv.Itoa(i)
				e.Quick(now, beat(i)) // the first is dearer: the job is running from then on
			}
			now.Mono += lazyWrite
			e.Turn(now, nil, nil)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				now.Mono += time.Microsecond
				if _, ok := e.Quick(now, beat(i%n)); !ok {
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
				now.Mono += lazyWrite
				e.Turn(now, nil, nil)
				b.ReportMetric((used()-before)/float64(c.queued+c.leases), "B/"+c.name)
				runtime.KeepAlive(e)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	e, now := crowded(b, 100_000, 10_000)
	living := e.living()
	b.ResetTimer()
	for range b.N {
		Load(e.cfg, living, "s", now)
	}
}
