package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// failure returns the error that a server answered with, and when asking again may help.
func (c *Client) failure(x *exchange, resp *http.Response, body []byte) (after time.Duration, err error) {
	if x.jobs {
		after = retryAfter(resp.Header)
		return after, jobsFailure(resp, body, after)
	}
	var p problem
	if lokt.Unmarshal(body, &p) != nil || !p.own(resp.StatusCode) {
		return retryAfter(resp.Header), errGarbage
	}
	switch p.Code {
	case "no_route", "method_not_allowed", "no_locks":
		return 0, fmt.Errorf("%w: %s: %s %s", lokt.ErrUnavailable, p.Detail, x.method, x.path)
	case "rate_limited":
		after = min(p.RetryAfter, 30*time.Second)
	}
	c.claims(p.Holders, p.Ahead)
	return after, p.err(x.lease)
}

// jobsFailure returns the error that the scheduler's API answered with.
func jobsFailure(resp *http.Response, body []byte, after time.Duration) error {
	var invalid invalidWire
	var told detailWire
	switch {
	case resp.StatusCode == http.StatusUnprocessableEntity && json.Unmarshal(body, &invalid) == nil && invalid.Detail != nil:
		return invalid.err()
	case json.Unmarshal(body, &told) != nil || told.Detail == "":
		return errGarbage
	}
	why := resp.Header.Get(reasonHeader)
	switch code := told.Detail; {
	case code == "rate_limited":
		return &RateLimitedError{RetryAfter: after}
	case code == "body_too_large": // it will be so the next time
		return fmt.Errorf("%w: %w", lokt.ErrInvalid, ErrBodyTooLarge)
	case code == "not_found":
		return fmt.Errorf("%w: this server has no scheduler", lokt.ErrUnavailable)
	}
	for _, k := range errorTable() {
		switch {
		case k.code != told.Detail || k.status != resp.StatusCode:
		case why == "revoked" && k.code == jobs.Code(jobs.ErrRevoked):
			return jobs.ErrRevoked
		default:
			return &wireError{kind: k.err, detail: strings.TrimSuffix(k.err.Error()+": "+why, ": ")}
		}
	}
	return errGarbage
}

// err returns the error that the problems were made from.
func (w *invalidWire) err() error {
	for i := range w.Detail {
		p := &w.Detail[i]
		p.Loc = p.Loc[min(1, len(p.Loc)):]
		for i, l := range p.Loc {
			if n, number := l.(float64); number {
				p.Loc[i] = int(n)
			}
		}
	}
	return &jobs.InvalidError{Problems: w.Detail}
}
