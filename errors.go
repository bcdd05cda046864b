package lokt

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The errors that callers tell apart, with errors.Is.
var (
	ErrInvalid     = errors.New("invalid request")
	ErrHeld        = errors.New("lock is held")
	ErrFrozen      = errors.New("lock is frozen")
	ErrNotFound    = errors.New("lock is not held")
	ErrNotOwner    = errors.New("lock is held by another")
	ErrUnavailable = errors.New("store is unavailable")

	// ErrFull means that so many wait for the lock that nobody else may. It is over when some of them have left.
	ErrFull = errors.New("lock is full")

	// ErrDamaged means that what is stored about a lock cannot be read and keeps everybody out until an operator
	// removes it by force.
	ErrDamaged = errors.New("stored record cannot be read")

	// ErrDeadlock is wrapped, beside ErrHeld, by the error of a waiting claim that gave way because it and others
	// waited for each other in a circle.
	ErrDeadlock = errors.New("waiting would never end")

	// ErrWithdrawn is what Manager.Poll returns for a claim that was taken out of the queue by somebody else.
	ErrWithdrawn = errors.New("claim was withdrawn")

	// ErrClosed is returned by a Locker that was closed.
	ErrClosed = errors.New("locker is closed")

	// ErrLost is the cause with which a lease's context ends when the lock can no longer be relied on.
	ErrLost = errors.New("lock was lost")
)

// BlockedError says who or what is in the way of a claim. It is ErrHeld or ErrFrozen, whichever applies, and
// ErrDeadlock too if that is why the claim was refused.
type BlockedError struct {
	Name     string
	Freeze   *Freeze   // set if the lock is frozen
	Holders  []Holder  // the holders in the way
	Ahead    []*Waiter // the waiters that come first
	Now      time.Time
	TimedOut time.Duration // how long the claim waited in vain
	Unsure   bool          // the store has not said that the claim has left: it may be granted yet, for its TTL
	Ousted   string        // set if it was sent away: whose newer claim did that
	Cycle    []string      // set for a deadlock: owner, lock it waits for, owner that holds that one, and so on
}

func (e *BlockedError) Error() string {
	var b strings.Builder
	if e.TimedOut > 0 {
		fmt.Fprintf(&b, "gave up after %v: ", e.TimedOut.Round(time.Millisecond))
	}
	switch {
	case len(e.Cycle) > 0:
		fmt.Fprintf(&b, "lock %q: deadlock: %s", e.Name, strings.Join(e.Cycle, " -> "))
	case e.Ousted != "":
		fmt.Fprintf(&b, "lock %q: a newer claim of %s has taken the place", e.Name, e.Ousted)
	case e.Freeze != nil && e.Freeze.Damaged != "":
		fmt.Fprintf(&b, "lock %q is frozen by a freeze that cannot be read: %s", e.Name, e.Freeze.Damaged)
	case e.Freeze != nil:
		fmt.Fprintf(&b, "lock %q is frozen by %s", e.Name, e.Freeze.Owner)
	case len(e.Holders) > 0:
		fmt.Fprintf(&b, "lock %q is held by %s", e.Name, e.Holders[0].Owner)
		if n := len(e.Holders) - 1; n > 0 {
			fmt.Fprintf(&b, " and %d more", n)
		}
	case len(e.Ahead) > 0:
		fmt.Fprintf(&b, "lock %q has %d waiting, first %s", e.Name, len(e.Ahead), e.Ahead[0].Owner)
	default:
		fmt.Fprintf(&b, "lock %q is not available", e.Name)
	}
	if e.Unsure {
		b.WriteString(UnsureText)
	}
	return b.String()
}

// UnsureText is what the text of a BlockedError that is Unsure ends with.
const UnsureText = ", and may be granted yet, for the store did not answer"

// Is makes the error ErrFrozen if a freeze is in the way, ErrHeld otherwise.
func (e *BlockedError) Is(target error) bool {
	return target == ErrFrozen && e.Freeze != nil || target == ErrHeld && e.Freeze == nil ||
		target == ErrDeadlock && len(e.Cycle) > 0
}

// GoneError says that a lease is not, or no longer, among a lock's holders. It is ErrNotOwner if somebody else holds
// the lock and ErrNotFound if nobody does.
type GoneError struct {
	Name    string
	LeaseID string
	Cause   string   // ReasonExpired and so on if the lease was still on record; empty if it was not
	Holders []Holder // of the lock now
}

func (e *GoneError) Error() string {
	why := "is gone"
	if e.Cause != "" {
		why = "has ended (" + e.Cause + ")"
	}
	if len(e.Holders) > 0 {
		return fmt.Sprintf("lease on %q %s: now held by %s", e.Name, why, e.Holders[0].Owner)
	}
	return fmt.Sprintf("lease on %q %s: nobody holds it", e.Name, why)
}

// Is makes the error ErrNotOwner or ErrNotFound.
func (e *GoneError) Is(target error) bool {
	return target == ErrNotOwner && len(e.Holders) > 0 || target == ErrNotFound && len(e.Holders) == 0
}

// NotOwnerError refuses to end what belongs to another, or what ends by itself. It is ErrNotOwner.
type NotOwnerError struct {
	Name    string
	Holders []Holder // whose it is; empty for a freeze
	Freeze  *Freeze
	Guard   bool // it is the caller's own, but a running guard's
}

func (e *NotOwnerError) Error() string {
	switch {
	case e.Freeze != nil:
		return fmt.Sprintf("lock %q is frozen by %s", e.Name, e.Freeze.Owner)
	case e.Guard && e.Holders[0].Owner.Process.PID == 0:
		return fmt.Sprintf("lock %q is held for no process that is known, and ends by itself", e.Name)
	case e.Guard:
		return fmt.Sprintf("lock %q is held by a running guard (pid %d), which ends it by itself", e.Name, e.Holders[0].Owner.Process.PID)
	case len(e.Holders) > 0:
		return fmt.Sprintf("lock %q is held by %s", e.Name, e.Holders[0].Owner)
	}
	return fmt.Sprintf("lock %q belongs to another", e.Name)
}

// Is makes the error ErrNotOwner.
func (e *NotOwnerError) Is(target error) bool { return target == ErrNotOwner }
