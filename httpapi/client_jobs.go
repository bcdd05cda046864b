package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// JobsClient is a jobs.Service that asks a server. It is safe for concurrent use.
//
// A request that fails on the way is sent again, to the same server or the next, for as long as ClientOptions.Patience
// and its context allow, if that does no harm: requests for a job carry a request ID, made up where the caller gives
// none, so that a lease whose announcement was lost is announced again. A list of jobs of which one has no idempotency key is
// sent again only if the server cannot have seen it. After a lost answer Complete may report false although it was this call
// that ended the lease. What could not be asked is an error that wraps lokt.ErrUnavailable and names the server.
//
// Times are whole milliseconds on the wire. Job.Seq, Job.Ord, Job.Revision and Lease.RequestID stay with the server and
// are zero here.
type JobsClient struct{ c *Client }

var (
	_ jobs.Service = (*JobsClient)(nil)
	_ lokt.Elapser = (*JobsClient)(nil)
	_ lokt.Elapser = (*Client)(nil)
)

// Jobs returns a client of the same servers' scheduler. They share connections.
func (c *Client) Jobs() *JobsClient { return &JobsClient{c} }

// Elapsed implements lokt.Elapser.
func (c *JobsClient) Elapsed() time.Duration { return c.c.Elapsed() }

// Close closes connections that are not in use. The client can be used again.
func (c *JobsClient) Close() error { return c.c.Close() }

// waiting has a request sent again and again with what is left of its wait.
func (x *exchange) waiting(q any, wait *time.Duration) *exchange {
	until := time.Now().Add(*wait)
	x.again = func() (any, time.Duration) {
		*wait = min(*wait, max(time.Until(until), 0))
		return q, *wait
	}
	return x
}

// Submit implements jobs.Submitter.
func (c *JobsClient) Submit(ctx context.Context, specs []jobs.Spec) ([]jobs.Receipt, error) {
	unsafe, fit := false, len(specs) > 0 && len(specs) <= jobs.MaxSubmit
	for i := range specs {
		unsafe, fit = unsafe || specs[i].IdempotencyKey == "", fit && specs[i].Payload.Kind() == '{'
	}
	x := routeSubmit.to(&submitWire{Jobs: &specs})
	if x.invalid != nil || !fit || !jsontext.Value(x.body).IsValid(jsontext.AllowDuplicateNames(true)) {
		return nil, jobs.ValidateSubmit(specs, math.MaxInt) // what else may be wrong the server knows better
	}
	x.once = unsafe
	answer, err := routeSubmit.send(ctx, c.c, x, func(w *submittedWire) error {
		none := func(r jobs.Receipt) bool { return r.JobID == "" }
		return notUnless(len(w.Jobs) == len(specs) && !slices.ContainsFunc(w.Jobs, none))
	})
	switch {
	case err != nil && unsafe && x.doubtful:
		return nil, fmt.Errorf("%w: the jobs may be queued nevertheless: see before you submit them again; with an idempotency key for each that is safe", err)
	case err != nil:
		return nil, err
	}
	return answer.Jobs, nil
}

// Cancel implements jobs.Submitter.
func (c *JobsClient) Cancel(ctx context.Context, jobID, reason string) (jobs.State, error) {
	answer, err := routeCancel.send(ctx, c.c, routeCancel.to(&reasonWire{reason}, jobID), done)
	return answer.State, err
}

// done refuses an answer that does not say that it was done.
func done(w *okWire) error { return notUnless(w.OK) }

