package jobstest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

var afterTests = []serviceTest{
	{name: "a job runs after those that it names have completed", run: afterCompleted},
	{name: "what runs after a job that did not complete is cancelled, and says why", run: afterFailed},
	{name: "jobs of a list name earlier ones by number", run: afterNumbers},
	{name: "a job that is not known cannot be run after", run: afterUnknown},
}

func after(ids ...string) func(*jobs.Spec) {
	return func(s *jobs.Spec) { s.Extra = &jobs.Extra{After: ids} }
}

func afterAny(ids ...string) func(*jobs.Spec) {
	return func(s *jobs.Spec) { s.Extra = &jobs.Extra{After: ids, AfterAny: true} }
}

func afterCompleted(e *env) {
	a, b := e.submit(attempts(2), backoff(0)), e.submit()
	both := e.submit(after(b, a), class(jobs.High))
	g := e.grantOf(a, ask("w"))
	h := e.grantOf(b, ask("w"))
	e.deny(jobs.DeniedEligible, ask("w"))
	e.waitsFor(both, jobs.WaitingAfter+b)
	if w := e.view(both).Awaits; w == nil || w.JobID != b || w.State != jobs.Leased || !w.Since.Equal(h.Lease.IssuedAt) {
		e.Errorf("it awaits %+v", w)
	}
	e.complete(h, jobs.Completed)
	e.waitsFor(both, jobs.WaitingAfter+a)
	e.complete(g, jobs.Failed) // it has another attempt
	e.complete(e.grantOf(a, ask("w")), jobs.Completed)
	e.complete(e.grantOf(both, ask("w")), jobs.Completed)
	e.complete(e.grantOf(e.submit(after(a, both)), ask("w")), jobs.Completed) // they ended long ago
	first := e.submit()
	soon := e.submit(after(first))
	parked := e.background(e.within(), ask("v", types("later"), waiting(jobs.MaxWait)))
	late := e.submit(kind("later"), after(first, soon))
	e.complete(e.grantOf(first, ask("w")), jobs.Completed)
	e.complete(e.grantOf(soon, ask("w")), jobs.Completed)
	if g := e.answer(parked); g.Job.ID != late {
		e.Errorf("who waits was answered with %+v", g)
	}
}

func afterFailed(e *env) {
	a := e.submit()
	b, always := e.submit(after(a), key("b")), e.submit(afterAny(a))
	c := e.submit(after(b))
	e.complete(e.grantOf(a, ask("w")), jobs.Failed)
	for id, by := range map[string]string{b: a + ", which is failed", c: b + ", which is cancelled"} {
		if j := e.expect(id, jobs.Cancelled).Job; j.Code != jobs.CodeAfter || !strings.Contains(j.Reason, by) || j.Cancel {
			e.Errorf("it ended as %+v", j)
		}
	}
	if e.submit(key("b"), after(a)) != b {
		e.Error("the key gave another job")
	}
	e.complete(e.grantOf(always, ask("w")), jobs.Completed)
	e.expect(e.submit(after(always, a)), jobs.Cancelled)
	queued, other := e.submit(), e.submit(locks("x"))
	d, free := e.submit(after(queued)), e.submit(afterAny(queued, other), notBefore(time.Now().Add(time.Hour)))
	if s, err := e.s.Cancel(e.within(), queued, "not needed"); err != nil || s != jobs.Cancelled {
		e.Errorf("cancelled is %v, %v", s, err)
	}
	e.expect(d, jobs.Cancelled)
	e.waitsFor(free, jobs.WaitingAfter+other)
	e.must(e.s.Revoke(e.within(), e.grantOf(other, ask("w")).Lease.ID, ""))
	e.waitsFor(free, jobs.WaitingRunAt)
}

func afterNumbers(e *env) {
	list := []jobs.Spec{spec(key("build")), spec(key("test"), after("#0")), spec(key("ship"), after("#0", "#1"), class(jobs.High))}
	r, err := e.s.Submit(e.within(), list)
	e.must(err)
	if j := e.view(r[2].JobID).Job; !slices.Equal(j.Extras().After, []string{r[0].JobID, r[1].JobID}) {
		e.Errorf("it is %+v of %+v", j, r)
	}
	if again, err := e.s.Submit(e.within(), list); err != nil || again[2] != r[2] {
		e.Errorf("the same list gave %+v, %v, not %+v", again, err, r)
	}
	if _, err := e.s.Submit(e.within(), []jobs.Spec{list[0], spec(key("ship"), after("#0"))}); !errors.Is(err, jobs.ErrConflict) {
		e.Errorf("another job under the same key: %v", err)
	}
	for _, rc := range r {
		e.complete(e.grantOf(rc.JobID, ask("w")), jobs.Completed)
	}
}

func afterUnknown(e *env) {
	for _, wrong := range []string{"#1", "#2", "#-1", "#", "#+0", "#00", "", "a/b"} {
		_, err := e.s.Submit(e.within(), []jobs.Spec{spec(), spec(after("#0", wrong))})
		e.invalid(err, "jobs.1.after.1")
	}
	_, err := e.s.Submit(e.within(), []jobs.Spec{spec(after("#0"))})
	e.invalid(err, "jobs.0.after.0")
	known := e.submit()
	_, err = e.s.Submit(e.within(), []jobs.Spec{spec(), spec(after(known, known))})
	e.invalid(err, "jobs.1.after.1")
	_, err = e.s.Submit(e.within(), []jobs.Spec{spec(after("nobody")), spec(after("#0", known, "none"))})
	e.invalid(err, "jobs.0.after.0", "jobs.1.after.2")
	e.queued(1)
}

func afterSurvives(r *restarts) {
	a, b := r.submit(), r.submit()
	both, one := r.submit(after(a, b)), r.submit(after(b))
	r.complete(r.grantOf(a, ask("w")), jobs.Completed)
	r.kill(time.Minute)
	r.waitsFor(both, jobs.WaitingAfter+b)
	g := r.grantOf(b, ask("w"))
	r.deny(jobs.DeniedEligible, ask("w"))
	r.kill(0)
	r.complete(g, jobs.Completed)
	r.kill(0)
	r.complete(r.grantOf(both, ask("w")), jobs.Completed)
	r.kill(0)
	r.grantOf(one, ask("w"))
}
