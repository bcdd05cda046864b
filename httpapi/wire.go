package httpapi

import (
	"reflect"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/jobs"
)

// The scheduler's bodies and answers, for both ends: times with three digits, durations in seconds, null for what is
// not there. What a body must have is a pointer, and tagged as needed.

// verbatim is a string that is written as it is; others are null where they are empty.
type verbatim string

// specWire is a jobs.Spec.
type specWire struct {
	Type           verbatim       `json:"type"`
	Priority       verbatim       `json:"priority"`
	Units          int            `json:"requested_units"`
	Unique         bool           `json:"unique"`
	Payload        jsontext.Value `json:"payload"`
	IdempotencyKey string         `json:"idempotency_key"`
	Tags           []string       `json:"tags"`
	MaxRuntime     *time.Duration `json:"max_runtime_s"`
	MaxAttempts    int            `json:"max_attempts"`
	RetryBackoff   time.Duration  `json:"retry_backoff_s"`
	RunAt          time.Time      `json:"run_at"`
	Locks          []string       `json:"locks"`
}

// newSpecWire returns what a field that is absent stands for.
func newSpecWire() specWire {
	s := jobs.NewSpec()
	return toSpec(&s)
}

func toSpec(s *jobs.Spec) specWire {
	w := specWire{
		Type: verbatim(s.Type), Priority: verbatim(s.Priority), Units: s.Units, Unique: s.Unique,
		Payload: s.Payload, IdempotencyKey: s.IdempotencyKey, Tags: s.Tags, MaxAttempts: s.MaxAttempts,
		RetryBackoff: s.RetryBackoff, RunAt: s.RunAt, Locks: s.Locks,
	}
	if s.MaxRuntime != 0 {
		w.MaxRuntime = &s.MaxRuntime
	}
	return w
}

func (w *specWire) spec() jobs.Spec {
	s := jobs.Spec{
		Type: string(w.Type), Priority: jobs.Priority(w.Priority), Units: w.Units, Unique: w.Unique,
		Payload: w.Payload, IdempotencyKey: w.IdempotencyKey, Tags: w.Tags, MaxAttempts: w.MaxAttempts,
		RetryBackoff: w.RetryBackoff, RunAt: w.RunAt, Locks: w.Locks,
	}
	if w.MaxRuntime != nil {
		s.MaxRuntime = *w.MaxRuntime
	}
	return s
}

// submitWire is what is submitted: a job, or a list of them.
type submitWire struct {
	Jobs *[]specWire `json:"jobs"`
	specWire
}

// specsWire is a list that is submitted.
type specsWire struct {
	Jobs []specWire `json:"jobs"`
}

type receiptsWire struct {
	Jobs []jobs.Receipt `json:"jobs"`
}

// requestWire is a jobs.Request.
type requestWire struct {
	WorkerID     *string  `json:"worker_id" needed:"worker_id"`
	MaxUnits     *int     `json:"max_units,omitzero"`
	Types        []string `json:"types,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`
	Wait         int      `json:"wait_ms,omitzero"`
	RequestID    string   `json:"request_id"`
}

// deniedWire is a jobs.Denial.
type deniedWire struct {
	Denied     bool   `json:"denied"`
	Reason     string `json:"reason"`
	RetryAfter int64  `json:"retry_after_ms"`
	Code       string `json:"code"`
}

// grantedWire is a jobs.Grant of a lease.
type grantedWire struct {
	Denied bool       `json:"denied"`
	Lease  *leaseWire `json:"lease"`
	Job    jobWire    `json:"job"`
}

// beatWire is a jobs.Heartbeat.
type beatWire struct {
	WorkerID   *string        `json:"worker_id" needed:"worker_id"`
	Progress   *float64       `json:"progress,omitzero"`
	Checkpoint jsontext.Value `json:"checkpoint,omitzero"`
	Wait       int            `json:"wait_ms,omitzero"`
}

