package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// The errors that this package adds to those of lokt and jobs. Gates return the first two; clients see all of them.
var (
	ErrUnauthenticated = errors.New("who asks is not known")
	ErrForbidden       = errors.New("not allowed")
	ErrRateLimited     = errors.New("too many requests")
	ErrBodyTooLarge    = errors.New("body is too large")
	ErrNoEvents        = errors.New("the store keeps no events")
)

// Errors of the wire itself, that no client of this package ever makes a server answer.
var (
	errInternal     = errors.New("internal error") // and a panic
	errNoRoute      = errors.New("no such route")
	errMethod       = errors.New("method is not allowed")
	errMediaType    = errors.New("media type is not JSON")
	errNoLocks      = errors.New("this server has no locks")
	errBodyTooLarge = fmt.Errorf("%w for this server", ErrBodyTooLarge)
	errBusy         = fmt.Errorf("%w: the store took too long", lokt.ErrUnavailable)
)

// RateLimitedError says that a caller asks too often. It is ErrRateLimited.
type RateLimitedError struct {
	RetryAfter time.Duration // when to ask again; 0 if that is not known
	Why        string        // if it is not the number of requests in a time
}

func (e *RateLimitedError) Error() string {
	text := ErrRateLimited.Error()
	if e.Why != "" {
		text += ": " + e.Why
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(": ask again in %v", e.RetryAfter)
	}
	return text
}

// Is makes the error ErrRateLimited.
func (e *RateLimitedError) Is(target error) bool { return target == ErrRateLimited }

// errorKind is a row of the error table: what an error is on the wire.
type errorKind struct {
	err    error
	status int
	code   string
	title  string // empty for what only the scheduler answers with
}

// errorTable says how errors travel. The handler looks for the first row whose error the answer wraps, the client for
// the row of a code. Typed errors put their fields beside the code: see problem.
func errorTable() []errorKind {
	return []errorKind{
		{jobs.ErrJobNotFound, http.StatusNotFound, "job_not_found", ""},
		{jobs.ErrLeaseNotFound, http.StatusNotFound, "lease_not_found", ""},
		{jobs.ErrWorkerMismatch, http.StatusForbidden, "worker_mismatch", ""},
		{jobs.ErrConflict, http.StatusConflict, "idempotency_conflict", ""},
		{ErrBodyTooLarge, http.StatusRequestEntityTooLarge, "body_too_large", "Body too large"},
		{lokt.ErrInvalid, http.StatusBadRequest, "invalid", "Invalid request"},
		{ErrUnauthenticated, http.StatusUnauthorized, "unauthenticated", "Unauthenticated"},
		{ErrForbidden, http.StatusForbidden, "forbidden", "Forbidden"},
		{ErrRateLimited, http.StatusTooManyRequests, "rate_limited", "Too many requests"},
		{errMediaType, http.StatusUnsupportedMediaType, "unsupported_media_type", "Unsupported media type"},
		{errNoRoute, http.StatusNotFound, "no_route", "No such route"},
		{errMethod, http.StatusMethodNotAllowed, "method_not_allowed", "Method not allowed"},
		{errNoLocks, http.StatusNotFound, "no_locks", "No locks"},
		{ErrNoEvents, http.StatusNotFound, "no_events", "No events"},
		{lokt.ErrFrozen, http.StatusLocked, "frozen", "Lock is frozen"},
		{lokt.ErrHeld, http.StatusConflict, "held", "Lock is held"},
		{lokt.ErrFull, http.StatusTooManyRequests, "full", "Lock is full"},
		{lokt.ErrNotOwner, http.StatusForbidden, "not_owner", "Lock is held by another"},
		{lokt.ErrNotFound, http.StatusNotFound, "not_found", "Lock is not held"},
		{lokt.ErrDamaged, http.StatusInternalServerError, "damaged", "Stored lock cannot be read"},
		{lokt.ErrUnavailable, http.StatusServiceUnavailable, "unavailable", "Unavailable"},
		{context.DeadlineExceeded, http.StatusServiceUnavailable, "unavailable", "Unavailable"},
		{context.Canceled, http.StatusServiceUnavailable, "unavailable", "Unavailable"},
		{errInternal, http.StatusInternalServerError, "internal", "Internal error"},
	}
}

