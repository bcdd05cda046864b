package jobs

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
)

// State is where a job, or an attempt at one, stands.
type State string

// A job goes from queued to leased when a worker is granted it, to running with the first heartbeat, and to one of the
// others at its end. With attempts left it goes back to queued instead. One with Extra.Cron is scheduled until it is cancelled.
const (
	Scheduled State = "scheduled"
	Queued    State = "queued"
	Leased    State = "leased"
	Running   State = "running"
	Completed State = "completed"
	Failed    State = "failed"
	Expired   State = "expired"
	Cancelled State = "cancelled"
)

// States returns all states, in the order in which a job may come to them.
func States() []State {
	return []State{Scheduled, Queued, Leased, Running, Completed, Failed, Expired, Cancelled}
}

// Ended reports whether nothing comes after the state.
func (s State) Ended() bool {
	return s == Completed || s == Failed || s == Expired || s == Cancelled
}

// Active reports whether a job in the state has a lease.
func (s State) Active() bool { return s == Leased || s == Running }

// Priority is a job's class. Classes are served in order, but waiting raises a job: see Config.AgeingStep.
type Priority string

// The classes, first to last.
const (
	High       Priority = "high"
	Normal     Priority = "normal"
	Low        Priority = "low"
	Background Priority = "background"
)

// Priorities returns the classes, first to last.
func Priorities() []Priority { return []Priority{High, Normal, Low, Background} }

// Class counts from 0, the first class. What is none counts as Normal.
func (p Priority) Class() int {
	if i := slices.Index(Priorities(), p); i >= 0 {
		return i
	}
	return 1
}

// Spec is what is asked of a job when it is submitted, with defaults applied: see NewSpec.
type Spec struct {
	Type     string         `json:"type"`
	Priority Priority       `json:"priority"`
	Units    int            `json:"requested_units"` // of capacity, held while the job is leased
	Unique   bool           `json:"unique"`          // not for a worker that already holds a lease
	Payload  jsontext.Value `json:"payload"`         // an object, kept exactly as sent
	// submitting the same spec under the same key again gives the same job; empty for none
	IdempotencyKey string `json:"idempotency_key"`
	// those that begin with NeedsPrefix must be met by the worker's capabilities
	Tags []string `json:"tags"`
	// each attempt fails after this time, heartbeats or not; 0 for no limit
	MaxRuntime time.Duration `json:"max_runtime_s"`
	// how often a failed or expired attempt leads to another, and one more
	MaxAttempts int `json:"max_attempts"`
	// before the second attempt; doubled before each later one, up to MaxBackoff
	RetryBackoff time.Duration `json:"retry_backoff_s"`
	RunAt        time.Time     `json:"run_at"` // not before; zero for at once
	// names of locks that are held while the job is leased
	Locks []string `json:"locks"`
	Extra *Extra   `json:",embed"` // nil if nothing of it is asked for; see Extras
}

// Extra is what few jobs ask for. It is apart from the rest so that the others need no memory for it.
type Extra struct {
	// IDs of jobs that have to be completed before this one is handed out, or "#0" for the first of the specs that
	// are submitted together, and so on: one of those before this one. If one of them ends otherwise, this one is
	// cancelled.
	After    []string `json:"after,omitempty"`
	AfterAny bool     `json:"after_any,omitzero"` // they have to have ended only, however they did

	// Jobs of one priority that have different keys take turns, however many of each there are; those without one are of
	// one key, too.
	Fair string `json:"fair_key,omitzero"`

	Limits map[string]Limit `json:"limits,omitempty"` // by names that are among Locks; others are held by one job at a time

	// Cron makes it a schedule, which is never leased: at each tick a job like it is submitted. See ParseCron.
	Cron  string `json:"cron,omitzero"`
	Ticks *Ticks `json:",embed"` // nil of all others; never changed in place
}

// Limit is how many jobs may hold a lock at a time, and how often one may begin that holds it. Jobs with different limits
// on a lock count together, and each goes by its own; of the numbers at a time the least one counts, as with every lock.
type Limit struct {
	Slots  int           `json:"slots,omitzero"`  // at a time; 0 is one
	Starts int           `json:"starts,omitzero"` // within any time of Per, evenly spread; 0 is any number
	Per    time.Duration `json:"per_s,omitzero"`
	Burst  int           `json:"burst,omitzero"` // so many may begin at once when none did for long, in addition; 0 is one
}

