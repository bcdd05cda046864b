package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// submit queues a job, or a list of them; what stands beside a list does not count. Jobs hold locks in the name of who
// submits them.
func (c *call) submit(q *submitWire) (answer submittedWire, err error) {
	specs := []jobs.Spec{*q.Spec}
	if q.Jobs != nil {
		specs = *q.Jobs
	}
	for i := range specs {
		if err := cmp.Or(c.mayAll(ScopeSubmit, specs[i].Tags), c.mayAll(ScopeLock, specs[i].Locks)); err != nil {
			return answer, err
		}
	}
	if err := c.room(); err != nil {
		return answer, err
	}
	all, err := c.s.Jobs.Submit(c.ctx, specs)
	switch {
	case q.Jobs != nil:
		answer.Jobs = all
	case err != nil:
		err = without(err, 2)
	default:
		answer.Receipt = &all[0]
	}
	return answer, err
}

// without returns the error with so many elements less at the beginning of its locations.
func without(err error, elements int) error {
	if wrong, ok := errors.AsType[*jobs.InvalidError](err); ok {
		for i, p := range wrong.Problems {
			wrong.Problems[i].Loc = p.Loc[min(elements, len(p.Loc)):]
		}
	}
	return err
}

func (c *call) cancelJob(q *reasonWire) (answer okWire, err error) {
	id := c.r.PathValue("job_id")
	if c.caller != nil {
		v, err := c.s.Jobs.Get(c.ctx, id)
		if err != nil {
			return answer, err
		}
		if err := c.mayAll(ScopeSubmit, v.Job.Tags); err != nil {
			return answer, err
		}
	}
	state, err := c.s.Jobs.Cancel(c.ctx, id, q.Reason)
	return okWire{OK: true, State: state}, err
}

// mayAll returns an error unless the caller may do things of that scope to all the locks or tags.
func (c *call) mayAll(s Scope, all []string) error {
	for _, one := range all {
		if err := c.may(s, one); err != nil {
			return err
		}
	}
	return nil
}

// request grants a lease, or denies it: that is no error, and neither is that the store is away, because workers that
// know only the plain contract end when they are answered anything but 200.
func (c *call) request(a *jobs.Request) (leaseAnswerWire, error) {
	ctx, done := c.wait(&a.Wait)
	defer done()
	g, err := c.s.Jobs.Request(ctx, *a)
	switch {
	case err == nil && g.Denied == nil:
		return leaseAnswerWire{Lease: shownLease(&g.Lease), Job: shownJob(&g.Job)}, nil
	case err == nil:
		return leaseAnswerWire{Denied: true, Denial: g.Denied}, nil
	case errors.Is(context.Cause(ctx), errStopping):
		return denied(jobs.DeniedEligible, "the server is about to end", 1500*time.Millisecond), nil
	case (errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)) && c.r.Context().Err() == nil:
		why := "what is granted cannot be stored at the moment"
		if errors.Is(err, syscall.ENOSPC) {
			why += ": " + syscall.ENOSPC.Error()
		}
		return denied(deniedUnavailable, why, 5*time.Second), nil
	}
	return leaseAnswerWire{}, err
}

// denied returns a denial that is the server's own.
func denied(code, reason string, after time.Duration) leaseAnswerWire {
	return leaseAnswerWire{Denied: true, Denial: &jobs.Denial{Code: code, Reason: reason, RetryAfter: after}}
}

// Codes of denials that are the server's own.
const (
	deniedUnavailable = "unavailable"  // stands for lokt.ErrUnavailable
	deniedOften       = "rate_limited" // stands for ErrRateLimited
)

// tooOften denies a worker that asks too often.
func (c *call) tooOften() error {
	after := time.Second
	if limited := (*RateLimitedError)(nil); errors.As(c.often, &limited) {
		after = min(max(limited.RetryAfter, 250*time.Millisecond), 5*time.Second)
	}
	return c.answer(http.StatusOK, denied(deniedOften, "this caller asks too often", after))
}

// wait returns the context of a request that waits so long, and what to call when it is over. Where it may not, the
// time becomes less.
func (c *call) wait(d *time.Duration) (context.Context, func()) {
	if *d > 0 && *d <= jobs.MaxWait && c.s.Stop.Err() == nil {
		*d = min(*d, c.s.Limits.Wait)
		if ctx, done, err := c.park(*d + c.s.Limits.Request); err == nil {
			return ctx, done
		}
	}
	if *d <= jobs.MaxWait { // others will be found
		*d = min(*d, 0)
	}
	return c.ctx, func() {}
}

func (c *call) heartbeat(b *jobs.Heartbeat) (newsWire, error) {
	b.LeaseID = c.r.PathValue("lease_id")
	ctx, done := c.wait(&b.Wait)
	answer, err := c.s.Jobs.Heartbeat(ctx, *b)
	done()
	if err != nil && errors.Is(context.Cause(ctx), errStopping) { // it was applied, and may be again
		b.Wait = 0
		answer, err = c.s.Jobs.Heartbeat(c.ctx, *b)
		answer.Drain = true
	}
	return newsWire{OK: true, HeartbeatAnswer: answer}, err
}

func (c *call) heartbeatAll(q *batchWire) (answer batchAnswerWire, err error) {
	var wrong []jobs.Problem
	for i, id := range q.LeaseIDs {
		if len(id) > jobs.MaxIDLen {
			msg := fmt.Sprintf("String should have at most %d bytes", jobs.MaxIDLen)
			wrong = append(wrong, jobs.Problem{Type: "string_too_long", Loc: []any{"lease_ids", i}, Msg: msg})
		}
	}
	if wrong != nil {
		return answer, &jobs.InvalidError{Problems: wrong}
	}
	all, err := c.s.Jobs.HeartbeatAll(c.ctx, q.WorkerID, q.LeaseIDs)
	if err == nil {
		err = c.sendBatch(all)
	}
	return answer, err
}

