package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// JobsClient is a jobs.Service that asks a server. It is safe for concurrent use.
//
// A request that fails on the way is sent again, to the same server or the next, for as long as ClientOptions.Patience
// and its context allow, if that does no harm: asks carry a request ID, made up where the caller gives none, so that a
// lease whose announcement was lost is announced again. Jobs without an idempotency key are sent again only if the
// server cannot have seen them. After a lost answer Complete may report false although it was this call that ended the
// lease. What could not be asked is an error that wraps lokt.ErrUnavailable and names the server.
//
// Durations are whole milliseconds on the wire, and so are times. Job.Seq, Job.Ord, Job.Revision and Lease.RequestID
// stay with the server and are zero here.
type JobsClient struct{ c *Client }

var _ jobs.Service = (*JobsClient)(nil)

// NewJobs returns a client of the scheduler of the servers at urls, as New does for their locks.
func NewJobs(urls string, o ClientOptions) (*JobsClient, error) {
	c, err := New(urls, o)
	if err != nil {
		return nil, err
	}
	return c.Jobs(), nil
}

// Jobs returns a client of the same servers' scheduler. They share connections.
func (c *Client) Jobs() *JobsClient { return &JobsClient{c} }

// URL returns the server that is asked next, without a password.
func (c *JobsClient) URL() string { return c.c.URL() }

// Close closes connections that are not in use. The client can be used again.
func (c *JobsClient) Close() error { return c.c.Close() }

// post sends a body and decodes the answer.
func (c *JobsClient) post(ctx context.Context, path string, body []byte, answer any) error {
	return c.do(ctx, &exchange{method: http.MethodPost, path: path, body: encoded(body)}, answer)
}

// get asks for something and decodes the answer.
func (c *JobsClient) get(ctx context.Context, path string, query url.Values, answer any) error {
	return c.do(ctx, &exchange{method: http.MethodGet, path: path, query: query}, answer)
}

func (c *JobsClient) do(ctx context.Context, x *exchange, answer any) error {
	x.path = jobsPrefix + x.path
	x.fails = jobsFailure
	return c.c.do(ctx, x, decodeInto(answer))
}

// jobsFailure returns the error that the server's failJobs answered with, whether asking again may help, and when.
func jobsFailure(status int, h http.Header, body []byte) (again bool, after time.Duration, err error) {
	after = retryAfter(h)
	again = status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
	var told struct {
		Detail jsontext.Value `json:"detail"`
	}
	var code string
	switch {
	case json.Unmarshal(body, &told) != nil || told.Detail == nil:
		return again, after, fmt.Errorf("%w: %s", errGarbage, http.StatusText(status))
	case told.Detail[0] == '[':
		return false, 0, invalidFrom(told.Detail)
	case json.Unmarshal(told.Detail, &code) != nil:
		return false, 0, fmt.Errorf("%w: %s", errGarbage, http.StatusText(status))
	}
	if code == jobs.Code(jobs.ErrRevoked) && h.Get(reasonHeader) == "revoked" {
		return false, 0, jobs.ErrRevoked
	}
	for _, e := range []error{jobs.ErrJobNotFound, jobs.ErrLeaseNotFound, jobs.ErrWorkerMismatch, jobs.ErrConflict} {
		if jobs.Code(e) == code {
			return false, 0, e
		}
	}
	switch code {
	case "rate_limited":
		return true, after, &RateLimitedError{RetryAfter: after}
	case "body_too_large": // it will be so the next time
		return false, 0, fmt.Errorf("%w: %w", lokt.ErrInvalid, ErrBodyTooLarge)
	case "not_found":
		return false, 0, fmt.Errorf("%w: this server has no scheduler", lokt.ErrUnavailable)
	}
	for _, k := range errorTable() {
		if k.code == code && k.status == status {
			if why := h.Get(reasonHeader); why != "" {
				return again, after, fmt.Errorf("%w: %s", k.err, why)
			}
			return again, after, k.err
		}
	}
	return again, after, fmt.Errorf("%w: %d %s", errGarbage, status, code)
}

