package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
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
		{pattern: "POST /jobs", scope: ScopeSubmit, body: bodyNeeded, serve: (*call).submit},
		{pattern: "GET /jobs", scope: ScopeRead, serve: (*call).listJobs},
		{pattern: "GET /jobs/{job_id}", scope: ScopeRead, serve: (*call).getJob},
		{pattern: "POST /jobs/{job_id}/cancel", scope: ScopeSubmit, body: bodyOptional, serve: with((*call).cancelJob)},
		{pattern: "POST /leases/request", scope: ScopeWork, body: bodyNeeded, denies: true, serve: (*call).request},
		{pattern: "POST /leases/heartbeat", scope: ScopeWork, body: bodyNeeded, keeps: true, serve: (*call).heartbeatAll},
		{pattern: lease + "heartbeat", scope: ScopeWork, body: bodyNeeded, keeps: true, serve: with((*call).heartbeat)},
		{pattern: lease + "complete", scope: ScopeWork, body: bodyNeeded, keeps: true, serve: with((*call).complete)},
		{pattern: lease + "report", scope: ScopeWork, body: bodyNeeded, serve: with((*call).report)},
		{pattern: lease + "revoke", scope: ScopeAdmin, body: bodyOptional, serve: with((*call).revoke)},
		{pattern: "GET /status", scope: ScopeRead, serve: (*call).getStatus},
		{pattern: "GET /workers", scope: ScopeRead, serve: (*call).workers},
		{pattern: "GET /history/stats", scope: ScopeRead, serve: (*call).stats},
		{pattern: "GET /history/decisions", scope: ScopeRead, serve: (*call).decisions},
		{pattern: "POST /history/cleanup", scope: ScopeAdmin, serve: (*call).cleanup},
		{pattern: "POST /freeze", scope: ScopeAdmin, body: bodyOptional, serve: with((*call).freezeType)},
		{pattern: "POST /unfreeze", scope: ScopeAdmin, body: bodyOptional, serve: with((*call).unfreezeType)},
	}
	for i, r := range all {
		all[i].pattern = strings.Replace(r.pattern, " ", " "+jobsPrefix, 1)
	}
	return all
}

// with serves requests with a body of which nothing is to be checked but what its type says.
func with[Q any](serve func(c *call, q *Q) (any, error)) func(*call) error {
	return func(c *call) error {
		q := new(Q)
		if err := c.fields(q); err != nil {
			return err
		}
		return c.reply(serve(c, q))
	}
}

// reply answers with a value as the scheduler's wire has it, unless there is an error.
func (c *call) reply(v any, err error) error {
	if err != nil {
		return err
	}
	body, err := form.Marshal(v)
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, body)
}

// fields reads the request's body into what v points to. What is wrong with fields is the error, after further checks.
func (c *call) fields(v any, checks ...func(r *reader)) error {
	r := c.s.readers.Get().(*reader)
	defer c.s.readers.Put(r)
	r.problems = nil
	if err := r.read(c.in, v); err != nil {
		return err
	}
	for _, check := range checks {
		check(r)
	}
	if len(r.problems) > 0 {
		return &jobs.InvalidError{Problems: r.problems}
	}
	return nil
}

