package jobstest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// TestService checks what jobs.Service promises, and that it keeps its promises about time to the moment. open
// returns a service without jobs, with the given numbers; it registers what has to be closed as the test's
// cleanup. Each subtest, open included, runs in a bubble of testing/synctest, so the service takes its time from
// package time and waits for nothing outside the process. Other services have TestServiceInRealTime.
func TestService(t *testing.T, open func(t *testing.T, c jobs.Config) jobs.Service) {
	for _, test := range slices.Concat(submitTests, leaseTests, waitTests, orderTests, afterTests, limitTests, cronTests, endTests, readTests,
		crowdTests, bubbleTests) {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &env{T: t, bubble: true, ttl: time.Minute}
				e.s = open(t, e.config(test))
				test.run(e)
			})
		})
	}
}

// TestServiceInRealTime checks what TestService does, except for what only a bubble can show. Leases that are to expire
// do so after two seconds; nothing depends on a request being answered faster than that. Subtests run in parallel.
func TestServiceInRealTime(t *testing.T, open func(t *testing.T, c jobs.Config) jobs.Service) {
	for _, test := range slices.Concat(submitTests, leaseTests, waitTests, orderTests, afterTests, limitTests, cronTests, endTests, readTests,
		crowdTests) {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := &env{T: t, ttl: time.Minute}
			if test.expires {
				e.ttl = 2 * time.Second
			}
			e.s = open(t, e.config(test))
			test.run(e)
		})
	}
}

// serviceTest is a promise and how to check it.
type serviceTest struct {
	name    string
	run     func(e *env)
	total   int  // units; 0 is 10
	expires bool // leases are to expire in it
}

// env is what a test of a service has.
type env struct {
	*testing.T
	s      jobs.Service
	bubble bool
	ttl    time.Duration
}

func (e *env) config(test serviceTest) jobs.Config {
	return jobs.Config{Total: cmp.Or(test.total, 10), TTL: e.ttl}
}

// patience bounds how long the suite waits on real time for what must happen.
const patience = 2 * time.Minute

// within returns a context for a request that must be answered.
func (e *env) within() context.Context {
	if e.bubble {
		return e.Context()
	}
	ctx, cancel := context.WithTimeout(e.Context(), patience)
	e.Cleanup(cancel)
	return ctx
}

// spec returns a spec of one unit.
func spec(edits ...func(*jobs.Spec)) jobs.Spec {
	s := jobs.NewSpec()
	for _, edit := range edits {
		edit(&s)
	}
	return s
}

func units(n int) func(*jobs.Spec)             { return func(s *jobs.Spec) { s.Units = n } }
func class(p jobs.Priority) func(*jobs.Spec)   { return func(s *jobs.Spec) { s.Priority = p } }
func kind(t string) func(*jobs.Spec)           { return func(s *jobs.Spec) { s.Type = t } }
func key(k string) func(*jobs.Spec)            { return func(s *jobs.Spec) { s.IdempotencyKey = k } }
func tags(t ...string) func(*jobs.Spec)        { return func(s *jobs.Spec) { s.Tags = t } }
func attempts(n int) func(*jobs.Spec)          { return func(s *jobs.Spec) { s.MaxAttempts = n } }
func backoff(d time.Duration) func(*jobs.Spec) { return func(s *jobs.Spec) { s.RetryBackoff = d } }
func atMost(d time.Duration) func(*jobs.Spec)  { return func(s *jobs.Spec) { s.MaxRuntime = d } }
func notBefore(at time.Time) func(*jobs.Spec)  { return func(s *jobs.Spec) { s.RunAt = at } }
func locks(names ...string) func(*jobs.Spec)   { return func(s *jobs.Spec) { s.Locks = names } }
func payload(json string) func(*jobs.Spec)     { return func(s *jobs.Spec) { s.Payload = []byte(json) } }
func unique(s *jobs.Spec)                      { s.Unique = true }
func ask(worker string, edits ...func(*jobs.Request)) jobs.Request {
	a := jobs.Request{WorkerID: worker}
	for _, edit := range edits {
		edit(&a)
	}
	return a
}