// Every is the time between two beginnings in the long run, rounded up.
func (l *Limit) Every() time.Duration {
	n := time.Duration(max(l.Starts, 1))
	return (l.Per + n - 1) / n
}

// Extras returns what is asked for beside the rest.
func (s *Spec) Extras() Extra {
	if s.Extra == nil {
		return Extra{}
	}
	return *s.Extra
}

// NeedsPrefix begins the tags that say what a worker must be capable of: "needs:gpu" is met by the capability
// "needs:gpu" and by "gpu".
const NeedsPrefix = "needs:"

// NewSpec returns a spec with every default: one unit of type "generic", normal priority, an empty payload, one
// attempt.
func NewSpec() Spec {
	return Spec{
		Type: "generic", Priority: Normal, Units: 1, Payload: jsontext.Value("{}"), MaxAttempts: 1,
		RetryBackoff: time.Second,
	}
}

// Job is everything remembered about a job but its attempts. Times are UTC, whole milliseconds.
type Job struct {
	ID string `json:"job_id"`
	Spec
	State     State     `json:"state"`
	LeaseID   string    `json:"lease_id"` // of the active lease
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// from when it may run: submission, RunAt, or the end of the last backoff; of a schedule: its next tick
	ReadyAt   time.Time `json:"ready_at"`
	StartedAt time.Time `json:"started_at"` // of the first attempt; zero before
	EndedAt   time.Time `json:"ended_at"`   // zero before

	Attempt int    `json:"attempt"` // number of the last attempt; 0 before the first
	Token   uint64 `json:"token"`   // fencing token of the last lease; 0 before the first
	// why it ended, or why its last attempt did: one of the Code constants
	Code   string  `json:"code"`
	Cancel bool    `json:"cancel_requested"` // its worker was asked to stop
	Reason string  `json:"reason"`           // what was given as the reason for a cancellation or revocation
	Output *Report `json:",embed"`           // nil until its worker has said something; never changed in place
	Seq    uint64  `json:"seq,omitzero"`     // order of submission
	// place in the queue: time of submission and class in milliseconds; equal ones by Seq
	Ord      int64  `json:"ord,omitzero"`
	Revision uint64 `json:"revision,omitzero"` // of its last change, counted over all jobs: newer is higher
}

// Report is what workers say about a job: while they work on it, and at its end.
type Report struct {
	Progress   *float64       `json:"progress"`   // from 0 to 1
	Message    string         `json:"message"`    // for people
	Metrics    jsontext.Value `json:"metrics"`    // any JSON value, as sent
	Checkpoint jsontext.Value `json:"checkpoint"` // any JSON value, as sent; handed to the next attempt
	Result     jsontext.Value `json:"result"`     // any JSON value, as sent
	Error      jsontext.Value `json:"error"`      // any JSON value, as sent
	// how many bytes of output there have been, over all attempts, kept or not
	Printed int64 `json:"output_bytes,omitzero"`
}

// Piece is a part of what a job's worker prints, of the attempt with that number. Offset counts the bytes before it, over
// all attempts: where it is beyond the end of the piece before, something is missing.
type Piece struct {
	JobID   string `json:"-"` // for the store
	Attempt int    `json:"attempt"`
	Offset  int64  `json:"offset"`
	Text    string `json:"text"`
}

// End is the offset of what comes after the piece.
func (p *Piece) End() int64 { return p.Offset + int64(len(p.Text)) }

// Before reports whether j comes before other in the queue.
func (j *Job) Before(other *Job) bool {
	return j.Ord < other.Ord || j.Ord == other.Ord && j.Seq < other.Seq
}

// Report returns what was said about the job so far, to be changed: nobody else has it.
func (j *Job) Report() *Report {
	j.Output = new(*cmp.Or(j.Output, &Report{}))
	return j.Output
}

