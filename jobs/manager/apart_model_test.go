package manager_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// play is workers at managers that stand still for long, and whose requests and answers are late and lost; one manager at
// a time is spared.
type play struct {
	*apart
	mu     sync.Mutex
	random *rand.Rand
	calm   bool
	spared int
	out    map[string]*outing // by lease
	begun  []time.Time        // those that r has a rate of
}

// outing is a lease that a worker believes to have, and is right to.
type outing struct {
	until time.Time
	units int
	locks []string
}

func (p *play) n(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.IntN(n)
}

func (p *play) fate(i int, what string, answer bool) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.calm && i != p.spared && what == "acquire" && answer && p.random.IntN(4) == 0 {
		p.wires[i].stop(time.Duration(25+p.random.IntN(20)) * time.Second) // a lock ends after 30 s
	}
	switch n := p.random.IntN(200); {
	case p.calm:
		return 0, false
	case n == 0:
		return time.Duration(p.random.IntN(4000)) * time.Millisecond, false
	case n < 6:
		return 0, true
	}
	return time.Duration(p.random.IntN(20)) * time.Millisecond, false
}

// call asks one manager after another until one answers.
func call[T any](p *play, do func(ctx context.Context, m int) (T, error)) (v T, err error) {
	for range 6 {
		ctx, cancel := context.WithTimeout(p.Context(), 2*time.Second)
		v, err = do(ctx, p.n(len(p.managers)))
		cancel()
		if err == nil {
			break
		}
	}
	return v, err
}

func (p *play) work(name string, end time.Time) {
	for i := 0; time.Now().Before(end); i++ {
		asked := time.Now()
		r := jobs.Request{WorkerID: name, RequestID: fmt.Sprint(name, i), Wait: time.Second}
		g, err := call(p, func(ctx context.Context, m int) (jobs.Grant, error) { return p.managers[m].Request(ctx, r) })
		if err == nil && g.Denied != nil && g.Denied.Code == jobs.DeniedEmpty && p.leased() == 0 {
			break
		}
		if err != nil || g.Denied != nil || time.Since(asked) > g.Lease.TTL {
			time.Sleep(time.Duration(p.n(500)) * time.Millisecond)
			continue
		}
		o := p.begin(&g, asked)
		stop := time.Now().Add(time.Duration(p.n(20_000)) * time.Millisecond)
		for lost := false; time.Now().Before(stop) && !lost; {
			time.Sleep(min(time.Until(stop), 2*time.Second))
			asked := time.Now()
			if !asked.Before(o.until) {
				break
			}
			b := jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: name}
			ctx, cancel := context.WithTimeout(p.Context(), 2*time.Second)
			answer, err := p.managers[p.n(len(p.managers))].Heartbeat(ctx, b)
			cancel()
			if lost = err == nil && len(answer.LostLocks) > 0; lost {
				p.Errorf("%v: %s lost %q", time.Now(), g.Lease.ID, answer.LostLocks)
			} else if err == nil && time.Now().Before(o.until) {
				p.mu.Lock()
				o.until = asked.Add(g.Lease.TTL)
				p.mu.Unlock()
			}
		}
		p.mu.Lock()
		delete(p.out, g.Lease.ID)
		p.mu.Unlock()
		status := []jobs.State{jobs.Completed, jobs.Failed, jobs.Queued}[p.n(3)]
		if !time.Now().Before(o.until) {
			continue
		}
		c := jobs.Completion{LeaseID: g.Lease.ID, WorkerID: name, Status: status}
		_, _ = call(p, func(ctx context.Context, m int) (bool, error) { return p.managers[m].Complete(ctx, c) })
	}
}

func (p *play) leased() int {
	s, err := p.managers[0].Status(p.Context())
	if err != nil {
		return 1
	}
	return s.Leased + s.Queue.Sum()
}

