package httpapi

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt/jobs"
)

// Get implements jobs.Reader.
func (c *JobsClient) Get(ctx context.Context, jobID string) (jobs.View, error) {
	if jobID == "" {
		return jobs.View{}, jobs.ErrJobNotFound
	}
	var answer viewWire
	if err := c.get(ctx, "/jobs/"+url.PathEscape(jobID), nil, &answer); err != nil {
		return jobs.View{}, err
	}
	v := answer.seenWire.view(&answer.jobWire)
	for i := range answer.Attempts {
		v.Attempts = append(v.Attempts, answer.Attempts[i].attempt(jobID))
	}
	return v, nil
}

// List implements jobs.Reader.
func (c *JobsClient) List(ctx context.Context, f jobs.Filter) (jobs.Page, error) {
	if err := f.Validate(); err != nil {
		return jobs.Page{}, err
	}
	q := url.Values{}
	if f.Limit != 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	for name, value := range map[string]string{"state": string(f.State), "type": f.Type, "tag": f.Tag, "after": f.After} {
		if value != "" {
			q.Set(name, value)
		}
	}
	var answer struct {
		Now  time.Time `json:"now"`
		Jobs []struct {
			Job jobWire `json:"job"`
			seenWire
		} `json:"jobs"`
		Snapshot snapshotWire `json:"snapshot"`
		Next     string       `json:"next"`
	}
	if err := c.get(ctx, "/jobs", q, &answer); err != nil {
		return jobs.Page{}, err
	}
	p := jobs.Page{Now: answer.Now, Snapshot: answer.Snapshot.snapshot(), Next: answer.Next}
	for i := range answer.Jobs {
		p.Jobs = append(p.Jobs, answer.Jobs[i].view(&answer.Jobs[i].Job))
	}
	return p, nil
}

// Status implements jobs.Reader.
func (c *JobsClient) Status(ctx context.Context) (jobs.Snapshot, error) {
	var answer snapshotWire
	err := c.get(ctx, "/status", nil, &answer)
	return answer.snapshot(), err
}

// Workers implements jobs.Reader.
func (c *JobsClient) Workers(ctx context.Context) ([]jobs.WorkerStatus, error) {
	var answer struct {
		Workers []struct {
			ID       string    `json:"worker_id"`
			Leases   int       `json:"leases"`
			LastSeen time.Time `json:"last_seen"`
		} `json:"workers"`
	}
	if err := c.get(ctx, "/workers", nil, &answer); err != nil {
		return nil, err
	}
	all := make([]jobs.WorkerStatus, len(answer.Workers))
	for i, w := range answer.Workers {
		all[i] = jobs.WorkerStatus{ID: w.ID, Leases: w.Leases, LastSeen: w.LastSeen}
	}
	return all, nil
}

// Stats implements jobs.Reader.
func (c *JobsClient) Stats(ctx context.Context, days int) (jobs.Stats, error) {
	var answer statsWire
	if err := c.get(ctx, "/history/stats", daysQuery(days), &answer); err != nil {
		return jobs.Stats{}, err
	}
	s := jobs.Stats{Totals: answer.totals(), ByType: map[string]jobs.Totals{}}
	s.From, _ = time.Parse(time.RFC3339, answer.Range.From) // the zero time if it is none
	s.To, _ = time.Parse(time.RFC3339, answer.Range.To)
	for name, t := range answer.ByType {
		s.ByType[name] = t.totals()
	}
	return s, nil
}

func daysQuery(days int) url.Values { return url.Values{"days": {strconv.Itoa(days)}} }

func (w totalsWire) totals() jobs.Totals {
	return jobs.Totals{
		Total: w.Total, ByState: w.ByState, SuccessRate: w.Success, AvgWait: secondsOf(w.AvgWait), P95Runtime: secondsOf(w.P95Runtime),
	}
}

// Decisions implements jobs.Reader.
func (c *JobsClient) Decisions(ctx context.Context, days int) (jobs.Decisions, error) {
	var answer decisionsWire
	err := c.get(ctx, "/history/decisions", daysQuery(days), &answer)
	return jobs.Decisions(answer), err
}

// Revoke implements jobs.Operator.
func (c *JobsClient) Revoke(ctx context.Context, leaseID, reason string) error {
	body, err := onlyText("reason", reason)
	if err != nil {
		return err
	}
	if leaseID == "" {
		return jobs.ErrLeaseNotFound
	}
	return c.post(ctx, "/leases/"+url.PathEscape(leaseID)+"/revoke", body, &struct{}{})
}

// Freeze implements jobs.Operator.
func (c *JobsClient) Freeze(ctx context.Context, jobType string) error {
	return c.freeze(ctx, "/freeze", jobType)
}

