package jobstest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// bubbleTests need a clock that stands still while nothing waits.
var bubbleTests = []serviceTest{
	{name: "a lease ends at its deadline, and not a moment before", run: deadlineToTheMoment},
	{name: "an ask waits as long as it says", run: waitToTheMoment},
	{name: "a heartbeat that waits is answered when its time is up", run: beatWaitToTheMoment},
	{name: "heartbeats keep a lease for as long as they come", run: beatsKeepLease},
	{name: "a heartbeat at the very deadline loses or wins, once and for all", run: beatAtTheDeadline},
	{name: "retries wait twice as long each time", run: backoffDoubles},
	{name: "an attempt fails at its maximum runtime, heartbeats or not", run: runtimeIsBounded},
	{name: "waiting raises a job's class", run: ageing},
	{name: "a large job that has waited reserves what becomes free", run: reservation},
	{name: "behind a reservation only those start that end in time", run: backfill},
	{name: "a reservation that comes to nothing rests", run: reservationRests},
	{name: "a key is forgotten a day after its job's end", run: keyIsForgotten},
	{name: "a request is forgotten ten minutes after its lease's end", run: requestIsForgotten},
	{name: "old jobs are cleaned up", run: cleanupForgetsOld},
	{name: "a job without a worker that could take it waits for one", run: noWorker},
	{name: "when to ask again follows the next expiry", run: retryAfterFollows},
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

func beatAtTheDeadline(e *env) {
	for i := range 20 {
		id := e.submit()
		g := e.grant(ask("w"))
		time.Sleep(e.ttl - time.Nanosecond)
		var wg sync.WaitGroup
		var err error
		wg.Go(func() {
			time.Sleep(time.Nanosecond * time.Duration(i%2))
			_, err = e.s.Heartbeat(e.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"})
		})
		wg.Wait()
		if want := map[bool]jobs.State{true: jobs.Running, false: jobs.Expired}[err == nil]; i%2 == 0 {
			e.expect(id, jobs.Running)
		} else {
			e.expect(id, want)
			if err == nil {
				e.Error("a heartbeat was accepted at the deadline")
			}
		}
		_, _ = e.s.Complete(e.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed})
	}
}

func backoffDoubles(e *env) {
	id := e.submit(attempts(16), backoff(time.Second))
	g := e.grant(ask("w"))
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600, 3600} {
		e.complete(g, jobs.Failed)
		e.waitsFor(id, jobs.WaitingRunAt)
		begin := time.Now()
		for g = e.asks("w"); g.Denied != nil; g = e.asks("w") {
		}
		if d := time.Since(begin); d != want*time.Second {
			e.Errorf("retry %d came after %v, not after %v", n+1, d, want*time.Second)
		}
	}
	e.complete(g, jobs.Failed)
	e.expect(id, jobs.Failed)
}

// asks waits for a job for as long as a request may.
func (e *env) asks(worker string) jobs.Grant {
	e.Helper()
	g, err := e.s.Request(e.Context(), ask(worker, waiting(jobs.MaxWait)))
	if err != nil {
		e.Fatal(err)
	}
	return g
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
	if v := e.expect(id, jobs.Failed); v.Job.Code != jobs.CodeRuntime || string(v.Job.Output.Error) != `"max_runtime_exceeded"` {
		e.Errorf("job ended as %+v", v.Job)
	}
}

func ageing(e *env) {
	old := e.submit(class(jobs.Background))
	time.Sleep(9 * time.Minute)
	low := e.submit(class(jobs.Low))
	time.Sleep(2 * time.Minute)
	normal := e.submit(class(jobs.Normal)) // 11 minutes behind a job two classes below, 2 behind one a class below
	time.Sleep(20 * time.Minute)
	high := e.submit(class(jobs.High)) // more than three steps behind the first
	e.grantOf(normal, ask("w"))
	e.grantOf(low, ask("w"))
	e.grantOf(old, ask("w"))
	e.grantOf(high, ask("w"))
}

func reservation(e *env) {
	var running []jobs.Grant
	for range 5 {
		e.submit(units(2))
		running = append(running, e.grant(ask("w")))
	}
	large := e.submit(units(6))
	e.deny(jobs.DeniedCapacity, ask("v"))
	keep := func(d time.Duration) {
		for ; d > 0; d -= 30 * time.Second {
			time.Sleep(min(d, 30*time.Second))
			for _, g := range running {
				e.beat(g)
			}
			e.deny(jobs.DeniedCapacity, ask("v"))
		}
	}
	keep(2*time.Minute - time.Second)
	small := e.submit(units(1))
	e.complete(running[0], jobs.Completed)
	early := e.grantOf(small, ask("v"))
	e.complete(early, jobs.Completed)
	running = running[1:]
	time.Sleep(time.Second)
	small = e.submit(units(1))
	e.deny(jobs.DeniedCapacity, ask("v"))
	e.waitsFor(small, jobs.WaitingReserved+large)
	first := e.submit(units(1), class(jobs.High)) // stands before it
	g := e.grantOf(first, ask("v"))
	e.complete(g, jobs.Completed)
	e.complete(running[0], jobs.Completed)
	e.deny(jobs.DeniedCapacity, ask("v"))
	e.complete(running[1], jobs.Completed)
	e.grantOf(large, ask("v"))
	e.complete(running[2], jobs.Completed)
	e.grantOf(small, ask("v"))
}

