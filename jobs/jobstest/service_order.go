package jobstest

import (
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

var orderTests = []serviceTest{
	{name: "classes are served in order, and arrivals within them", run: classesInOrder},
	{name: "a unique job goes to a worker without leases", run: uniqueGoesToIdle},
	{name: "a worker is given only jobs that it takes, and the others keep their place", run: onlyWhatItTakes},
	{name: "a job is not handed out before its time", run: runAtCounts},
	{name: "jobs that name the same lock exclude each other", run: locksExclude},
	{name: "what is frozen is not handed out, and leases on it go on", run: frozenWaits},
	{name: "a job's total bounds it", run: totalBounds, total: 3},
}

func classesInOrder(e *env) {
	var want []string
	ids := map[jobs.Priority][]string{}
	for range 2 {
		for _, p := range []jobs.Priority{jobs.Background, jobs.Normal, jobs.Low, jobs.High} {
			ids[p] = append(ids[p], e.submit(class(p)))
		}
	}
	if q := e.status().Queue; q != (jobs.Depths{High: 2, Normal: 2, Low: 2, Background: 2}) {
		e.Errorf("queued are %+v", q)
	}
	for _, p := range jobs.Priorities() {
		want = append(want, ids[p]...)
	}
	for _, id := range want {
		e.grantOf(id, ask("w"))
	}
}

func uniqueGoesToIdle(e *env) {
	first, only := e.submit(), e.submit(unique)
	g := e.grantOf(first, ask("w"))
	e.deny(jobs.DeniedEligible, ask("w"))
	e.waitsFor(only, jobs.WaitingUnique)
	e.complete(g, jobs.Completed)
	e.grantOf(only, ask("w"))
	e.submit()
	e.grant(ask("w")) // it is the job that is unique, not the worker's other ones
}

func onlyWhatItTakes(e *env) {
	large, rare, both := e.submit(units(8)), e.submit(kind("rare")), e.submit(tags("needs:gpu", "x", "needs:net"))
	e.waitsFor(both, jobs.WaitingWorker)
	e.deny(jobs.DeniedEligible, ask("w", types("other")))
	e.deny(jobs.DeniedEligible, ask("w", atMostUnits(7), types("generic"), capable("cpu", "gpu")))
	g := e.grantOf(rare, ask("w", types("rare", "generic"), atMostUnits(7)))
	e.grantOf(both, ask("w", atMostUnits(7), capable("net", "needs:gpu")))
	e.submit(units(2))
	e.complete(g, jobs.Completed)
	e.grantOf(large, ask("w", atMostUnits(8)))
}

func runAtCounts(e *env) {
	e.waitsFor(e.submit(notBefore(time.Now().Add(time.Hour))), jobs.WaitingRunAt)
	var at time.Time
	var id string
	for soon := 150 * time.Millisecond; ; soon *= 4 {
		at = time.Now().Add(soon)
		id = e.submit(notBefore(at))
		later := e.submit(class(jobs.Background))
		g := e.grant(ask("w"))
		if g.Job.ID == later {
			break
		}
		if g.Job.ID != id || time.Now().Before(at) {
			e.Fatalf("granted is %+v, before %v", g.Job, at)
		}
		// On a slow machine the time has come meanwhile.
		e.grantOf(later, ask("w"))
	}
	g := e.answer(e.background(e.within(), ask("w", waiting(jobs.MaxWait))))
	if g.Denied != nil || g.Job.ID != id || g.Lease.IssuedAt.Before(at.Truncate(time.Millisecond)) {
		e.Errorf("answered with %+v, not after %v", g, at)
	}
	if past := e.submit(notBefore(time.Now().Add(-time.Hour))); e.grant(ask("w")).Job.ID != past {
		e.Error("a time that has passed was waited for")
	}
}

func locksExclude(e *env) {
	a, b, c := e.submit(locks("x")), e.submit(locks("x", "y")), e.submit(locks("y"))
	g := e.grantOf(a, ask("w"))
	e.waitsFor(b, jobs.WaitingLock+"x")
	h := e.grantOf(c, ask("w"))
	e.deny(jobs.DeniedEligible, ask("w"))
	e.complete(h, jobs.Completed)
	e.waitsFor(b, jobs.WaitingLock+"x")
	e.complete(g, jobs.Failed)
	g = e.answer(e.background(e.within(), ask("w", waiting(jobs.MaxWait))))
	if g.Job.ID != b {
		e.Errorf("answered with %+v", g)
	}
}

func frozenWaits(e *env) {
	a, b := e.submit(kind("a")), e.submit(kind("b"))
	g := e.grantOf(a, ask("w"))
	e.must(e.s.Freeze(e.within(), "b"))
	e.waitsFor(b, jobs.WaitingFrozen)
	e.deny(jobs.DeniedEligible, ask("w"))
	e.beat(g)
	c := e.submit(kind("a"))
	e.must(e.s.Freeze(e.within(), ""))
	e.waitsFor(c, jobs.WaitingFrozen)
	e.complete(g, jobs.Completed)
	e.must(e.s.Unfreeze(e.within(), ""))
	e.grantOf(c, ask("w"))
	e.waitsFor(b, jobs.WaitingFrozen)
	e.must(e.s.Unfreeze(e.within(), "b"))
	e.grantOf(b, ask("w"))
}

func totalBounds(e *env) {
	_, err := e.s.Submit(e.within(), []jobs.Spec{spec(units(4))})
	e.invalid(err, "jobs.0.requested_units")
	e.submit(units(3))
	e.grant(ask("w"))
	if s := e.status(); s.Total != 3 || s.Usable != 3 || s.Available != 0 || s.Leased != 3 || s.ActiveLeases != 1 {
		e.Errorf("status is %+v", s)
	}
}
