package jobstest

import (
	"context"
	"errors"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// bubbleTests need a clock that stands still while nothing waits.
var bubbleTests = []serviceTest{
	{name: "a lease ends at its deadline, and not a moment before", run: deadlineToTheMoment},
	{name: "an ask waits as long as it says", run: waitToTheMoment},
	{name: "a heartbeat that waits is answered when its time is up", run: beatWaitToTheMoment},
	{name: "heartbeats keep a lease for as long as they come", run: beatsKeepLease},
	{name: "an attempt fails at its maximum runtime, heartbeats or not", run: runtimeIsBounded},
	{name: "a job for a worker without others gets one that would have them all the time", run: aloneHasItsTurn},
	{name: "old jobs are cleaned up", run: cleanupForgetsOld},
}

func deadlineToTheMoment(e *env) {
	id := e.submit()
	g := e.grant(ask("w"))
	time.Sleep(e.ttl - time.Nanosecond)
	e.expect(id, jobs.Leased)
	time.Sleep(time.Nanosecond)
	e.leased(0)
	e.expect(id, jobs.Expired)
	e.gone(g)
}

func waitToTheMoment(e *env) {
	begin := time.Now()
	e.deny(jobs.DeniedEmpty, ask("w", waiting(7*time.Second)))
	if d := time.Since(begin); d != 7*time.Second {
		e.Errorf("waited for %v", d)
	}
	ctx, cancel := context.WithTimeout(e.Context(), 3*time.Second)
	defer cancel()
	begin = time.Now()
	if g, err := e.s.Request(ctx, ask("w", waiting(7*time.Second))); !errors.Is(err, context.DeadlineExceeded) {
		e.Errorf("answered with %+v, %v", g, err)
	}
	if d := time.Since(begin); d != 3*time.Second {
		e.Errorf("waited for %v", d)
	}
}

func beatWaitToTheMoment(e *env) {
	e.submit()
	g := e.grant(ask("w"))
	time.Sleep(10 * time.Second)
	begin := time.Now()
	b, err := e.s.Heartbeat(e.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w", Wait: 9 * time.Second})
	if err != nil || b.Cancel || time.Since(begin) != 9*time.Second ||
		b.ExpiresAt.Sub(begin).Round(time.Second) != e.ttl {
		e.Errorf("answered with %+v, %v after %v", b, err, time.Since(begin))
	}
	ctx, cancel := context.WithTimeout(e.Context(), time.Second)
	defer cancel()
	if _, err := e.s.Heartbeat(ctx, jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w",
		Wait: 9 * time.Second}); !errors.Is(err, context.DeadlineExceeded) {
		e.Errorf("a cancelled heartbeat was answered with %v", err)
	}
	e.beat(g)
}

func beatsKeepLease(e *env) {
	id := e.submit()
	g := e.grant(ask("w"))
	for range 100 {
		time.Sleep(e.ttl - time.Millisecond)
		e.beat(g)
	}
	e.expect(id, jobs.Running)
	time.Sleep(e.ttl)
	e.expect(id, jobs.Expired)
}

func runtimeIsBounded(e *env) {
	id := e.submit(atMost(90*time.Second), attempts(2), backoff(0))
	for n := range 2 {
		g := e.grantOf(id, ask("w"))
		for range 4 {
			time.Sleep(20 * time.Second)
			e.beat(g)
		}
		time.Sleep(10*time.Second - time.Nanosecond)
		e.beat(g)
		time.Sleep(time.Nanosecond)
		e.gone(g)
		v := e.view(id)
		if a := v.Attempts[n]; a.State != jobs.Failed || a.Code != jobs.CodeRuntime {
			e.Errorf("attempt %d ended as %+v", n+1, a)
		}
	}
	if v := e.expect(id, jobs.Failed); v.Job.Code != jobs.CodeRuntime ||
		string(v.Job.Output.Error) != `"max_runtime_exceeded"` {
		e.Errorf("job ended as %+v", v.Job)
	}
}

// Promise S-395.
func aloneHasItsTurn(e *env) {
	for _, c := range []struct {
		special func(*jobs.Spec)
		left    int // units, beside a lease
		why     string
	}{{unique, 8, jobs.WaitingUnique}, {units(8), 6, jobs.WaitingWorker}} {
		left := atMostUnits(c.left)
		e.submit()
		held := e.grant(ask("w", atMostUnits(8)))
		alone := e.submit(c.special)
		next := func(want string) {
			e.Helper()
			g := e.grantOf(want, ask("w", left))
			e.complete(held, jobs.Completed)
			held = g
		}
		for range 10 { // within the time that it may be passed over
			next(e.submit())
			time.Sleep(10 * time.Second)
			e.beat(held)
		}
		time.Sleep(30 * time.Second)
		behind, before := e.submit(kind("other")), e.submit(class(jobs.High))
		next(before)
		d := e.background(e.within(), ask("w", left, waiting(10*time.Second)))
		time.Sleep(time.Second)
		e.waitsFor(alone, c.why)
		e.waitsFor(behind, jobs.WaitingReserved+alone)
		if g := e.answer(d); g.Denied == nil {
			e.Errorf("beside its lease the worker was granted %+v", g.Job)
		}
		e.complete(e.grantOf(behind, ask("v", types("other"))), jobs.Completed)
		e.complete(held, jobs.Completed)
		e.complete(e.grantOf(alone, ask("w", atMostUnits(8))), jobs.Completed)
	}
}

func cleanupForgetsOld(e *env) {
	old := e.submit()
	e.complete(e.grant(ask("w")), jobs.Completed)
	living := e.submit()
	time.Sleep(3 * 24 * time.Hour)
	young := e.submit(kind("young"))
	e.complete(e.grant(ask("w", types("young"))), jobs.Completed)
	if n, err := e.s.Cleanup(e.Context(), 2); err != nil || n != 1 {
		e.Errorf("cleaning up answered %d, %v", n, err)
	}
	if _, err := e.s.Get(e.Context(), old); jobs.Code(err) != "job_not_found" {
		e.Errorf("an old job is %v", err)
	}
	e.expect(young, jobs.Completed)
	e.expect(living, jobs.Queued)
	if s, err := e.s.Stats(e.Context(), 30); err != nil || s.Total != 2 {
		e.Errorf("statistics are %+v, %v", s, err)
	}
	if s, err := e.s.Stats(e.Context(), 1); err != nil || s.Total != 1 {
		e.Errorf("statistics of a day are %+v, %v", s, err)
	}
}
