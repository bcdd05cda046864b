package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// jobsPrefix is where the scheduler's routes are.
const jobsPrefix = "/api/system/scheduler"

// jobsRoutes returns the scheduler's routes.
func jobsRoutes() []route {
	const lease = "POST /leases/{lease_id}/"
	all := []route{
		{"POST /jobs", ScopeSubmit, body, (*call).submit},
		{"GET /jobs", ScopeRead, 0, (*call).listJobs},
		{"GET /jobs/{job_id}", ScopeRead, 0, (*call).getJob},
		{"POST /jobs/{job_id}/cancel", ScopeSubmit, body | optional, with((*call).cancelJob)},
		{"POST /leases/request", ScopeWork, body | denies, with((*call).request, "worker_id")},
		{"POST /leases/heartbeat", ScopeWork, body | keeps, with((*call).heartbeatAll, "worker_id", "lease_ids")},
		{lease + "heartbeat", ScopeWork, body | keeps, with((*call).heartbeat, "worker_id")},
		{lease + "complete", ScopeWork, body | keeps, with((*call).complete, "worker_id", "status")},
		{lease + "report", ScopeWork, body, with((*call).report, "worker_id")},
		{lease + "revoke", ScopeAdmin, body | optional, with((*call).revoke)},
		{"GET /status", ScopeRead, 0, (*call).getStatus},
		{"GET /workers", ScopeRead, 0, (*call).workers},
		{"GET /history/stats", ScopeRead, 0, (*call).stats},
		{"GET /history/decisions", ScopeRead, 0, (*call).decisions},
		{"POST /history/cleanup", ScopeAdmin, 0, (*call).cleanup},
		{"POST /freeze", ScopeAdmin, body | optional, with((*call).freezeType)},
		{"POST /unfreeze", ScopeAdmin, body | optional, with((*call).unfreezeType)},
	}
	for i, r := range all {
		all[i].pattern = strings.Replace(r.pattern, " ", " "+jobsPrefix, 1)
	}
	return all
}

// with serves requests with a body of which nothing is to be checked but what its type says, and, of the scheduler, that
// what is needed is there.
func with[Q any](serve func(c *call, q *Q) (any, error), needed ...string) func(*call) error {
	return func(c *call) error {
		q, err := new(Q), error(nil)
		if c.scheduled() {
			err = c.fields(q, needed, nil)
		} else {
			err = c.decode(q)
		}
		if err != nil {
			return err
		}
		return c.reply(serve(c, q))
	}
}

// fields reads the request's body into what v points to. What is wrong with its fields is the error; only those that
// are about may return of it.
func (c *call) fields(v any, needed []string, about func(jobs.Problem) bool) error {
	r := c.s.readers.Get().(*reader)
	defer c.s.readers.Put(r)
	r.problems, r.there = nil, r.there[:0]
	if err := r.read(c.in, v, needed); err != nil {
		return err
	}
	if about != nil {
		r.problems = slices.DeleteFunc(r.problems, func(p jobs.Problem) bool { return !about(p) })
	}
	if len(r.problems) > 0 {
		return &jobs.InvalidError{Problems: r.problems}
	}
	return nil
}

// submit queues a job, or a list of them; what stands beside a list does not count. Jobs hold locks in the name of who
// submits them.
func (c *call) submit() error {
	q := submitWire{Spec: jobs.NewSpec()}
	err := c.fields(&q, nil, func(p jobs.Problem) bool { return q.Jobs == nil || p.Loc[0] == "jobs" })
	if err != nil {
		return err
	}
	specs := []jobs.Spec{q.Spec}
	if q.Jobs != nil {
		specs = *q.Jobs
	}
	for i := range specs {
		if err := cmp.Or(c.mayAll(ScopeSubmit, specs[i].Tags), c.mayAll(ScopeLock, specs[i].Locks)); err != nil {
			return err
		}
	}
	all, err := c.s.Jobs.Submit(c.ctx, specs)
	if q.Jobs != nil {
		return c.reply(&receiptsWire{all}, err)
	}
	if err != nil {
		return without(err, 2)
	}
	return c.reply(&all[0], nil)
}

// without returns the error with so many elements less at the beginning of its locations.
func without(err error, elements int) error {
	var wrong *jobs.InvalidError
	if errors.As(err, &wrong) {
		for i, p := range wrong.Problems {
			wrong.Problems[i].Loc = p.Loc[min(elements, len(p.Loc)):]
		}
	}
	return err
}