func waiting(d time.Duration) func(*jobs.Request) { return func(a *jobs.Request) { a.Wait = d } }
func types(t ...string) func(*jobs.Request)       { return func(a *jobs.Request) { a.Types = t } }
func capable(c ...string) func(*jobs.Request)     { return func(a *jobs.Request) { a.Capabilities = c } }
func atMostUnits(n int) func(*jobs.Request)       { return func(a *jobs.Request) { a.MaxUnits = n } }
func request(id string) func(*jobs.Request)       { return func(a *jobs.Request) { a.RequestID = id } }

// submit submits one job.
func (e *env) submit(edits ...func(*jobs.Spec)) string {
	e.Helper()
	r, err := e.s.Submit(e.within(), []jobs.Spec{spec(edits...)})
	if err != nil || len(r) != 1 || r[0].JobID == "" {
		e.Fatalf("submit answered %+v, %v", r, err)
	}
	return r[0].JobID
}

// grant asks for what must be granted.
func (e *env) grant(a jobs.Request) jobs.Grant {
	e.Helper()
	g, err := e.s.Request(e.within(), a)
	if err != nil || g.Denied != nil {
		e.Fatalf("%s was not granted a job: %+v, %v", a.WorkerID, g.Denied, err)
	}
	if g.Lease.ID == "" || g.Lease.JobID != g.Job.ID || g.Lease.WorkerID != a.WorkerID || g.Lease.Token == 0 ||
		g.Lease.Units != g.Job.Units {
		e.Fatalf("%s was granted %+v on %+v", a.WorkerID, g.Lease, g.Job)
	}
	return g
}

// grantOf asks for what must be that job.
func (e *env) grantOf(jobID string, a jobs.Request) jobs.Grant {
	e.Helper()
	g := e.grant(a)
	if g.Job.ID != jobID {
		e.Fatalf("%s was granted another job than the first in order: %+v", a.WorkerID, g.Job)
	}
	return g
}

// deny asks for what must be denied with the code.
func (e *env) deny(code string, a jobs.Request) jobs.Denial {
	e.Helper()
	g, err := e.s.Request(e.within(), a)
	if err != nil || g.Denied == nil {
		e.Fatalf("%s was not denied a job: %+v, %v", a.WorkerID, g.Job, err)
	}
	if g.Denied.Code != code || g.Denied.Reason == "" || g.Denied.RetryAfter < 250*time.Millisecond ||
		g.Denied.RetryAfter > 5*time.Second {
		e.Fatalf("%s was denied with %+v, not with %s", a.WorkerID, *g.Denied, code)
	}
	return *g.Denied
}

// complete ends a lease that must be active.
func (e *env) complete(g jobs.Grant, status jobs.State) {
	e.Helper()
	e.completeWith(g, jobs.Completion{Status: status})
}

// completeWith does the same, and says more.
func (e *env) completeWith(g jobs.Grant, c jobs.Completion) {
	e.Helper()
	c.LeaseID, c.WorkerID = g.Lease.ID, g.Lease.WorkerID
	applied, err := e.s.Complete(e.within(), c)
	if err != nil || !applied {
		e.Fatalf("completion of %s was answered with %v, %v", g.Lease.ID, applied, err)
	}
}

// beat sends a heartbeat that must be accepted.
func (e *env) beat(g jobs.Grant) jobs.HeartbeatAnswer {
	e.Helper()
	return e.beatWith(g, jobs.Heartbeat{})
}

// beatWith does the same, with more in it.
func (e *env) beatWith(g jobs.Grant, h jobs.Heartbeat) jobs.HeartbeatAnswer {
	e.Helper()
	h.LeaseID, h.WorkerID = g.Lease.ID, g.Lease.WorkerID
	b, err := e.s.Heartbeat(e.within(), h)
	if err != nil {
		e.Fatalf("heartbeat of %s: %v", g.Lease.ID, err)
	}
	return b
}