// newsWire is what a worker is told of a lease.
type newsWire struct {
	OK        bool      `json:"ok"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Code      string    `json:"code,omitzero"` // why it is not extended
	Cancel    bool      `json:"cancel_requested,omitzero"`
	Drain     bool      `json:"drain,omitzero"`
	LostLocks []string  `json:"lost_locks,omitempty"`
}

func toNews(a *jobs.HeartbeatAnswer) newsWire {
	return newsWire{OK: true, ExpiresAt: a.ExpiresAt, Cancel: a.Cancel, Drain: a.Drain, LostLocks: a.LostLocks}
}

func (w *newsWire) news(interval time.Duration) jobs.HeartbeatAnswer {
	return jobs.HeartbeatAnswer{
		ExpiresAt: w.ExpiresAt, Cancel: w.Cancel, Drain: w.Drain, Interval: interval, LostLocks: w.LostLocks,
	}
}

// aliveWire is the answer to a heartbeat.
type aliveWire struct {
	newsWire
	Interval time.Duration `json:"heartbeat_interval_s"`
}

// batchWire is many heartbeats.
type batchWire struct {
	WorkerID *string       `json:"worker_id" needed:"worker_id"`
	LeaseIDs *leaseIDsWire `json:"lease_ids" needed:"lease_ids"`
}

type leaseIDsWire []string

// batchAnswerWire answers them.
type batchAnswerWire struct {
	Leases   []leaseNewsWire `json:"leases"`
	Interval time.Duration   `json:"heartbeat_interval_s,omitzero"`
}

// leaseNewsWire is a jobs.LeaseAnswer.
type leaseNewsWire struct {
	LeaseID verbatim `json:"lease_id"`
	newsWire
}

// completeWire is a jobs.Completion.
type completeWire struct {
	WorkerID *string        `json:"worker_id" needed:"worker_id"`
	Status   *string        `json:"status" needed:"status"`
	Result   jsontext.Value `json:"result"`
	Error    jsontext.Value `json:"error"`
}

// reportWire is a jobs.Progress.
type reportWire struct {
	WorkerID *string        `json:"worker_id" needed:"worker_id"`
	Progress *float64       `json:"progress,omitzero"`
	Metrics  jsontext.Value `json:"metrics,omitzero"`
	Message  *string        `json:"message,omitzero"`
}

// reasonWire is why a job is cancelled, or a lease revoked.
type reasonWire struct {
	Reason string `json:"reason"`
}

// typeWire is a type of jobs that is frozen.
type typeWire struct {
	Type string `json:"type"`
}

// okWire says that something was done, and more where there is more.
type okWire struct {
	OK      bool       `json:"ok"`
	State   jobs.State `json:"state,omitzero"`
	Applied *bool      `json:"applied,omitzero"`
	Deleted *int       `json:"deleted,omitzero"`
	Days    int        `json:"days,omitzero"`
}

// leaseWire is a jobs.Lease. Its ID is null for who must not know it.
type leaseWire struct {
	ID             string            `json:"lease_id"`
	JobID          string            `json:"job_id"`
	WorkerID       string            `json:"worker_id"`
	Units          int               `json:"capacity_units"`
	IssuedAt       time.Time         `json:"issued_at"`
	ExpiresAt      time.Time         `json:"expires_at"`
	LastHeartbeat  time.Time         `json:"last_heartbeat"`
	Token          uint64            `json:"token"`
	Attempt        int               `json:"attempt"`
	TTL            time.Duration     `json:"lease_ttl_s"`
	Interval       time.Duration     `json:"heartbeat_interval_s"`
	FirstHeartbeat time.Time         `json:"first_heartbeat"`
	RunUntil       time.Time         `json:"run_until"`
	LockTokens     map[string]uint64 `json:"lock_tokens,omitempty"`
	RequestID      string            `json:"-"`
}

func toLease(l *jobs.Lease, id bool) *leaseWire {
	w := leaseWire(*l)
	w.ID = shown(l.ID, id)
	return &w
}

// shown returns a lease ID, or nothing for who must not know it.
func shown(leaseID string, may bool) string {
	if !may {
		return ""
	}
	return leaseID
}

// jobWire is a jobs.Job.
type jobWire struct {
	ID             string         `json:"job_id"`
	Type           string         `json:"type"`
	Priority       jobs.Priority  `json:"priority"`
	Units          int            `json:"requested_units"`
	Unique         bool           `json:"unique"`
	State          jobs.State     `json:"state"`
	Payload        jsontext.Value `json:"payload"`
	IdempotencyKey string         `json:"idempotency_key"`
	Tags           []string       `json:"tags"`
	MaxRuntime     *time.Duration `json:"max_runtime_s"`
	LeaseID        string         `json:"lease_id"`
	CreatedAt      time.Time      `json:"created_at"`
	UpdatedAt      time.Time      `json:"updated_at"`
	MaxAttempts    int            `json:"max_attempts"`
	RetryBackoff   time.Duration  `json:"retry_backoff_s"`
	RunAt          time.Time      `json:"run_at"`
	Locks          []string       `json:"locks"`
	ReadyAt        time.Time      `json:"ready_at"`
	StartedAt      time.Time      `json:"started_at"`
	EndedAt        time.Time      `json:"ended_at"`
	Attempt        int            `json:"attempt"`
	Token          uint64         `json:"token"`
	Code           string         `json:"code"`
	Cancel         bool           `json:"cancel_requested"`
	Reason         string         `json:"reason"`
	outputWire
}

// outputWire is a jobs.Report.
type outputWire struct {
	Progress   *float64       `json:"progress"`
	Message    string         `json:"message"`
	Metrics    jsontext.Value `json:"metrics"`
	Checkpoint jsontext.Value `json:"checkpoint"`
	Result     jsontext.Value `json:"result"`
	Error      jsontext.Value `json:"error"`
}

func toJob(j *jobs.Job, leaseID bool) jobWire {
	w := jobWire{
		ID: j.ID, Type: j.Type, Priority: j.Priority, Units: j.Units, Unique: j.Unique, State: j.State, Payload: j.Payload,
		IdempotencyKey: j.IdempotencyKey, Tags: j.Tags, LeaseID: shown(j.LeaseID, leaseID), CreatedAt: j.CreatedAt,
		UpdatedAt: j.UpdatedAt, MaxAttempts: j.MaxAttempts, RetryBackoff: j.RetryBackoff, RunAt: j.RunAt, Locks: j.Locks,
		ReadyAt: j.ReadyAt, StartedAt: j.StartedAt, EndedAt: j.EndedAt, Attempt: j.Attempt, Token: j.Token,
		Code: j.Code, Cancel: j.Cancel, Reason: j.Reason,
	}
	if j.MaxRuntime != 0 {
		w.MaxRuntime = &j.MaxRuntime
	}
	if o := j.Output; o != nil {
		w.outputWire = outputWire(*o)
	}
	return w
}

func (w *jobWire) job() jobs.Job {
	j := jobs.Job{
		Spec: jobs.Spec{
			Type: w.Type, Priority: w.Priority, Units: w.Units, Unique: w.Unique, Payload: w.Payload,
			IdempotencyKey: w.IdempotencyKey, Tags: w.Tags, MaxAttempts: w.MaxAttempts,
			RetryBackoff: w.RetryBackoff, RunAt: w.RunAt, Locks: w.Locks,
		},
		ID: w.ID, State: w.State, LeaseID: w.LeaseID, CreatedAt: w.CreatedAt, UpdatedAt: w.UpdatedAt, ReadyAt: w.ReadyAt,
		StartedAt: w.StartedAt, EndedAt: w.EndedAt, Attempt: w.Attempt, Token: w.Token, Code: w.Code,
		Cancel: w.Cancel, Reason: w.Reason,
	}
	if w.MaxRuntime != nil {
		j.MaxRuntime = *w.MaxRuntime
	}
	if !reflect.ValueOf(w.outputWire).IsZero() {
		j.Output = new(jobs.Report(w.outputWire))
	}
	return j
}

// seenWire is what readers see beside a job: the rest of a jobs.View.
type seenWire struct {
	Lease       *leaseWire    `json:"lease"`
	InQueue     bool          `json:"in_queue"`
	WaitingFor  string        `json:"waiting_for"`
	Age         time.Duration `json:"age_s"`
	SinceUpdate time.Duration `json:"since_update_s"`
}

func toSeen(v *jobs.View, leaseID bool) seenWire {
	w := seenWire{
		InQueue: v.InQueue, WaitingFor: v.WaitingFor,
		Age: v.Age.Truncate(time.Millisecond), SinceUpdate: v.SinceUpdate.Truncate(time.Millisecond),
	}
	if v.Lease != nil {
		w.Lease = toLease(v.Lease, leaseID)
	}
	return w
}

func (w *seenWire) view(j *jobWire) jobs.View {
	v := jobs.View{Job: j.job(), InQueue: w.InQueue, WaitingFor: w.WaitingFor, Age: w.Age, SinceUpdate: w.SinceUpdate}
	v.Lease = (*jobs.Lease)(w.Lease)
	return v
}

// viewWire is one job with all there is to see.
type viewWire struct {
	jobWire
	seenWire
	Attempts []attemptWire `json:"attempts"`
}

func toView(v *jobs.View, leaseIDs bool) *viewWire {
	w := viewWire{jobWire: toJob(&v.Job, leaseIDs), seenWire: toSeen(v, leaseIDs)}
	for i := range v.Attempts {
		w.Attempts = append(w.Attempts, attemptWire(v.Attempts[i]))
		w.Attempts[i].LeaseID = shown(v.Attempts[i].LeaseID, leaseIDs)
	}
	return &w
}

// attemptWire is a jobs.Attempt.
type attemptWire struct {
	JobID          string         `json:"-"`
	Number         int            `json:"attempt"`
	Token          uint64         `json:"token"`
	LeaseID        string         `json:"lease_id"`
	WorkerID       string         `json:"worker_id"`
	Units          int            `json:"capacity_units"`
	State          jobs.State     `json:"state"`
	Code           string         `json:"code"`
	IssuedAt       time.Time      `json:"issued_at"`
	FirstHeartbeat time.Time      `json:"first_heartbeat"`
	EndedAt        time.Time      `json:"ended_at"`
	Error          jsontext.Value `json:"error"`
}

// pageWire is a jobs.Page.
type pageWire struct {
	Now      time.Time     `json:"now"`
	Jobs     []listedWire  `json:"jobs"`
	Queue    jobs.Depths   `json:"queue_depths"`
	Snapshot jobs.Snapshot `json:"snapshot"`
	Next     string        `json:"next"`
}

type listedWire struct {
	Job jobWire `json:"job"`
	seenWire
}

func toPage(p *jobs.Page, leaseIDs bool) *pageWire {
	w := pageWire{Now: p.Now, Queue: p.Snapshot.Queue, Snapshot: p.Snapshot, Next: p.Next}
	for i := range p.Jobs {
		w.Jobs = append(w.Jobs, listedWire{toJob(&p.Jobs[i].Job, leaseIDs), toSeen(&p.Jobs[i], leaseIDs)})
	}
	return &w
}

// workersWire lists who is known.
type workersWire struct {
	Workers []jobs.WorkerStatus `json:"workers"`
}

// statsWire is a jobs.Stats.
type statsWire struct {
	Range rangeWire `json:"range"`
	jobs.Totals
	ByType map[string]jobs.Totals `json:"by_type"`
}

func toStats(s *jobs.Stats, days int) *statsWire {
	w := statsWire{Range: rangeWire{days, s.From, s.To}, Totals: rounded(s.Totals), ByType: map[string]jobs.Totals{}}
	for name, t := range s.ByType {
		w.ByType[name] = rounded(t)
	}
	return &w
}

// rangeWire is what time statistics are about.
type rangeWire struct {
	Days int       `json:"days"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// rounded returns the totals with whole milliseconds.
func rounded(t jobs.Totals) jobs.Totals {
	t.AvgWait, t.P95Runtime = t.AvgWait.Round(time.Millisecond), t.P95Runtime.Round(time.Millisecond)
	return t
}
