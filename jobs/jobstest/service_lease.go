package jobstest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

var leaseTests = []serviceTest{
	{name: "a grant holds the job's units until it is completed", run: grantHoldsUnits},
	{name: "a heartbeat makes a job running, extends the lease and never shortens it", run: beatExtends},
	{name: "another worker's heartbeat, completion and report change nothing", run: mismatchChangesNothing},
	{name: "heartbeats of unknown, completed and revoked leases are not found", run: endedLeasesAreNotFound},
	{name: "many heartbeats are answered one by one", run: beatsInABatch},
	{name: "completion without any heartbeat is accepted, may be repeated, and the first end wins", run: firstEndWins},
	{name: "what a worker reports is kept and shown", run: reportsAreKept},
	{name: "what a job prints is kept once, in order, over all attempts", run: outputIsKept},
	{name: "a request sent again is given the same lease", run: requestsAreRemembered},
	{name: "a lease without heartbeats expires and frees its units", run: leaseExpires, expires: true},
	{name: "a revoked lease fails its job, with the reason", run: revokeFails},
}

func grantHoldsUnits(e *env) {
	if e.deny(jobs.DeniedEmpty, ask("w")); e.status().Leased != 0 {
		e.Error("an empty service has leases")
	}
	id := e.submit(units(7))
	g := e.grantOf(id, ask("w"))
	l := g.Lease
	if g.Job.State != jobs.Leased || g.Job.LeaseID != l.ID || l.Attempt != 1 || !l.LastHeartbeat.Equal(l.IssuedAt) ||
		!l.ExpiresAt.Equal(l.IssuedAt.Add(e.ttl)) ||
		l.TTL != e.ttl || l.Interval <= 0 || l.Interval >= l.TTL {
		e.Errorf("granted %+v on %+v", l, g.Job)
	}
	e.leased(7)
	big := e.submit(units(4))
	e.deny(jobs.DeniedCapacity, ask("v"))
	e.waitsFor(big, jobs.WaitingCapacity)
	e.complete(g, jobs.Completed)
	e.leased(0)
	e.grantOf(big, ask("v"))
	v := e.expect(id, jobs.Completed)
	if len(v.Attempts) != 1 || v.Attempts[0].State != jobs.Completed || v.Attempts[0].LeaseID != l.ID ||
		v.Attempts[0].EndedAt.IsZero() || v.Job.EndedAt.IsZero() {
		e.Errorf("ended as %+v", v)
	}
}

func beatExtends(e *env) {
	id := e.submit()
	g := e.grant(ask("w"))
	if v := e.expect(id, jobs.Leased); len(v.Attempts) != 1 || v.Attempts[0].State != jobs.Leased ||
		!v.Attempts[0].EndedAt.IsZero() {
		e.Errorf("attempts are %+v", v.Attempts)
	}
	last := g.Lease.ExpiresAt
	for range 5 {
		b := e.beat(g)
		if b.ExpiresAt.Before(last) || b.Interval <= 0 || b.Cancel || b.Drain {
			e.Fatalf("a heartbeat was answered with %+v after %v", b, last)
		}
		last = b.ExpiresAt
		if v := e.expect(id, jobs.Running); !v.Lease.ExpiresAt.Equal(last) {
			e.Errorf("the lease shows %v, not %v", v.Lease.ExpiresAt, last)
		}
	}
}

func mismatchChangesNothing(e *env) {
	id := e.submit()
	g := e.grant(ask("w"))
	_, err := e.s.Heartbeat(e.within(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "thief"})
	_, err2 := e.s.Complete(e.within(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "thief", Status: jobs.Completed})
	err3 := e.s.Report(e.within(), jobs.Progress{LeaseID: g.Lease.ID, WorkerID: "thief"})
	for _, err := range []error{err, err2, err3} {
		if !errors.Is(err, jobs.ErrWorkerMismatch) || jobs.Code(err) != "worker_mismatch" {
			e.Errorf("another worker was answered with %v", err)
		}
	}
	v := e.expect(id, jobs.Leased)
	if !v.Lease.ExpiresAt.Equal(g.Lease.ExpiresAt) {
		e.Error("another worker's heartbeat extended the lease")
	}
	e.complete(g, jobs.Completed)
}