func (c *call) cancelJob(q *reasonWire) (any, error) {
	id := c.r.PathValue("job_id")
	if !jobs.PossibleID(id) {
		return nil, jobs.ErrJobNotFound
	}
	if c.caller != nil {
		v, err := c.s.Jobs.Get(c.ctx, id)
		if err != nil {
			return nil, err
		}
		if err := c.mayAll(ScopeSubmit, v.Job.Tags); err != nil {
			return nil, err
		}
	}
	state, err := c.s.Jobs.Cancel(c.ctx, id, q.Reason)
	return &okWire{OK: true, State: state}, err
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
func (c *call) request(a *jobs.Request) (any, error) {
	ctx, done := c.wait(&a.Wait)
	defer done()
	g, err := c.s.Jobs.Request(ctx, *a)
	switch {
	case err == nil && g.Denied == nil:
		return &leaseAnswerWire{Lease: shownLease(&g.Lease), Job: shownJob(&g.Job)}, nil
	case err == nil:
		return &leaseAnswerWire{Denied: true, Denial: g.Denied}, nil
	case errors.Is(context.Cause(ctx), errStopping):
		return denied(jobs.DeniedEligible, "the server is about to end", 1500*time.Millisecond), nil
	case (errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)) && c.r.Context().Err() == nil:
		why := "what is granted cannot be stored at the moment"
		if errors.Is(err, syscall.ENOSPC) {
			why += ": " + syscall.ENOSPC.Error()
		}
		return denied(deniedUnavailable, why, 5*time.Second), nil
	}
	return nil, err
}

// denied returns a denial that is the server's own.
func denied(code, reason string, after time.Duration) *leaseAnswerWire {
	return &leaseAnswerWire{Denied: true, Denial: &jobs.Denial{Code: code, Reason: reason, RetryAfter: after}}
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
	return c.reply(denied(deniedOften, "this caller asks too often", after), nil)
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

func (c *call) heartbeat(b *jobs.Heartbeat) (any, error) {
	b.LeaseID = c.r.PathValue("lease_id")
	ctx, done := c.wait(&b.Wait)
	answer, err := c.s.Jobs.Heartbeat(ctx, *b)
	done()
	if err != nil && errors.Is(context.Cause(ctx), errStopping) { // it was applied, and may be again
		b.Wait = 0
		answer, err = c.s.Jobs.Heartbeat(c.ctx, *b)
		answer.Drain = true
	}
	return &newsWire{OK: true, HeartbeatAnswer: answer}, err
}

func (c *call) heartbeatAll(q *batchWire) (any, error) {
	var wrong []jobs.Problem
	for i, id := range q.LeaseIDs {
		if len(id) > jobs.MaxIDLen {
			msg := fmt.Sprintf("String should have at most %d bytes", jobs.MaxIDLen)
			wrong = append(wrong, jobs.Problem{Type: "string_too_long", Loc: []any{"lease_ids", i}, Msg: msg})
		}
	}
	if wrong != nil {
		return nil, &jobs.InvalidError{Problems: wrong}
	}
	all, err := c.s.Jobs.HeartbeatAll(c.ctx, q.WorkerID, q.LeaseIDs)
	if err != nil {
		return nil, err
	}
	return batchAnswer(all)
}

// batchAnswer returns a batchAnswerWire. Mostly only the IDs differ: what follows them is written once, by which a
// batch of a hundred takes half the time.
func batchAnswer(all []jobs.LeaseAnswer) (jsontext.Value, error) {
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
				return nil, err
			}
			last, rest = a, text[1:]
		}
		b, _ = jsontext.AppendQuote(append(b, `{"lease_id":`...), a.LeaseID) // what is no UTF-8 is replaced
		b = append(append(append(b, ','), rest...), ',')
	}
	tail, err := form.Marshal(&batchAnswerWire{Interval: interval})
	return append(b[:len(b)-1], tail[len(`{"leases":[`):]...), err
}

// sameNews reports whether nothing is told of a lease but its end, and the same of another.
func sameNews(a, o *jobs.LeaseAnswer) bool {
	return a.Err == nil && o.Err == nil && a.ExpiresAt.Equal(o.ExpiresAt) && !a.Cancel && !o.Cancel &&
		!a.Drain && !o.Drain && len(a.LostLocks)+len(o.LostLocks) == 0
}

