package httpapi

// What the scheduler's answers look like. They are written without reflection, because workers ask for little else.

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt/jobs"
)

// timeLayout is how times are written: UTC, exactly three digits behind the second.
const timeLayout = "2006-01-02T15:04:05.000Z"

// appendTime appends a quoted time, or null for the zero time.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, "null"...)
	}
	t = t.UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return append(t.AppendFormat(append(b, '"'), timeLayout), '"')
	}
	hour, minute, second := t.Clock() // by hand, because each heartbeat's answer has one
	b = append(b, '"')
	b = append(append2(append2(b, year/100), year%100), '-')
	b = append(append2(b, int(month)), '-')
	b = append(append2(b, day), 'T')
	b = append(append2(b, hour), ':')
	b = append(append2(b, minute), ':')
	b = append(append2(b, second), '.')
	ms := t.Nanosecond() / 1e6
	return append(append2(append(b, '0'+byte(ms/100)), ms%100), 'Z', '"')
}

// append2 appends a number of two digits.
func append2(b []byte, n int) []byte { return append(b, '0'+byte(n/10), '0'+byte(n%10)) }

// appendSeconds appends a duration as a number of seconds.
func appendSeconds(b []byte, d time.Duration) []byte {
	if d < 0 {
		if b = append(b, '-'); d == -1<<63 {
			d++
		}
		d = -d
	}
	b = strconv.AppendInt(b, int64(d/time.Second), 10)
	part := d % time.Second
	if part == 0 {
		return b
	}
	b = append(b, '.')
	for digit := time.Second / 10; part > 0; digit /= 10 {
		b = append(b, '0'+byte(part/digit))
		part %= digit
	}
	return b
}

// appendMillis does the same, to the millisecond.
func appendMillis(b []byte, d time.Duration) []byte {
	return appendSeconds(b, d.Truncate(time.Millisecond))
}

func appendFloat(b []byte, f float64) []byte { return strconv.AppendFloat(b, f, 'f', -1, 64) }

// appendRaw appends a value as it was sent, or null.
func appendRaw(b []byte, raw jsontext.Value) []byte {
	if raw == nil {
		return append(b, "null"...)
	}
	return append(b, raw...)
}

// appendText appends a string, or null for the empty one.
func appendText(b []byte, text string) []byte {
	if text == "" {
		return append(b, "null"...)
	}
	return appendString(b, text)
}

