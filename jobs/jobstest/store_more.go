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

func endedIsListed(t *testing.T, s jobs.Store) {
	states := []jobs.State{jobs.Completed, jobs.Failed, jobs.Expired, jobs.Cancelled}
	var want []jobs.Job
	for i := range 40 {
		j := fullJob(i, states[i%4])
		j.Type, j.Tags = []string{"a", "b"}[i/4%2], [][]string{nil, {"x"}, {"x", "y"}, {"100%", "x_"}, {"xy"}}[i%5]
		commit(t, s, jobs.Changes{Ended: []jobs.Job{j}})
		want = append([]jobs.Job{j}, want...)
	}
	for _, f := range []jobs.Filter{
		{}, {State: jobs.Failed}, {Type: "b"}, {Tag: "x"}, {Tag: "%"}, {Tag: "100%"}, {Tag: "x_"}, {Type: "a", Tag: "y", State: jobs.Cancelled}, {Type: "c"},
	} {
		var through []jobs.Job
		for _, j := range want {
			if (f.State == "" || f.State == j.State) && (f.Type == "" || f.Type == j.Type) && (f.Tag == "" || slices.Contains(j.Tags, f.Tag)) {
				through = append(through, j)
			}
		}
		for _, size := range []int{1, 7, 100} {
			var got []jobs.Job
			below := uint64(1<<64 - 1)
			for {
				page, err := s.ListEnded(storeContext(t), f, below, size)
				if err != nil || len(page) > size {
					t.Fatalf("a page of %d has %d: %v", size, len(page), err)
				}
				got = append(got, page...)
				if len(page) < size {
					break
				}
				below = page[len(page)-1].Revision
			}
			equal(t, fmt.Sprintf("list with %+v in pages of %d", f, size), got, through)
		}
	}
}

func historyAddsUp(t *testing.T, s jobs.Store) {
	var want []jobs.Tally
	for i := range 6 {
		var tally jobs.Tally
		tally.Hour, tally.Type, tally.Completed = base().Truncate(time.Hour).Add(time.Duration(i/2)*time.Hour), "t", 1
		tally.Runs.Observe(time.Duration(i+1) * time.Second)
		want = append(want, tally)
		commit(t, s, jobs.Changes{
			Tallies: []jobs.Tally{tally}, Counts: []jobs.Count{{Hour: tally.Hour, Event: jobs.EventSubmit, N: 2}, {Hour: tally.Hour, Event: jobs.EventSubmit, Tag: "x", N: 1}},
		})
	}
	for skip := range 4 {
		from := base().Truncate(time.Hour).Add(time.Duration(skip) * time.Hour)
		tallies, counts, err := s.History(storeContext(t), from)
		if err != nil {
			t.Fatal(err)
		}
		to := base().Add(24 * time.Hour)
		equal(t, "the sum of the tallies", jobs.Summarize(tallies, from, to), jobs.Summarize(want, from, to))
		d := jobs.Decide(counts, from, 1)
		if n := int64(3 - skip); d.Events[jobs.EventSubmit] != 4*n || d.Tags["x"][jobs.EventSubmit] != 2*n {
			t.Errorf("from hour %d on, counts are %+v", skip, d)
		}
	}
}

func trimForgets(t *testing.T, s jobs.Store) {
	for i := range 30 {
		j := fullJob(i, jobs.Completed)
		j.EndedAt = base().Add(time.Duration(i) * time.Hour)
		commit(t, s, jobs.Changes{Ended: []jobs.Job{j}, Attempts: []jobs.Attempt{attempt(i, 1)}})
	}
	living := plainJob(100)
	living.Attempt = 1
	commit(t, s, jobs.Changes{Jobs: []jobs.JobChange{made(living)}, Attempts: []jobs.Attempt{attempt(100, 1)}})
	trim := func(before time.Time, keep, atMost, want, left int) {
		t.Helper()
		if n, err := s.Trim(storeContext(t), before, keep, atMost); err != nil || n != want {
			t.Errorf("trimming forgot %d, %v, not %d", n, err, want)
		}
		all, err := s.ListEnded(storeContext(t), jobs.Filter{}, 1<<63, 100)
		if err != nil || len(all) != left || left > 0 && all[len(all)-1].ID != fmt.Sprintf("job%04d", 30-left) {
			t.Errorf("left are %d, %v, not the newest %d", len(all), err, left)
		}
	}
	trim(base(), -1, 100, 0, 30)
	trim(base().Add(5*time.Hour), -1, 3, 3, 27)
	trim(base().Add(5*time.Hour), -1, 3, 2, 25)
	trim(base(), 20, 100, 5, 20)
	trim(base().Add(12*time.Hour), 19, 100, 2, 18)
	trim(base(), 0, 10, 10, 8)
	trim(base().Add(1000*time.Hour), 5, 100, 8, 0)
	if _, _, err := s.Ended(storeContext(t), "job0001"); jobs.Code(err) != "job_not_found" {
		t.Errorf("a forgotten job is %v", err)
	}
	if r := rows(t, s); len(r.Jobs) != 1 || len(r.Attempts) != 1 {
		t.Errorf("of what lives there is %+v", r)
	}
}

