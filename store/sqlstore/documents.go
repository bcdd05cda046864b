package sqlstore

// What is stored as JSON, because nobody asks the database for it. The names of keys are part of the schema. The types mirror
// those of the rules field by field: one that is added there does not compile here.

import (
	"encoding/json"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

type processDocument struct {
	PID        int    `json:"pid,omitempty"`
	Start      int64  `json:"start,omitempty"`
	Boot       string `json:"boot,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Liveness   string `json:"liveness,omitempty"`
	Child      int    `json:"child,omitempty"`
	ChildStart int64  `json:"child_start,omitempty"`
}

func processOf(p lokt.Process) *processDocument {
	if p == (lokt.Process{}) {
		return nil
	}
	d := processDocument(p)
	return &d
}

func (d *processDocument) process() lokt.Process {
	if d == nil {
		return lokt.Process{}
	}
	return lokt.Process(*d)
}

// claimDocument is what a claim says beyond what has a column.
type claimDocument struct {
	AnySession bool              `json:"any_session,omitempty"`
	Asks       *processDocument  `json:"asks,omitempty"`
	Process    *processDocument  `json:"process,omitempty"`
	Attended   bool              `json:"attended,omitempty"`
	Limit      int               `json:"limit,omitempty"`
	Strict     bool              `json:"strict,omitempty"`
	Refresh    bool              `json:"refresh,omitempty"`
	Priority   int               `json:"priority,omitempty"`
	Preempt    time.Duration     `json:"preempt_ns,omitempty"`
	Wait       time.Duration     `json:"wait_ns,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Within     []string          `json:"within,omitempty"`
}

func encodeClaim(c *lokt.Claim) (string, error) {
	return encode(claimDocument{
		AnySession: c.Owner.AnySession, Asks: processOf(c.Owner.Process), Process: (*processDocument)(c.Process), Attended: c.Attended, Limit: c.Limit,
		Strict: c.Strict, Refresh: c.Refresh, Priority: c.Priority, Preempt: c.Preempt, Wait: c.Wait, Metadata: c.Metadata, Within: c.Within,
	})
}

func (d *claimDocument) into(c *lokt.Claim) {
	c.Owner.AnySession, c.Owner.Process, c.Process = d.AnySession, d.Asks.process(), (*lokt.Process)(d.Process)
	c.Attended, c.Limit, c.Strict, c.Refresh = d.Attended, d.Limit, d.Strict, d.Refresh
	c.Priority, c.Preempt, c.Wait, c.Metadata, c.Within = d.Priority, d.Preempt, d.Wait, d.Metadata, d.Within
}

type ownerDocument struct {
	ID         string           `json:"id"`
	Session    string           `json:"session,omitempty"`
	AnySession bool             `json:"any_session,omitempty"`
	Host       string           `json:"host,omitempty"`
	Asks       *processDocument `json:"asks,omitempty"`
}

type yieldDocument struct {
	To       ownerDocument `json:"to"`
	AskedAt  time.Time     `json:"asked_at"`
	Grace    time.Duration `json:"grace_ns"`
	Deadline *time.Time    `json:"deadline,omitempty"`
}

func encodeYield(y *lokt.Yield) (any, error) {
	if y == nil {
		return nil, nil
	}
	d := yieldDocument{
		To:      ownerDocument{y.To.ID, y.To.Session, y.To.AnySession, y.To.Host, processOf(y.To.Process)},
		AskedAt: y.AskedAt.UTC(), Grace: y.Grace,
	}
	if !y.Deadline.IsZero() {
		at := y.Deadline.UTC()
		d.Deadline = &at
	}
	return encode(d)
}

func (d *yieldDocument) yield() *lokt.Yield {
	if d == nil {
		return nil
	}
	y := &lokt.Yield{
		To:      lokt.Owner{ID: d.To.ID, Session: d.To.Session, AnySession: d.To.AnySession, Host: d.To.Host, Process: d.To.Asks.process()},
		AskedAt: d.AskedAt, Grace: d.Grace,
	}
	if d.Deadline != nil {
		y.Deadline = *d.Deadline
	}
	return y
}

// freezeDocument is what a freeze says beyond what has a column.
type freezeDocument struct {
	AnySession bool             `json:"any_session,omitempty"`
	Asks       *processDocument `json:"asks,omitempty"`
	Damaged    string           `json:"damaged,omitempty"`
}

// eventDocument is what an event says beyond what has a column.
type eventDocument struct {
	AnySession bool              `json:"any_session,omitempty"`
	Asks       *processDocument  `json:"asks,omitempty"`
	Extra      map[string]string `json:"extra,omitempty"`
}

type leaseDocument struct {
	ID             string    `json:"id"`
	JobID          string    `json:"job"`
	WorkerID       string    `json:"worker"`
	RequestID      string    `json:"request"`
	Units          int       `json:"units"`
	Token          uint64    `json:"token"`
	Attempt        int       `json:"attempt"`
	IssuedAt       time.Time `json:"issued"`
	ExpiresAt      time.Time `json:"expires"`
	LastHeartbeat  time.Time `json:"last_beat"`
	FirstHeartbeat time.Time `json:"first_beat,omitzero"`
	RunUntil       time.Time `json:"run_until,omitzero"`

	LockTokens map[string]uint64 `json:"lock_tokens,omitempty"`

	TTL      time.Duration `json:"ttl_ns"`
	Interval time.Duration `json:"beat_every_ns"`
}

type histogramDocument struct {
	Buckets map[int]int64 `json:"buckets,omitempty"`
	Min     time.Duration `json:"min_ns,omitempty"`
	Max     time.Duration `json:"max_ns,omitempty"`
}

type tallyDocument struct {
	Hour      int64             `json:"hour,omitempty"` // milliseconds since 1970
	Type      string            `json:"type,omitempty"`
	Completed int64             `json:"completed,omitempty"`
	Failed    int64             `json:"failed,omitempty"`
	Expired   int64             `json:"expired,omitempty"`
	Cancelled int64             `json:"cancelled,omitempty"`
	Waits     int64             `json:"waits,omitempty"`
	WaitSum   time.Duration     `json:"wait_sum_ns,omitempty"`
	Runs      histogramDocument `json:"runs"`
}

func documentOfTally(t *jobs.Tally) tallyDocument {
	return tallyDocument{
		Hour: t.Hour.UnixMilli(), Type: t.Type, Completed: t.Completed, Failed: t.Failed, Expired: t.Expired, Cancelled: t.Cancelled,
		Waits: t.Waits, WaitSum: t.WaitSum, Runs: histogramDocument(t.Runs),
	}
}

func (d *tallyDocument) tally() jobs.Tally {
	return jobs.Tally{
		Hour: time.UnixMilli(d.Hour).UTC(), Type: d.Type, Completed: d.Completed, Failed: d.Failed, Expired: d.Expired, Cancelled: d.Cancelled,
		Waits: d.Waits, WaitSum: d.WaitSum, Runs: jobs.Histogram(d.Runs),
	}
}

type countDocument struct {
	Hour  int64  `json:"hour"` // milliseconds since 1970
	Event string `json:"event"`
	Tag   string `json:"tag,omitempty"`
	N     int64  `json:"n"`
}

// addition is what a turn added to the statistics.
type addition struct {
	Tallies []tallyDocument `json:"tallies,omitempty"`
	Counts  []countDocument `json:"counts,omitempty"`
}

func encode(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}
