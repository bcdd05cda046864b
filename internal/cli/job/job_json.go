package job

import (
	"encoding/json"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// What --json shows of jobs has the names that the server's own answers have.

// moment is a time as the server writes it: UTC, with three digits behind the second, or null.
type moment struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (m moment) MarshalJSON() ([]byte, error) {
	if m.IsZero() {
		return []byte("null"), nil
	}
	return []byte(m.UTC().Format(`"2006-01-02T15:04:05.000Z"`)), nil
}

type jobJSON struct {
	ID         string          `json:"job_id"`
	Type       string          `json:"type"`
	Priority   jobs.Priority   `json:"priority"`
	Units      int             `json:"requested_units"`
	Unique     bool            `json:"unique"`
	State      jobs.State      `json:"state"`
	Payload    json.RawMessage `json:"payload"`
	Key        *string         `json:"idempotency_key"`
	Tags       []string        `json:"tags"`
	MaxRuntime *float64        `json:"max_runtime_s"`
	CreatedAt  moment          `json:"created_at"`
	UpdatedAt  moment          `json:"updated_at"`
	Attempts   int             `json:"max_attempts"`
	Backoff    float64         `json:"retry_backoff_s"`
	RunAt      moment          `json:"run_at"`
	Locks      []string        `json:"locks"`
	ReadyAt    moment          `json:"ready_at"`
	StartedAt  moment          `json:"started_at"`
	EndedAt    moment          `json:"ended_at"`
	Attempt    int             `json:"attempt"`
	Token      uint64          `json:"token"`
	Code       *string         `json:"code"`
	Cancel     bool            `json:"cancel_requested"`
	Reason     *string         `json:"reason"`
	Progress   *float64        `json:"progress"`
	Message    *string         `json:"message"`
	Metrics    json.RawMessage `json:"metrics"`
	Checkpoint json.RawMessage `json:"checkpoint"`
	Result     json.RawMessage `json:"result"`
	Error      json.RawMessage `json:"error"`
}

// optional returns nil for what is not there.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// raw returns JSON as it is, or null.
func raw(v json.RawMessage) json.RawMessage {
	if v == nil {
		return json.RawMessage("null")
	}
	return v
}

func newJobJSON(j *jobs.Job) jobJSON {
	v := jobJSON{
		ID: j.ID, Type: j.Type, Priority: j.Priority, Units: j.Units, Unique: j.Unique, State: j.State, Payload: raw(j.Payload),
		Key: optional(j.IdempotencyKey), Tags: append([]string{}, j.Tags...), CreatedAt: moment{j.CreatedAt}, UpdatedAt: moment{j.UpdatedAt},
		Attempts: j.MaxAttempts, Backoff: j.RetryBackoff.Seconds(), RunAt: moment{j.RunAt}, Locks: append([]string{}, j.Locks...),
		ReadyAt: moment{j.ReadyAt}, StartedAt: moment{j.StartedAt}, EndedAt: moment{j.EndedAt}, Attempt: j.Attempt, Token: j.Token,
		Code: optional(j.Code), Cancel: j.Cancel, Reason: optional(j.Reason),
	}
	if j.MaxRuntime > 0 {
		s := j.MaxRuntime.Seconds()
		v.MaxRuntime = &s
	}
	o := j.Output
	if o == nil {
		o = &jobs.Report{}
	}
	v.Progress, v.Message = o.Progress, optional(o.Message)
	v.Metrics, v.Checkpoint, v.Result, v.Error = raw(o.Metrics), raw(o.Checkpoint), raw(o.Result), raw(o.Error)
	return v
}

type leaseJSON struct {
	ID            *string `json:"lease_id"`
	JobID         string  `json:"job_id"`
	WorkerID      string  `json:"worker_id"`
	Units         int     `json:"capacity_units"`
	IssuedAt      moment  `json:"issued_at"`
	ExpiresAt     moment  `json:"expires_at"`
	LastHeartbeat moment  `json:"last_heartbeat"`
	Token         uint64  `json:"token"`
	Attempt       int     `json:"attempt"`

	LockTokens map[string]uint64 `json:"lock_tokens,omitempty"`
}

type attemptJSON struct {
	Number    int             `json:"attempt"`
	Token     uint64          `json:"token"`
	LeaseID   *string         `json:"lease_id"`
	WorkerID  string          `json:"worker_id"`
	State     jobs.State      `json:"state"`
	Code      *string         `json:"code"`
	IssuedAt  moment          `json:"issued_at"`
	FirstBeat moment          `json:"first_heartbeat"`
	EndedAt   moment          `json:"ended_at"`
	Error     json.RawMessage `json:"error"`
}

// seenJSON is what there is to see beside a job.
type seenJSON struct {
	Lease       *leaseJSON `json:"lease"`
	InQueue     bool       `json:"in_queue"`
	WaitingFor  *string    `json:"waiting_for"`
	Age         float64    `json:"age_s"`
	SinceUpdate float64    `json:"since_update_s"`
}

func newSeenJSON(v *jobs.View) seenJSON {
	s := seenJSON{
		InQueue: v.InQueue, WaitingFor: optional(v.WaitingFor), Age: v.Age.Truncate(time.Millisecond).Seconds(),
		SinceUpdate: v.SinceUpdate.Truncate(time.Millisecond).Seconds(),
	}
	if l := v.Lease; l != nil {
		s.Lease = &leaseJSON{
			ID: optional(l.ID), JobID: l.JobID, WorkerID: l.WorkerID, Units: l.Units, IssuedAt: moment{l.IssuedAt}, ExpiresAt: moment{l.ExpiresAt},
			LastHeartbeat: moment{l.LastHeartbeat}, Token: l.Token, Attempt: l.Attempt, LockTokens: l.LockTokens,
		}
	}
	return s
}

// viewJSON is one job with all there is to see.
type viewJSON struct {
	jobJSON
	seenJSON
	Attempts []attemptJSON `json:"attempts"`
}

func newViewJSON(v *jobs.View) viewJSON {
	j := viewJSON{jobJSON: newJobJSON(&v.Job), seenJSON: newSeenJSON(v), Attempts: []attemptJSON{}}
	for _, at := range v.Attempts {
		j.Attempts = append(j.Attempts, attemptJSON{
			Number: at.Number, Token: at.Token, LeaseID: optional(at.LeaseID), WorkerID: at.WorkerID, State: at.State, Code: optional(at.Code),
			IssuedAt: moment{at.IssuedAt}, FirstBeat: moment{at.FirstBeat}, EndedAt: moment{at.EndedAt}, Error: raw(at.Error),
		})
	}
	return j
}

type depthsJSON struct {
	High       int `json:"high"`
	Normal     int `json:"normal"`
	Low        int `json:"low"`
	Background int `json:"background"`
}

type capacityJSON struct {
	Total     int        `json:"total_capacity_units"`
	Usable    int        `json:"usable_capacity_units"`
	Leased    int        `json:"leased_capacity_units"`
	Available int        `json:"available_capacity_units"`
	Queue     depthsJSON `json:"queue_depths"`
	Leases    int        `json:"active_leases"`
	Draining  bool       `json:"draining"`
}

func newCapacityJSON(s jobs.Snapshot) capacityJSON {
	return capacityJSON{s.Total, s.Usable, s.Leased, s.Available, depthsJSON(s.Queue), s.ActiveLeases, s.Draining}
}

// listedJSON is one job of a list.
type listedJSON struct {
	Job jobJSON `json:"job"`
	seenJSON
}

type listJSON struct {
	Now      moment       `json:"now"`
	Jobs     []listedJSON `json:"jobs"`
	Queue    depthsJSON   `json:"queue_depths"`
	Snapshot capacityJSON `json:"snapshot"`
	Next     *string      `json:"next"`
}

func newListJSON(p jobs.Page) listJSON {
	l := listJSON{
		Now: moment{p.Now}, Jobs: []listedJSON{}, Queue: depthsJSON(p.Snapshot.Queue), Snapshot: newCapacityJSON(p.Snapshot), Next: optional(p.Next),
	}
	for i := range p.Jobs {
		l.Jobs = append(l.Jobs, listedJSON{newJobJSON(&p.Jobs[i].Job), newSeenJSON(&p.Jobs[i])})
	}
	return l
}

type totalsJSON struct {
	Total      int64                `json:"total"`
	ByState    map[jobs.State]int64 `json:"totals_by_state"`
	Success    float64              `json:"success_rate"`
	AvgWait    float64              `json:"avg_queue_wait_s"`
	P95Runtime float64              `json:"p95_runtime_s"`
}

func newTotalsJSON(t jobs.Totals) totalsJSON {
	ms := func(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
	return totalsJSON{t.Total, t.ByState, t.SuccessRate, ms(t.AvgWait), ms(t.P95Runtime)}
}

type rangeJSON struct {
	Days int    `json:"days"`
	From moment `json:"from"`
	To   moment `json:"to"`
}

type statsJSON struct {
	Status capacityJSON `json:"status"`
	Range  rangeJSON    `json:"range"`
	totalsJSON
	ByType map[string]totalsJSON `json:"by_type"`
}

func newStatsJSON(now jobs.Snapshot, s jobs.Stats, days int) statsJSON {
	v := statsJSON{
		Status: newCapacityJSON(now), Range: rangeJSON{days, moment{s.From}, moment{s.To}}, totalsJSON: newTotalsJSON(s.Totals),
		ByType: map[string]totalsJSON{},
	}
	for name, t := range s.ByType {
		v.ByType[name] = newTotalsJSON(t)
	}
	return v
}
