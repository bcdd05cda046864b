package lokt

import (
	"context"
	"iter"
	"time"
)

// Store remembers locks. It knows nothing of claims, limits or expiry: it reports facts and keeps what the rules
// decide. Implementations pass the suite lokttest.TestStore.
//
// Errors wrap ErrUnavailable if the store cannot be reached or written, and ErrDamaged if what it holds about the lock
// cannot be read. Names have been validated by the caller.
type Store interface {
	// Update replaces the named lock with what change returns, as one atomic step: nothing else changes the lock
	// between what change sees and what is stored. change may run again after a conflict, so it has no side
	// effects; it leaves what it is given as it is, and what it returns is the store's. When Update returns nil, the change is stored as durably as the store promises, its events are kept in
	// the order of the changes, and waiters will look again. When it returns an error the outcome is unknown:
	// either everything was stored or nothing was.
	Update(ctx context.Context, name string, change func(Snapshot) Change) error

	// View reads a lock. It changes nothing, and an unknown name is a free lock.
	View(ctx context.Context, name string) (Snapshot, error)

	// List reads every lock that the filter lets through and that is not free, in name order. A lock that cannot be
	// read yields its name and an error, and the sequence goes on.
	List(ctx context.Context, f Filter) iter.Seq2[Snapshot, error]

	// Wait returns nil once the lock's revision is no longer w.Seen, and may return nil earlier: callers look again.
	// If w.LeaseID is queued, Wait may sleep through changes that leave it queued. It returns the context's
	// error when that ends.
	Wait(ctx context.Context, w Watch) error

	Close() error
}

// Filter says which locks to list. The zero Filter lists all.
type Filter struct {
	Prefix string // names that begin so
	Queued bool   // only locks for which somebody waits
}

// Watch says which change of a lock to wait for.
type Watch struct {
	Name    string
	Seen    uint64 // the revision that the caller has seen
	LeaseID string // the caller's own claim, if it is queued
}

// Snapshot is what a store knows about a lock at one moment. Whoever gets one shares it with others: nothing in it is to be
// changed.
type Snapshot struct {
	Lock Lock
	Now  time.Time       // by the clock that wrote the lock's times
	Dead map[string]bool // lease IDs whose process, or waiter, is known to be gone
}

// Change is a new state of a lock, and what happened to bring it about.
type Change struct {
	Lock   Lock
	Events []Event // for the store to keep, in order
}
