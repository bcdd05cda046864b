package jobs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lokt-dev/lokt"
)

// The errors that callers tell apart, with errors.Is. Invalid requests are *InvalidError, which is lokt.ErrInvalid; a
// store out of reach, or a service that was closed, is lokt.ErrUnavailable.
var (
	ErrJobNotFound    = errors.New("job is not known")
	ErrLeaseNotFound  = errors.New("lease is not active")
	ErrWorkerMismatch = errors.New("lease belongs to another worker")
	ErrConflict       = errors.New("idempotency key was used for another job")

	// ErrRevoked is ErrLeaseNotFound where it is known that an operator took the lease away.
	ErrRevoked = fmt.Errorf("%w: it was revoked", ErrLeaseNotFound)
)

// Code returns the stable code of an error: "job_not_found", "lease_not_found", "worker_mismatch",
// "idempotency_conflict", "invalid", "unavailable", or "internal" for everything else. It is empty for nil.
func Code(err error) string {
	for _, c := range []struct {
		err  error
		code string
	}{
		{ErrJobNotFound, "job_not_found"}, {ErrLeaseNotFound, "lease_not_found"},
		{ErrWorkerMismatch, "worker_mismatch"}, {ErrConflict, "idempotency_conflict"},
		{lokt.ErrInvalid, "invalid"}, {lokt.ErrUnavailable, "unavailable"},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	if err == nil {
		return ""
	}
	return "internal"
}

// Problem is one thing that is wrong with a request, and where.
type Problem struct {
	Type string `json:"type"` // what kind of problem: "missing", "enum", "greater_than_equal" and the like
	Loc  []any  `json:"loc"`  // the way to it: member names and indexes, without the "body" or "query" that holds them
	Msg  string `json:"msg"`  // for people
}

// InvalidError says what is wrong with a request. It is lokt.ErrInvalid.
type InvalidError struct{ Problems []Problem }

func (e *InvalidError) Error() string {
	var b strings.Builder
	b.WriteString(lokt.ErrInvalid.Error())
	for i, p := range e.Problems {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		b.WriteString(sep)
		for j, l := range p.Loc {
			if j > 0 {
				b.WriteString(".")
			}
			fmt.Fprint(&b, l)
		}
		b.WriteString(": " + p.Msg)
	}
	return b.String()
}

// Is makes the error lokt.ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == lokt.ErrInvalid }
