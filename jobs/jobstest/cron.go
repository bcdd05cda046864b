package jobstest

import (
	"context"
	"slices"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

var cronTests = []serviceTest{
	{name: "a schedule submits one job for each tick", run: cronRuns},
	{name: "a tick is skipped while the job of the one before has not ended", run: cronSkips},
	{name: "a schedule that is cancelled ends, and its job goes on", run: cronCancelled},
	{name: "a schedule that cannot be is refused, and said why", run: cronInvalid},
}

func cron(text string) func(*jobs.Spec) {
	return func(s *jobs.Spec) { s.Extra = &jobs.Extra{Cron: text, Fair: "f"} }
}

// ran asks for the next job of a schedule, which must be for a later tick than the last one, and returns it with the tick.
func (e *env) ran(schedule string, after time.Time) (jobs.Grant, time.Time) {
	e.Helper()
	g := e.grant(ask("w", waiting(jobs.MaxWait)))
	t := g.Job.Extras().Ticks
	if t == nil || t.Schedule != schedule || !t.Tick.After(after) || t.Tick.Nanosecond() != 0 || g.Job.CreatedAt.Before(t.Tick) ||
		g.Job.Extra.Cron != "" || g.Job.Extra.Fair != "f" || g.Job.IdempotencyKey != "" || !g.Job.RunAt.IsZero() {
		e.Fatalf("after %v came %+v for %+v", after, g.Job, t)
	}
	return g, t.Tick
}

// schedule returns what is kept of a schedule.
func (e *env) schedule(id string) jobs.Ticks {
	e.Helper()
	v := e.expect(id, jobs.Scheduled)
	if t := v.Job.Extra.Ticks; t == nil || !t.Next.Equal(v.Job.ReadyAt) || v.WaitingFor != "" {
		e.Fatalf("the schedule is %+v, with %+v", v, t)
	}
	return *v.Job.Extra.Ticks
}

// Promises S-231, S-290.
func cronRuns(e *env) {
	begin := time.Now()
	id := e.submit(cron("@every 1s"), key("k"), payload(`{"a":1}`), notBefore(begin.Add(2*time.Second)))
	if t := e.schedule(id); !t.Next.After(begin.Add(2*time.Second)) || !t.Last.IsZero() || t.LastRun != "" {
		e.Errorf("before its first tick it is %+v", t)
	}
	e.queued(0)
	e.deny(jobs.DeniedEmpty, ask("w"))
	seen, last := map[string]bool{}, begin
	for range 4 {
		g, tick := e.ran(id, last)
		if t := e.schedule(id); seen[g.Job.ID] || t.LastRun != g.Job.ID || !t.Last.Equal(tick) || !t.Next.After(tick) || string(g.Job.Payload) != `{"a":1}` {
			e.Errorf("job %+v is of %+v", g.Job, t)
		}
		if e.bubble && !last.Equal(begin) && tick.Sub(last) != time.Second {
			e.Errorf("%v follows %v", tick, last)
		}
		seen[g.Job.ID], last = true, tick
		e.complete(g, jobs.Completed)
		again := e.submit(func(s *jobs.Spec) { *s = g.Job.Again() }) // as the run of the same tick
		g = e.grantOf(again, ask("w"))
		if t := g.Job.Extras().Ticks; t == nil || t.Schedule != id || !t.Tick.Equal(tick) || !t.Next.IsZero() {
			e.Errorf("submitted again, the run has %+v", t)
		}
		e.complete(g, jobs.Completed)
	}
	if e.submit(cron("@every 1s"), key("k"), payload(`{"a":1}`), notBefore(begin.Add(2*time.Second))) != id {
		e.Error("the key gave another schedule")
	}
	if got := ids(e.list(jobs.Filter{State: jobs.Scheduled})); !slices.Equal(got, []string{id}) {
		e.Errorf("schedules are %v", got)
	}
}

func cronSkips(e *env) {
	id := e.submit(cron("@every 1s"), attempts(2), backoff(0))
	g, tick := e.ran(id, time.Time{})
	e.complete(g, jobs.Failed) // it has another attempt
	if again := e.grantOf(g.Job.ID, ask("w")); again.Lease.Attempt != 2 {
		e.Errorf("granted is %+v", again)
	} else {
		g = again
	}
	for n := 0; n < 600 && e.schedule(id).Skipped < 2; n++ {
		time.Sleep(100 * time.Millisecond)
		e.beat(g)
	}
	if t := e.schedule(id); t.Skipped < 2 || t.LastRun != g.Job.ID || !t.Last.Equal(tick) || !t.Next.After(tick.Add(2*time.Second)) {
		e.Errorf("after ticks that were skipped it is %+v", t)
	}
	e.queued(0)
	e.complete(g, jobs.Completed)
	if g, tick = e.ran(id, tick.Add(2*time.Second)); e.schedule(id).LastRun != g.Job.ID {
		e.Errorf("the schedule does not name the job for %v", tick)
	}
}

func cronCancelled(e *env) {
	spec := spec(cron("@every 1s"))
	spec.Extra.Ticks = &jobs.Ticks{Schedule: "x", LastRun: "y"} // is not the caller's to say
	r, err := e.s.Submit(e.within(), []jobs.Spec{spec})
	e.must(err)
	id := r[0].JobID
	if t := e.schedule(id); r[0].State != jobs.Scheduled || t.Schedule != "" || t.LastRun != "" {
		e.Errorf("submitted is %+v with %+v", r, t)
	}
	g, _ := e.ran(id, time.Time{})
	if s, err := e.s.Cancel(e.within(), id, "enough"); err != nil || s != jobs.Cancelled {
		e.Errorf("cancelled is %v, %v", s, err)
	}
	if j := e.expect(id, jobs.Cancelled).Job; !j.Extra.Ticks.Next.IsZero() || j.Reason != "enough" {
		e.Errorf("cancelled is %+v", j)
	}
	e.beat(g)
	e.complete(g, jobs.Completed)
	e.expect(g.Job.ID, jobs.Completed)
	e.deny(jobs.DeniedEmpty, ask("w", waiting(3*time.Second)))
}

func cronInvalid(e *env) {
	for _, wrong := range []string{
		" ", "* * * *", "* * * * * *", "60 * * * *", ", * * * *", "0 0 30 2 *", "@reboot", "@every 1", "@every -5m", "@every 500ms", "@every 99999999h",
		"CRON_TZ=UTC", "TZ=", "CRON_TZ=Local 0 0 * * *", "CRON_TZ=No/Where 0 0 * * *", "0 0 * * *\n",
	} {
		_, err := e.s.Submit(context.Background(), []jobs.Spec{spec(), spec(cron(wrong))})
		e.invalid(err, "jobs.1.cron")
	}
	_, err := e.s.Submit(e.within(), []jobs.Spec{spec(), spec(func(s *jobs.Spec) { s.Extra = &jobs.Extra{Cron: "@daily", After: []string{"#0"}} })})
	e.invalid(err, "jobs.1.cron")
	e.queued(0)
}

// cronSurvives, of promise S-231, kills the manager at every moment around ticks: none is run twice, and none is missed while there is a manager.
func cronSurvives(r *restarts) {
	id := r.submit(cron("* * * * *"))
	last := r.schedule(id).Next.Add(-time.Minute)
	for i := range 30 {
		next := r.schedule(id).Next
		time.Sleep(time.Until(next) + time.Duration(i-15)*time.Millisecond)
		r.kill(time.Duration(i%5) * time.Millisecond)
		g, tick := r.ran(id, last)
		if tick != next || tick.Sub(last) != time.Minute {
			r.Errorf("%v follows %v, and %v was next", tick, last, next)
		}
		if last = tick; i%3 == 0 {
			r.kill(0)
		}
		r.complete(g, jobs.Completed)
	}
	r.kill(time.Hour + 30*time.Second) // many ticks: there is one job, for the last one
	_, tick := r.ran(id, last)
	if tick.Sub(last) != time.Hour || r.status().Queue.Sum() != 0 {
		r.Errorf("after an hour comes %v after %v, beside %+v", tick, last, r.status())
	}
	if next := r.schedule(id).Next; next.Sub(tick) != time.Minute {
		r.Errorf("%v is next after %v", next, tick)
	}
}

// cronInDoubt has the store fail at a tick, before it has stored the job or after.
func cronInDoubt(r *restarts) {
	id := r.submit(cron("* * * * *"))
	last := r.schedule(id).Next.Add(-time.Minute)
	for i := range 4 {
		time.Sleep(time.Until(r.schedule(id).Next) - jobs.MaxWait/2)
		failures := 0
		r.cut.set(func(stored bool) error {
			if stored == (i%2 == 0) && failures == 0 {
				failures++
				return errCut
			}
			return nil
		})
		g, tick := r.ran(id, last)
		if failures != 1 || tick.Sub(last) != time.Minute {
			r.Errorf("after %d failures %v follows %v", failures, tick, last)
		}
		last = tick
		r.complete(g, jobs.Completed)
	}
}