// kindOf returns the error's row; what is in no other is internal.
func kindOf(err error) errorKind {
	table := errorTable()
	for _, k := range table {
		if errors.Is(err, k.err) {
			return k
		}
	}
	return table[len(table)-1]
}

// problem is the body of an error, application/problem+json as of RFC 9457.
type problem struct {
	Type      string `json:"type"` // always "about:blank": the code says what it is
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Detail    string `json:"detail,omitzero"`
	RequestID string `json:"request_id,omitzero"`

	// Of errors about a lock.
	Lock     string         `json:"lock,omitzero"`
	Now      time.Time      `json:"now,omitzero"`
	Freeze   *lokt.Freeze   `json:"freeze,omitzero"`
	Holders  []lokt.Holder  `json:"holders,omitempty"`
	Ahead    []*lokt.Waiter `json:"ahead,omitempty"`
	Cycle    []string       `json:"cycle,omitempty"` // the claim gave way because of this circle
	TimedOut time.Duration  `json:"timed_out_ms,omitzero"`
	Unsure   bool           `json:"unsure,omitzero"` // it may be granted yet
	Ousted   string         `json:"ousted,omitzero"` // whose newer claim has sent the claim away
	Gone     bool           `json:"gone,omitzero"`   // the lease is not, or no longer, among the holders
	Cause    string         `json:"cause,omitzero"`  // why it is gone, if that is known
	Guard    bool           `json:"guard,omitzero"`  // it is the caller's own, but a running guard's

	RetryAfter time.Duration `json:"retry_after_ms,omitzero"`
}

// problem returns what the wire says about an error to the caller. Details of internal errors stay with the server.
func (c *call) problem(err error) problem {
	k := kindOf(err)
	p := problem{Type: "about:blank", Title: k.title, Status: k.status, Code: k.code, RetryAfter: k.again(err)}
	var blocked *lokt.BlockedError
	var gone *lokt.GoneError
	var notOwner *lokt.NotOwnerError
	switch {
	case errors.As(err, &blocked):
		p.Lock, p.Now, p.Freeze, p.Holders = blocked.Name, blocked.Now, blocked.Freeze, blocked.Holders
		p.Ahead, p.Cycle, p.TimedOut = blocked.Ahead, slices.Clone(blocked.Cycle), blocked.TimedOut
		p.Unsure, p.Ousted = blocked.Unsure, blocked.Ousted
	case errors.As(err, &gone):
		p.Lock, p.Gone, p.Cause, p.Holders = gone.Name, true, gone.Cause, gone.Holders
	case errors.As(err, &notOwner):
		p.Lock, p.Freeze, p.Guard, p.Holders = notOwner.Name, notOwner.Freeze, notOwner.Guard, notOwner.Holders
	}
	if p.Lock != "" { // it is told as the caller sees it
		v := c.view()
		l := v.lock(lokt.Lock{Holders: p.Holders, Queue: p.Ahead, Freeze: p.Freeze})
		p.Holders, p.Ahead, p.Freeze = l.Holders, l.Queue, l.Freeze
		p.Ousted = v.id(p.Ousted)
		for i := 0; i < len(p.Cycle); i += 2 { // owner, lock, owner
			p.Cycle[i] = v.id(p.Cycle[i])
		}
		err = p.err("")
	}
	if k.code != "internal" {
		p.Detail = strings.ToValidUTF8(scrub(err.Error(), c.secret()), "?") // of files and of damage it may be anything
	}
	return p
}

// again returns after what time it may help to ask again; 0 if that is not known.
func (k *errorKind) again(err error) time.Duration {
	var limited *RateLimitedError
	switch {
	case errors.As(err, &limited):
		return max(limited.RetryAfter, time.Millisecond)
	case k.code == "unavailable", k.code == "full":
		return time.Second
	}
	return 0
}

// failLocks answers with an error of the locks API.
func (c *call) failLocks(err error) {
	p := c.problem(err)
	p.RequestID = c.id
	c.Header().Set("Content-Type", "application/problem+json")
	if errors.Is(c.answer(p.Status, p), errCrowded) {
		p.Holders, p.Ahead = nil, nil
		_ = c.answer(p.Status, p) // if it cannot be written nobody is there to read it
	}
}

// reasonHeader says more than the code: of a lease that was not found, where it is known, of what is not allowed, and of
// a full disk.
const reasonHeader = "Lokt-Reason"

