package jobstest

import (
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

var submitTests = []serviceTest{
	{name: "a job comes back as it was submitted", run: jobComesBack},
	{name: "a list of jobs is queued in order", run: listIsQueuedInOrder},
	{name: "a list with one wrong job is refused as a whole, and says where", run: wrongListIsRefused},
	{name: "what is wrong with a job is found, and where it is", run: wrongSpecs},
	{name: "what is wrong with other requests is found, and where it is", run: wrongRequests},
	{name: "the same job under the same key is the same job", run: keyGivesTheSameJob},
	{name: "another job under the same key is a conflict, and queues nothing", run: keyConflicts},
	{name: "equal jobs under one key submitted at once are one job", run: keysAtOnce},
	{name: "a key is kept when its job has ended", run: keyOutlivesJob},
}

func jobComesBack(e *env) {
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	want := spec(kind("render"), class(jobs.Low), units(3), unique,
		payload(`{"n": 12345678901234567890.10, "s":"<&>"}`), key("k"),
		tags("a", "needs:gpu"), atMost(90*time.Second), attempts(4), backoff(2500*time.Millisecond), notBefore(at),
		locks("x", "y.z"))
	r, err := e.s.Submit(e.within(), []jobs.Spec{want})
	if err != nil || len(r) != 1 || r[0].State != jobs.Queued {
		e.Fatalf("submit answered %+v, %v", r, err)
	}
	v := e.expect(r[0].JobID, jobs.Queued)
	got := v.Job.Spec
	if string(got.Payload) != string(want.Payload) || got.Fingerprint() != want.Fingerprint() ||
		got.IdempotencyKey != "k" {
		e.Errorf("job is %+v, not %+v", got, want)
	}
	if v.Job.CreatedAt.IsZero() || v.Job.CreatedAt != v.Job.CreatedAt.UTC().Truncate(time.Millisecond) ||
		v.Job.UpdatedAt.Before(v.Job.CreatedAt) {
		e.Errorf("job was created at %v and updated at %v", v.Job.CreatedAt, v.Job.UpdatedAt)
	}
	if _, err := e.s.Get(e.within(), "nobody"); !errors.Is(err, jobs.ErrJobNotFound) {
		e.Errorf("an unknown job is %v", err)
	}
}

func listIsQueuedInOrder(e *env) {
	r, err := e.s.Submit(e.within(), []jobs.Spec{spec(), spec(kind("b")), spec()})
	if err != nil || len(r) != 3 {
		e.Fatalf("submit answered %+v, %v", r, err)
	}
	for _, rc := range r {
		e.grantOf(rc.JobID, ask("w"))
	}
}

func wrongListIsRefused(e *env) {
	_, err := e.s.Submit(e.within(), []jobs.Spec{spec(), spec(class("urgent"), units(11)), spec(kind(""))})
	e.invalid(err, "jobs.1.priority", "jobs.1.requested_units", "jobs.2.type")
	_, err = e.s.Submit(e.within(), nil)
	e.invalid(err, "jobs")
	_, err = e.s.Submit(e.within(), make([]jobs.Spec, jobs.MaxSubmit+1))
	e.invalid(err, "jobs")
	e.queued(0)
}

func wrongSpecs(e *env) {
	long := strings.Repeat("x", jobs.MaxIDLen+1)
	for _, c := range []struct {
		edit func(*jobs.Spec)
		loc  string
	}{
		{kind(""), "type"}, {kind(long), "type"}, {kind("a\x00"), "type"}, {kind("\xff"), "type"},
		{class(""), "priority"}, {class("High"), "priority"},
		{units(0), "requested_units"}, {units(-1), "requested_units"}, {units(11), "requested_units"},
		{payload(""), "payload"}, {payload("[]"), "payload"}, {payload("{"), "payload"}, {payload("null"),
			"payload"}, {payload("{} {}"), "payload"},
		{key(long), "idempotency_key"}, {tags("a", long), "tags.1"}, {tags(make([]string, jobs.MaxTags+1)...), "tags"},
		{atMost(-1), "max_runtime_s"}, {atMost(math.MaxInt64), "max_runtime_s"},
		{attempts(0), "max_attempts"}, {attempts(jobs.MaxAttempts + 1), "max_attempts"},
		{backoff(-1), "retry_backoff_s"}, {backoff(math.MaxInt64), "retry_backoff_s"},
		{notBefore(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), "run_at"},
		{locks("a", "a/b"), "locks.1"}, {locks("a", "a"), "locks.1"}, {locks(make([]string, jobs.MaxLocks+1)...),
			"locks"},
	} {
		_, err := e.s.Submit(e.within(), []jobs.Spec{spec(c.edit)})
		var wrong *jobs.InvalidError
		if c.loc == "locks" && errors.As(err, &wrong) {
			wrong.Problems = wrong.Problems[:1] // the names are wrong, too
		}
		e.invalid(err, "jobs.0."+c.loc)
	}
	e.submit(kind(strings.Repeat("x", jobs.MaxIDLen)), units(10), payload(" {} "), tags(""),
		attempts(jobs.MaxAttempts), backoff(0))
}

func wrongRequests(e *env) {
	ctx := e.within()
	long, bad, half := strings.Repeat("x", jobs.MaxIDLen+1), math.NaN(), 1.5
	askFor := func(a jobs.Request) error { _, err := e.s.Request(ctx, a); return err }
	e.invalid(askFor(ask("")), "worker_id")
	e.invalid(askFor(ask(long)), "worker_id")
	e.invalid(askFor(ask("w", atMostUnits(-1))), "max_units")
	e.invalid(askFor(ask("w", types("a", long))), "types.1")
	e.invalid(askFor(ask("w", capable(long))), "capabilities.0")
	e.invalid(askFor(ask("w", waiting(-1))), "wait_ms")
	e.invalid(askFor(ask("w", waiting(jobs.MaxWait+1))), "wait_ms")
	e.invalid(askFor(ask("w", request(long))), "request_id")

	beat := func(b jobs.Heartbeat) error { _, err := e.s.Heartbeat(ctx, b); return err }
	e.invalid(beat(jobs.Heartbeat{LeaseID: "unknown"}), "worker_id")
	e.invalid(beat(jobs.Heartbeat{LeaseID: "unknown", WorkerID: "w", Progress: &bad}), "progress")
	e.invalid(beat(jobs.Heartbeat{LeaseID: "unknown", WorkerID: "w", Progress: &half}), "progress")
	e.invalid(beat(jobs.Heartbeat{LeaseID: "unknown", WorkerID: "w", Checkpoint: []byte("{")}), "checkpoint")
	_, err := e.s.HeartbeatAll(ctx, "", nil)
	e.invalid(err, "worker_id", "lease_ids")
	_, err = e.s.HeartbeatAll(ctx, "w", make([]string, jobs.MaxHeartbeats+1))
	e.invalid(err, "lease_ids")
	_, err = e.s.Complete(ctx, jobs.Completion{LeaseID: "unknown", Status: jobs.Expired, Result: []byte("x"),
		Error: []byte("\xff")})
	e.invalid(err, "worker_id", "status", "result", "error")
	e.invalid(e.s.Report(ctx, jobs.Progress{LeaseID: "unknown", Progress: &half, Metrics: []byte("x"), Text: "\x00", Offset: -1}),
		"worker_id", "progress", "metrics", "output", "offset")
	e.invalid(e.s.Revoke(ctx, "unknown", "a\x00b"), "reason")
	_, err = e.s.Cancel(ctx, "unknown", strings.Repeat("x", jobs.MaxTextLen+1))
	e.invalid(err, "reason")
	_, err = e.s.List(ctx, jobs.Filter{State: "done", After: "3z"})
	e.invalid(err, "state", "after")
	_, err = e.s.Stats(ctx, 0)
	e.invalid(err, "days")
	_, err = e.s.Decisions(ctx, jobs.MaxDays+1)
	e.invalid(err, "days")
	_, err = e.s.CountEnded(ctx, "done", "a\x00b")
	e.invalid(err, "state", "type")
	_, err = e.s.Cleanup(ctx, 0)
	e.invalid(err, "days")
}

func keyGivesTheSameJob(e *env) {
	first := e.submit(key("k"), payload(`{"a": 1, "b": [1e2, "x"]}`))
	if again := e.submit(key("k"), payload(`{"b":[100.0,"\u0078"],"a":1}`)); again != first {
		e.Errorf("an equal job written otherwise became job %s, not %s", again, first)
	}
	same := spec(key("k"), payload(`{"a":1,"b":[100,"x"]}`))
	r, err := e.s.Submit(e.within(), []jobs.Spec{spec(), same, spec(key("l")), spec(key("l"))})
	if err != nil || r[1].JobID != first || r[2].JobID != r[3].JobID || r[0].JobID == first || r[2].JobID == first {
		e.Errorf("a list with the same jobs was answered with %+v, %v", r, err)
	}
	e.queued(3)
	e.grantOf(first, ask("w"))
	leased := jobs.Receipt{JobID: first, State: jobs.Leased}
	if r, err := e.s.Submit(e.within(), []jobs.Spec{same}); err != nil || r[0] != leased {
		e.Errorf("a job that is leased was answered with %+v, %v", r, err)
	}
}

func keyConflicts(e *env) {
	e.submit(key("k"))
	for _, edit := range []func(*jobs.Spec){
		kind("other"), class(jobs.High), units(2), unique, payload(`{"a":1}`), tags("t"), atMost(time.Second), attempts(2),
		backoff(0), notBefore(time.Now()), locks("l"),
	} {
		if _, err := e.s.Submit(e.within(), []jobs.Spec{spec(), spec(key("k"), edit)}); !errors.Is(err,
			jobs.ErrConflict) || jobs.Code(err) != "idempotency_conflict" {
			e.Errorf("another job under the same key: %v", err)
		}
	}
	if _, err := e.s.Submit(e.within(), []jobs.Spec{spec(key("m")), spec(key("m"), units(2))}); !errors.Is(err,
		jobs.ErrConflict) {
		e.Errorf("two jobs under one key in a list: %v", err)
	}
	e.queued(1)
}

func keysAtOnce(e *env) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	ids := map[string]bool{}
	for range 16 {
		wg.Go(func() {
			r, err := e.s.Submit(e.within(), []jobs.Spec{spec(key("k"))})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				e.Errorf("submit: %v", err)
				return
			}
			ids[r[0].JobID] = true
		})
	}
	wg.Wait()
	if e.queued(1); len(ids) != 1 {
		e.Errorf("%d jobs were made of one", len(ids))
	}
}

func keyOutlivesJob(e *env) {
	id := e.submit(key("k"))
	e.complete(e.grant(ask("w")), jobs.Completed)
	r, err := e.s.Submit(e.within(), []jobs.Spec{spec(key("k"))})
	if err != nil || r[0] != (jobs.Receipt{JobID: id, State: jobs.Completed}) {
		e.Errorf("a job that has ended was answered with %+v, %v", r, err)
	}
	if _, err := e.s.Submit(e.within(), []jobs.Spec{spec(key("k"), units(2))}); !errors.Is(err, jobs.ErrConflict) {
		e.Errorf("another job under the key of one that has ended: %v", err)
	}
}