// shadow passes everything on to a store, and keeps in the simplest form what it should hold.
type shadow struct {
	jobs.Store
	mu    sync.Mutex
	rows  jobs.Rows
	ended map[string]jobs.Job
	done  map[string][]jobs.Attempt
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
	r := &s.rows
	r.Leases = slices.DeleteFunc(r.Leases, func(l jobs.Lease) bool {
		return slices.Contains(c.Unleased, l.ID) || slices.ContainsFunc(c.Leases, func(n jobs.Lease) bool { return n.ID == l.ID })
	})
	r.Leases = append(r.Leases, c.Leases...)
	r.Keys = slices.DeleteFunc(r.Keys, func(k jobs.Key) bool {
		return slices.Contains(c.Dropped, k.Key) || slices.ContainsFunc(c.Keys, func(n jobs.Key) bool { return n.Key == k.Key })
	})
	r.Keys = append(r.Keys, c.Keys...)
	r.Answered = slices.DeleteFunc(r.Answered, func(a jobs.Answered) bool {
		is := func(n jobs.Answered) bool { return n.WorkerID == a.WorkerID && n.RequestID == a.RequestID }
		return slices.ContainsFunc(c.Forgot, is) || slices.ContainsFunc(c.Answered, is)
	})
	r.Answered = append(r.Answered, c.Answered...)
	r.Jobs = slices.DeleteFunc(r.Jobs, func(j jobs.Job) bool {
		return slices.ContainsFunc(c.Jobs, func(n jobs.JobChange) bool { return n.ID == j.ID }) || slices.ContainsFunc(c.Ended, func(n jobs.Job) bool { return n.ID == j.ID })
	})
	for _, j := range c.Jobs {
		r.Jobs = append(r.Jobs, j.Job)
	}
	for _, a := range c.Attempts {
		s.done[a.JobID] = append(s.done[a.JobID], a)
	}
	for _, j := range c.Ended {
		s.ended[j.ID] = j
	}
	if c.Refrozen {
		r.Frozen = c.Frozen
	}
	r.Counters = c.Counters
	return nil
}

// check compares the store with what it should hold.
func (s *shadow) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.rows
	want.Attempts = nil
	for _, j := range want.Jobs {
		want.Attempts = append(want.Attempts, s.done[j.ID]...)
	}
	want.Sort()
	equal(t, "what lives", rows(t, s.Store), want)
	for _, id := range slices.Sorted(maps.Keys(s.ended)) {
		j, attempts, err := s.Ended(storeContext(t), id)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "an ended job", j, s.ended[id])
		equal(t, "its attempts", attempts, s.done[id])
	}
}

// randomGame lets workers do what workers do.
func randomGame(t *testing.T, s jobs.Store) {
	sh := &shadow{Store: s, ended: map[string]jobs.Job{}, done: map[string][]jobs.Attempt{}}
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
			sp := spec(units(1+rng.IntN(4)), attempts(1+rng.IntN(3)), backoff(0), kind(string(rune('a'+rng.IntN(3)))), tags(worker))
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
				LeaseID: l.ID, WorkerID: worker, Status: []jobs.State{jobs.Completed, jobs.Failed}[rng.IntN(2)], Result: []byte(`{"r": 1}`),
			})
		case n == 7:
			half := 0.5
			_, err = m.Heartbeat(ctx, jobs.Heartbeat{LeaseID: held[0].ID, WorkerID: worker, Progress: &half, Checkpoint: []byte(`[1]`)})
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
