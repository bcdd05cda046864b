package jobs

import (
	"encoding/json"
	"slices"
	"time"
)

// State is where a job, or an attempt at one, stands.
type State string

// A job goes from queued to leased when a worker is granted it, to running with the first heartbeat, and to one of the
// others at its end. With attempts left it goes back to queued instead.
const (
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
	return []State{Queued, Leased, Running, Completed, Failed, Expired, Cancelled}
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

// Class counts from 0, the first class.
func (p Priority) Class() int {
	switch p {
	case High:
		return 0
	case Low:
		return 2
	case Background:
		return 3
	}
	return 1
}

// Spec is what is asked of a job when it is submitted, with defaults applied: see NewSpec.
type Spec struct {
	Type           string
	Priority       Priority
	Units          int             // of capacity, held while the job is leased
	Unique         bool            // not for a worker that already holds a lease
	Payload        json.RawMessage // an object, kept exactly as sent
	IdempotencyKey string          // submitting the same spec under the same key again gives the same job; empty for none
	Tags           []string        // those that begin with NeedsPrefix must be met by the worker's capabilities
	MaxRuntime     time.Duration   // each attempt fails after this time, heartbeats or not; 0 for no limit
	MaxAttempts    int             // how often a failed or expired attempt leads to another, and one more
	RetryBackoff   time.Duration   // before the second attempt; doubled before each later one, up to MaxBackoff
	RunAt          time.Time       // not before; zero for at once
	Locks          []string        // names of locks that are held while the job is leased
}

// NeedsPrefix begins the tags that say what a worker must be capable of: "needs:gpu" is met by the capability
// "needs:gpu" and by "gpu".
const NeedsPrefix = "needs:"

// NewSpec returns a spec with every default: one unit of type "generic", normal priority, an empty payload, one attempt.
func NewSpec() Spec {
	return Spec{
		Type: "generic", Priority: Normal, Units: 1, Payload: json.RawMessage("{}"), MaxAttempts: 1, RetryBackoff: time.Second,
	}
}

// Job is everything remembered about a job but its attempts. Times are UTC, whole milliseconds.
type Job struct {
	Spec
	ID        string
	State     State
	LeaseID   string // of the active lease
	CreatedAt time.Time
	UpdatedAt time.Time
	ReadyAt   time.Time // from when it may run: submission, RunAt, or the end of the last backoff
	StartedAt time.Time // of the first attempt; zero before
	EndedAt   time.Time // zero before

	Attempt  int    // number of the last attempt; 0 before the first
	Token    uint64 // fencing token of the last lease; 0 before the first
	Code     string // why it ended, or why its last attempt did: one of the Code constants
	Cancel   bool   // its worker was asked to stop
	Reason   string // what was given as the reason for a cancellation or revocation
	Output   Output
	Seq      uint64 // order of submission
	Ord      int64  // place in the queue: time of submission and class in milliseconds; equal ones by Seq
	Revision uint64 // of its last change, counted over all jobs: newer is higher
}

// Output is what a job's worker said about it. It is nil until there is something, and never changed in place.
type Output = *Report

// Report is what workers say about a job: while they work on it, and at its end.
type Report struct {
	Progress   *float64        // from 0 to 1
	Message    string          // for people
	Metrics    json.RawMessage // any JSON value, as sent
	Checkpoint json.RawMessage // any JSON value, as sent; handed to the next attempt
	Result     json.RawMessage // any JSON value, as sent
	Error      json.RawMessage // any JSON value, as sent
}

// Before reports whether j comes before other in the queue.
func (j *Job) Before(other *Job) bool {
	if j.Ord != other.Ord {
		return j.Ord < other.Ord
	}
	return j.Seq < other.Seq
}

// Report returns what was said about the job so far, to be changed: nobody else has it.
func (j *Job) Report() *Report {
	r := Report{}
	if j.Output != nil {
		r = *j.Output
	}
	j.Output = &r
	return &r
}

// Lease keeps a job with a worker. Times are UTC, whole milliseconds, and for display: deadlines are kept on a clock
// that nobody sets.
type Lease struct {
	ID             string
	JobID          string
	WorkerID       string
	RequestID      string // of the ask that it answered
	Units          int
	Token          uint64 // higher than that of every earlier lease on the job
	Attempt        int
	IssuedAt       time.Time
	ExpiresAt      time.Time
	LastHeartbeat  time.Time // IssuedAt before the first
	FirstHeartbeat time.Time // zero before the first
	RunUntil       time.Time // zero without Spec.MaxRuntime

	// LockTokens are the fencing tokens, by name, of the locks that were taken for the lease before it was granted; nil if
	// none were. They stay what they were then, whatever becomes of the locks. The map is never changed.
	LockTokens map[string]uint64

	TTL      time.Duration // by how much a heartbeat extends it, but for the grace
	Interval time.Duration // between heartbeats, as proposed to the worker
}

// Attempt is a lease that ended, or in answers also the one that has not.
type Attempt struct {
	JobID     string
	Number    int // from 1
	Token     uint64
	LeaseID   string
	WorkerID  string
	Units     int
	State     State // Completed, Failed or Expired; that of the job if it has not ended
	Code      string
	IssuedAt  time.Time
	FirstBeat time.Time // zero if there was none
	EndedAt   time.Time // zero if it has not ended
	Error     json.RawMessage
}

// Why a job or an attempt ended.
const (
	CodeCompleted = "completed"            // the worker said so
	CodeFailed    = "failed"               // the worker said so
	CodeExpired   = "lease_expired"        // heartbeats stopped
	CodeRuntime   = "max_runtime_exceeded" // the attempt took longer than Spec.MaxRuntime
	CodeRevoked   = "revoked"              // an operator took the lease away
	CodeCancelled = "cancelled"            // somebody asked for it, and the worker stopped or there was none
)

// Clone returns the spec with nothing of it shared: what is kept, and may be stored later, is nobody else's to change.
func (s *Spec) Clone() Spec {
	c := *s
	c.Payload, c.Tags, c.Locks = slices.Clone(s.Payload), slices.Clone(s.Tags), slices.Clone(s.Locks)
	return c
}
