package jobstest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// TestGame checks that what a manager does to a store at random comes back. open returns a new, empty store; the
// test closes it.
func TestGame(t *testing.T, open func(t *testing.T) jobs.Store) {
	s := open(t)
	t.Cleanup(func() { _ = s.Close() })
	randomGame(t, s)
}

// shadow passes everything on to a store, and keeps in the simplest form what it should hold.
type shadow struct {
	jobs.Store
	mu     sync.Mutex
	jobs   map[string]jobs.Record
	memos  map[string]jobs.Memo
	living jobs.Living
}

// Update implements jobs.Store.
func (s *shadow) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	var c jobs.Changes
	err := s.Store.Update(ctx, func(f jobs.Facts) jobs.Changes {
		c = turn(f)
		return c
	})
	if err != nil || c.Empty() {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range c.Jobs {
		s.jobs[r.ID] = r
	}
	for _, m := range c.Memos {
		s.memos[m.ID] = m
	}
	s.living.Frozen, s.living.Counters = c.Frozen, c.Counters
	return nil
}

// check compares the store with what it should hold.
func (s *shadow) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.living
	want.Memos = slices.Collect(maps.Values(s.memos))
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		if !s.jobs[id].State.Ended() {
			want.Jobs = append(want.Jobs, s.jobs[id])
			continue
		}
		r, err := s.Ended(storeContext(t), id)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "an ended job", r, s.jobs[id])
	}
	want.Sort()
	equal(t, "what lives", living(t, s.Store), want)
}

// randomGame lets workers do what workers do.
func randomGame(t *testing.T, s jobs.Store) {
	sh := &shadow{Store: s, jobs: map[string]jobs.Record{}, memos: map[string]jobs.Memo{}}
	for round := range 3 {
		m, err := manager.Open(storeContext(t), sh, manager.Options{Config: jobs.Config{Total: 10, TTL: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() { misbehave(t, m, rand.New(rand.NewPCG(uint64(round), uint64(w))), fmt.Sprint("w", w)) })
		}
		wg.Wait()
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		sh.check(t)
	}
}

// misbehave sends requests of all kinds.
func misbehave(t *testing.T, m *manager.Manager, rng *rand.Rand, worker string) {
	ctx := storeContext(t)
	var held []jobs.Lease
	var mine []string
	for i := range 60 {
		var err error
		switch n := rng.IntN(10); {
		case n < 4 || len(held) == 0:
			sp := spec(units(1+rng.IntN(4)), attempts(1+rng.IntN(3)), backoff(0),
				kind(string(rune('a'+rng.IntN(3)))), tags(worker))
			if rng.IntN(3) == 0 {
				sp.IdempotencyKey = fmt.Sprint(worker, "-", i)
			}
			var r []jobs.Receipt
			if r, err = m.Submit(ctx, []jobs.Spec{sp}); err == nil {
				mine = append(mine, r[0].JobID)
			}
			var g jobs.Grant
			a := ask(worker)
			if rng.IntN(2) == 0 {
				a.RequestID = fmt.Sprint(i)
			}
			if g, err = m.Request(ctx, a); err == nil && g.Denied == nil {
				held = append(held, g.Lease)
			}
		case n < 7:
			l := held[len(held)-1]
			held = held[:len(held)-1]
			_, err = m.Complete(ctx, jobs.Completion{
				LeaseID: l.ID, WorkerID: worker, Status: []jobs.State{jobs.Completed, jobs.Failed}[rng.IntN(2)],
				Result: []byte(`{"r": 1}`),
			})
		case n == 7:
			half := 0.5
			_, err = m.Heartbeat(ctx, jobs.Heartbeat{
				LeaseID: held[0].ID, WorkerID: worker, Progress: &half, Checkpoint: []byte(`[1]`),
			})
		case n == 8:
			_, err = m.Cancel(ctx, mine[rng.IntN(len(mine))], "because")
		default:
			err = m.Revoke(ctx, held[rng.IntN(len(held))].ID, "so")
		}
		if code := jobs.Code(err); code != "" && code != "lease_not_found" {
			t.Errorf("request %d of %s: %v", i, worker, err)
		}
	}
}
