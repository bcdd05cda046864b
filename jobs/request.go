package jobs

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Receipt answers a submitted spec: the job that it became, or that it became earlier under the same key.
type Receipt struct {
	JobID string `json:"job_id"`
	State State  `json:"state"`
}

// Request is a worker's request for a lease.
type Request struct {
	WorkerID     string        `json:"worker_id"`
	MaxUnits     int           `json:"max_units,omitzero"`     // the largest job it will take; 0 for any
	Types        []string      `json:"types,omitempty"`        // the types of job it will take; empty for all
	Capabilities []string      `json:"capabilities,omitempty"` // what it is capable of: see NeedsPrefix
	Wait         time.Duration `json:"wait_ms,omitzero"`       // for a job, up to MaxWait; 0 is answered at once
	RequestID    string        `json:"request_id"`             // the same again is given the same lease; empty for none
	// The job will wait at the worker, which keeps its lease: it is none with locks, a maximum runtime or a worker of its own.
	Ahead bool `json:"ahead,omitzero"`
}

// Grant answers a request: with a lease and its job, or with a denial.
type Grant struct {
	Denied *Denial // nil if there is a lease
	Lease  Lease
	Job    Job
}

// Denial says why there is no lease, and when asking again may help.
type Denial struct {
	Reason     string        `json:"reason"` // for people
	RetryAfter time.Duration `json:"retry_after_ms"`
	Code       string        `json:"code"` // one of the Denied constants
}

// Codes of denials.
const (
	DeniedEmpty    = "queue_empty"     // nothing is queued
	DeniedCapacity = "no_capacity"     // there is a job for this worker, but it does not fit, or there is a reserve
	DeniedEligible = "no_eligible_job" // nothing that is queued is for this worker, now
)

// Heartbeat is a heartbeat: it extends a lease.
type Heartbeat struct {
	LeaseID    string         `json:"-"`
	WorkerID   string         `json:"worker_id"`
	Progress   *float64       `json:"progress,omitzero"`   // from 0 to 1; nil leaves it
	Checkpoint jsontext.Value `json:"checkpoint,omitzero"` // any JSON value; nil leaves it
	Wait       time.Duration  `json:"wait_ms,omitzero"`    // for there to be something to tell, up to MaxWait
	Ahead      bool           `json:"ahead,omitzero"`      // the job is not begun: it does not become Running
}

// HeartbeatAnswer says how long the lease lasts now, and what its worker should know.
type HeartbeatAnswer struct {
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Cancel    bool      `json:"cancel_requested,omitzero"` // the job is to be stopped
	Drain     bool      `json:"drain,omitzero"`            // the service is about to end

	// those of the job's that are not held for it any more, or were not for a while, so that somebody else may have them, or that go to another soon
	LostLocks []string      `json:"lost_locks,omitempty"`
	Interval  time.Duration `json:"heartbeat_interval_s,omitzero"` // between heartbeats, as proposed
	RunLeft   time.Duration `json:"run_left_s,omitzero"`           // of Spec.MaxRuntime; 0 without one, or where it is not known: what was said before holds
}

// LeaseAnswer is the answer to one of many heartbeats: Err is nil, ErrLeaseNotFound or ErrWorkerMismatch.
type LeaseAnswer struct {
	LeaseID string
	HeartbeatAnswer
	Err error
}

// Completion ends a lease, and its attempt, with what the worker says about it.
type Completion struct {
	LeaseID  string         `json:"-"`
	WorkerID string         `json:"worker_id"`
	Status   State          `json:"status"` // Completed, Failed, or Queued: it was not begun, and there was no attempt
	Result   jsontext.Value `json:"result"` // any JSON value, or nil
	Error    jsontext.Value `json:"error"`  // any JSON value, or nil
}

// Progress is what a worker tells about its job between heartbeats. It does not extend the lease.
type Progress struct {
	LeaseID  string         `json:"-"`
	WorkerID string         `json:"worker_id"`
	Progress *float64       `json:"progress,omitzero"` // from 0 to 1; nil leaves it
	Message  *string        `json:"message,omitzero"`  // nil leaves it
	Metrics  jsontext.Value `json:"metrics,omitzero"`  // any JSON value; nil leaves it
	// What the job printed since the last report, at most MaxTextLen bytes. Offset is that of a Piece: it begins with the
	// Report.Printed of the job as it was granted. What was kept before is not kept twice.
	Text   string `json:"output,omitzero"`
	Offset int64  `json:"offset,omitzero"`
}

// Output is what is kept of what a job's workers print: the last KeptOutput bytes, and KeptPieces pieces.
type Output struct {
	State  State   `json:"state"`  // of the job: when it has ended, there will be no more
	Pieces []Piece `json:"pieces"` // oldest first
}

// View is a job as readers see it.
type View struct {
	Job     Job    `json:"job"`
	Lease   *Lease `json:"lease"` // nil unless it is leased or running
	InQueue bool   `json:"in_queue"`
	// why a queued job is not leased: one of the Waiting constants, four of them with a name behind
	WaitingFor  string        `json:"waiting_for"`
	Awaits      *Awaits       `json:"awaits,omitzero"` // more about it, if there is
	Age         time.Duration `json:"age_s"`           // since submission
	SinceUpdate time.Duration `json:"since_update_s"`
	Attempts    []Attempt     `json:"attempts,omitempty"` // oldest first, with the one under way; only of one job
}

