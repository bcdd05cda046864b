package worker

// A lock that was taken for a job may end while the job runs: somebody breaks it, or no daemon renewed it in
// time. Whoever works is told so with the answer to a heartbeat.

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// ErrLockLost is why the context of a handler ends when the service says that a lock which was taken for the job
// is not held for it any more, or was not for a while: somebody else may have it. The cause is a *LockLostError.
// The lease lasts, so what the handler returns counts.
var ErrLockLost = errors.New("a lock of the job was lost")

// LockLostError says which locks were lost, and is an ErrLockLost. As JSON, which is kept with the job, it has
// the code lost_locks.
type LockLostError struct {
	Names []string // in order
	Err   error    // what the handler returned; nil if that is not known yet
}

func (e *LockLostError) Error() string {
	text := "the job has lost the lock " + strings.Join(e.Names, ", ")
	if len(e.Names) > 1 {
		text = "the job has lost the locks " + strings.Join(e.Names, ", ")
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Is reports that it is an ErrLockLost.
func (e *LockLostError) Is(target error) bool { return target == ErrLockLost }

// Unwrap returns what the handler returned.
func (e *LockLostError) Unwrap() error { return e.Err }

// CodeLostLocks is the code that the error of an attempt has which was ended because of a lost lock.
const CodeLostLocks = "lost_locks"

// MarshalJSON implements json.Marshaler.
func (e *LockLostError) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Code      string   `json:"code"`
		Message   string   `json:"message"`
		LostLocks []string `json:"lost_locks"`
	}{CodeLostLocks, e.Error(), e.Names})
}

// hear takes in which locks the service says are lost.
func (r *Run) hear(names []string) {
	if len(names) == 0 {
		return
	}
	r.mu.Lock()
	r.lostLocks = slices.Compact(slices.Sorted(slices.Values(append(r.lostLocks, names...))))
	r.mu.Unlock()
	if !r.w.o.KeepWithoutLocks {
		r.cancel(&LockLostError{Names: r.LostLocks()})
	}
}

// LostLocks returns the locks of the job that the service has said are lost, in order of name. Unless the worker
// was told otherwise (WorkerOptions.KeepWithoutLocks), the handler's context ends when there is one.
func (r *Run) LostLocks() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lostLocks)
}

// forLocks returns the failure of a run as it is kept: that of one whose context ended because of a lost lock says so.
func forLocks(cause, failure error) error {
	var lost *LockLostError
	if !errors.As(cause, &lost) || errors.As(failure, new(json.Marshaler)) {
		return failure
	}
	e := &LockLostError{Names: lost.Names}
	if !errors.Is(failure, context.Canceled) {
		e.Err = failure
	}
	return e
}
