package jobstest

import (
	"errors"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

var endTests = []serviceTest{
	{name: "a queued job is cancelled at once", run: cancelQueued},
	{name: "a running job is asked to stop, and ends as its worker says", run: cancelRunning},
	{name: "a job asked to stop is cancelled when its lease expires", run: cancelExpired, expires: true},
	{name: "cancelling what has ended changes nothing", run: cancelEnded},
	{name: "a failed job returns to its old place while it has attempts", run: retryKeepsPlace},
	{name: "a job shows no result of an attempt before", run: lastResult},
	{name: "a job that was not begun returns to its old place without an attempt", run: notBegun},
	{name: "a job that will wait at its worker has nothing that waits with it", run: ahead},
	{name: "a job whose worker dies before it begins returns without an attempt", run: aheadLost, expires: true},
}

// cancel cancels a job, and checks the state in the answer.
func (e *env) cancel(jobID string, want jobs.State) {
	e.Helper()
	if s, err := e.s.Cancel(e.within(), jobID, "changed my mind"); err != nil || s != want {
		e.Fatalf("cancellation was answered with %v, %v, not with %s", s, err, want)
	}
}

func cancelQueued(e *env) {
	a, b := e.submit(attempts(3)), e.submit()
	e.cancel(a, jobs.Cancelled)
	v := e.expect(a, jobs.Cancelled)
	if v.Job.Reason != "changed my mind" || v.Job.Code != jobs.CodeCancelled || len(v.Attempts) != 0 ||
		v.Job.EndedAt.IsZero() {
		e.Errorf("cancelled as %+v", v)
	}
	e.grantOf(b, ask("w"))
	e.deny(jobs.DeniedEmpty, ask("w"))
}

func cancelRunning(e *env) {
	for _, c := range []struct{ status, want jobs.State }{{jobs.Failed, jobs.Cancelled}, {jobs.Completed,
		jobs.Completed}} {
		id := e.submit(attempts(3))
		g := e.grantOf(id, ask("w"))
		e.beat(g)
		e.cancel(id, jobs.Running)
		e.cancel(id, jobs.Running)
		if b := e.beat(g); !b.Cancel {
			e.Error("the worker was not asked to stop")
		}
		if v := e.expect(id, jobs.Running); !v.Job.Cancel {
			e.Error("the job does not show that it is to stop")
		}
		e.complete(g, c.status)
		if v := e.expect(id, c.want); v.Attempts[0].State != c.status {
			e.Errorf("its attempt is %+v", v.Attempts)
		}
	}
	e.deny(jobs.DeniedEmpty, ask("w"))
}

func cancelExpired(e *env) {
	id := e.submit(attempts(3))
	g := e.grant(ask("w"))
	e.cancel(id, jobs.Leased)
	e.passTTL()
	if v := e.expect(id, jobs.Cancelled); len(v.Attempts) != 1 || v.Attempts[0].State != jobs.Expired {
		e.Errorf("ended as %+v", v)
	}
	e.gone(g)
}

func cancelEnded(e *env) {
	id := e.submit()
	e.complete(e.grant(ask("w")), jobs.Completed)
	e.cancel(id, jobs.Completed)
	e.expect(id, jobs.Completed)
	if _, err := e.s.Cancel(e.within(), "unknown", ""); !errors.Is(err, jobs.ErrJobNotFound) ||
		jobs.Code(err) != "job_not_found" {
		e.Errorf("cancellation of an unknown job: %v", err)
	}
}

func retryKeepsPlace(e *env) {
	first, second := e.submit(attempts(2), backoff(0)), e.submit()
	g := e.grantOf(first, ask("w"))
	e.complete(g, jobs.Failed)
	if v := e.expect(first, jobs.Queued); len(v.Attempts) != 1 || v.Attempts[0].State != jobs.Failed ||
		v.Job.Attempt != 1 {
		e.Errorf("back in the queue as %+v", v)
	}
	g = e.grantOf(first, ask("w"))
	e.complete(g, jobs.Failed)
	e.expect(first, jobs.Failed)
	e.grantOf(second, ask("w"))
}

// Promise S-393.
func lastResult(e *env) {
	id := e.submit(attempts(2), backoff(0))
	e.completeWith(e.grantOf(id, ask("w")), jobs.Completion{Status: jobs.Failed, Result: []byte("1"), Error: []byte("2")})
	if o := e.expect(id, jobs.Queued).Job.Output; o == nil || string(o.Result)+string(o.Error) != "12" {
		e.Errorf("of the first attempt it shows %+v", o)
	}
	shown := func(s jobs.State) {
		if o := e.expect(id, s).Job.Output; o != nil && (o.Result != nil || o.Error != nil) {
			e.Errorf("when the second attempt is %s it shows %s and %s", s, o.Result, o.Error)
		}
	}
	g := e.grantOf(id, ask("w"))
	shown(jobs.Leased)
	e.complete(g, jobs.Completed)
	shown(jobs.Completed)
}

func notBegun(e *env) {
	first, second := e.submit(attempts(1)), e.submit()
	for _, beaten := range []bool{false, true} {
		g := e.grantOf(first, ask("w"))
		if beaten {
			e.beat(g)
		}
		e.complete(g, jobs.Queued)
		if v := e.expect(first, jobs.Queued); len(v.Attempts) != 0 || v.Job.Attempt != 0 {
			e.Errorf("back in the queue as %+v", v)
		}
		e.gone(g)
		e.over(jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Queued})
	}
	g := e.grantOf(first, ask("w"))
	_, err := e.s.Complete(e.within(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Queued, Error: []byte(`"why"`)})
	e.invalid(err, "status")
	e.cancel(first, jobs.Leased)
	e.complete(g, jobs.Queued)
	e.expect(first, jobs.Cancelled)
	e.grantOf(second, ask("w"))
}

func ahead(e *env) {
	later := func(a *jobs.Request) { a.Ahead = true }
	for _, special := range []func(*jobs.Spec){locks("a"), atMost(time.Hour), unique} {
		plain, first, behind := e.submit(), e.submit(special), e.submit()
		g := e.grantOf(plain, ask("w", later))
		if d, err := e.s.Request(e.within(), ask("w", later)); err != nil || d.Denied == nil { // the worker is to come to the first
			e.Fatalf("before its turn it was granted %+v, %v", d, err)
		}
		e.complete(g, jobs.Completed)
		e.complete(e.grantOf(first, ask("w")), jobs.Completed)
		e.complete(e.grantOf(behind, ask("w", later)), jobs.Completed)
	}
}

func aheadLost(e *env) {
	later := func(a *jobs.Request) { a.Ahead = true }
	id := e.submit(attempts(1))
	g := e.grantOf(id, ask("w", later))
	if e.beatWith(g, jobs.Heartbeat{Ahead: true}); !e.expect(id, jobs.Leased).Lease.Ahead {
		e.Error("the lease does not say that its worker has not begun")
	}
	e.passTTL()
	if v := e.expect(id, jobs.Queued); len(v.Attempts) != 0 || v.Job.Attempt != 0 {
		e.Errorf("back in the queue as %+v", v)
	}
	e.gone(g)
	g = e.grantOf(id, ask("w", later))
	e.beat(g)
	if v := e.expect(id, jobs.Running); v.Lease.Ahead {
		e.Error("the lease says that its worker has not begun")
	}
	e.passTTL()
	e.expect(id, jobs.Expired)
}
