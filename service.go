package lokt

import (
	"context"
	"iter"
	"time"
)

// Service answers claims. A Manager applies the rules to a Store; a client asks a server.
// Implementations pass the suite lokttest.TestService.
//
// Errors are the sentinels of this package, found with errors.Is; anything else is the store's.
type Service interface {
	// Acquire grants the claim, or explains with a *BlockedError who is in the way. With c.Wait it queues first, and
	// returns when granted, when the wait is over, or when ctx ends; then the claim has left the queue and holds
	// nothing. A claim whose lease already holds the lock is granted, and its time to live starts again: a claim may be
	// sent twice.
	Acquire(ctx context.Context, c Claim) (Holder, error)

	// Renew starts the lease's time to live again. A *GoneError says that it is too late.
	Renew(ctx context.Context, r Renewal) (Holder, error)

	// Release ends holds and returns them. A target that names a lease also takes it out of the queue.
	Release(ctx context.Context, t Target) ([]Holder, error)

	// Tell gives a message of the target's owner to the hold that its lease, or the PublicID of that, names, or else to the
	// first of another. Without a text it is the answer to all that the owner's own holds were asked. With Pass, the hold
	// that the target would release, the first if there are several, goes on to that claim's owner, with a new token and
	// the message: to a claim of that owner that waits, or else to a hold with the time to live of Pass. An old one that a
	// program keeps ends before, PassTimeout after it was told; any other is passed on at once, or a *BlockedError names who
	// is in the way. Tell returns who was told, has answered, or holds it now.
	Tell(ctx context.Context, t Target, m Message) (Holder, error)

	Freeze(ctx context.Context, name string, f Freeze) (Freeze, error)
	Unfreeze(ctx context.Context, t Target) (Freeze, error)

	// Prune removes what is stale and returns it.
	Prune(ctx context.Context, name string) ([]Removed, error)

	// Get and List report locks as the store has them: stale holders included, which Snapshot.Stale tells apart.
	Get(ctx context.Context, name string) (Snapshot, error)
	List(ctx context.Context, f Filter) iter.Seq2[Snapshot, error]

	// Wait returns when the lock has changed since w.Seen, or earlier.
	Wait(ctx context.Context, w Watch) error
}

// Elapser is a Service, or one of jobs, whose leases end though this machine sleeps: Elapsed is what to count them by, a clock
// that never goes back and counts the sleep. A Manager is none, whatever its store: a program that has a database itself sets Keeper.Elapsed.
type Elapser interface{ Elapsed() time.Duration }

// Renewal names the lease to renew. The lease ID proves ownership; the owner, if given, must be the recorded one too. Heard is
// the Yield.Deadline by which the holder knows that it is to leave, if it does: by then it relies on the hold no more.
type Renewal struct {
	Name    string
	LeaseID string
	Owner   *Owner
	Heard   time.Time
}

// Target says which holds, or which freeze, to end.
type Target struct {
	Name    string
	LeaseID string // this hold only; proves ownership unless Force is set. Of a freeze: its ID, or the PublicID of that
	Ticket  int    // of the claim that had the lease, if it had one: a later process's hold, or place, stays
	Owner   Owner  // of the request. Without a lease ID: end the owner's own holds, but no running guard
	Force   bool   // whoever's they are, guards too
	Stale   bool   // only holds that are expired or dead, whoever's they are
	UpTo    uint64 // without a lease ID: only holds with a token up to this, if it is not 0. A copy of the request may come late
}