func appendStrings(b []byte, all []string) []byte {
	b = append(b, '[')
	for i, s := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// appendReceipt appends what became of a spec.
func appendReceipt(b []byte, r jobs.Receipt) []byte {
	b = append(b, `{"job_id":`...)
	b = appendString(b, r.JobID)
	b = append(b, `,"state":`...)
	b = appendString(b, string(r.State))
	return append(b, '}')
}

// appendBeat appends the answer to a heartbeat.
func appendBeat(b []byte, a jobs.HeartbeatAnswer) []byte {
	b = append(b, `{"ok":true,"expires_at":`...)
	b = appendTime(b, a.ExpiresAt)
	b = appendNews(b, a)
	b = append(b, `,"heartbeat_interval_s":`...)
	b = appendSeconds(b, a.Interval)
	return append(b, '}')
}

// appendNews appends what a worker should know, if there is anything.
func appendNews(b []byte, a jobs.HeartbeatAnswer) []byte {
	if a.Cancel {
		b = append(b, `,"cancel_requested":true`...)
	}
	if a.Drain {
		b = append(b, `,"drain":true`...)
	}
	if len(a.LostLocks) > 0 {
		b = append(b, `,"lost_locks":`...)
		b = appendStrings(b, a.LostLocks)
	}
	return b
}

// appendBeats appends the answer to many heartbeats.
func appendBeats(b []byte, all []jobs.LeaseAnswer) []byte {
	b = append(b, `{"leases":[`...)
	var interval time.Duration
	var at time.Time // what was written last, and where
	var from, to int
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"lease_id":`...)
		b = appendString(b, all[i].LeaseID)
		if err := all[i].Err; err != nil {
			b = append(b, `,"ok":false,"code":`...)
			b = appendString(b, jobs.Code(err))
		} else {
			b = append(b, `,"ok":true,"expires_at":`...)
			if to > 0 && all[i].ExpiresAt.Equal(at) { // most are
				b = append(b, b[from:to]...)
			} else {
				at, from = all[i].ExpiresAt, len(b)
				b = appendTime(b, at)
				to = len(b)
			}
			b = appendNews(b, all[i].HeartbeatAnswer)
			interval = all[i].Interval
		}
		b = append(b, '}')
	}
	b = append(b, ']')
	if interval > 0 {
		b = append(b, `,"heartbeat_interval_s":`...)
		b = appendSeconds(b, interval)
	}
	return append(b, '}')
}

// appendGrant appends the answer to an ask.
func appendGrant(b []byte, g *jobs.Grant) []byte {
	if d := g.Denied; d != nil {
		b = append(b, `{"denied":true,"reason":`...)
		b = appendString(b, d.Reason)
		b = append(b, `,"retry_after_ms":`...)
		b = strconv.AppendInt(b, d.RetryAfter.Milliseconds(), 10)
		b = append(b, `,"code":`...)
		b = appendString(b, d.Code)
		return append(b, '}')
	}
	b = append(b, `{"denied":false,"lease":`...)
	b = appendLease(b, &g.Lease, true)
	b = append(b, `,"job":`...)
	b = append(appendJob(b, &g.Job, true), '}')
	return append(b, '}')
}

// appendLease appends a lease; its ID only to those who may know it.
func appendLease(b []byte, l *jobs.Lease, id bool) []byte {
	b = append(b, `{"lease_id":`...)
	b = appendSecret(b, l.ID, id)
	b = append(b, `,"job_id":`...)
	b = appendString(b, l.JobID)
	b = append(b, `,"worker_id":`...)
	b = appendString(b, l.WorkerID)
	b = append(b, `,"capacity_units":`...)
	b = strconv.AppendInt(b, int64(l.Units), 10)
	b = append(b, `,"issued_at":`...)
	b = appendTime(b, l.IssuedAt)
	b = append(b, `,"expires_at":`...)
	b = appendTime(b, l.ExpiresAt)
	b = append(b, `,"last_heartbeat":`...)
	b = appendTime(b, l.LastHeartbeat)
	b = append(b, `,"token":`...)
	b = strconv.AppendUint(b, l.Token, 10)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendInt(b, int64(l.Attempt), 10)
	b = append(b, `,"lease_ttl_s":`...)
	b = appendSeconds(b, l.TTL)
	b = append(b, `,"heartbeat_interval_s":`...)
	b = appendSeconds(b, l.Interval)
	b = append(b, `,"first_heartbeat":`...)
	b = appendTime(b, l.FirstHeartbeat)
	b = append(b, `,"run_until":`...)
	b = appendTime(b, l.RunUntil)
	if len(l.LockTokens) > 0 {
		b = append(b, `,"lock_tokens":`...)
		open := byte('{')
		for _, name := range slices.Sorted(maps.Keys(l.LockTokens)) {
			b = appendString(append(b, open), name)
			b = strconv.AppendUint(append(b, ':'), l.LockTokens[name], 10)
			open = ','
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// appendSecret appends a lease ID, or null if there is none or it must not be shown.
func appendSecret(b []byte, leaseID string, shown bool) []byte {
	if !shown {
		leaseID = ""
	}
	return appendText(b, leaseID)
}

// appendJob appends a job, but for the closing brace.
func appendJob(b []byte, j *jobs.Job, leaseID bool) []byte {
	b = append(b, `{"job_id":`...)
	b = appendString(b, j.ID)
	b = append(b, `,"type":`...)
	b = appendString(b, j.Type)
	b = append(b, `,"priority":`...)
	b = appendString(b, string(j.Priority))
	b = append(b, `,"requested_units":`...)
	b = strconv.AppendInt(b, int64(j.Units), 10)
	b = append(b, `,"unique":`...)
	b = strconv.AppendBool(b, j.Unique)
	b = append(b, `,"state":`...)
	b = appendString(b, string(j.State))
	b = append(b, `,"payload":`...)
	b = appendRaw(b, j.Payload)
	b = append(b, `,"idempotency_key":`...)
	b = appendText(b, j.IdempotencyKey)
	b = append(b, `,"tags":`...)
	b = appendStrings(b, j.Tags)
	b = append(b, `,"max_runtime_s":`...)
	if j.MaxRuntime == 0 {
		b = append(b, "null"...)
	} else {
		b = appendSeconds(b, j.MaxRuntime)
	}
	b = append(b, `,"lease_id":`...)
	b = appendSecret(b, j.LeaseID, leaseID)
	b = append(b, `,"created_at":`...)
	b = appendTime(b, j.CreatedAt)
	b = append(b, `,"updated_at":`...)
	b = appendTime(b, j.UpdatedAt)

	b = append(b, `,"max_attempts":`...)
	b = strconv.AppendInt(b, int64(j.MaxAttempts), 10)
	b = append(b, `,"retry_backoff_s":`...)
	b = appendSeconds(b, j.RetryBackoff)
	b = append(b, `,"run_at":`...)
	b = appendTime(b, j.RunAt)
	b = append(b, `,"locks":`...)
	b = appendStrings(b, j.Locks)
	b = append(b, `,"ready_at":`...)
	b = appendTime(b, j.ReadyAt)
	b = append(b, `,"started_at":`...)
	b = appendTime(b, j.StartedAt)
	b = append(b, `,"ended_at":`...)
	b = appendTime(b, j.EndedAt)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendInt(b, int64(j.Attempt), 10)
	b = append(b, `,"token":`...)
	b = strconv.AppendUint(b, j.Token, 10)
	b = append(b, `,"code":`...)
	b = appendText(b, j.Code)
	b = append(b, `,"cancel_requested":`...)
	b = strconv.AppendBool(b, j.Cancel)
	b = append(b, `,"reason":`...)
	b = appendText(b, j.Reason)
	o := j.Output
	if o == nil {
		return append(b, `,"progress":null,"message":null,"metrics":null,"checkpoint":null,"result":null,"error":null`...)
	}
	b = append(b, `,"progress":`...)
	if o.Progress == nil {
		b = append(b, "null"...)
	} else {
		b = appendFloat(b, *o.Progress)
	}
	b = append(b, `,"message":`...)
	b = appendText(b, o.Message)
	b = append(b, `,"metrics":`...)
	b = appendRaw(b, o.Metrics)
	b = append(b, `,"checkpoint":`...)
	b = appendRaw(b, o.Checkpoint)
	b = append(b, `,"result":`...)
	b = appendRaw(b, o.Result)
	b = append(b, `,"error":`...)
	return appendRaw(b, o.Error)
}

// appendView appends one job with all there is to see.
func appendView(b []byte, v *jobs.View, leaseID bool) []byte {
	b = appendJob(b, &v.Job, leaseID)
	b = append(b, `,"lease":`...)
	b = appendSeen(b, v, leaseID)
	b = append(b, `,"attempts":[`...)
	for i := range v.Attempts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendAttempt(b, &v.Attempts[i], leaseID)
	}
	return append(b, "]}"...)
}

// appendSeen appends a job's lease, and what else readers see.
func appendSeen(b []byte, v *jobs.View, leaseID bool) []byte {
	if v.Lease == nil {
		b = append(b, "null"...)
	} else {
		b = appendLease(b, v.Lease, leaseID)
	}
	b = append(b, `,"in_queue":`...)
	b = strconv.AppendBool(b, v.InQueue)
	b = append(b, `,"waiting_for":`...)
	b = appendText(b, v.WaitingFor)
	b = append(b, `,"age_s":`...)
	b = appendMillis(b, v.Age)
	b = append(b, `,"since_update_s":`...)
	return appendMillis(b, v.SinceUpdate)
}

func appendAttempt(b []byte, a *jobs.Attempt, leaseID bool) []byte {
	b = append(b, `{"attempt":`...)
	b = strconv.AppendInt(b, int64(a.Number), 10)
	b = append(b, `,"token":`...)
	b = strconv.AppendUint(b, a.Token, 10)
	b = append(b, `,"lease_id":`...)
	b = appendSecret(b, a.LeaseID, leaseID)
	b = append(b, `,"worker_id":`...)
	b = appendString(b, a.WorkerID)
	b = append(b, `,"capacity_units":`...)
	b = strconv.AppendInt(b, int64(a.Units), 10)
	b = append(b, `,"state":`...)
	b = appendString(b, string(a.State))
	b = append(b, `,"code":`...)
	b = appendText(b, a.Code)
	b = append(b, `,"issued_at":`...)
	b = appendTime(b, a.IssuedAt)
	b = append(b, `,"first_heartbeat":`...)
	b = appendTime(b, a.FirstBeat)
	b = append(b, `,"ended_at":`...)
	b = appendTime(b, a.EndedAt)
	b = append(b, `,"error":`...)
	b = appendRaw(b, a.Error)
	return append(b, '}')
}

// appendPage appends a part of the list of jobs.
func appendPage(b []byte, p *jobs.Page, busy int, leaseIDs bool) []byte {
	b = append(b, `{"now":`...)
	b = appendTime(b, p.Now)
	b = append(b, `,"jobs":[`...)
	for i := range p.Jobs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"job":`...)
		b = append(appendJob(b, &p.Jobs[i].Job, leaseIDs), `},"lease":`...)
		b = append(appendSeen(b, &p.Jobs[i], leaseIDs), '}')
	}
	b = append(b, `],"queue_depths":`...)
	b = appendDepths(b, p.Snapshot.Queue)
	b = append(b, `,"snapshot":`...)
	b = appendSnapshot(b, &p.Snapshot, busy)
	b = append(b, `,"next":`...)
	b = appendText(b, p.Next)
	return append(b, '}')
}

func appendDepths(b []byte, d jobs.Depths) []byte {
	b = append(b, `{"high":`...)
	b = strconv.AppendInt(b, int64(d.High), 10)
	b = append(b, `,"normal":`...)
	b = strconv.AppendInt(b, int64(d.Normal), 10)
	b = append(b, `,"low":`...)
	b = strconv.AppendInt(b, int64(d.Low), 10)
	b = append(b, `,"background":`...)
	b = strconv.AppendInt(b, int64(d.Background), 10)
	return append(b, '}')
}

func appendSnapshot(b []byte, s *jobs.Snapshot, busy int) []byte {
	b = append(b, `{"total_capacity_units":`...)
	b = strconv.AppendInt(b, int64(s.Total), 10)
	b = append(b, `,"usable_capacity_units":`...)
	b = strconv.AppendInt(b, int64(s.Usable), 10)
	b = append(b, `,"leased_capacity_units":`...)
	b = strconv.AppendInt(b, int64(s.Leased), 10)
	b = append(b, `,"available_capacity_units":`...)
	b = strconv.AppendInt(b, int64(s.Available), 10)
	b = append(b, `,"queue_depths":`...)
	b = appendDepths(b, s.Queue)
	b = append(b, `,"active_leases":`...)
	b = strconv.AppendInt(b, int64(s.ActiveLeases), 10)
	b = append(b, `,"busy_rating":`...)
	b = strconv.AppendInt(b, int64(busy), 10)
	b = append(b, `,"draining":`...)
	b = strconv.AppendBool(b, s.Draining)
	return append(b, '}')
}

// appendWorker appends who is known.
func appendWorker(b []byte, id string, leases int, seen time.Time) []byte {
	b = append(b, `{"worker_id":`...)
	b = appendString(b, id)
	b = append(b, `,"leases":`...)
	b = strconv.AppendInt(b, int64(leases), 10)
	b = append(b, `,"last_seen":`...)
	return append(appendTime(b, seen), '}')
}

// totalsWire is statistics on the wire.
type totalsWire struct {
	Total      int64                `json:"total"`
	ByState    map[jobs.State]int64 `json:"totals_by_state"`
	Success    float64              `json:"success_rate"`
	AvgWait    float64              `json:"avg_queue_wait_s"`
	P95Runtime float64              `json:"p95_runtime_s"`
}

// rangeWire is what time statistics are about.
type rangeWire struct {
	Days int    `json:"days"`
	From string `json:"from"`
	To   string `json:"to"`
}

type statsWire struct {
	Range rangeWire `json:"range"`
	totalsWire
	ByType map[string]totalsWire `json:"by_type"`
}

func totalsOnWire(t jobs.Totals) totalsWire {
	return totalsWire{t.Total, t.ByState, t.SuccessRate, millisOf(t.AvgWait), millisOf(t.P95Runtime)}
}

// millisOf returns seconds, to the millisecond.
func millisOf(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond).Milliseconds()) / 1000
}

func statsOnWire(s *jobs.Stats, days int) statsWire {
	w := statsWire{
		Range:      rangeWire{days, s.From.UTC().Format(timeLayout), s.To.UTC().Format(timeLayout)},
		totalsWire: totalsOnWire(s.Totals), ByType: map[string]totalsWire{},
	}
	for name, t := range s.ByType {
		w.ByType[name] = totalsOnWire(t)
	}
	return w
}

// decisionsWire is counts of events on the wire.
type decisionsWire struct {
	Days   int                                 `json:"days"`
	Events map[jobs.EventType]int64            `json:"events"`
	Tags   map[string]map[jobs.EventType]int64 `json:"tags"`
}
