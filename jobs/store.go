package jobs

import (
	"context"
	"time"

	"github.com/lokt-dev/lokt"
)

// Record is everything remembered about a job: the one document that stores keep, by what its tags say.
type Record struct {
	Job
	Lease    *Lease    `json:"lease,omitzero"`     // that has not ended; nil if there is none
	Attempts []Attempt `json:"attempts,omitempty"` // that ended, oldest first
}

// Memo is what is remembered beside jobs until a time: the idempotency key of a job that ended, or the answer to a
// request whose lease has ended.
type Memo struct {
	ID      string    `json:"id"`                  // the rules' own name for it; unique, of printable text
	JobID   string    `json:"job_id"`              //
	Print   string    `json:"print,omitzero"`      // of a key: the fingerprint of what was submitted
	State   State     `json:"state,omitzero"`      // of a key: that of its job
	Lease   *Lease    `json:"lease,omitzero"`      // of a request: what was granted
	Expires time.Time `json:"expires_at,omitzero"` //

	Left time.Duration `json:"left_ms,omitzero"` // of a rate: how far ahead that was, whatever the clock showed
}

// Statistic sums up what happened within an hour, as one manager saw it: to the jobs of one type, or to those
// with one tag. With neither it has the events of no job.
type Statistic struct {
	Hour   time.Time           `json:"hour"`   // its beginning, UTC
	Source string              `json:"source"` // tells managers apart, of one store at one time or one after another
	Type   string              `json:"type,omitzero"`
	Tag    string              `json:"tag,omitzero"`
	Events map[EventType]int64 `json:"events,omitempty"`

	// Of a type, for jobs that ended: from when they could run until they were first leased, if they were, and how long
	// their last attempts took.
	Waits Histogram `json:"waits,omitzero"`
	Runs  Histogram `json:"runs,omitzero"`
}

// Store remembers jobs. It decides nothing: it keeps what the rules changed, and hands it back. Implementations
// pass the suite jobstest.TestStore.
//
// Errors wrap lokt.ErrUnavailable if the store cannot be reached or written, and lokt.ErrDamaged, with the ID of
// the job, if a record cannot be read. A store belongs to one Manager at a time; one that several processes
// share is a Sharer.
type Store interface {
	// Update runs a turn and stores what it returns, as one atomic step with what the turn did to locks. The
	// turn is run at most once, and told what others stored since the last Update or Load; while it runs nobody
	// else's turn does. If it changes neither jobs nor locks, nothing need be written. When Update returns nil,
	// the changes are stored as durably as the store promises. When it returns an error although the turn was
	// run, the outcome is unknown: everything was stored or nothing.
	Update(ctx context.Context, turn func(Facts) Changes) error

	// Load reads everything that lives: what a manager needs to go on.
	Load(ctx context.Context) (Changes, error)

	// Ended reads a job that ended, or returns ErrJobNotFound.
	Ended(ctx context.Context, jobID string) (Record, error)

	// ListEnded reads up to limit jobs that ended, highest revision first, that the filter's state, type and tag let
	// through and whose revision is at least from, and below the other.
	ListEnded(ctx context.Context, f Filter, from, below uint64, limit int) ([]Record, error)

	// CountEnded counts the jobs that ended, up to MaxCount, whose state and type, unless they are empty, are these.
	CountEnded(ctx context.Context, state State, jobType string) (int, error)

	// Output reads the pieces of a job's output that end beyond an offset, oldest first; none of one that is not known.
	Output(ctx context.Context, jobID string, from int64) ([]Piece, error)

	// History reads the statistics of the hours from the given one on, in any order.
	History(ctx context.Context, from time.Time) ([]Statistic, error)

	// Trim forgets jobs, with their output, that ended before the given time, oldest first, and the oldest beyond so many that are
	// kept (if keep is not negative), but in one call no more than atMost. It forgets events likewise, and memos
	// that have expired. It returns how many jobs it forgot.
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

	// Others is what other processes stored since this one last looked, each record and memo as it is now; nil
	// if nothing.
	Others *Changes

	// Locks are the locks of a store that keeps both; what is done to them is stored with the turn. It is nil if
	// the store keeps jobs only, and is not to be used after the turn. An error other than those of the rules
	// means that the turn cannot be stored; a lock that cannot be read is no error, but Corrupt.
	Locks lokt.Step
}

// Changes are what a turn changed, to be stored together. Everything is whole: storing it twice does no harm. What a manager
// needs to go on is handed out in the same form: the jobs that have not ended, in any order, the memos that have not
// expired, no events and no statistics. Whoever is handed a record may keep and change it, but not what it refers to.
type Changes struct {
	// insert or replace, by ID; in order of Revision. Those that ended stay, for Ended and ListEnded
	Jobs  []*Record
	Memos []Memo // insert or replace, by ID
	// insert or replace, by job and end; of a job that is among Jobs. Those beyond KeptPieces and KeptOutput are forgotten
	Output   []Piece
	Events   []Event     // append
	Stats    []Statistic // insert or replace, by hour, source, type and tag
	Frozen   []string    // all frozen types; "" is every type
	Counters Counters    // never lower than what is there

	// Of what is loaded: the time as Facts have it, and what is below every token of a lease that is granted from now on,
	// because the store was set back and tokens that it does not know have been given.
	Now        time.Time
	TokenFloor uint64
}

// Empty reports whether there is nothing to store.
func (c *Changes) Empty() bool {
	return len(c.Jobs) == 0 && len(c.Memos) == 0 && len(c.Events) == 0 && len(c.Stats) == 0
}

// Counters are what is counted over all jobs, and never fall.
type Counters struct {
	Seq      uint64 `json:"seq"`      // jobs submitted
	Revision uint64 `json:"revision"` // changes to jobs
	Event    uint64 `json:"event"`    // events
	Clock    int64  `json:"clock"`    // the latest time of a submission, in milliseconds: Ord builds on it
}
