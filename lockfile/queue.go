package lockfile

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/lokt-dev/lokt"
)

// Queue is the on-disk form of the claims that wait for a lock, next first. The acquired_ts of a waiter is when it was
// queued, and its expires_at when it leaves the queue unless its claimant asks again.
type Queue struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	Waiters []*Record `json:"waiters"`
}

// Asker is a process that asks for a lock: its death takes a waiting claim out of the queue. It is a lokt.Process under
// other names.
type Asker struct {
	PID        int    `json:"pid"`
	Start      int64  `json:"start,omitzero"`
	Boot       string `json:"boot_id,omitzero"`
	Namespace  string `json:"pid_ns,omitzero"`
	Liveness   string `json:"liveness,omitzero"`
	Child      int    `json:"child_pid,omitzero"`
	ChildStart int64  `json:"child_start,omitzero"`
}

// FromWaiter returns the record of a waiter whose times are on now's wall clock.
func FromWaiter(w lokt.Waiter, now Now) *Record {
	r := fromClaim(w.Claim)
	r.Version, r.Passed, r.Messages, r.Ousted = Version, w.Passed, slices.Clone(w.Messages), w.Ousted
	r.AcquiredTS, r.ExpiresAt = w.Since.UTC(), w.Until.UTC()
	r.Clock = NewClock(now, r.AcquiredTS, r.ExpiresAt)
	return r
}

// Waiter returns the waiter that the record describes, its times moved to the reader's wall clock. It shares nothing
// with the record.
func (r *Record) Waiter(now Now) lokt.Waiter {
	shift := r.Shift(now)
	return lokt.Waiter{Claim: r.claim(), Since: move(r.AcquiredTS, shift), Until: move(r.ExpiresAt, shift), Passed: r.Passed, Ousted: r.Ousted, Messages: slices.Clone(r.Messages)}
}

// DecodeQueue reads the queue of the named lock. Errors wrap ErrCorrupt, ErrVersion or ErrName.
func DecodeQueue(name string, data []byte) (*Queue, error) {
	q := &Queue{}
	if err := json.Unmarshal(data, q, form); err != nil {
		return nil, undecoded(data, err)
	}
	switch {
	case q.Version > Version:
		return nil, fmt.Errorf("%w: %d, and this program knows %d", ErrVersion, q.Version, Version)
	case q.Name != name:
		return nil, fmt.Errorf("%w: %q", ErrName, q.Name)
	}
	for _, w := range q.Waiters {
		if w == nil || w.Owner == "" || w.LockID == "" {
			return nil, fmt.Errorf("%w: a waiter without an owner or a lease", ErrCorrupt)
		}
		if err := w.sound(); err != nil {
			return nil, err
		}
		w.Name = name
	}
	return q, nil
}

// Encode returns the queue as one line of JSON. It fails if the queue is too large to be read again, or has a time that
// cannot be written.
func (q *Queue) Encode() ([]byte, error) {
	q.Version = Version
	return line(q, "queue", q.Name)
}