// Awaits is more about what a queued job waits for: the job that has to end first, or the limit on a lock.
type Awaits struct {
	JobID string    `json:"job_id,omitzero"`
	State State     `json:"state,omitzero"`
	Since time.Time `json:"since,omitzero"` // of its lease, or of its submission if it has none

	Limit *Limit    `json:"limit,omitzero"`
	Until time.Time `json:"until,omitzero"` // before which the rate lets none begin
}

// NewView returns what readers see of every job.
func NewView(j *Job, now time.Time) View {
	return View{Job: *j, Age: max(now.Sub(j.CreatedAt), 0), SinceUpdate: max(now.Sub(j.UpdatedAt), 0)}
}

// What a queued job waits for.
const (
	WaitingCapacity = "capacity"      // it does not fit into what is free
	WaitingReserved = "reserved_for:" // followed by the ID of the job that what is free, or a lock, is kept for
	WaitingUnique   = "unique"        // every worker that could take it holds a lease
	WaitingWorker   = "no_worker"     // no worker that could take it asks
	WaitingLock     = "lock:"         // followed by the name of the lock
	WaitingRunAt    = "run_at"        // its time, or the end of its backoff, is ahead
	WaitingRate     = "rate:"         // followed by the name of the lock; jobs that hold it have begun too often
	WaitingAfter    = "after:"        // followed by the ID of a job that has to end first
	WaitingFrozen   = "frozen"        // nothing of its type is handed out
)

// Filter says which jobs to list. The zero Filter lists the newest of all.
type Filter struct {
	Limit int    // how many, from 1 to MaxList; out of range is moved into it, 0 means DefaultList
	State State  // empty for all
	Type  string // empty for all
	Tag   string // empty for all
	After string // the Next of the page before; empty for the first page
}

// Page is part of the list of jobs, newest change first.
type Page struct {
	Now      time.Time `json:"now"`
	Jobs     []View    `json:"jobs"`
	Snapshot Snapshot  `json:"snapshot"`
	Next     string    `json:"next"` // for Filter.After; empty if there is no more
}

// Depths are how many jobs of each class are queued.
type Depths struct {
	High       int `json:"high"`
	Normal     int `json:"normal"`
	Low        int `json:"low"`
	Background int `json:"background"`
}

// Sum returns how many jobs are queued.
func (d Depths) Sum() int { return d.High + d.Normal + d.Low + d.Background }

// Snapshot is the capacity and its use at one moment. Leased is the sum over the active leases; Available is never
// negative.
type Snapshot struct {
	Total        int    `json:"total_capacity_units"`
	Usable       int    `json:"usable_capacity_units"`
	Leased       int    `json:"leased_capacity_units"`
	Available    int    `json:"available_capacity_units"`
	Queue        Depths `json:"queue_depths"`
	ActiveLeases int    `json:"active_leases"`
	Busy         *int   `json:"busy_rating,omitzero"` // of a server's host, from 0 to 10; only on the wire
	Draining     bool   `json:"draining"`
}

// WorkerStatus is who asked for leases, or still has some.
type WorkerStatus struct {
	ID       string    `json:"worker_id"`
	Leases   int       `json:"leases"`
	LastSeen time.Time `json:"last_seen"`
}

// Limits on what requests may carry, so that no store and no wire has to cope with more.
const (
	MaxIDLen      = 256 // bytes in every ID, type, tag, capability and key
	MaxSubmit     = 1000
	MaxHeartbeats = 1000
	MaxTags       = 100
	MaxLocks      = 16
	MaxAfter      = 100
	MaxStarts     = 10_000
	MaxPer        = 24 * time.Hour
	MaxTypes      = 1000 // in a request, and capabilities as many
	MaxAttempts   = 1000
	MaxTextLen    = 64 << 10              // bytes in a reason or message
	KeptOutput    = 64 << 10              // bytes of a job's output; the oldest piece of them is kept whole
	KeptPieces    = 1000                  // of a job's output
	MaxWait       = 30 * time.Second      // of a parked request
	MaxBackoff    = time.Hour             // between two attempts
	MaxDuration   = 3650 * 24 * time.Hour // in a spec
	DefaultList   = 200
	MaxList       = 1000
	MaxCount      = 100_001 // so much is counted, more is not
	MaxDays       = 3650    // of history
	DefaultDays   = 30
	KeyLife       = 24 * time.Hour   // of an idempotency key after its job's end
	RequestLife   = 10 * time.Minute // of a request ID after its lease's end
	SeenFor       = time.Minute      // a worker counts as there for so long after it was heard of
)

// Most returns how many jobs the filter lets through.
func (f *Filter) Most() int {
	if f.Limit == 0 {
		return DefaultList
	}
	return min(max(f.Limit, 1), MaxList)
}

// Matches reports whether the filter lets the job through, wherever it stands in the list.
func (f *Filter) Matches(j *Job) bool {
	return (f.State == "" || f.State == j.State) && (f.Type == "" || f.Type == j.Type) &&
		(f.Tag == "" || slices.Contains(j.Tags, f.Tag))
}

const cursorPrefix = "below-"

// Cursor returns where a page of the list begins: below a revision.
func Cursor(below uint64) string { return cursorPrefix + strconv.FormatUint(below, 36) }

// ParseCursor reads a cursor; the empty string is the beginning.
func ParseCursor(s string) (below uint64, err error) {
	if s == "" {
		return math.MaxUint64, nil
	}
	digits, ok := strings.CutPrefix(s, cursorPrefix)
	if !ok {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(digits, 36, 64)
}
