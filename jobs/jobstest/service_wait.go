package jobstest

import (
	"context"
	"errors"
	"fmt"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

var waitTests = []serviceTest{
	{name: "an ask that waits is granted when capacity becomes free", run: waitsForCapacity},
	{name: "an ask that waits is granted when a lease expires", run: waitsForExpiry, expires: true},
	{name: "an ask whose client has gone is granted nothing", run: goneClientGetsNothing},
	{name: "asks that wait are granted a submitted job, and one lease under one request ID", run: twins},
	{name: "a heartbeat that waits is answered when the job is cancelled, or the lease revoked", run: beatWaitsForNews},
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

func beatWaitsForNews(e *env) {
	var g jobs.Grant
	waits := jobs.Heartbeat{WorkerID: "w", Wait: jobs.MaxWait}
	for _, news := range []struct {
		tell func() error
		want error
	}{
		{func() error { return e.s.Revoke(e.within(), g.Lease.ID, "gone") }, jobs.ErrLeaseNotFound},
		{func() error { _, err := e.s.Cancel(e.within(), g.Job.ID, "stop"); return err }, nil},
	} {
		e.submit()
		g = e.grant(ask("w"))
		waits.LeaseID = g.Lease.ID
		c := make(chan error, 1)
		go func() {
			b, err := e.s.Heartbeat(e.within(), waits)
			if err == nil && (!b.Cancel || b.ExpiresAt.IsZero()) {
				err = fmt.Errorf("answered with %+v", b)
			}
			c <- err
		}()
		for e.view(g.Job.ID).Job.State != jobs.Running { // it is applied at once
			time.Sleep(time.Millisecond)
		}
		e.must(news.tell())
		if err := <-c; !errors.Is(err, news.want) {
			e.Errorf("answered with %v, not %v", err, news.want)
		}
	}
	if b := e.beatWith(g, waits); !b.Cancel {
		e.Errorf("with a cancellation known, a heartbeat was answered with %+v", b)
	}
}