func endedLeasesAreNotFound(e *env) {
	for range 2 {
		e.submit()
	}
	done, revoked := e.grant(ask("w")), e.grant(ask("w"))
	e.complete(done, jobs.Failed)
	e.must(e.s.Revoke(e.within(), revoked.Lease.ID, ""))
	for _, g := range []jobs.Grant{done, revoked, {Lease: jobs.Lease{ID: "unknown", WorkerID: "w"}}} {
		e.gone(g)
		if err := e.s.Report(e.within(), jobs.Progress{LeaseID: g.Lease.ID, WorkerID: "w"}); !errors.Is(err,
			jobs.ErrLeaseNotFound) {
			e.Errorf("report on an ended lease: %v", err)
		}
		if err := e.s.Revoke(e.within(), g.Lease.ID, ""); !errors.Is(err, jobs.ErrLeaseNotFound) ||
			jobs.Code(err) != "lease_not_found" {
			e.Errorf("revocation of an ended lease: %v", err)
		}
	}
}

func beatsInABatch(e *env) {
	for range 3 {
		e.submit()
	}
	a, b, other := e.grant(ask("w")), e.grant(ask("w")), e.grant(ask("v"))
	all, err := e.s.HeartbeatAll(e.within(), "w", []string{a.Lease.ID, "unknown", other.Lease.ID, b.Lease.ID})
	if err != nil || len(all) != 4 {
		e.Fatalf("a batch was answered with %+v, %v", all, err)
	}
	for i, want := range []error{nil, jobs.ErrLeaseNotFound, jobs.ErrWorkerMismatch, nil} {
		if !errors.Is(all[i].Err, want) || (want == nil) == all[i].ExpiresAt.IsZero() {
			e.Errorf("heartbeat %d was answered with %+v, not with %v", i, all[i], want)
		}
	}
	e.expect(a.Job.ID, jobs.Running)
	e.expect(other.Job.ID, jobs.Leased)
	all, err = e.s.HeartbeatAll(e.within(), "w", []string{b.Lease.ID, a.Lease.ID})
	if err != nil || all[0].LeaseID != b.Lease.ID || all[0].Err != nil || all[1].Err != nil {
		e.Errorf("a batch of good ones was answered with %+v, %v", all, err)
	}
}

func firstEndWins(e *env) {
	id := e.submit()
	g := e.grant(ask("w"))
	e.completeWith(g, jobs.Completion{Status: jobs.Failed, Error: []byte(`"no luck"`)})
	for _, c := range []jobs.Completion{
		{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed},
		{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Failed},
		{LeaseID: g.Lease.ID, WorkerID: "v", Status: jobs.Failed},
		{LeaseID: "unknown", WorkerID: "w", Status: jobs.Completed},
	} {
		e.over(c)
	}
	v := e.expect(id, jobs.Failed)
	if v.Job.Output == nil || string(v.Job.Output.Error) != `"no luck"` || v.Job.Code != jobs.CodeFailed ||
		len(v.Attempts) != 1 || string(v.Attempts[0].Error) != `"no luck"` || v.Attempts[0].FirstHeartbeat.IsZero() {
		e.Errorf("job failed as %+v, attempts %+v", v.Job, v.Attempts)
	}
}

func reportsAreKept(e *env) {
	id := e.submit(attempts(2), backoff(0))
	g := e.grant(ask("w"))
	half, text := 0.5, "half way"
	said := jobs.Progress{LeaseID: g.Lease.ID, WorkerID: "w", Progress: &half, Message: &text,
		Metrics: []byte(`{"n": 1e2}`)}
	e.must(e.s.Report(e.within(), said))
	v := e.expect(id, jobs.Leased)
	if o := v.Job.Output; o == nil || o.Progress == nil || *o.Progress != 0.5 || o.Message != text ||
		string(o.Metrics) != `{"n": 1e2}` {
		e.Fatalf("report is kept as %+v", v.Job.Output)
	}
	if !v.Lease.ExpiresAt.Equal(g.Lease.ExpiresAt) {
		e.Error("a report extended the lease")
	}
	third := 0.75
	e.beatWith(g, jobs.Heartbeat{Progress: &third, Checkpoint: []byte(`[1,  2.50]`)})
	if o := e.expect(id, jobs.Running).Job.Output; *o.Progress != 0.75 || o.Message != text ||
		string(o.Checkpoint) != `[1,  2.50]` {
		e.Errorf("after a heartbeat the report is %+v", o)
	}
	e.complete(g, jobs.Failed)
	g = e.grantOf(id, ask("v"))
	if o := g.Job.Output; o == nil || string(o.Checkpoint) != `[1,  2.50]` || o.Progress != nil {
		e.Errorf("the next attempt is handed %+v", o)
	}
	const big = `{"big":123456789012345678901234567890}`
	e.completeWith(g, jobs.Completion{Status: jobs.Completed, Result: []byte(big)})
	v = e.expect(id, jobs.Completed)
	if string(v.Job.Output.Result) != big || len(v.Attempts) != 2 || v.Attempts[0].State != jobs.Failed ||
		v.Attempts[1].State != jobs.Completed {
		e.Errorf("job ended as %+v, attempts %+v", v.Job.Output, v.Attempts)
	}
}

