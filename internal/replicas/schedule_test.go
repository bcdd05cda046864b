//go:build unix

package replicas_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/worker"
)

// Promise S-231. One replica after the other is killed around ticks, while the other one lives.
func TestAScheduleRunsOnceForEachTickThoughReplicasAreKilled(t *testing.T) {
	t.Parallel()
	replicas, _ := startReplicas(t, 2)
	both, err := httpapi.New(urls(replicas), httpapi.ClientOptions{Attempt: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := both.Jobs()
	spec := jobs.NewSpec()
	spec.Extra, spec.IdempotencyKey = &jobs.Extra{Cron: "@every 1s"}, "s" // which makes it safe to send it again
	r, err := c.Submit(t.Context(), []jobs.Spec{spec})
	if err != nil {
		t.Fatal(err)
	}
	schedule := r[0].JobID
	var mu sync.Mutex
	done := map[time.Time]int{}
	w, err := worker.NewWorker(c, func(_ context.Context, r *worker.Run) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		if r.Job.Extras().Ticks == nil || r.Job.Extra.Ticks.Schedule != schedule {
			t.Errorf("a job is %+v", r.Job)
		} else {
			done[r.Job.Extra.Ticks.Tick]++
		}
		return nil, nil
	}, worker.WorkerOptions{ID: "w", Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var works sync.WaitGroup
	works.Go(func() { _ = w.Run(ctx) })
	defer works.Wait()
	defer stop()
	kills, most := 0, crowdSize()
	for end := time.Now().Add(patience); time.Now().Before(end); kills++ {
		mu.Lock()
		n := len(done)
		mu.Unlock()
		if n >= most && kills >= most {
			break
		}
		around := time.Duration(rand.Int64N(int64(400*time.Millisecond))) - 200*time.Millisecond
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second + around)))
		replicas[kills%2].kill()
		if err := replicas[kills%2].restart(t); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := c.Cancel(t.Context(), schedule, ""); err != nil || s != jobs.Cancelled {
		t.Errorf("cancelled is %v, %v", s, err)
	}
	waitFor(t, func() bool {
		s, err := c.Status(t.Context())
		return err == nil && s.Queue.Sum()+s.ActiveLeases == 0
	})
	p, err := c.List(t.Context(), jobs.Filter{Limit: jobs.MaxList})
	if err != nil {
		t.Fatal(err)
	}
	runs := map[time.Time]int{}
	for _, v := range p.Jobs {
		if tick := v.Job.Extras().Ticks; v.Job.ID != schedule && (tick == nil || v.Job.State != jobs.Completed) {
			t.Errorf("a job is %+v", v.Job)
		} else if v.Job.ID != schedule {
			runs[tick.Tick]++
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for tick, n := range runs {
		if n != 1 || done[tick] == 0 {
			t.Errorf("for %v there are %d jobs, which were done %d times", tick, n, done[tick])
		}
	}
	if len(runs) < most || len(runs) != len(done) {
		t.Errorf("after %d kills there are jobs for %d ticks, and were for %d", kills, len(runs), len(done))
	}
}