// Lease keeps a job with a worker. Times are UTC, whole milliseconds, and for display: deadlines are kept on a clock
// that nobody sets.
type Lease struct {
	ID             string        `json:"lease_id"`
	JobID          string        `json:"job_id"`
	WorkerID       string        `json:"worker_id"`
	Units          int           `json:"capacity_units"`
	IssuedAt       time.Time     `json:"issued_at"`
	ExpiresAt      time.Time     `json:"expires_at"`
	LastHeartbeat  time.Time     `json:"last_heartbeat"` // IssuedAt before the first
	Token          uint64        `json:"token"`          // higher than that of every earlier lease on the job
	Attempt        int           `json:"attempt"`
	TTL            time.Duration `json:"lease_ttl_s"`          // by how much a heartbeat extends it, but for the grace
	Interval       time.Duration `json:"heartbeat_interval_s"` // between heartbeats, as proposed to the worker
	FirstHeartbeat time.Time     `json:"first_heartbeat"`      // zero before the first
	RunUntil       time.Time     `json:"run_until"`            // zero without Spec.MaxRuntime
	Ahead          bool          `json:"ahead,omitzero"`       // its worker has not begun: if it ends now, there was no attempt

	// LockTokens are the fencing tokens, by name, of the locks that were taken for the lease before it was
	// granted; nil if none were. They stay what they were then, whatever becomes of the locks. The map is never
	// changed.
	LockTokens map[string]uint64 `json:"lock_tokens,omitempty"`
	RequestID  string            `json:"request_id,omitzero"` // of the request that it answered
}

// Attempt is a lease that ended, or in answers also the one that has not.
type Attempt struct {
	JobID          string         `json:"job_id,omitzero"`
	Number         int            `json:"attempt"` // from 1
	Token          uint64         `json:"token"`
	LeaseID        string         `json:"lease_id"`
	WorkerID       string         `json:"worker_id"`
	Units          int            `json:"capacity_units"`
	State          State          `json:"state"` // Completed, Failed or Expired; that of the job if it has not ended
	Code           string         `json:"code"`
	IssuedAt       time.Time      `json:"issued_at"`
	FirstHeartbeat time.Time      `json:"first_heartbeat"` // zero if there was none
	EndedAt        time.Time      `json:"ended_at"`        // zero if it has not ended
	Error          jsontext.Value `json:"error"`
}

// Why a job or an attempt ended.
const (
	CodeCompleted = "completed"            // the worker said so
	CodeFailed    = "failed"               // the worker said so
	CodeExpired   = "lease_expired"        // heartbeats stopped
	CodeRuntime   = "max_runtime_exceeded" // the attempt took longer than Spec.MaxRuntime
	CodeRevoked   = "revoked"              // an operator took the lease away
	CodeCancelled = "cancelled"            // somebody asked for it, and the worker stopped or there was none
	CodeAfter     = "after_failed"         // a job that it was to run after did not complete; the reason names it
)

// Clone returns the spec with nothing of it shared, and of Ticks only what a run is for: what is kept, and may be stored later, is nobody
// else's to change.
func (s *Spec) Clone() Spec {
	c := *s
	c.Payload, c.Tags, c.Locks = slices.Clone(s.Payload), slices.Clone(s.Tags), slices.Clone(s.Locks)
	if s.Extra != nil {
		c.Extra = new(*s.Extra)
		c.Extra.After, c.Extra.Limits, c.Extra.Ticks = slices.Clone(s.Extra.After), maps.Clone(s.Extra.Limits), nil
		if t := s.Extra.Ticks; t != nil && s.Extra.Cron == "" && !t.Tick.IsZero() {
			c.Extra.Ticks = &Ticks{Schedule: t.Schedule, Tick: t.Tick}
		}
	}
	return c
}

// Again returns what submits the same once more: at once, and as another job.
func (s *Spec) Again() Spec {
	c := s.Clone()
	c.IdempotencyKey, c.RunAt = "", time.Time{}
	if c.Extra != nil {
		c.Extra.After, c.Extra.AfterAny = nil, false
	}
	return c
}

// PossibleID reports whether a job could have the ID: stores need not cope with others.
func PossibleID(id string) bool { return len(id) <= MaxIDLen && lokt.ValidateName(id) == nil }
