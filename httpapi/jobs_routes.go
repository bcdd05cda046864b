package httpapi

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// submit queues a job, or a list of them.
func (c *jobsCall) submit() error {
	d, body := newBodyReader(c.in)
	list := [1][]byte{}
	d.fields(body, []string{"jobs"}, list[:])
	if err := d.err(); err != nil {
		return err
	}
	if list[0] == nil {
		spec := d.spec(body)
		if err := d.err(); err != nil {
			return err
		}
		r, err := c.submitAll([]jobs.Spec{spec})
		if err != nil {
			return without(err, 2)
		}
		c.out = appendReceipt(c.out[:0], r[0])
		return nil
	}
	items := d.items(list[0], jobs.MaxSubmit, "jobs")
	if len(items) > jobs.MaxSubmit {
		d.add("too_long", "List should have at most 1000 items", "jobs")
	}
	specs := make([]jobs.Spec, min(len(items), jobs.MaxSubmit))
	for i := range specs {
		d.at = []any{"jobs", i}
		specs[i] = d.spec(items[i])
	}
	if err := d.err(); err != nil {
		return err
	}
	all, err := c.submitAll(specs)
	if err != nil {
		return err
	}
	c.out = append(c.out[:0], `{"jobs":[`...)
	for i, r := range all {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendReceipt(c.out, r)
	}
	c.out = append(c.out, "]}"...)
	return nil
}