// invalidFrom returns the error that appendProblems wrote.
func invalidFrom(detail []byte) error {
	var all []struct {
		Type string `json:"type"`
		Loc  []any  `json:"loc"`
		Msg  string `json:"msg"`
	}
	if json.Unmarshal(detail, &all) != nil {
		return errGarbage
	}
	e := &jobs.InvalidError{}
	for _, p := range all {
		for i, l := range p.Loc {
			if n, number := l.(float64); number {
				p.Loc[i] = int(n)
			}
		}
		e.Problems = append(e.Problems, jobs.Problem{Type: p.Type, Loc: p.Loc[min(1, len(p.Loc)):], Msg: p.Msg})
	}
	return e
}

// Submit implements jobs.Submitter.
func (c *JobsClient) Submit(ctx context.Context, specs []jobs.Spec) ([]jobs.Receipt, error) {
	if err := sendable(specs); err != nil {
		return nil, err
	}
	safe := true
	body := []byte(`{"jobs":[`)
	for i := range specs {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendSpec(body, &specs[i])
		safe = safe && specs[i].IdempotencyKey != ""
	}
	body = append(body, "]}"...)
	var answer struct {
		Jobs []struct {
			JobID string     `json:"job_id"`
			State jobs.State `json:"state"`
		} `json:"jobs"`
	}
	x := &exchange{method: http.MethodPost, path: "/jobs", body: encoded(body), once: !safe}
	if err := c.do(ctx, x, &answer); err != nil {
		return nil, err
	}
	if len(answer.Jobs) != len(specs) {
		return nil, fmt.Errorf("%w: %w: %d jobs were answered with %d", lokt.ErrUnavailable, errGarbage, len(specs), len(answer.Jobs))
	}
	all := make([]jobs.Receipt, len(specs))
	for i, r := range answer.Jobs {
		all[i] = jobs.Receipt{JobID: r.JobID, State: r.State}
	}
	return all, nil
}

// sendable returns what is wrong with specs that cannot be written as JSON, or are too many for a body. What else may be
// wrong the server knows better.
func sendable(specs []jobs.Spec) error {
	problem := func(kind, msg string) error {
		return &jobs.InvalidError{Problems: []jobs.Problem{{Type: kind, Loc: []any{"jobs"}, Msg: msg}}}
	}
	switch {
	case len(specs) == 0:
		return problem("too_short", "List should have at least 1 item")
	case len(specs) > jobs.MaxSubmit:
		return problem("too_long", fmt.Sprintf("List should have at most %d items, not %d", jobs.MaxSubmit, len(specs)))
	}
	fit := true
	for i := range specs {
		s := &specs[i]
		for _, text := range append(append([]string{s.Type, string(s.Priority), s.IdempotencyKey}, s.Tags...), s.Locks...) {
			fit = fit && utf8.ValidString(text)
		}
		fit = fit && utf8.Valid(s.Payload) && json.Valid(s.Payload) && bytes.HasPrefix(bytes.TrimLeft(s.Payload, " \t\r\n"), []byte{'{'})
	}
	if fit {
		return nil
	}
	all := &jobs.InvalidError{}
	for i := range specs {
		var wrong *jobs.InvalidError
		if errors.As(specs[i].Validate(math.MaxInt, "jobs", i), &wrong) {
			all.Problems = append(all.Problems, wrong.Problems...)
		}
	}
	return all
}

// appendSpec appends what is asked of a job.
func appendSpec(b []byte, s *jobs.Spec) []byte {
	b = append(b, `{"type":`...)
	b = appendString(b, s.Type)
	b = append(b, `,"priority":`...)
	b = appendString(b, string(s.Priority))
	b = append(b, `,"requested_units":`...)
	b = strconv.AppendInt(b, int64(s.Units), 10)
	b = append(b, `,"unique":`...)
	b = strconv.AppendBool(b, s.Unique)
	b = append(b, `,"payload":`...)
	b = append(b, s.Payload...)
	b = append(b, `,"idempotency_key":`...)
	b = appendText(b, s.IdempotencyKey)
	b = append(b, `,"tags":`...)
	b = appendStrings(b, s.Tags)
	if s.MaxRuntime != 0 {
		b = append(b, `,"max_runtime_s":`...)
		b = appendSeconds(b, s.MaxRuntime)
	}
	b = append(b, `,"max_attempts":`...)
	b = strconv.AppendInt(b, int64(s.MaxAttempts), 10)
	b = append(b, `,"retry_backoff_s":`...)
	b = appendSeconds(b, s.RetryBackoff)
	if !s.RunAt.IsZero() {
		b = append(b, `,"run_at":"`...)
		b = s.RunAt.UTC().AppendFormat(b, time.RFC3339Nano)
		b = append(b, '"')
	}
	b = append(b, `,"locks":`...)
	b = appendStrings(b, s.Locks)
	return append(b, '}')
}