func (c *call) complete(q *jobs.Completion) (any, error) {
	q.LeaseID = c.r.PathValue("lease_id")
	applied, err := c.s.Jobs.Complete(c.ctx, *q)
	return &okWire{OK: true, Applied: &applied}, err
}

func (c *call) report(q *jobs.Progress) (any, error) {
	q.LeaseID = c.r.PathValue("lease_id")
	return &okWire{OK: true}, c.s.Jobs.Report(c.ctx, *q)
}

func (c *call) revoke(q *reasonWire) (any, error) {
	return &okWire{OK: true}, c.s.Jobs.Revoke(c.ctx, c.r.PathValue("lease_id"), q.Reason)
}

func (c *call) freezeType(q *typeWire) (any, error) {
	return &okWire{OK: true}, c.s.Jobs.Freeze(c.ctx, q.Type)
}

func (c *call) unfreezeType(q *typeWire) (any, error) {
	return &okWire{OK: true}, c.s.Jobs.Unfreeze(c.ctx, q.Type)
}

func (c *call) getJob() error {
	id := c.r.PathValue("job_id")
	if !jobs.PossibleID(id) {
		return jobs.ErrJobNotFound
	}
	v, err := c.s.Jobs.Get(c.ctx, id)
	return c.reply((*viewWire)(shown(&v, c.seesLeases())), err)
}

// seesLeases reports whether the caller is shown lease IDs.
func (c *call) seesLeases() bool { return c.may(ScopeAdmin, "") == nil }

func (c *call) listJobs() error {
	limit, err := c.number("limit", jobs.DefaultList)
	if err != nil {
		return err
	}
	q := c.r.URL.Query()
	p, err := c.s.Jobs.List(c.ctx, jobs.Filter{
		Limit: min(max(limit, 1), jobs.MaxList), State: jobs.State(q.Get("state")),
		Type: q.Get("type"), Tag: q.Get("tag"), After: q.Get("after"),
	})
	w := toPage(&p, c.seesLeases())
	w.Snapshot.Busy = new(busyRating())
	return c.reply(w, err)
}

// number returns a parameter of the query that is an integer. With a value for when it is absent, one that no int holds
// counts as the nearest; otherwise either is an error.
func (c *call) number(name string, absent int) (int, error) {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	switch {
	case err != nil:
		return 0, invalidAt("value_error", "Query should be key=value pairs, percent-encoded")
	case q.Has(name):
	case absent == 0:
		return 0, invalidAt("missing", "Field required", name)
	default:
		return absent, nil
	}
	n, err := strconv.ParseInt(q.Get(name), 10, strconv.IntSize)
	switch far := errors.Is(err, strconv.ErrRange); {
	case far && absent == 0:
		return 0, invalidAt("int_parsing_size", "Input is too large", name)
	case err != nil && !far:
		return 0, invalidAt("int_parsing", "Input should be a valid integer, unable to parse string as an integer", name)
	}
	return int(n), nil
}

func (c *call) getStatus() error {
	s, err := c.s.Jobs.Status(c.ctx)
	s.Busy = new(busyRating())
	return c.reply(&s, err)
}

func (c *call) workers() error {
	all, err := c.s.Jobs.Workers(c.ctx)
	return c.reply(&workersWire{all}, err)
}

func (c *call) stats() error {
	days, err := c.number("days", jobs.DefaultDays)
	if err != nil {
		return err
	}
	s, err := c.s.Jobs.Stats(c.ctx, days)
	return c.reply(toStats(&s, days), err)
}

func (c *call) decisions() error {
	days, err := c.number("days", jobs.DefaultDays)
	if err != nil {
		return err
	}
	d, err := c.s.Jobs.Decisions(c.ctx, days)
	return c.reply(&d, err)
}

func (c *call) cleanup() error {
	days, err := c.number("days", 0)
	if err != nil {
		return err
	}
	// Nothing is so old; stores need not cope with times before the common era.
	deleted, err := c.s.Jobs.Cleanup(c.ctx, min(days, 1<<31-1))
	return c.reply(&okWire{OK: true, Deleted: &deleted, Days: days}, err)
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