func backfill(e *env) {
	e.submit(units(6), atMost(10*time.Minute))
	long := e.grant(ask("w"))
	e.submit(units(2))
	other := e.grant(ask("w"))
	large := e.submit(units(8)) // when the first one ends, it fits beside the second
	e.deny(jobs.DeniedCapacity, ask("v"))
	for range 4 {
		time.Sleep(30 * time.Second)
		e.beat(long)
		e.beat(other)
		e.deny(jobs.DeniedCapacity, ask("v"))
	}
	tooLong := e.submit(atMost(8*time.Minute + time.Millisecond))
	unknown := e.submit()
	inTime := e.submit(atMost(8 * time.Minute))
	e.grantOf(inTime, ask("v"))
	e.waitsFor(tooLong, jobs.WaitingReserved+large)
	e.waitsFor(unknown, jobs.WaitingReserved+large)
	e.deny(jobs.DeniedCapacity, ask("v"))
}

func reservationRests(e *env) {
	e.submit(units(9))
	endless := e.grant(ask("w"))
	e.submit(units(5))
	live := func(d time.Duration) {
		for ; d > 0; d -= 30 * time.Second {
			time.Sleep(min(d, 30*time.Second))
			e.beat(endless)
		}
	}
	small := e.submit(units(1))
	e.complete(e.grantOf(small, ask("v")), jobs.Completed)
	live(2 * time.Minute)
	e.deny(jobs.DeniedCapacity, ask("v")) // from here on
	small = e.submit(units(1))
	for range 19 {
		e.deny(jobs.DeniedCapacity, ask("v"))
		live(30 * time.Second)
	}
	begin := time.Now()
	g := e.grantOf(small, ask("v", waiting(jobs.MaxWait)))
	if d := time.Since(begin); d != 30*time.Second {
		e.Errorf("the reservation rests after %v more", d)
	}
	e.beat(endless)
	e.complete(g, jobs.Completed)
	live(9 * time.Minute)
	e.submit(units(1))
	e.complete(e.grant(ask("v")), jobs.Completed)
	live(2 * time.Minute)
	e.submit(units(1))
	e.deny(jobs.DeniedCapacity, ask("v"))
}

func keyIsForgotten(e *env) {
	id := e.submit(key("k"))
	time.Sleep(10 * 24 * time.Hour) // it lives
	if e.submit(key("k")) != id {
		e.Fatal("the key of a living job was forgotten")
	}
	e.complete(e.grant(ask("w")), jobs.Completed)
	time.Sleep(jobs.KeyLife - time.Millisecond)
	if e.submit(key("k")) != id {
		e.Error("the key was forgotten early")
	}
	time.Sleep(2 * time.Millisecond)
	if e.submit(key("k"), units(2)) == id {
		e.Error("the key was not forgotten")
	}
}

func requestIsForgotten(e *env) {
	e.submit()
	g := e.grant(ask("w", request("r")))
	e.complete(g, jobs.Completed)
	time.Sleep(jobs.RequestLife - time.Millisecond)
	if again := e.grant(ask("w", request("r"))); again.Lease.ID != g.Lease.ID {
		e.Error("the request was forgotten early")
	}
	time.Sleep(2 * time.Millisecond)
	e.deny(jobs.DeniedEmpty, ask("w", request("r")))
	id := e.submit()
	e.grantOf(id, ask("w", request("r"))) // after a denial it counts as new
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

func noWorker(e *env) {
	id := e.submit(kind("rare"))
	e.waitsFor(id, jobs.WaitingWorker)
	e.submit(units(10))
	g := e.grant(ask("w", types("generic")))
	e.waitsFor(id, jobs.WaitingWorker)
	e.deny(jobs.DeniedCapacity, ask("v", types("rare")))
	e.waitsFor(id, jobs.WaitingCapacity)
	time.Sleep(jobs.SeenFor / 2)
	e.beat(g)
	time.Sleep(jobs.SeenFor / 2)
	e.waitsFor(id, jobs.WaitingWorker)
}

func retryAfterFollows(e *env) {
	if d := e.deny(jobs.DeniedEmpty, ask("w")); d.RetryAfter != 1500*time.Millisecond {
		e.Errorf("with nothing queued, it is %v", d.RetryAfter)
	}
	e.submit(kind("other"))
	if d := e.deny(jobs.DeniedEligible, ask("w", types("a"))); d.RetryAfter != 1500*time.Millisecond {
		e.Errorf("with nothing to wait for, it is %v", d.RetryAfter)
	}
	e.submit(units(10), kind("a"))
	e.grant(ask("w", types("a")))
	time.Sleep(e.ttl - 2*time.Second)
	seen := map[string]bool{}
	for range 20 {
		d := e.deny(jobs.DeniedCapacity, ask("w"))
		if d.RetryAfter < 2*time.Second || d.RetryAfter > 2400*time.Millisecond {
			e.Errorf("2 s before an expiry, it is %v", d.RetryAfter)
		}
		seen[fmt.Sprint(d.RetryAfter)] = true
	}
	if len(seen) < 2 {
		e.Errorf("it is always %v", seen)
	}
	time.Sleep(1900 * time.Millisecond)
	if d := e.deny(jobs.DeniedCapacity, ask("w")); d.RetryAfter != 250*time.Millisecond {
		e.Errorf("just before an expiry, it is %v", d.RetryAfter)
	}
}