// Unfreeze implements jobs.Operator.
func (c *JobsClient) Unfreeze(ctx context.Context, jobType string) error {
	return c.freeze(ctx, "/unfreeze", jobType)
}

func (c *JobsClient) freeze(ctx context.Context, path, jobType string) error {
	body, err := onlyText("type", jobType)
	if err != nil {
		return err
	}
	return c.post(ctx, path, body, &struct{}{})
}

// Cleanup implements jobs.Operator.
func (c *JobsClient) Cleanup(ctx context.Context, days int) (int, error) {
	var answer struct {
		Deleted int `json:"deleted"`
	}
	x := &exchange{method: http.MethodPost, path: "/history/cleanup", query: daysQuery(days)}
	err := c.do(ctx, x, &answer)
	return answer.Deleted, err
}

// secondsOf returns a duration that the wire has in seconds; they are exact to the nanosecond for a hundred days.
func secondsOf(s float64) time.Duration {
	if math.Abs(s) > math.MaxInt64/1e9 {
		return time.Duration(math.Copysign(math.MaxInt64, s))
	}
	return time.Duration(math.Round(s * 1e9))
}

// rawOf returns a value that is passed on, nil for null.
func rawOf(raw jsontext.Value) jsontext.Value {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// timeOf returns a time, zero for null.
func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

type beatWire struct {
	ExpiresAt time.Time `json:"expires_at"`
	Cancel    bool      `json:"cancel_requested"`
	Drain     bool      `json:"drain"`
	Interval  float64   `json:"heartbeat_interval_s"`
	LostLocks []string  `json:"lost_locks"`
}

func (w *beatWire) answer(interval float64) jobs.HeartbeatAnswer {
	return jobs.HeartbeatAnswer{ExpiresAt: w.ExpiresAt, Cancel: w.Cancel, Drain: w.Drain, Interval: secondsOf(interval), LostLocks: w.LostLocks}
}

type grantWire struct {
	Denied     bool      `json:"denied"`
	Reason     string    `json:"reason"`
	RetryAfter int64     `json:"retry_after_ms"`
	Code       string    `json:"code"`
	Lease      leaseWire `json:"lease"`
	Job        jobWire   `json:"job"`
}

func (w *grantWire) grant() jobs.Grant {
	if w.Denied {
		return jobs.Grant{Denied: &jobs.Denial{Code: w.Code, Reason: w.Reason, RetryAfter: time.Duration(w.RetryAfter) * time.Millisecond}}
	}
	return jobs.Grant{Lease: w.Lease.lease(), Job: w.Job.job()}
}

type leaseWire struct {
	ID            string     `json:"lease_id"`
	JobID         string     `json:"job_id"`
	WorkerID      string     `json:"worker_id"`
	Units         int        `json:"capacity_units"`
	IssuedAt      time.Time  `json:"issued_at"`
	ExpiresAt     time.Time  `json:"expires_at"`
	LastHeartbeat time.Time  `json:"last_heartbeat"`
	Token         uint64     `json:"token"`
	Attempt       int        `json:"attempt"`
	TTL           float64    `json:"lease_ttl_s"`
	Interval      float64    `json:"heartbeat_interval_s"`
	FirstBeat     *time.Time `json:"first_heartbeat"`
	RunUntil      *time.Time `json:"run_until"`

	LockTokens map[string]uint64 `json:"lock_tokens"`
}

func (w *leaseWire) lease() jobs.Lease {
	return jobs.Lease{
		ID: w.ID, JobID: w.JobID, WorkerID: w.WorkerID, Units: w.Units, Token: w.Token, Attempt: w.Attempt,
		IssuedAt: w.IssuedAt, ExpiresAt: w.ExpiresAt, LastHeartbeat: w.LastHeartbeat, FirstHeartbeat: timeOf(w.FirstBeat),
		RunUntil: timeOf(w.RunUntil), LockTokens: w.LockTokens, TTL: secondsOf(w.TTL), Interval: secondsOf(w.Interval),
	}
}

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
	MaxRuntime     float64        `json:"max_runtime_s"`
	LeaseID        string         `json:"lease_id"`
	CreatedAt      time.Time      `json:"created_at"`
	UpdatedAt      time.Time      `json:"updated_at"`
	MaxAttempts    int            `json:"max_attempts"`
	RetryBackoff   float64        `json:"retry_backoff_s"`
	RunAt          *time.Time     `json:"run_at"`
	Locks          []string       `json:"locks"`
	ReadyAt        *time.Time     `json:"ready_at"`
	StartedAt      *time.Time     `json:"started_at"`
	EndedAt        *time.Time     `json:"ended_at"`
	Attempt        int            `json:"attempt"`
	Token          uint64         `json:"token"`
	Code           string         `json:"code"`
	Cancel         bool           `json:"cancel_requested"`
	Reason         string         `json:"reason"`
	Progress       *float64       `json:"progress"`
	Message        string         `json:"message"`
	Metrics        jsontext.Value `json:"metrics"`
	Checkpoint     jsontext.Value `json:"checkpoint"`
	Result         jsontext.Value `json:"result"`
	Error          jsontext.Value `json:"error"`
}