func outputIsKept(e *env) {
	id := e.submit(attempts(2), backoff(0))
	g := e.grant(ask("w"))
	tell := func(text string, offset int64) error {
		return e.s.Report(e.within(), jobs.Progress{LeaseID: g.Lease.ID, WorkerID: "w", Text: text, Offset: offset})
	}
	want := []jobs.Piece{
		{Attempt: 1, Text: "one\n"}, {Attempt: 1, Offset: 4, Text: "two\n"}, {Attempt: 1, Offset: 100, Text: "ühere\x01"},
		{Attempt: 1, Offset: 107, Text: strings.Repeat("*", len(g.Lease.ID))},
	}
	end := want[3].End()
	e.must(errors.Join(tell("one\n", 0), tell("one\ntwo\n", 0), tell("one\ntwo\n", 0))) // the first answer was lost
	e.must(errors.Join(tell("ühere\x01", 100), tell("üh", 106), tell(g.Lease.ID, 107))) // within a character
	e.prints(id, 0, jobs.Leased, want...)
	e.prints(id, 101, jobs.Leased, want[2:]...)
	e.prints(id, end, jobs.Leased)
	e.complete(g, jobs.Failed)
	if g = e.grantOf(id, ask("w")); g.Job.Output.Printed != end {
		e.Errorf("the second attempt is told of %d bytes, not of %d", g.Job.Output.Printed, end)
	}
	e.must(tell("again", end))
	e.complete(g, jobs.Completed)
	e.prints(id, 107, jobs.Completed, want[3], jobs.Piece{Attempt: 2, Offset: end, Text: "again"})
	if _, err := e.s.Output(e.within(), "unknown", 0); !errors.Is(err, jobs.ErrJobNotFound) {
		e.Errorf("output of an unknown job: %v", err)
	}
}

// prints checks the output of a job.
func (e *env) prints(id string, from int64, state jobs.State, want ...jobs.Piece) {
	e.Helper()
	o, err := e.s.Output(e.within(), id, from)
	e.must(err)
	equal(e.T, "the output", o, jobs.Output{State: state, Pieces: want})
}

func requestsAreRemembered(e *env) {
	for range 3 {
		e.submit()
	}
	g := e.grant(ask("w", request("r")))
	if again := e.grant(ask("w", request("r"))); again.Lease.ID != g.Lease.ID || again.Lease.Token != g.Lease.Token {
		e.Errorf("the same request was granted %s, then %s", g.Lease.ID, again.Lease.ID)
	}
	if other := e.grant(ask("v", request("r"))); other.Lease.ID == g.Lease.ID {
		e.Error("another worker's request was given the same lease")
	}
	if other := e.grant(ask("w")); other.Lease.ID == g.Lease.ID {
		e.Error("a new request was given the same lease")
	}
	e.complete(g, jobs.Completed)
	if again := e.grant(ask("w", request("r"))); again.Lease.ID != g.Lease.ID || again.Job.State != jobs.Completed {
		e.Errorf("the same request after the end was granted %+v", again)
	}
}

func leaseExpires(e *env) {
	id := e.submit(units(10))
	g := e.grant(ask("w"))
	next := e.submit()
	if d := e.deny(jobs.DeniedCapacity, ask("v")); e.bubble && d.RetryAfter != 5*time.Second {
		e.Errorf("denied until %v, though the lease lasts for %v", d.RetryAfter, e.ttl)
	}
	e.passTTL()
	if s := e.status(); s.Leased != 0 || s.ActiveLeases != 0 {
		e.Errorf("after the deadline there is %+v", s)
	}
	v := e.expect(id, jobs.Expired)
	if v.Job.Code != jobs.CodeExpired || len(v.Attempts) != 1 || v.Attempts[0].State != jobs.Expired {
		e.Errorf("expired as %+v, attempts %+v", v.Job, v.Attempts)
	}
	e.gone(g)
	e.over(jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed})
	e.expect(id, jobs.Expired)
	e.grantOf(next, ask("v"))
}

func revokeFails(e *env) {
	id := e.submit(attempts(3), units(4))
	g := e.grant(ask("w"))
	e.must(e.s.Revoke(e.within(), g.Lease.ID, "maintenance"))
	e.leased(0)
	v := e.expect(id, jobs.Failed)
	if v.Job.Reason != "maintenance" || v.Job.Code != jobs.CodeRevoked || len(v.Attempts) != 1 {
		e.Errorf("revoked as %+v, attempts %+v", v.Job, v.Attempts)
	}
	ctx, cancel := context.WithCancel(e.within())
	cancel()
	if err := e.s.Revoke(ctx, "unknown", ""); err == nil {
		e.Error("a request whose context has ended was answered")
	}
}