// Cancel implements jobs.Submitter.
func (c *JobsClient) Cancel(ctx context.Context, jobID, reason string) (jobs.State, error) {
	body, err := onlyText("reason", reason)
	if err != nil {
		return "", err
	}
	if jobID == "" {
		return "", jobs.ErrJobNotFound
	}
	var answer struct {
		State jobs.State `json:"state"`
	}
	err = c.post(ctx, "/jobs/"+url.PathEscape(jobID)+"/cancel", body, &answer)
	return answer.State, err
}

// onlyText returns a body with one text, or none if it is empty.
func onlyText(name, text string) ([]byte, error) {
	if !utf8.ValidString(text) {
		return nil, &jobs.InvalidError{Problems: []jobs.Problem{{Type: "string_unicode", Loc: []any{name}, Msg: "Input should be UTF-8"}}}
	}
	b := append(appendString([]byte{'{'}, name), ':')
	return append(appendText(b, text), '}'), nil
}

// Request implements jobs.Leaser. If ctx ends while it waits, the server is asked whether there was a grant that has not
// arrived, before the error is returned.
func (c *JobsClient) Request(ctx context.Context, a jobs.Request) (jobs.Grant, error) {
	if err := a.Validate(); err != nil {
		return jobs.Grant{}, err
	}
	if a.RequestID == "" {
		a.RequestID = lokt.NewLeaseID()
	}
	if err := ctx.Err(); err != nil {
		return jobs.Grant{}, err
	}
	until := time.Now().Add(a.Wait)
	x := &exchange{method: http.MethodPost, path: "/leases/request", again: func() (any, time.Duration) {
		a.Wait = min(a.Wait, max(time.Until(until), 0))
		return encoded(appendAsk(nil, &a)), a.Wait
	}}
	g, err := c.grant(ctx, x)
	if err == nil || ctx.Err() == nil || !x.doubtful {
		return g, err
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	a.Wait, a.Types = 0, []string{"none." + a.RequestID} // nothing new is wanted
	if g, err := c.grant(late, &exchange{method: http.MethodPost, path: "/leases/request", body: encoded(appendAsk(nil, &a))}); err == nil && g.Denied == nil {
		return g, nil
	}
	return jobs.Grant{}, context.Cause(ctx)
}

// lastLook is how long an ask whose context has ended looks for a grant that came first.
const lastLook = time.Second

// grant sends an ask.
func (c *JobsClient) grant(ctx context.Context, x *exchange) (jobs.Grant, error) {
	var answer grantWire
	x.path = jobsPrefix + x.path
	x.fails = jobsFailure
	err := c.c.do(ctx, x, func(status int, body io.Reader) error {
		answer = grantWire{}
		if err := decodeInto(&answer)(status, body); err != nil {
			return err
		}
		switch { // the server did not look for a job, nor for one that was granted to an earlier copy of the request
		case answer.Denied && answer.Code == deniedUnavailable:
			return errors.New(answer.Reason)
		case answer.Denied && answer.Code == deniedOften:
			return &RateLimitedError{RetryAfter: time.Duration(answer.RetryAfter) * time.Millisecond}
		}
		return nil
	})
	return answer.grant(), err
}

// appendAsk appends a worker's request.
func appendAsk(b []byte, a *jobs.Request) []byte {
	b = append(b, `{"worker_id":`...)
	b = appendString(b, a.WorkerID)
	if a.MaxUnits > 0 {
		b = append(b, `,"max_units":`...)
		b = strconv.AppendInt(b, min(int64(a.MaxUnits), mostInt), 10)
	}
	if len(a.Types) > 0 {
		b = append(b, `,"types":`...)
		b = appendStrings(b, a.Types)
	}
	if len(a.Capabilities) > 0 {
		b = append(b, `,"capabilities":`...)
		b = appendStrings(b, a.Capabilities)
	}
	if a.Wait > 0 {
		b = append(b, `,"wait_ms":`...)
		b = strconv.AppendInt(b, millis(a.Wait), 10)
	}
	b = append(b, `,"request_id":`...)
	return append(appendText(b, a.RequestID), '}')
}

// Heartbeat implements jobs.Leaser.
func (c *JobsClient) Heartbeat(ctx context.Context, b jobs.Heartbeat) (jobs.HeartbeatAnswer, error) {
	if err := b.Validate(); err != nil {
		return jobs.HeartbeatAnswer{}, err
	}
	if b.LeaseID == "" {
		return jobs.HeartbeatAnswer{}, jobs.ErrLeaseNotFound
	}
	until := time.Now().Add(b.Wait)
	x := &exchange{method: http.MethodPost, path: "/leases/" + url.PathEscape(b.LeaseID) + "/heartbeat", again: func() (any, time.Duration) {
		b.Wait = min(b.Wait, max(time.Until(until), 0))
		return encoded(appendBeatOf(nil, &b)), b.Wait
	}}
	var answer beatWire
	if err := c.do(ctx, x, &answer); err != nil {
		return jobs.HeartbeatAnswer{}, err
	}
	return answer.answer(answer.Interval), nil
}

func appendBeatOf(b []byte, beat *jobs.Heartbeat) []byte {
	b = append(b, `{"worker_id":`...)
	b = appendString(b, beat.WorkerID)
	if beat.Progress != nil {
		b = append(b, `,"progress":`...)
		b = appendFloat(b, *beat.Progress)
	}
	if beat.Checkpoint != nil {
		b = append(b, `,"checkpoint":`...)
		b = append(b, beat.Checkpoint...)
	}
	if beat.Wait > 0 {
		b = append(b, `,"wait_ms":`...)
		b = strconv.AppendInt(b, millis(beat.Wait), 10)
	}
	return append(b, '}')
}

// HeartbeatAll implements jobs.Leaser.
func (c *JobsClient) HeartbeatAll(ctx context.Context, workerID string, leaseIDs []string) ([]jobs.LeaseAnswer, error) {
	if text := workerID + strings.Join(leaseIDs, ""); !utf8.ValidString(text) {
		return nil, &jobs.InvalidError{Problems: []jobs.Problem{{Type: "string_unicode", Loc: []any{"lease_ids"}, Msg: "Input should be UTF-8"}}}
	}
	body := append([]byte(`{"worker_id":`), appendString(nil, workerID)...)
	body = append(body, `,"lease_ids":`...)
	body = append(appendStrings(body, leaseIDs), '}')
	var answer struct {
		Leases []struct {
			beatWire
			LeaseID string `json:"lease_id"`
			OK      bool   `json:"ok"`
			Code    string `json:"code"`
		} `json:"leases"`
		Interval float64 `json:"heartbeat_interval_s"`
	}
	if err := c.post(ctx, "/leases/heartbeat", body, &answer); err != nil {
		return nil, err
	}
	all := make([]jobs.LeaseAnswer, len(answer.Leases))
	for i, l := range answer.Leases {
		all[i].LeaseID = l.LeaseID
		switch {
		case l.OK:
			all[i].HeartbeatAnswer = l.answer(answer.Interval)
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
	if err := e.Validate(); err != nil || e.LeaseID == "" {
		return false, err
	}
	body := append([]byte(`{"worker_id":`), appendString(nil, e.WorkerID)...)
	body = append(body, `,"status":`...)
	body = appendString(body, string(e.Status))
	body = append(body, `,"result":`...)
	body = appendRaw(body, e.Result)
	body = append(body, `,"error":`...)
	body = append(appendRaw(body, e.Error), '}')
	var answer struct {
		Applied bool `json:"applied"`
	}
	err := c.post(ctx, "/leases/"+url.PathEscape(e.LeaseID)+"/complete", body, &answer)
	return answer.Applied, err
}

// Report implements jobs.Leaser.
func (c *JobsClient) Report(ctx context.Context, p jobs.Progress) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if p.LeaseID == "" {
		return jobs.ErrLeaseNotFound
	}
	body := append([]byte(`{"worker_id":`), appendString(nil, p.WorkerID)...)
	if p.Progress != nil {
		body = append(body, `,"progress":`...)
		body = appendFloat(body, *p.Progress)
	}
	if p.Message != nil {
		body = append(body, `,"message":`...)
		body = appendString(body, *p.Message)
	}
	body = append(body, `,"metrics":`...)
	body = append(appendRaw(body, p.Metrics), '}')
	return c.post(ctx, "/leases/"+url.PathEscape(p.LeaseID)+"/report", body, &struct{}{})
}
