package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
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
	title  string
}

// errorTable says how errors travel. The handler looks for the first row whose error the answer wraps, the client for
// the row of a code. Typed errors put their fields beside the code: see problem.
func errorTable() []errorKind {
	return []errorKind{
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
	Detail    string `json:"detail,omitempty"`
	RequestID string `json:"request_id,omitempty"`

	// Of errors about a lock.
	Lock     string       `json:"lock,omitempty"`
	Now      *wireTime    `json:"now,omitempty"`
	Freeze   *wireFreeze  `json:"freeze,omitempty"`
	Holders  []wireHolder `json:"holders,omitempty"`
	Ahead    []wireWaiter `json:"ahead,omitempty"`
	Cycle    []string     `json:"cycle,omitempty"` // the claim gave way because of this circle
	TimedOut int64        `json:"timed_out_ms,omitempty"`
	Gone     bool         `json:"gone,omitempty"`  // the lease is not, or no longer, among the holders
	Cause    string       `json:"cause,omitempty"` // why it is gone, if that is known
	Guard    bool         `json:"guard,omitempty"` // it is the caller's own, but a running guard's

	RetryAfter int64 `json:"retry_after_ms,omitempty"`
}

// newProblem returns what the wire says about an error. Details of internal errors stay with the server.
func newProblem(err error) problem {
	k := kindOf(err)
	p := problem{Type: "about:blank", Title: k.title, Status: k.status, Code: k.code, Detail: err.Error()}
	var blocked *lokt.BlockedError
	var gone *lokt.GoneError
	var notOwner *lokt.NotOwnerError
	var limited *RateLimitedError
	switch {
	case errors.As(err, &blocked):
		p.Lock, p.Now, p.Freeze = blocked.Name, optionalTime(blocked.Now), toFreeze(blocked.Freeze)
		p.Holders, p.Ahead = toHolders(blocked.Holders, lokt.Snapshot{}), toWaiters(blocked.Ahead, lokt.Snapshot{})
		p.Cycle, p.TimedOut = blocked.Cycle, millis(blocked.TimedOut)
	case errors.As(err, &gone):
		p.Lock, p.Gone, p.Cause, p.Holders = gone.Name, true, gone.Cause, toHolders(gone.Holders, lokt.Snapshot{})
	case errors.As(err, &notOwner):
		p.Lock, p.Freeze, p.Guard, p.Holders = notOwner.Name, toFreeze(notOwner.Freeze), notOwner.Guard, toHolders(notOwner.Holders, lokt.Snapshot{})
	case errors.As(err, &limited):
		p.RetryAfter = max(millis(limited.RetryAfter), 1)
	case k.code == "internal":
		p.Detail = ""
	case k.code == "unavailable", k.code == "full":
		p.RetryAfter = 1000
	}
	return p
}

// failLocks answers with an error of the locks API.
func failLocks(c *call, err error) {
	p := newProblem(c.view().error(err))
	p.RequestID = c.id
	p.Detail = scrub(p.Detail, c.secret())
	h := c.w.Header()
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfter+999)/1000, 10))
	}
	if errors.Is(c.writeJSON(p.Status, "application/problem+json", p), errCrowded) {
		p.Holders, p.Ahead = nil, nil
		_ = c.writeJSON(p.Status, "application/problem+json", p) // if it cannot be written nobody is there to read it
	}
}

// err returns the error that the problem was made from, as far as the wire tells. own puts the caller's lease IDs back.
func (p problem) err(own func(publicID string) string, leaseID string) error {
	holders := fromHolders(p.Holders, own)
	switch p.Code {
	case "held", "frozen":
		return &lokt.BlockedError{
			Name: p.Lock, Freeze: p.Freeze.freeze(), Holders: holders, Ahead: fromWaiters(p.Ahead, own),
			Now: p.Now.time(), TimedOut: time.Duration(p.TimedOut) * time.Millisecond, Cycle: p.Cycle,
		}
	case "not_owner", "not_found":
		if p.Gone {
			return &lokt.GoneError{Name: p.Lock, LeaseID: leaseID, Cause: p.Cause, Holders: holders}
		}
		return &lokt.NotOwnerError{Name: p.Lock, Holders: holders, Freeze: p.Freeze.freeze(), Guard: p.Guard}
	case "rate_limited":
		return &RateLimitedError{RetryAfter: time.Duration(p.RetryAfter) * time.Millisecond}
	}
	for _, k := range errorTable() {
		if k.code == p.Code {
			return &wireError{kind: k.err, detail: cmp.Or(p.Detail, k.err.Error()), requestID: p.RequestID}
		}
	}
	return &wireError{kind: errInternal, detail: cmp.Or(p.Detail, p.Title, "error "+strconv.Itoa(p.Status)), requestID: p.RequestID}
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

// Answered reports whether an error is what a server answered a request for locks with, rather than one of reaching it.
func Answered(err error) bool {
	var e *wireError
	return errors.As(err, &e)
}

// scrub replaces a lease ID in a text for people.
func scrub(text, leaseID string) string {
	if leaseID == "" {
		return text
	}
	return strings.ReplaceAll(text, leaseID, PublicID(leaseID))
}
