package jobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"time"
)

// Store remembers jobs. It decides nothing: it keeps what the rules changed, and hands it back. Implementations pass the
// suite jobstest.TestStore.
//
// Errors wrap lokt.ErrUnavailable if the store cannot be reached or written. A store belongs to one Manager at a time;
// one that several processes share says so by its Facts.
type Store interface {
	// Update runs a turn and stores what it returns, as one atomic step. The turn is run at most once, and told what
	// others stored since the last Update or Load; while it runs nobody else's turn does. If it changes nothing,
	// nothing need be written. When Update returns nil, the changes are stored as durably as the store promises. When it
	// returns an error although the turn was run, the outcome is unknown: everything was stored or nothing was.
	Update(ctx context.Context, turn func(Facts) Changes) error

	// Load reads everything that lives: what a manager needs to go on.
	Load(ctx context.Context) (Rows, error)

	// Ended reads a job that ended, with its attempts, oldest first; or ErrJobNotFound.
	Ended(ctx context.Context, jobID string) (Job, []Attempt, error)

	// ListEnded reads up to limit jobs that ended, highest revision first, that the filter's state, type and tag let
	// through and whose revision is below the given one.
	ListEnded(ctx context.Context, f Filter, below uint64, limit int) ([]Job, error)

	// History reads tallies and counts of the hours from the given one on, in any order; there may be several for the
	// same hour, type, event and tag, to be added up.
	History(ctx context.Context, from time.Time) ([]Tally, []Count, error)

	// Trim forgets, with their attempts, jobs that ended before the given time, oldest first, and the oldest beyond so
	// many that are kept (if keep is not negative), but in one call no more than atMost. It forgets events likewise. It
	// returns how many jobs it forgot.
	Trim(ctx context.Context, before time.Time, keep, atMost int) (int, error)

	Close() error
}

// Sharer is implemented by stores that several processes share.
type Sharer interface {
	// Changed receives when others may have stored something: the manager looks. It should receive now and then in any
	// case, lest a lost message delays anybody for long.
	Changed() <-chan struct{}
}

// Facts are what a store tells a turn.
type Facts struct {
	// Now is the time by the clock of a store that several processes share. It is zero if the manager's own clock is to
	// be used.
	Now time.Time

	// Others are what other processes stored since this one last looked, oldest first.
	Others []Changes
}

// What says which parts of a job changed, so that a store need not write all of them.
type What uint8

// The parts of a job.
const (
	New      What = 1 << iota // the job was not stored before: everything
	Moved                     // its state, and what goes with it
	Reported                  // its Output
)

// JobChange is a living job after a change.
type JobChange struct {
	Job
	What What
}

// Changes are the facts that a turn changed, to be stored together, deletions first. Rows are whole: storing them twice
// does no harm, but for Tallies and Counts, which are added to what is there.
type Changes struct {
	Time     time.Time
	Jobs     []JobChange // insert or replace, by ID; in order of Revision
	Leases   []Lease     // insert or replace, by ID; one for each job at most
	Unleased []string    // IDs of leases that ended: delete those that are there
	Attempts []Attempt   // insert
	Ended    []Job       // delete from the living, insert among the ended; their leases are in Unleased
	Keys     []Key       // insert or replace, by Key
	Dropped  []string    // keys to delete
	Answered []Answered  // insert or replace, by worker and request
	Forgot   []Answered  // delete, by worker and request
	Events   []Event     // append
	Tallies  []Tally     // add
	Counts   []Count     // add
	Refrozen bool        // the frozen types have changed
	Frozen   []string    // all of them, if so; "" is every type
	Counters Counters    // replaces what is there, unless nothing else changed
}

// Empty reports whether there is nothing to store.
func (c *Changes) Empty() bool {
	return len(c.Jobs) == 0 && len(c.Leases) == 0 && len(c.Unleased) == 0 && len(c.Attempts) == 0 && len(c.Ended) == 0 &&
		len(c.Keys) == 0 && len(c.Dropped) == 0 && len(c.Answered) == 0 && len(c.Forgot) == 0 && len(c.Events) == 0 &&
		len(c.Tallies) == 0 && len(c.Counts) == 0 && !c.Refrozen
}

// Counters are what is counted over all jobs, and never falls.
type Counters struct {
	Seq      uint64 `json:"seq"`      // jobs submitted
	Revision uint64 `json:"revision"` // changes to jobs
	Event    uint64 `json:"event"`    // events
	Clock    int64  `json:"clock"`    // the latest time of a submission, in milliseconds: Ord builds on it
}

// Key is an idempotency key and what it was used for.
type Key struct {
	Key     string
	Print   [sha256.Size]byte // Spec.Fingerprint
	JobID   string
	State   State     // of the job, once it has ended; empty before
	Expires time.Time // zero while the job lives
}

// Answered is an ask with a request ID whose lease has ended, kept for RequestLife.
type Answered struct {
	WorkerID  string
	RequestID string
	Lease     Lease
	Expires   time.Time
}

// Rows are everything that lives in a store.
type Rows struct {
	Now      time.Time // as in Facts
	Jobs     []Job     // that have not ended
	Leases   []Lease   // that have not ended
	Attempts []Attempt // of these jobs, in order
	Keys     []Key
	Answered []Answered
	Frozen   []string
	Counters Counters

	// TokenFloor is below every token of a lease that is granted from now on: the store was set back, and tokens that it does not
	// know have been given.
	TokenFloor uint64
}

// Sort puts rows into one order, for comparison.
func (r *Rows) Sort() {
	slices.SortFunc(r.Jobs, func(a, b Job) int { return cmp.Compare(a.Seq, b.Seq) })
	slices.SortFunc(r.Leases, func(a, b Lease) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(r.Attempts, func(a, b Attempt) int {
		return cmp.Or(cmp.Compare(a.JobID, b.JobID), cmp.Compare(a.Number, b.Number))
	})
	slices.SortFunc(r.Keys, func(a, b Key) int { return cmp.Compare(a.Key, b.Key) })
	slices.SortFunc(r.Answered, func(a, b Answered) int {
		return cmp.Or(cmp.Compare(a.WorkerID, b.WorkerID), cmp.Compare(a.RequestID, b.RequestID))
	})
	slices.Sort(r.Frozen)
}