// submit queues a job, or a list of them. Jobs hold locks in the name of who submits them.
func (c *call) submit() error {
	q := submitWire{specWire: newSpecWire()}
	if err := c.fields(&q, q.check); err != nil {
		return err
	}
	list := []specWire{q.specWire}
	if q.Jobs != nil {
		list = *q.Jobs
	}
	specs := make([]jobs.Spec, len(list))
	for i := range list {
		specs[i] = list[i].spec()
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

// check notes what types of fields do not say. What stands beside a list does not count.
func (q *submitWire) check(r *reader) {
	if q.Jobs == nil {
		q.specWire.check(r)
		return
	}
	r.problems = slices.DeleteFunc(r.problems, func(p jobs.Problem) bool { return p.Loc[0] != "jobs" })
	for i := range *q.Jobs {
		(*q.Jobs)[i].check(r, "jobs", i)
	}
}

func (w *specWire) check(r *reader, at ...any) {
	if w.Payload != nil && w.Payload.Kind() != '{' { // there is none where even the job is no object
		r.add("dict_type", "Input should be an object", append(at, "payload")...)
	}
	if w.MaxRuntime != nil && *w.MaxRuntime == 0 {
		r.add("greater_than", "Input should be greater than 0", append(at, "max_runtime_s")...)
	}
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

// plausible reports whether a job could have the ID: stores need not cope with others.
func plausible(id string) bool {
	return len(id) <= jobs.MaxIDLen && lokt.ValidateName(id) == nil
}

func (c *call) cancelJob(q *reasonWire) (any, error) {
	id := c.r.PathValue("job_id")
	if !plausible(id) {
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

func (q *requestWire) check(r *reader) {
	if q.MaxUnits != nil && *q.MaxUnits == 0 && r.problems == nil {
		r.add("greater_than_equal", "Input should be greater than or equal to 1", "max_units")
	}
}

// request grants a lease, or denies it: that is no error, and neither is that the store is away, because workers that
// know only the plain contract end when they are answered anything but 200.
func (c *call) request() error {
	var q requestWire
	if err := c.fields(&q, q.check); err != nil {
		return err
	}
	a := jobs.Request{
		WorkerID: *q.WorkerID, Types: q.Types, Capabilities: q.Capabilities, Wait: millis(q.Wait), RequestID: q.RequestID,
	}
	if q.MaxUnits != nil {
		a.MaxUnits = *q.MaxUnits
	}
	ctx, done := c.wait(&a.Wait)
	defer done()
	g, err := c.s.Jobs.Request(ctx, a)
	switch {
	case err == nil:
	case errors.Is(context.Cause(ctx), errStopping):
		const why = "the server is about to end"
		g.Denied = &jobs.Denial{Code: jobs.DeniedEligible, Reason: why, RetryAfter: 1500 * time.Millisecond}
	case (errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)) && c.r.Context().Err() == nil:
		const why = "what is granted cannot be stored at the moment"
		g.Denied = &jobs.Denial{Code: deniedUnavailable, Reason: why, RetryAfter: 5 * time.Second}
	default:
		return err
	}
	if g.Denied != nil {
		return c.deny(g.Denied)
	}
	return c.reply(&grantedWire{Lease: toLease(&g.Lease, true), Job: toJob(&g.Job, true)}, nil)
}

func (c *call) deny(d *jobs.Denial) error {
	return c.reply(&deniedWire{Denied: true, Reason: d.Reason, RetryAfter: d.RetryAfter.Milliseconds(), Code: d.Code}, nil)
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
	return c.deny(&jobs.Denial{Code: deniedOften, Reason: "this caller asks too often", RetryAfter: after})
}

// millis returns a duration that the wire has in milliseconds.
func millis(n int) time.Duration {
	const most = (1<<63 - 1) / int64(time.Millisecond)
	return time.Duration(max(min(int64(n), most), -most)) * time.Millisecond
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

func (c *call) heartbeat(q *beatWire) (any, error) {
	b := jobs.Heartbeat{
		LeaseID: c.r.PathValue("lease_id"), WorkerID: *q.WorkerID,
		Progress: q.Progress, Checkpoint: q.Checkpoint, Wait: millis(q.Wait),
	}
	ctx, done := c.wait(&b.Wait)
	answer, err := c.s.Jobs.Heartbeat(ctx, b)
	done()
	if err != nil && errors.Is(context.Cause(ctx), errStopping) { // it was applied, and may be again
		b.Wait = 0
		answer, err = c.s.Jobs.Heartbeat(c.ctx, b)
		answer.Drain = true
	}
	return &aliveWire{toNews(&answer), answer.Interval}, err
}

func (c *call) heartbeatAll() error {
	var q batchWire
	err := c.fields(&q, func(r *reader) {
		if q.LeaseIDs == nil {
			return
		}
		for i, id := range *q.LeaseIDs {
			if len(id) > jobs.MaxIDLen {
				r.add("string_too_long", fmt.Sprintf("String should have at most %d bytes", jobs.MaxIDLen), "lease_ids", i)
			}
		}
	})
	if err != nil {
		return err
	}
	all, err := c.s.Jobs.HeartbeatAll(c.ctx, *q.WorkerID, *q.LeaseIDs)
	if err != nil {
		return err
	}
	c.list, err = leaseAnswers(c.list[:0], all)
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, c.list)
}

// leaseAnswers appends a batchAnswerWire. Where there is nothing to tell but its end, an answer is written by hand, and
// the end, mostly the same, once: a batch of a hundred heartbeats takes half the time so.
func leaseAnswers(b []byte, all []jobs.LeaseAnswer) ([]byte, error) {
	b = append(b, `{"leases":[`...)
	var interval time.Duration
	var at time.Time
	var end []byte // how it is written
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		a := &all[i]
		interval = max(interval, a.Interval)
		if a.Err != nil || a.Cancel || a.Drain || len(a.LostLocks) > 0 {
			w := leaseNewsWire{verbatim(a.LeaseID), newsWire{Code: jobs.Code(a.Err)}}
			if a.Err == nil {
				w.newsWire = toNews(&a.HeartbeatAnswer)
			}
			text, err := form.Marshal(&w)
			if err != nil {
				return nil, err
			}
			b = append(b, text...)
			continue
		}
		if end == nil || !a.ExpiresAt.Equal(at) {
			at, end = a.ExpiresAt, append(appendTime(end[:0], a.ExpiresAt), '}')
		}
		b, _ = jsontext.AppendQuote(append(b, `{"lease_id":`...), a.LeaseID) // what is no UTF-8 is replaced
		b = append(append(b, `,"ok":true,"expires_at":`...), end...)
	}
	if b = append(b, ']'); interval > 0 {
		b = appendSeconds(append(b, `,"heartbeat_interval_s":`...), interval)
	}
	return append(b, '}'), nil
}

func (c *call) complete(q *completeWire) (any, error) {
	applied, err := c.s.Jobs.Complete(c.ctx, jobs.Completion{
		LeaseID: c.r.PathValue("lease_id"), WorkerID: *q.WorkerID,
		Status: jobs.State(*q.Status), Result: q.Result, Error: q.Error,
	})
	return &okWire{OK: true, Applied: &applied}, err
}

func (c *call) report(q *reportWire) (any, error) {
	return &okWire{OK: true}, c.s.Jobs.Report(c.ctx, jobs.Progress{
		LeaseID: c.r.PathValue("lease_id"), WorkerID: *q.WorkerID,
		Progress: q.Progress, Metrics: q.Metrics, Message: q.Message,
	})
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
	if !plausible(id) {
		return jobs.ErrJobNotFound
	}
	v, err := c.s.Jobs.Get(c.ctx, id)
	return c.reply(toView(&v, c.seesLeases()), err)
}

// seesLeases reports whether the caller is shown lease IDs.
func (c *call) seesLeases() bool { return c.may(ScopeAdmin, "") == nil }

func (c *call) listJobs() error {
	q, err := c.parameters()
	if err != nil {
		return err
	}
	f := jobs.Filter{
		Limit: jobs.DefaultList, State: jobs.State(q.Get("state")),
		Type: q.Get("type"), Tag: q.Get("tag"), After: q.Get("after"),
	}
	if q.Has("limit") {
		n, err := queryInt(q, "limit")
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return err
		}
		f.Limit = min(max(n, 1), jobs.MaxList)
	}
	p, err := c.s.Jobs.List(c.ctx, f)
	w := toPage(&p, c.seesLeases())
	w.Snapshot.Busy = new(busyRating())
	return c.reply(w, err)
}

// parameters returns those of the query.
func (c *call) parameters() (url.Values, error) {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, invalidAt("value_error", "Query should be key=value pairs, percent-encoded")
	}
	return q, nil
}

// queryInt returns a parameter that is an integer. With one that no int holds it returns the nearest, and an error that
// wraps strconv.ErrRange.
func queryInt(q url.Values, name string) (int, error) {
	n, err := strconv.ParseInt(q.Get(name), 10, strconv.IntSize)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return int(n), fmt.Errorf("%w: %w", invalidAt("int_parsing_size", "Input is too large", name), strconv.ErrRange)
	case err != nil:
		return 0, invalidAt("int_parsing", "Input should be a valid integer, unable to parse string as an integer", name)
	}
	return int(n), nil
}

// days returns how many days of history are asked for. Without a default it must be said.
func (c *call) days(absent int) (int, error) {
	q, err := c.parameters()
	switch {
	case err != nil:
		return 0, err
	case q.Has("days"):
		return queryInt(q, "days")
	case absent == 0:
		return 0, invalidAt("missing", "Field required", "days")
	}
	return absent, nil
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
	days, err := c.days(jobs.DefaultDays)
	if err != nil && !errors.Is(err, strconv.ErrRange) { // that many days are too many in any case
		return err
	}
	s, err := c.s.Jobs.Stats(c.ctx, days)
	return c.reply(toStats(&s, days), err)
}

func (c *call) decisions() error {
	days, err := c.days(jobs.DefaultDays)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return err
	}
	d, err := c.s.Jobs.Decisions(c.ctx, days)
	return c.reply(&d, err)
}

func (c *call) cleanup() error {
	days, err := c.days(0)
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