// gone checks that no heartbeat of the lease is accepted any more.
func (e *env) gone(g jobs.Grant) {
	e.Helper()
	_, err := e.s.Heartbeat(e.within(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: g.Lease.WorkerID})
	if !errors.Is(err, jobs.ErrLeaseNotFound) {
		e.Fatalf("heartbeat of an ended lease: %v", err)
	}
}

// view returns a job.
func (e *env) view(jobID string) jobs.View {
	e.Helper()
	v, err := e.s.Get(e.within(), jobID)
	if err != nil || v.Job.ID != jobID {
		e.Fatalf("job %s is %+v, %v", jobID, v, err)
	}
	return v
}

// expect checks a job's state.
func (e *env) expect(jobID string, want jobs.State) jobs.View {
	e.Helper()
	v := e.view(jobID)
	if v.Job.State != want {
		e.Fatalf("job %s is %s, not %s", jobID, v.Job.State, want)
	}
	if (v.Lease != nil) != want.Active() || (v.Job.LeaseID != "") != want.Active() ||
		v.InQueue != (want == jobs.Queued) {
		e.Fatalf("job that is %s shows lease %q, %+v, in queue %v", want, v.Job.LeaseID, v.Lease, v.InQueue)
	}
	return v
}

// waitsFor checks why a queued job waits.
func (e *env) waitsFor(jobID, want string) {
	e.Helper()
	if v := e.expect(jobID, jobs.Queued); v.WaitingFor != want {
		e.Fatalf("job waits for %q, not for %q", v.WaitingFor, want)
	}
}

// status returns the snapshot, having checked that its numbers fit together.
func (e *env) status() jobs.Snapshot {
	e.Helper()
	s, err := e.s.Status(e.within())
	if err != nil || s.Available != max(0, s.Usable-s.Leased) || s.Leased > s.Total || s.ActiveLeases > s.Leased {
		e.Fatalf("status is %+v, %v", s, err)
	}
	return s
}

// leased checks how many units are leased.
func (e *env) leased(want int) {
	e.Helper()
	if s := e.status(); s.Leased != want {
		e.Fatalf("%d units are leased, not %d", s.Leased, want)
	}
}

// queued checks how many jobs are queued.
func (e *env) queued(want int) {
	e.Helper()
	if s := e.status(); s.Queue.Sum() != want {
		e.Fatalf("%d jobs are queued, not %d", s.Queue.Sum(), want)
	}
}

// must stops the test at an error.
func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// over checks that a lease may be ended again, which changes nothing.
func (e *env) over(c jobs.Completion) {
	e.Helper()
	if applied, err := e.s.Complete(e.within(), c); err != nil || applied {
		e.Fatalf("completion %+v of an ended lease was answered with %v, %v", c, applied, err)
	}
}

// invalid checks that the error says what is wrong at which places.
func (e *env) invalid(err error, locs ...string) {
	e.Helper()
	var wrong *jobs.InvalidError
	if !errors.As(err, &wrong) || !errors.Is(err, lokt.ErrInvalid) {
		e.Errorf("an invalid request was answered with %v, not with problems at %q", err, locs)
		return
	}
	var got []string
	for _, p := range wrong.Problems {
		if p.Type == "" || p.Msg == "" {
			e.Errorf("problem %+v says too little", p)
		}
		s := ""
		for i, l := range p.Loc {
			if i > 0 {
				s += "."
			}
			s += fmt.Sprint(l)
		}
		got = append(got, s)
	}
	if !slices.Equal(got, locs) {
		e.Errorf("problems are at %q, not at %q: %v", got, locs, err)
	}
}

// passTTL lets the time to live of leases that were not renewed since pass.
func (e *env) passTTL() { time.Sleep(e.ttl) }
