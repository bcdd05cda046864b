package jobstest

import (
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

var limitTests = []serviceTest{
	{name: "as many jobs hold a lock at a time as its slots say", run: slotsCount},
	{name: "jobs that hold a lock begin no more often than its rate says", run: ratesCount},
	{name: "what is wrong with a limit is found", run: wrongLimits},
	{name: "jobs with different fairness keys take turns within their class", run: keysTakeTurns},
}

// limit is that on the lock x.
func limit(l jobs.Limit) func(*jobs.Spec) {
	return func(s *jobs.Spec) {
		s.Locks, s.Extra = []string{"x"}, &jobs.Extra{Limits: map[string]jobs.Limit{"x": l}}
	}
}

func slotsCount(e *env) {
	two := limit(jobs.Limit{Slots: 2})
	a, b, c, d := e.submit(two), e.submit(two), e.submit(limit(jobs.Limit{Slots: 3})), e.submit(locks("x"))
	g, h := e.grantOf(a, ask("w")), e.grantOf(b, ask("w"))
	e.waitsFor(c, jobs.WaitingLock+"x") // the smallest limit counts
	e.deny(jobs.DeniedEligible, ask("w"))
	e.complete(g, jobs.Completed)
	i := e.grantOf(c, ask("w"))
	e.deny(jobs.DeniedEligible, ask("w"))
	e.complete(h, jobs.Completed)
	e.waitsFor(d, jobs.WaitingLock+"x") // which is held by nobody else
	e.complete(i, jobs.Completed)
	e.grantOf(d, ask("w"))
	e.submit(two)
	e.deny(jobs.DeniedEligible, ask("w"))
}

func ratesCount(e *env) {
	const every = 300 * time.Millisecond
	limited := limit(jobs.Limit{Slots: 9, Starts: 2, Per: 2 * every, Burst: 2})
	var ids []string
	for range 4 {
		ids = append(ids, e.submit(limited))
	}
	began := time.Now()
	for i, id := range ids {
		g := e.answer(e.background(e.within(), ask("w", waiting(jobs.MaxWait))))
		if g.Job.ID != id {
			e.Fatalf("granted is %+v, not job %d", g, i)
		}
		// a burst of two, and then evenly; times are whole milliseconds
		if least := time.Duration(max(i-1, 0))*every - time.Millisecond; g.Lease.IssuedAt.Sub(began) < least {
			e.Errorf("job %d began after %v, not %v", i, g.Lease.IssuedAt.Sub(began), least)
		}
	}
	slow := e.submit(limit(jobs.Limit{Slots: 9, Starts: 6, Per: time.Minute}))
	e.deny(jobs.DeniedEligible, ask("w"))
	v := e.view(slow)
	if a := v.Awaits; v.WaitingFor != jobs.WaitingRate+"x" || a == nil || a.Limit == nil || a.Limit.Starts != 6 || !a.Until.After(v.Job.CreatedAt) {
		e.Errorf("it waits for %q, %+v", v.WaitingFor, a)
	}
}

func wrongLimits(e *env) {
	for l, field := range map[jobs.Limit]string{
		{Slots: -1}: ".slots", {Slots: 1 << 20}: ".slots", {Starts: 1}: "", {Burst: 1}: ".burst", {Per: time.Second}: "",
		{Starts: 2000, Per: time.Second}: "", {Starts: 2, Per: time.Second, Burst: 3}: ".burst",
	} {
		_, err := e.s.Submit(e.within(), []jobs.Spec{spec(limit(l))})
		e.invalid(err, "jobs.0.limits.x"+field)
	}
	_, err := e.s.Submit(e.within(), []jobs.Spec{spec(limit(jobs.Limit{Per: 25 * time.Hour, Starts: 1}), locks("y"))})
	e.invalid(err, "jobs.0.limits.x", "jobs.0.limits.x.per_s")
}

func fair(key string) func(*jobs.Spec) {
	return func(s *jobs.Spec) { s.Extra = &jobs.Extra{Fair: key} }
}

func keysTakeTurns(e *env) {
	const many = 30
	for range many {
		e.submit(fair("many"))
	}
	low := e.submit(class(jobs.Low))
	served := ""
	for range 4 {
		g := e.grant(ask("w"))
		served += g.Job.Extras().Fair + " "
		e.complete(g, jobs.Completed)
	}
	for range 3 {
		e.submit(fair("few"), kind("other"))
	}
	e.submit()
	high := e.submit(fair("many"), class(jobs.High))
	for range many {
		g := e.grant(ask("w"))
		j := g.Job
		switch j.ID {
		case low:
			e.Error("a job of a lower class was first")
		case high:
			served += "high "
		default:
			served += j.Extras().Fair + " "
		}
		e.complete(g, jobs.Completed)
	}
	const want = "many many many many high many few  many few many few many "
	if served[:len(want)] != want {
		e.Errorf("served were %q", served)
	}
}

func ratesSurvive(r *restarts) {
	limited := limit(jobs.Limit{Slots: 2, Starts: 6, Per: time.Minute})
	a, b, c := r.submit(limited), r.submit(limited), r.submit(limited)
	g := r.grantOf(a, ask("w"))
	r.kill(3 * time.Second)
	r.deny(jobs.DeniedEligible, ask("w"))
	r.waitsFor(b, jobs.WaitingRate+"x")
	time.Sleep(7 * time.Second)
	r.grantOf(b, ask("w"))
	r.kill(time.Minute)
	r.waitsFor(c, jobs.WaitingLock+"x")
	r.complete(g, jobs.Completed)
	r.grantOf(c, ask("w"))
}