func (p *play) begin(g *jobs.Grant, asked time.Time) *outing {
	for _, name := range g.Job.Locks {
		s, err := p.locks.Get(p.Context(), name)
		mine := func(h lokt.Holder) bool { return h.LeaseID == g.Lease.ID && h.Token == g.Lease.LockTokens[name] }
		if err != nil || !slices.ContainsFunc(s.Live(), mine) {
			p.Errorf("%v: %s is granted with %v, and %s is held by %+v, %v", time.Now(), g.Lease.ID, g.Lease.LockTokens, name, s.Live(), err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := &outing{asked.Add(g.Lease.TTL), g.Lease.Units, g.Job.Locks}
	p.out[g.Lease.ID] = o
	units := 0
	for id, other := range p.out {
		if !time.Now().Before(other.until) {
			continue
		}
		if units += other.units; units > 10 {
			p.Errorf("%v: %d units are out", time.Now(), units)
		}
		for _, name := range o.locks {
			if other != o && name != "r" && slices.Contains(other.locks, name) {
				p.Errorf("%v: %s is granted to %s beside %s", time.Now(), name, g.Lease.ID, id)
			}
		}
	}
	if limit := g.Job.Extras().Limits["r"]; limit.Starts > 0 {
		for _, at := range p.begun {
			if d := g.Lease.IssuedAt.Sub(at).Abs(); d < limit.Every()-time.Millisecond {
				p.Errorf("%v: between %s and another lies %v", time.Now(), g.Lease.ID, d)
			}
		}
		p.begun = append(p.begun, g.Lease.IssuedAt)
	}
	return o
}

// Promises S-78, S-140, S-141, S-229 and S-310.
func TestJobsWithLocksInAnotherStoreKeepTheirPromisesWhateverStandsStillOrIsLost(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &play{
					apart: newApart(t, 3, 10*time.Second), random: rand.New(rand.NewPCG(seed, 1)),
					out: map[string]*outing{},
				}
				for i := range 60 {
					s := jobs.NewSpec()
					s.Units, s.MaxAttempts, s.Locks = 1+p.n(4), 3, [][]string{{"x"}, {"y"}, {"x", "y"}, {"r"}, {"x", "r"}, nil}[p.n(6)]
					s.IdempotencyKey = fmt.Sprint(i)
					if slices.Contains(s.Locks, "r") {
						s.Extra = &jobs.Extra{Limits: map[string]jobs.Limit{"r": {Slots: 3, Starts: 1, Per: 5 * time.Second}}}
					}
					if _, err := p.managers[i%3].Submit(t.Context(), []jobs.Spec{s}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				for i, w := range p.wires {
					w.set(func(what string, answer bool) (time.Duration, bool) { return p.fate(i, what, answer) })
				}
				end := time.Now().Add(10 * time.Minute)
				var all sync.WaitGroup
				for i := range 6 {
					all.Go(func() { p.work(fmt.Sprint("w", i), end.Add(2*time.Hour)) })
				}
				for time.Now().Before(end) {
					next := p.n(3)
					p.mu.Lock()
					p.spared = next
					p.mu.Unlock()
					for i, w := range p.wires {
						if i != next && p.n(2) == 0 {
							w.stop(time.Duration(1+p.n(20)) * time.Second)
						}
					}
					time.Sleep(70 * time.Second)
				}
				p.mu.Lock()
				p.calm = true
				p.mu.Unlock()
				all.Wait()
				if s, err := p.managers[0].Status(t.Context()); err != nil || s.Leased != 0 || s.Queue.Sum() != 0 {
					t.Errorf("in the end there is %+v, %v", s, err)
					for i, m := range p.managers {
						all, _ := m.List(t.Context(), jobs.Filter{State: jobs.Queued})
						for _, v := range all.Jobs {
							t.Errorf("%v: manager %d: %s with %q waits for %s", time.Now(), i, v.Job.ID, v.Job.Locks, v.WaitingFor)
						}
					}
				}
				for _, of := range []string{"leases", "whoever stood in a queue"} {
					for _, name := range []string{"x", "y", "r"} {
						s, err := p.locks.Get(t.Context(), name)
						held := slices.DeleteFunc(s.Live(), func(h lokt.Holder) bool { return of == "leases" && !h.Strict })
						if err != nil || len(held) != 0 {
							t.Errorf("in the end %s is held for %s by %+v, %v", name, of, held, err)
						}
					}
					time.Sleep(31 * time.Second) // what was lost on the way back ends by itself
				}
			})
		})
	}
}