// sendBatch answers with a batchAnswerWire. Mostly only the IDs differ: what follows them is written once, by which a
// batch of a hundred takes half the time.
func (c *call) sendBatch(all []jobs.LeaseAnswer) error {
	b := append(make([]byte, 0, 128*(len(all)+1)), `{"leases":[`...)
	var last *jobs.LeaseAnswer
	var rest []byte // of it
	var interval time.Duration
	for i := range all {
		a := &all[i]
		interval = max(interval, a.Interval)
		if last == nil || !sameNews(a, last) {
			n := newsWire{OK: a.Err == nil, HeartbeatAnswer: a.HeartbeatAnswer, Code: jobs.Code(a.Err)}
			n.Interval = 0
			text, err := form.Marshal(&n)
			if err != nil {
				return err
			}
			last, rest = a, text[1:]
		}
		b, _ = jsontext.AppendQuote(append(b, `{"lease_id":`...), a.LeaseID) // what is no UTF-8 is replaced
		b = append(append(append(b, ','), rest...), ',')
	}
	tail, err := form.Marshal(&batchAnswerWire{Interval: interval})
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, append(b[:len(b)-1], tail[len(`{"leases":[`):]...))
}

// sameNews reports whether nothing is told of a lease but its end, and the same of another.
func sameNews(a, o *jobs.LeaseAnswer) bool {
	return a.Err == nil && o.Err == nil && a.ExpiresAt.Equal(o.ExpiresAt) && a.RunLeft == o.RunLeft && !a.Cancel && !o.Cancel &&
		!a.Drain && !o.Drain && len(a.LostLocks)+len(o.LostLocks) == 0
}

func (c *call) complete(q *jobs.Completion) (okWire, error) {
	q.LeaseID = c.r.PathValue("lease_id")
	applied, err := c.s.Jobs.Complete(c.ctx, *q)
	return okWire{OK: true, Applied: &applied}, err
}

func (c *call) report(q *jobs.Progress) (okWire, error) {
	q.LeaseID = c.r.PathValue("lease_id")
	return okWire{OK: true}, c.s.Jobs.Report(c.ctx, *q)
}

func (c *call) revoke(q *reasonWire) (okWire, error) {
	return okWire{OK: true}, c.s.Jobs.Revoke(c.ctx, c.r.PathValue("lease_id"), q.Reason)
}

func (c *call) freezeType(q *typeWire) (okWire, error) {
	return okWire{OK: true}, c.s.Jobs.Freeze(c.ctx, q.Type)
}

func (c *call) unfreezeType(q *typeWire) (okWire, error) {
	return okWire{OK: true}, c.s.Jobs.Unfreeze(c.ctx, q.Type)
}

func (c *call) getJob(*none) (viewWire, error) {
	v, err := c.s.Jobs.Get(c.ctx, c.r.PathValue("job_id"))
	return viewWire(*shown(&v, c.seesLeases())), err
}

func (c *call) output(q *fromWire) (jobs.Output, error) {
	return c.s.Jobs.Output(c.ctx, c.r.PathValue("job_id"), int64(q.From))
}

// seesLeases reports whether the caller is shown lease IDs.
func (c *call) seesLeases() bool { return c.may(ScopeAdmin, "") == nil }

func (c *call) listJobs(q *filterWire) (pageWire, error) {
	f := jobs.Filter{Limit: jobs.DefaultList, State: q.State, Type: q.Type, Tag: q.Tag, After: q.After}
	if q.Limit != nil {
		f.Limit = min(max(*q.Limit, 1), jobs.MaxList)
	}
	p, err := c.s.Jobs.List(c.ctx, f)
	w := toPage(&p, c.seesLeases())
	w.Snapshot.Busy = new(busyRating())
	return w, err
}

func (c *call) getStatus(*none) (jobs.Snapshot, error) {
	s, err := c.s.Jobs.Status(c.ctx)
	s.Busy = new(busyRating())
	return s, err
}

func (c *call) workers(*none) (workersWire, error) {
	all, err := c.s.Jobs.Workers(c.ctx)
	return workersWire{all}, err
}

func (c *call) stats(q *daysWire) (statsWire, error) {
	days := q.orDefault()
	s, err := c.s.Jobs.Stats(c.ctx, days)
	return toStats(&s, days), err
}

func (c *call) countEnded(q *endedWire) (a countWire, err error) {
	a.Count, err = c.s.Jobs.CountEnded(c.ctx, q.State, q.Type)
	return a, err
}

func (c *call) decisions(q *daysWire) (jobs.Decisions, error) {
	return c.s.Jobs.Decisions(c.ctx, q.orDefault())
}

func (c *call) cleanup(q *daysWire) (okWire, error) {
	if q.Days == nil {
		return okWire{}, invalidAt("missing", "Field required", "days")
	}
	// Nothing is so old; stores need not cope with times before the common era.
	deleted, err := c.s.Jobs.Cleanup(c.ctx, min(*q.Days, math.MaxInt32))
	return okWire{OK: true, Deleted: &deleted, Days: *q.Days}, err
}

// busyRating returns how busy the machine is, from 0 to 10: 10 is as many processes that want a CPU as there are, or
// more, over the last minute. Where the system does not tell, it is 0.
func busyRating() int {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return max(0, min(10, int(10*load/float64(runtime.NumCPU())+0.5)))
}
