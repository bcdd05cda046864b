package jobstest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// randomGame lets workers do what workers do, and compares what is shown before and after a kill.
func randomGame(r *restarts) {
	for round := range 4 {
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() { misbehave(r, rand.New(rand.NewPCG(uint64(round), uint64(w))), fmt.Sprint("w", w)) })
		}
		wg.Wait()
		time.Sleep(time.Second + time.Millisecond) // what heartbeats report is stored by then
		before, status := shown(r), r.status()
		r.kill(0)
		equal(r.T, "what is shown", shown(r), before)
		equal(r.T, "the status", r.status(), status)
	}
}

// shown returns all jobs in the order of the list, but for what time changes.
func shown(r *restarts) (all []jobs.View) {
	for f := (jobs.Filter{}); all == nil || f.After != ""; {
		page := r.list(f)
		for _, v := range page.Jobs {
			v = r.view(v.Job.ID)
			if v.Age, v.SinceUpdate, v.WaitingFor = 0, 0, ""; v.Lease != nil {
				v.Lease.ExpiresAt = v.Lease.IssuedAt
			}
			all = append(all, v)
		}
		f.After = page.Next
	}
	return all
}

// misbehave sends requests of all kinds.
func misbehave(r *restarts, rng *rand.Rand, worker string) {
	ctx, m := r.Context(), r.m
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
			var made []jobs.Receipt
			if made, err = m.Submit(ctx, []jobs.Spec{sp}); err == nil {
				mine = append(mine, made[0].JobID)
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
		case n == 8 && len(mine) > 0:
			_, err = m.Cancel(ctx, mine[rng.IntN(len(mine))], "because")
		default:
			err = m.Revoke(ctx, held[rng.IntN(len(held))].ID, "so")
		}
		if code := jobs.Code(err); code != "" && code != "lease_not_found" {
			r.Errorf("request %d of %s: %v", i, worker, err)
		}
	}
}