// Request implements jobs.Leaser. If ctx ends while it waits, the server is asked whether there was a grant that has
// not arrived, before the error is returned.
func (c *JobsClient) Request(ctx context.Context, a jobs.Request) (jobs.Grant, error) {
	if err := cmp.Or(a.Validate(), ctx.Err()); err != nil {
		return jobs.Grant{}, err
	}
	a.RequestID = cmp.Or(a.RequestID, lokt.NewLeaseID())
	a.MaxUnits = int(min(int64(a.MaxUnits), mostInt))
	x := routeRequest.to(nil).waiting(&a, &a.Wait)
	g, err := c.grant(ctx, x)
	if err == nil || ctx.Err() == nil || !x.doubtful {
		return g, err
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	a.Wait, a.Types = 0, []string{"none." + a.RequestID} // nothing new is wanted
	if g, err := c.grant(late, routeRequest.to(nil).waiting(&a, &a.Wait)); err == nil && g.Denied == nil {
		return g, nil
	}
	return jobs.Grant{}, context.Cause(ctx)
}

// lastLook is how long a request whose context has ended looks for a grant that came first.
const lastLook = time.Second

// grant sends a request for a job.
func (c *JobsClient) grant(ctx context.Context, x *exchange) (g jobs.Grant, err error) {
	w, err := routeRequest.send(ctx, c.c, x, func(w *leaseAnswerWire) error {
		switch { // the server did not look for a job, nor for one that was granted to an earlier copy of the request
		case w.Denied != (w.Denial != nil), !w.Denied && (w.Lease == nil || w.Job == nil || w.Lease.ID == "" || w.Lease.Token == 0 || w.Lease.JobID != w.Job.ID):
			return errGarbage
		case w.Denied && w.Code == deniedUnavailable:
			return errors.New(w.Reason)
		case w.Denied && w.Code == deniedOften:
			return &RateLimitedError{RetryAfter: w.RetryAfter}
		}
		return nil
	})
	switch {
	case err != nil:
		return g, err
	case w.Denied:
		return jobs.Grant{Denied: w.Denial}, nil
	}
	return jobs.Grant{Lease: *w.Lease, Job: *asRead(w.Job)}, nil
}

// Heartbeat implements jobs.Leaser.
func (c *JobsClient) Heartbeat(ctx context.Context, b jobs.Heartbeat) (jobs.HeartbeatAnswer, error) {
	if err := b.Validate(); err != nil {
		return jobs.HeartbeatAnswer{}, err
	}
	x := routeHeartbeat.to(nil, b.LeaseID).waiting(&b, &b.Wait)
	answer, err := routeHeartbeat.send(ctx, c.c, x, func(w *newsWire) error { return notUnless(w.OK) })
	return answer.HeartbeatAnswer, err
}

// HeartbeatAll implements jobs.Leaser.
func (c *JobsClient) HeartbeatAll(ctx context.Context, workerID string, leaseIDs []string) ([]jobs.LeaseAnswer, error) {
	if err := jobs.ValidateBatch(workerID, leaseIDs); err != nil {
		return nil, err
	}
	x := routeHeartbeatAll.to(&batchWire{workerID, leaseIDs})
	answer, err := routeHeartbeatAll.send(ctx, c.c, x, func(w *batchAnswerWire) error {
		if len(w.Leases) != len(leaseIDs) {
			return errGarbage
		}
		for i, l := range w.Leases {
			over := l.Code == jobs.Code(jobs.ErrWorkerMismatch) || l.Code == jobs.Code(jobs.ErrLeaseNotFound)
			if l.LeaseID != leaseIDs[i] || l.OK == over {
				return errGarbage
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	all := make([]jobs.LeaseAnswer, len(answer.Leases))
	for i, l := range answer.Leases {
		all[i] = jobs.LeaseAnswer{LeaseID: l.LeaseID, HeartbeatAnswer: l.HeartbeatAnswer}
		switch {
		case l.OK:
			all[i].Interval = answer.Interval
		case l.Code == jobs.Code(jobs.ErrWorkerMismatch):
			all[i].Err = jobs.ErrWorkerMismatch
		default:
			all[i].Err = jobs.ErrLeaseNotFound
		}
	}
	return all, nil
}

// Complete implements jobs.Leaser.
func (c *JobsClient) Complete(ctx context.Context, e jobs.Completion) (bool, error) {
	if err := e.Validate(); err != nil {
		return false, err
	}
	answer, err := routeComplete.send(ctx, c.c, routeComplete.to(&e, e.LeaseID), func(w *okWire) error { return notUnless(w.Applied != nil) })
	return answer.Applied != nil && *answer.Applied, err
}

// Report implements jobs.Leaser.
func (c *JobsClient) Report(ctx context.Context, p jobs.Progress) error {
	if err := p.Validate(); err != nil {
		return err
	}
	_, err := routeReport.send(ctx, c.c, routeReport.to(&p, p.LeaseID), done)
	return err
}

// Get implements jobs.Reader.
func (c *JobsClient) Get(ctx context.Context, jobID string) (jobs.View, error) {
	answer, err := routeJob.send(ctx, c.c, routeJob.to(nil, jobID), func(w *viewWire) error { return notUnless(w.Job.ID == jobID) })
	if err != nil {
		return jobs.View{}, err
	}
	for i := range answer.Attempts {
		answer.Attempts[i].JobID = jobID
	}
	asRead(&answer.Job)
	return jobs.View(answer), nil
}

// Output implements jobs.Reader.
func (c *JobsClient) Output(ctx context.Context, jobID string, from int64) (jobs.Output, error) {
	return routeOutput.ask(ctx, c.c, &fromWire{int(from)}, jobID)
}

// List implements jobs.Reader.
func (c *JobsClient) List(ctx context.Context, f jobs.Filter) (jobs.Page, error) {
	q := filterWire{State: f.State, Type: f.Type, Tag: f.Tag, After: f.After}
	if f.Limit != 0 {
		q.Limit = &f.Limit
	}
	answer, err := routeJobs.send(ctx, c.c, routeJobs.to(&q), func(w *pageWire) error { return notUnless(w.Jobs != nil && !w.Now.IsZero()) })
	p := answer.Page
	p.Snapshot.Busy = nil
	for i := range p.Jobs {
		asRead(&p.Jobs[i].Job)
	}
	return p, err
}

// CountEnded implements jobs.Reader.
func (c *JobsClient) CountEnded(ctx context.Context, state jobs.State, jobType string) (int, error) {
	answer, err := routeCount.ask(ctx, c.c, &endedWire{state, jobType})
	return answer.Count, err
}

// Status implements jobs.Reader.
func (c *JobsClient) Status(ctx context.Context) (jobs.Snapshot, error) {
	answer, err := routeStatus.ask(ctx, c.c, nil)
	answer.Busy = nil
	return answer, err
}

// Workers implements jobs.Reader.
func (c *JobsClient) Workers(ctx context.Context) ([]jobs.WorkerStatus, error) {
	answer, err := routeWorkers.ask(ctx, c.c, nil)
	return answer.Workers, err
}

// Stats implements jobs.Reader.
func (c *JobsClient) Stats(ctx context.Context, days int) (jobs.Stats, error) {
	answer, err := routeStats.ask(ctx, c.c, &daysWire{&days})
	return jobs.Stats{From: answer.Range.From, To: answer.Range.To, Totals: answer.Totals, ByType: answer.ByType}, err
}

// Decisions implements jobs.Reader.
func (c *JobsClient) Decisions(ctx context.Context, days int) (jobs.Decisions, error) {
	return routeDecisions.ask(ctx, c.c, &daysWire{&days})
}

// Revoke implements jobs.Operator.
func (c *JobsClient) Revoke(ctx context.Context, leaseID, reason string) error {
	_, err := routeRevoke.send(ctx, c.c, routeRevoke.to(&reasonWire{reason}, leaseID), done)
	return err
}

// Freeze implements jobs.Operator.
func (c *JobsClient) Freeze(ctx context.Context, jobType string) error {
	_, err := routeFreezeType.send(ctx, c.c, routeFreezeType.to(&typeWire{jobType}), done)
	return err
}

// Unfreeze implements jobs.Operator.
func (c *JobsClient) Unfreeze(ctx context.Context, jobType string) error {
	_, err := routeUnfreezeType.send(ctx, c.c, routeUnfreezeType.to(&typeWire{jobType}), done)
	return err
}

// Cleanup implements jobs.Operator.
func (c *JobsClient) Cleanup(ctx context.Context, days int) (int, error) {
	answer, err := routeCleanup.ask(ctx, c.c, &daysWire{&days})
	return *cmp.Or(answer.Deleted, new(int)), err
}
