package jobstest

import (
	"context"
	"errors"
	"sync"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

var waitTests = []serviceTest{
	{name: "an ask that waits is granted when a job is submitted", run: waitsForSubmit},
	{name: "an ask that waits is granted when capacity becomes free", run: waitsForCapacity},
	{name: "an ask that waits is granted when a lease expires", run: waitsForExpiry, expires: true},
	{name: "an ask whose client has gone is granted nothing", run: goneClientGetsNothing},
	{name: "asks sent twice under one request ID are given one lease", run: twins},
	{name: "a heartbeat that waits is answered when the job is cancelled", run: beatWaitsForCancel},
	{name: "a heartbeat that waits is answered when the lease is revoked", run: beatWaitsForRevoke},
}

// background runs a request and returns what will be its answer.
func (e *env) background(ctx context.Context, a jobs.Request) <-chan jobs.Grant {
	c := make(chan jobs.Grant, 1)
	go func() {
		g, err := e.s.Request(ctx, a)
		if err != nil {
			g = jobs.Grant{Denied: &jobs.Denial{Code: err.Error()}}
		}
		c <- g
	}()
	return c
}

// answer waits for the answer to a request.
func (e *env) answer(c <-chan jobs.Grant) jobs.Grant {
	e.Helper()
	select {
	case g := <-c:
		return g
	case <-e.within().Done():
		e.Fatal("a request was not answered")
		return jobs.Grant{}
	}
}

// parked lets a request arrive that waits: it can be seen among the workers.
func (e *env) parked(worker string) {
	e.Helper()
	for {
		all, err := e.s.Workers(e.within())
		if err != nil {
			e.Fatal(err)
		}
		for _, w := range all {
			if w.ID == worker {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func waitsForSubmit(e *env) {
	c := e.background(e.within(), ask("w", waiting(jobs.MaxWait)))
	e.parked("w")
	id := e.submit()
	if g := e.answer(c); g.Denied != nil || g.Job.ID != id {
		e.Errorf("answered with %+v", g)
	}
}

func waitsForCapacity(e *env) {
	e.submit(units(6))
	first := e.grant(ask("w"))
	id := e.submit(units(5))
	c := e.background(e.within(), ask("v", waiting(jobs.MaxWait)))
	e.parked("v")
	e.complete(first, jobs.Completed)
	if g := e.answer(c); g.Denied != nil || g.Job.ID != id {
		e.Errorf("answered with %+v", g)
	}
}

func waitsForExpiry(e *env) {
	e.submit(units(10))
	first := e.grant(ask("w"))
	id := e.submit(units(5))
	begin := time.Now()
	c := e.background(e.within(), ask("v", waiting(min(e.ttl, jobs.MaxWait))))
	for g := e.answer(c); ; g = e.answer(e.background(e.within(), ask("v", waiting(jobs.MaxWait)))) {
		if g.Denied == nil {
			if g.Job.ID != id {
				e.Errorf("answered with %+v", g)
			}
			break
		}
	}
	if waited := time.Since(begin); e.bubble && waited != e.ttl {
		e.Errorf("granted after %v, not after %v", waited, e.ttl)
	}
	e.gone(first)
}

func goneClientGetsNothing(e *env) {
	ctx, cancel := context.WithCancel(e.within())
	done := make(chan error, 1)
	go func() {
		_, err := e.s.Request(ctx, ask("w", waiting(jobs.MaxWait)))
		done <- err
	}()
	e.parked("w")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		e.Fatalf("a cancelled ask was answered with %v", err)
	}
	if e.bubble {
		// a service behind a network notices when it is told, which may be after its client has returned
		synctest.Wait()
	}
	id := e.submit()
	e.expect(id, jobs.Queued)
	e.leased(0)
	e.grantOf(id, ask("v"))
}

func twins(e *env) {
	a := e.background(e.within(), ask("w", waiting(jobs.MaxWait), request("r")))
	b := e.background(e.within(), ask("w", waiting(jobs.MaxWait), request("r")))
	e.parked("w")
	first := e.submit()
	second := e.submit()
	x, y := e.answer(a), e.answer(b)
	if x.Denied != nil || y.Denied != nil || x.Lease.ID != y.Lease.ID || x.Job.ID != first {
		e.Errorf("one request was granted %+v and %+v", x, y)
	}
	e.leased(1)
	e.expect(second, jobs.Queued)
}

func beatWaitsForCancel(e *env) {
	id := e.submit()
	g := e.grant(ask("w"))
	c := make(chan jobs.HeartbeatAnswer, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		b, err := e.s.Heartbeat(e.within(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w", Wait: jobs.MaxWait})
		if err != nil {
			e.Errorf("a heartbeat that waits: %v", err)
		}
		c <- b
	})
	for e.view(id).Job.State != jobs.Running { // it is applied at once
		time.Sleep(time.Millisecond)
	}
	if s, err := e.s.Cancel(e.within(), id, "stop"); err != nil || s != jobs.Running {
		e.Errorf("cancellation was answered with %v, %v", s, err)
	}
	if b := <-c; !b.Cancel || b.ExpiresAt.IsZero() {
		e.Errorf("answered with %+v", b)
	}
	if b, err := e.s.Heartbeat(e.within(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w",
		Wait: jobs.MaxWait}); err != nil || !b.Cancel {
		e.Errorf("with a cancellation known, a heartbeat was answered with %+v, %v", b, err)
	}
}

func beatWaitsForRevoke(e *env) {
	id := e.submit()
	g := e.grant(ask("w"))
	c := make(chan error, 1)
	go func() {
		_, err := e.s.Heartbeat(e.within(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w", Wait: jobs.MaxWait})
		c <- err
	}()
	for e.view(id).Job.State != jobs.Running {
		time.Sleep(time.Millisecond)
	}
	if err := e.s.Revoke(e.within(), g.Lease.ID, "gone"); err != nil {
		e.Fatal(err)
	}
	if err := <-c; !errors.Is(err, jobs.ErrLeaseNotFound) {
		e.Errorf("answered with %v", err)
	}
}