// failJobs answers with an error of the scheduler's API.
func (c *call) failJobs(k errorKind, err error) {
	h := c.Header()
	switch {
	case k.status == http.StatusServiceUnavailable && errors.Is(err, syscall.ENOSPC): // other reasons may name files
		h.Set(reasonHeader, syscall.ENOSPC.Error())
	case errors.Is(err, jobs.ErrRevoked):
		h.Set(reasonHeader, "revoked")
	case errors.Is(err, ErrForbidden):
		h.Set(reasonHeader, strings.TrimPrefix(err.Error(), ErrForbidden.Error()+": "))
	}
	var body any = detailWire{k.code}
	switch {
	case errors.Is(err, errNoRoute):
		body = detailWire{"not_found"}
	case errors.Is(err, lokt.ErrInvalid) && k.code == "invalid":
		k.status, body = http.StatusUnprocessableEntity, c.problems(err)
	}
	b, err := form.Marshal(body)
	if err == nil {
		_ = c.send(k.status, b) // if it cannot be written nobody is there to read it
	}
}

// detailWire is an error of the scheduler's API, invalidWire that of a request that is not valid.
type detailWire struct {
	Detail string `json:"detail"`
}

type invalidWire struct {
	Detail []jobs.Problem `json:"detail"`
}

// mostProblems bounds how many problems of a body are told.
const mostProblems = 1000

// problems returns what is wrong with a request.
func (c *call) problems(err error) (w invalidWire) {
	where := "query"
	if c.takesBody {
		where = "body"
	}
	all := []jobs.Problem{{Type: "value_error", Msg: err.Error()}}
	if wrong, ok := errors.AsType[*jobs.InvalidError](err); ok {
		all = wrong.Problems
	}
	for _, p := range all[:min(len(all), mostProblems)] {
		p.Loc = append([]any{where}, p.Loc...)
		w.Detail = append(w.Detail, p)
	}
	return w
}

// own reports whether the problem is what only a loktd says: a code with its status and, if a lock is in question, its name.
func (p *problem) own(status int) bool {
	about := p.Lock != "" || !slices.Contains([]string{"held", "frozen", "not_owner", "not_found"}, p.Code)
	another := func(k errorKind) bool { return k.code == p.Code && k.status != status }
	return p.Type == "about:blank" && p.Status == status && p.Code != "" && about && !slices.ContainsFunc(errorTable(), another)
}

// err returns the error that the problem was made from, as far as the wire tells.
func (p *problem) err(leaseID string) error {
	switch p.Code {
	case "held", "frozen":
		return &lokt.BlockedError{
			Name: p.Lock, Freeze: p.Freeze, Holders: p.Holders, Ahead: p.Ahead, Now: p.Now, TimedOut: p.TimedOut, Cycle: p.Cycle,
			Unsure: p.Unsure, Ousted: p.Ousted,
		}
	case "not_owner", "not_found":
		if p.Gone {
			return &lokt.GoneError{Name: p.Lock, LeaseID: leaseID, Cause: p.Cause, Holders: p.Holders}
		}
		return &lokt.NotOwnerError{Name: p.Lock, Holders: p.Holders, Freeze: p.Freeze, Guard: p.Guard}
	case "rate_limited":
		return &RateLimitedError{RetryAfter: p.RetryAfter}
	}
	for _, k := range errorTable() {
		if k.code == p.Code {
			return &wireError{kind: k.err, detail: cmp.Or(p.Detail, k.err.Error()), requestID: p.RequestID}
		}
	}
	detail := cmp.Or(p.Detail, p.Title, "error "+strconv.Itoa(p.Status))
	return &wireError{kind: errInternal, detail: detail, requestID: p.RequestID}
}

// wireError is an error that a server answered with, and that has no type of its own.
type wireError struct {
	kind      error
	detail    string
	requestID string
}

func (e *wireError) Error() string {
	if errors.Is(e.kind, errInternal) && e.requestID != "" {
		return fmt.Sprintf("%s (request %s)", e.detail, e.requestID)
	}
	return e.detail
}

func (e *wireError) Unwrap() error { return e.kind }

// Answered reports whether an error is what a server answered with, rather than one of reaching it.
func Answered(err error) bool {
	return errors.As(err, new(*wireError))
}

// scrub replaces a lease ID in a text for people.
func scrub(text, leaseID string) string {
	if leaseID == "" {
		return text
	}
	return strings.ReplaceAll(text, leaseID, lokt.PublicID(leaseID))
}