func (w *jobWire) job() jobs.Job {
	j := jobs.Job{
		Spec: jobs.Spec{
			Type: w.Type, Priority: w.Priority, Units: w.Units, Unique: w.Unique, Payload: rawOf(w.Payload), IdempotencyKey: w.IdempotencyKey,
			Tags: w.Tags, MaxRuntime: secondsOf(w.MaxRuntime), MaxAttempts: w.MaxAttempts, RetryBackoff: secondsOf(w.RetryBackoff),
			RunAt: timeOf(w.RunAt), Locks: w.Locks,
		},
		ID: w.ID, State: w.State, LeaseID: w.LeaseID, CreatedAt: w.CreatedAt, UpdatedAt: w.UpdatedAt, ReadyAt: timeOf(w.ReadyAt),
		StartedAt: timeOf(w.StartedAt), EndedAt: timeOf(w.EndedAt), Attempt: w.Attempt, Token: w.Token, Code: w.Code, Cancel: w.Cancel, Reason: w.Reason,
	}
	o := jobs.Report{
		Progress: w.Progress, Message: w.Message, Metrics: rawOf(w.Metrics), Checkpoint: rawOf(w.Checkpoint), Result: rawOf(w.Result), Error: rawOf(w.Error),
	}
	if o.Progress != nil || o.Message != "" || o.Metrics != nil || o.Checkpoint != nil || o.Result != nil || o.Error != nil {
		j.Output = &o
	}
	return j
}

// seenWire is what readers see of a job beside it.
type seenWire struct {
	Lease       *leaseWire `json:"lease"`
	InQueue     bool       `json:"in_queue"`
	WaitingFor  string     `json:"waiting_for"`
	Age         float64    `json:"age_s"`
	SinceUpdate float64    `json:"since_update_s"`
}

func (w *seenWire) view(j *jobWire) jobs.View {
	v := jobs.View{
		Job: j.job(), InQueue: w.InQueue, WaitingFor: w.WaitingFor, Age: secondsOf(w.Age), SinceUpdate: secondsOf(w.SinceUpdate),
	}
	if w.Lease != nil {
		l := w.Lease.lease()
		v.Lease = &l
	}
	return v
}

type viewWire struct {
	jobWire
	seenWire
	Attempts []attemptWire `json:"attempts"`
}

type attemptWire struct {
	Number    int            `json:"attempt"`
	Token     uint64         `json:"token"`
	LeaseID   string         `json:"lease_id"`
	WorkerID  string         `json:"worker_id"`
	Units     int            `json:"capacity_units"`
	State     jobs.State     `json:"state"`
	Code      string         `json:"code"`
	IssuedAt  time.Time      `json:"issued_at"`
	FirstBeat *time.Time     `json:"first_heartbeat"`
	EndedAt   *time.Time     `json:"ended_at"`
	Error     jsontext.Value `json:"error"`
}

func (w *attemptWire) attempt(jobID string) jobs.Attempt {
	return jobs.Attempt{
		JobID: jobID, Number: w.Number, Token: w.Token, LeaseID: w.LeaseID, WorkerID: w.WorkerID, Units: w.Units, State: w.State, Code: w.Code,
		IssuedAt: w.IssuedAt, FirstBeat: timeOf(w.FirstBeat), EndedAt: timeOf(w.EndedAt), Error: rawOf(w.Error),
	}
}

type snapshotWire struct {
	Total     int `json:"total_capacity_units"`
	Usable    int `json:"usable_capacity_units"`
	Leased    int `json:"leased_capacity_units"`
	Available int `json:"available_capacity_units"`
	Queue     struct {
		High       int `json:"high"`
		Normal     int `json:"normal"`
		Low        int `json:"low"`
		Background int `json:"background"`
	} `json:"queue_depths"`
	ActiveLeases int  `json:"active_leases"`
	Draining     bool `json:"draining"`
}

func (w *snapshotWire) snapshot() jobs.Snapshot {
	return jobs.Snapshot{
		Total: w.Total, Usable: w.Usable, Leased: w.Leased, Available: w.Available, Queue: jobs.Depths(w.Queue),
		ActiveLeases: w.ActiveLeases, Draining: w.Draining,
	}
}