// submitAll submits what the caller may submit. Jobs hold locks in the name of who submits them.
func (c *jobsCall) submitAll(specs []jobs.Spec) ([]jobs.Receipt, error) {
	if c.caller != nil {
		for i := range specs {
			for _, tag := range specs[i].Tags {
				if err := c.may(ScopeSubmit, tag); err != nil {
					return nil, err
				}
			}
			for _, name := range specs[i].Locks {
				if err := c.may(ScopeLock, name); err != nil {
					return nil, err
				}
			}
		}
	}
	return c.api.jobs.Submit(c.ctx, specs)
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

// spec reads what is asked of a job.
func (d *bodyReader) spec(object []byte) jobs.Spec {
	s := jobs.NewSpec()
	names := [...]string{
		"type", "priority", "requested_units", "unique", "payload", "idempotency_key", "tags", "max_runtime_s", "max_attempts",
		"retry_backoff_s", "run_at", "locks",
	}
	var v [len(names)][]byte
	d.fields(object, names[:], v[:])
	if v[0] != nil {
		s.Type = d.optional(v[0], "type")
	}
	if v[1] != nil {
		s.Priority = jobs.Priority(d.optional(v[1], "priority"))
	}
	s.Units = d.int(v[2], s.Units, "requested_units")
	s.Unique = d.bool(v[3], "unique")
	if v[4] != nil {
		if v[4][0] != '{' {
			d.add("dict_type", "Input should be an object", "payload")
		}
		s.Payload = d.raw(v[4])
	}
	s.IdempotencyKey = d.optional(v[5], "idempotency_key")
	s.Tags = d.strings(v[6], jobs.MaxTags, "tags")
	if s.MaxRuntime = d.seconds(v[7], 0, "max_runtime_s"); v[7] != nil && s.MaxRuntime == 0 && (v[7][0] == '0' || v[7][0] == '-') {
		d.add("greater_than", "Input should be greater than 0", "max_runtime_s")
	}
	s.MaxAttempts = d.int(v[8], s.MaxAttempts, "max_attempts")
	s.RetryBackoff = d.seconds(v[9], s.RetryBackoff, "retry_backoff_s")
	s.RunAt = d.time(v[10], "run_at")
	s.Locks = d.strings(v[11], jobs.MaxLocks, "locks")
	return s
}

func (c *jobsCall) cancel() error {
	reason, err := c.only("reason")
	if err != nil {
		return err
	}
	if !plausible(c.pathID) {
		return jobs.ErrJobNotFound
	}
	if c.caller != nil {
		v, err := c.api.jobs.Get(c.ctx, c.pathID)
		if err != nil {
			return err
		}
		for _, tag := range v.Job.Tags {
			if err := c.may(ScopeSubmit, tag); err != nil {
				return err
			}
		}
	}
	state, err := c.api.jobs.Cancel(c.ctx, c.pathID, reason)
	if err != nil {
		return err
	}
	c.out = append(c.out[:0], `{"ok":true,"state":`...)
	c.out = append(appendString(c.out, string(state)), '}')
	return nil
}

// only reads a body with one field, a text that may be absent.
func (c *jobsCall) only(name string) (string, error) {
	d, body := newBodyReader(c.in)
	v := [1][]byte{}
	if string(body) != "null" {
		d.fields(body, []string{name}, v[:])
	}
	text := d.optional(v[0], name)
	return text, d.err()
}

// ask grants a lease, or denies it: that is no error, and neither is that the store is away, because workers that know
// only the plain contract end when they are answered anything but 200. Frames are small while it waits: many do.
func (c *jobsCall) ask() error {
	var a jobs.Request
	if err := c.readAsk(&a); err != nil {
		return err
	}
	ctx, done := c.wait(&a.Wait)
	defer done()
	g, err := c.api.jobs.Request(ctx, a)
	return c.granted(ctx, &g, err)
}

// readAsk reads a worker's request.
func (c *jobsCall) readAsk(a *jobs.Request) error {
	names := [...]string{"worker_id", "max_units", "types", "capabilities", "wait_ms", "request_id"}
	var v [len(names)][]byte
	d, body := newBodyReader(c.in)
	d.fields(body, names[:], v[:])
	if err := d.err(); err != nil {
		return err
	}
	*a = jobs.Request{
		WorkerID: d.string(v[0], "worker_id"), MaxUnits: d.int(v[1], 0, "max_units"), Types: d.strings(v[2], jobs.MaxTypes, "types"),
		Capabilities: d.strings(v[3], jobs.MaxTypes, "capabilities"), Wait: d.millis(v[4], "wait_ms"), RequestID: d.optional(v[5], "request_id"),
	}
	if v[1] != nil && a.MaxUnits == 0 && len(d.problems) == 0 {
		d.add("greater_than_equal", "Input should be greater than or equal to 1", "max_units")
	}
	return d.err()
}

// granted answers a worker's request.
func (c *jobsCall) granted(ctx context.Context, g *jobs.Grant, err error) error {
	switch {
	case err == nil:
	case errors.Is(context.Cause(ctx), errStopping):
		g.Denied = &jobs.Denial{Code: jobs.DeniedEligible, Reason: "the server is about to end", RetryAfter: 1500 * time.Millisecond}
	case (jobs.Code(err) == "unavailable" || errors.Is(err, context.DeadlineExceeded)) && c.ctx.Err() == nil:
		g.Denied = &jobs.Denial{Code: deniedUnavailable, Reason: "what is granted cannot be stored at the moment", RetryAfter: 5 * time.Second}
	default:
		return err
	}
	c.out = appendGrant(c.out[:0], g)
	return nil
}

// Codes of denials that are the server's own.
const (
	deniedUnavailable = "unavailable"  // stands for lokt.ErrUnavailable
	deniedOften       = "rate_limited" // stands for ErrRateLimited
)

// tooOften returns the denial for a worker that asks too often.
func tooOften(err error) *jobs.Denial {
	after := time.Second
	if limited := (*RateLimitedError)(nil); errors.As(err, &limited) {
		after = min(max(limited.RetryAfter, 250*time.Millisecond), 5*time.Second)
	}
	return &jobs.Denial{Code: deniedOften, Reason: "this caller asks too often", RetryAfter: after}
}

func (c *jobsCall) beat() error {
	names := [...]string{"worker_id", "progress", "checkpoint", "wait_ms"}
	var v [len(names)][]byte
	d, body := newBodyReader(c.in)
	d.fields(body, names[:], v[:])
	if err := d.err(); err != nil {
		return err
	}
	b := jobs.Heartbeat{
		LeaseID: c.pathID, WorkerID: d.string(v[0], "worker_id"), Progress: d.float(v[1], "progress"), Checkpoint: d.raw(v[2]),
		Wait: d.millis(v[3], "wait_ms"),
	}
	if err := d.err(); err != nil {
		return err
	}
	if b.Wait == 0 {
		answer, err := c.api.jobs.Heartbeat(c.ctx, b)
		c.out = appendBeat(c.out[:0], answer)
		return err
	}
	ctx, done := c.wait(&b.Wait)
	defer done()
	answer, err := c.api.jobs.Heartbeat(ctx, b)
	if err != nil && errors.Is(context.Cause(ctx), errStopping) { // it was applied, and may be again
		b.Wait = 0
		answer, err = c.api.jobs.Heartbeat(c.ctx, b)
		answer.Drain = true
	}
	if err != nil {
		return err
	}
	c.out = appendBeat(c.out[:0], answer)
	return nil
}

func (c *jobsCall) beatAll() error {
	names := [...]string{"worker_id", "lease_ids"}
	var v [len(names)][]byte
	d, body := newBodyReader(c.in)
	d.fields(body, names[:], v[:])
	if err := d.err(); err != nil {
		return err
	}
	worker := d.string(v[0], "worker_id")
	if v[1] == nil {
		d.add("missing", "Field required", "lease_ids")
	}
	leases := d.strings(v[1], jobs.MaxBeats, "lease_ids")
	for i, id := range leases {
		if len(id) > jobs.MaxIDLen {
			d.add("string_too_long", "String should have at most 256 bytes", "lease_ids", i)
		}
	}
	if err := d.err(); err != nil {
		return err
	}
	all, err := c.api.jobs.HeartbeatAll(c.ctx, worker, leases)
	if err != nil {
		return err
	}
	c.out = appendBeats(c.out[:0], all)
	return nil
}

func (c *jobsCall) complete() error {
	names := [...]string{"worker_id", "status", "result", "error"}
	var v [len(names)][]byte
	d, body := newBodyReader(c.in)
	d.fields(body, names[:], v[:])
	if err := d.err(); err != nil {
		return err
	}
	e := jobs.Completion{
		LeaseID: c.pathID, WorkerID: d.string(v[0], "worker_id"), Status: jobs.State(d.string(v[1], "status")), Result: d.raw(v[2]), Error: d.raw(v[3]),
	}
	if err := d.err(); err != nil {
		return err
	}
	applied, err := c.api.jobs.Complete(c.ctx, e)
	if err != nil {
		return err
	}
	c.out = append(c.out[:0], `{"ok":true,"applied":`...)
	c.out = append(strconv.AppendBool(c.out, applied), '}')
	return nil
}

func (c *jobsCall) report() error {
	names := [...]string{"worker_id", "progress", "metrics", "message"}
	var v [len(names)][]byte
	d, body := newBodyReader(c.in)
	d.fields(body, names[:], v[:])
	if err := d.err(); err != nil {
		return err
	}
	p := jobs.Progress{
		LeaseID: c.pathID, WorkerID: d.string(v[0], "worker_id"), Progress: d.float(v[1], "progress"), Metrics: d.raw(v[2]),
	}
	if v[3] != nil {
		text := d.optional(v[3], "message")
		p.Message = &text
	}
	if err := d.err(); err != nil {
		return err
	}
	return c.ok(c.api.jobs.Report(c.ctx, p))
}

// ok answers with nothing but success, unless there is an error.
func (c *jobsCall) ok(err error) error {
	c.out = append(c.out[:0], `{"ok":true}`...)
	return err
}

func (c *jobsCall) revoke() error {
	reason, err := c.only("reason")
	if err != nil {
		return err
	}
	return c.ok(c.api.jobs.Revoke(c.ctx, c.pathID, reason))
}

func (c *jobsCall) freeze() error   { return c.frozen(c.api.jobs.Freeze) }
func (c *jobsCall) unfreeze() error { return c.frozen(c.api.jobs.Unfreeze) }

func (c *jobsCall) frozen(change func(context.Context, string) error) error {
	jobType, err := c.only("type")
	if err != nil {
		return err
	}
	return c.ok(change(c.ctx, jobType))
}

// wait returns the context of a request that waits so long, and what to call when it is over. Where it may not, the time
// becomes less.
func (c *jobsCall) wait(d *time.Duration) (context.Context, func()) {
	if *d < 0 || *d > jobs.MaxWait { // that will be found
		return c.ctx, func() {}
	}
	*d = min(*d, c.s.Limits.Wait)
	if *d > 0 && c.api.parking.stopping() {
		*d = 0
	}
	if *d > 0 {
		if free, err := c.s.parked.take(c.who()); err == nil {
			c.in, c.out = nil, nil // others can use the memory better
			ctx, done := c.api.parking.park(c.ctx)
			return ctx, func() { done(); free() }
		}
		*d = 0
	}
	return c.brief()
}
