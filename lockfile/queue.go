package lockfile

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt"
)

// Queue is the on-disk form of the claims that wait for a lock, next first.
type Queue struct {
	Version int             `json:"version"`
	Name    string          `json:"name"`
	Waiters []*WaiterRecord `json:"waiters"`
}

// WaiterRecord is one waiting claim. Its acquired_ts is when it was queued, and its expires_at when it leaves the queue
// unless its claimant asks again.
type WaiterRecord struct {
	Record
	Wait    time.Duration `json:"wait_ns"`
	Preempt time.Duration `json:"preempt_ns,omitempty"`
	Strict  bool          `json:"strict,omitempty"`
	Refresh bool          `json:"refresh,omitempty"`
}

// Asker is a process that asks for a lock: its death takes a waiting claim out of the queue.
type Asker struct {
	PID      int    `json:"pid"`
	Start    int64  `json:"start,omitempty"`
	BootID   string `json:"boot_id,omitempty"`
	PIDNS    string `json:"pid_ns,omitempty"`
	Liveness string `json:"liveness,omitempty"`
}

// FromWaiter returns the record of a waiter whose times are on now's wall clock.
func FromWaiter(w lokt.Waiter, now Now) *WaiterRecord {
	r := &WaiterRecord{
		Record: *fromClaim(w.Claim), Wait: w.Wait, Preempt: w.Preempt, Strict: w.Strict, Refresh: w.Refresh,
	}
	r.Version = Version
	r.AcquiredTS, r.ExpiresAt = w.Since.UTC(), utc(w.Until)
	r.Clock = NewClock(now, r.AcquiredTS, r.ExpiresAt)
	return r
}

// AskerOf returns the on-disk form of a process that asks.
func AskerOf(p lokt.Process) Asker {
	return Asker{PID: p.PID, Start: p.Start, BootID: p.Boot, PIDNS: p.Namespace, Liveness: p.Liveness}
}

// Process returns the process that the record describes.
func (a Asker) Process() lokt.Process {
	return lokt.Process{PID: a.PID, Start: a.Start, Boot: a.BootID, Namespace: a.PIDNS, Liveness: a.Liveness}
}

// Waiter returns the waiter that the record describes, its times moved to the reader's wall clock.
func (r *WaiterRecord) Waiter(now Now) lokt.Waiter {
	shift := r.Shift(now)
	w := lokt.Waiter{Claim: r.claim(), Since: move(r.AcquiredTS, shift), Until: move(r.ExpiresAt, shift)}
	w.Wait, w.Preempt, w.Strict, w.Refresh = r.Wait, r.Preempt, r.Strict, r.Refresh
	return w
}

// DecodeQueue reads the queue of the named lock. Errors wrap ErrCorrupt, ErrVersion or ErrName.
func DecodeQueue(name string, data []byte) (*Queue, error) {
	var q Queue
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
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
		w.Name = name
	}
	return &q, nil
}

// Encode returns the queue as one line of JSON.
func (q *Queue) Encode() ([]byte, error) {
	q.Version = Version
	data, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("encode queue of %q: %w", q.Name, err)
	}
	return append(data, '\n'), nil
}
