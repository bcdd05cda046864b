package sqlstore

// Jobs as rows of tables.

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/lokt-dev/lokt/jobs"
)

const (
	jobColumns      = "seq, state, lease_id, updated_at, ready_at, started_at, attempt, token, code, cancel, reason, ord, revision"
	specColumns     = "id, type, priority, units, only_one, payload, idempotency_key, tags, max_runtime, max_attempts, retry_backoff, run_at, locks, created_at"
	outputColumns   = "progress, message, metrics, checkpoint, result, error"
	leaseColumns    = "id, job, worker, request, units, token, attempt, issued, expires, last_beat, first_beat, run_until, ttl, beat_every, lock_tokens"
	attemptColumns  = "job, number, token, lease_id, worker, units, state, code, issued, first_beat, ended, error"
	jobEventColumns = "seq, at, type, job, lease_id, worker, attempt, token, code, reason"
	endedColumns    = `e.seq, e.state, NULL, e.updated_at, e.ready_at, e.started_at, e.attempt, e.token, e.code, e.cancel, e.reason, e.ord, e.revision, e.ended_at,
		s.id, s.type, s.priority, s.units, s.only_one, s.payload, s.idempotency_key, s.tags, s.max_runtime, s.max_attempts, s.retry_backoff, s.run_at,
		s.locks, s.created_at, o.seq IS NOT NULL, o.progress, o.message, o.metrics, o.checkpoint, o.result, o.error`
)

// writeChanges stores what a turn changed, deletions first, but for the counters. Jobs with numbers up to stored were stored before, if that
// is not 0.
func writeChanges(ctx context.Context, q querier, c *jobs.Changes, stored uint64, fresh *int) error {
	for _, id := range c.Unleased {
		if err := q.exec(ctx, "DELETE FROM leases WHERE id = ?", id); err != nil {
			return err
		}
	}
	for _, k := range c.Dropped {
		if err := q.exec(ctx, "DELETE FROM idempotency_keys WHERE key = ?", k); err != nil {
			return err
		}
	}
	for i := range c.Forgot {
		if err := q.exec(ctx, "DELETE FROM answered WHERE worker = ? AND request = ?", c.Forgot[i].WorkerID, c.Forgot[i].RequestID); err != nil {
			return err
		}
	}
	for i := range c.Jobs { // table by table: what is alike in a row may be made one
		if c.Jobs[i].What&jobs.New != 0 {
			if err := writeSpec(ctx, q, &c.Jobs[i].Job); err != nil {
				return err
			}
		}
	}
	for i := range c.Jobs {
		if err := writeJob(ctx, q, &c.Jobs[i].Job); err != nil {
			return err
		}
	}
	for i := range c.Jobs {
		if what := c.Jobs[i].What; what&(jobs.New|jobs.Reported) != 0 {
			if err := writeOutput(ctx, q, &c.Jobs[i].Job, what&jobs.New == 0); err != nil {
				return err
			}
		}
	}
	for i := range c.Leases {
		if err := writeLease(ctx, q, &c.Leases[i]); err != nil {
			return err
		}
	}
	for i := range c.Attempts {
		if err := writeAttempt(ctx, q, &c.Attempts[i]); err != nil {
			return err
		}
	}
	if err := writeEnded(ctx, q, c.Ended, stored); err != nil {
		return err
	}
	if err := writeMemories(ctx, q, c); err != nil {
		return err
	}
	for i := range c.Events {
		e := &c.Events[i]
		if err := q.exec(ctx, "INSERT INTO job_events ("+jobEventColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (seq) DO NOTHING",
			e.Seq, millis(e.Time), string(e.Type), text(e.JobID), text(e.LeaseID), text(e.WorkerID), number(e.Attempt), number(e.Token),
			text(e.Code), text(e.Reason)); err != nil {
			return err
		}
	}
	return writeStats(ctx, q, c, fresh)
}

// writeMemories stores what is remembered beside the jobs.
func writeMemories(ctx context.Context, q querier, c *jobs.Changes) error {
	for i := range c.Keys {
		k := &c.Keys[i]
		if err := q.exec(ctx, `INSERT INTO idempotency_keys (key, print, job, state, expires) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (key) DO UPDATE SET print = excluded.print, job = excluded.job, state = excluded.state, expires = excluded.expires`,
			k.Key, k.Print[:], k.JobID, text(string(k.State)), millis(k.Expires)); err != nil {
			return err
		}
	}
	for i := range c.Answered {
		a := &c.Answered[i]
		lease, err := encode(leaseDocument(a.Lease))
		if err != nil {
			return err
		}
		if err := q.exec(ctx, `INSERT INTO answered (worker, request, lease, expires) VALUES (?, ?, ?, ?)
			ON CONFLICT (worker, request) DO UPDATE SET lease = excluded.lease, expires = excluded.expires`,
			a.WorkerID, a.RequestID, lease, millis(a.Expires)); err != nil {
			return err
		}
	}
	if !c.Refrozen {
		return nil
	}
	if err := q.exec(ctx, "DELETE FROM frozen_types"); err != nil {
		return err
	}
	for _, t := range c.Frozen {
		if err := q.exec(ctx, "INSERT INTO frozen_types (type) VALUES (?)", t); err != nil {
			return err
		}
	}
	return nil
}

// writeJob stores what changes about a living job.
func writeJob(ctx context.Context, q querier, j *jobs.Job) error {
	return q.exec(ctx, `INSERT INTO jobs (`+jobColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (seq) DO UPDATE SET state = excluded.state, lease_id = excluded.lease_id, updated_at = excluded.updated_at,
		ready_at = excluded.ready_at, started_at = excluded.started_at, attempt = excluded.attempt, token = excluded.token, code = excluded.code,
		cancel = excluded.cancel, reason = excluded.reason, ord = excluded.ord, revision = excluded.revision`,
		j.Seq, string(j.State), text(j.LeaseID), millis(j.UpdatedAt), millis(j.ReadyAt), millis(j.StartedAt), j.Attempt, j.Token, text(j.Code),
		j.Cancel, text(j.Reason), j.Ord, j.Revision)
}

// writeSpec stores what never changes about a job.
func writeSpec(ctx context.Context, q querier, j *jobs.Job) error {
	var tags, locks any
	var err error
	if len(j.Tags) > 0 {
		if tags, err = encode(j.Tags); err != nil {
			return err
		}
	}
	if len(j.Locks) > 0 {
		if locks, err = encode(j.Locks); err != nil {
			return err
		}
	}
	return q.exec(ctx, "INSERT INTO specs (seq, "+specColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (seq) DO NOTHING",
		j.Seq, j.ID, j.Type, string(j.Priority), j.Units, j.Unique, document(j.Payload), text(j.IdempotencyKey), tags, number(j.MaxRuntime),
		j.MaxAttempts, number(j.RetryBackoff), millis(j.RunAt), locks, millis(j.CreatedAt))
}

// writeOutput stores what was reported about a job; had says that something may be there.
func writeOutput(ctx context.Context, q querier, j *jobs.Job, had bool) error {
	o := j.Output
	if o == nil {
		if !had {
			return nil
		}
		return q.exec(ctx, "DELETE FROM outputs WHERE seq = ?", j.Seq)
	}
	var progress any
	if o.Progress != nil {
		progress = *o.Progress
	}
	return q.exec(ctx, `INSERT INTO outputs (seq, `+outputColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (seq) DO UPDATE SET progress = excluded.progress, message = excluded.message, metrics = excluded.metrics,
		checkpoint = excluded.checkpoint, result = excluded.result, error = excluded.error`,
		j.Seq, progress, text(o.Message), document(o.Metrics), document(o.Checkpoint), document(o.Result), document(o.Error))
}

func writeLease(ctx context.Context, q querier, l *jobs.Lease) error {
	return q.exec(ctx, `INSERT INTO leases (`+leaseColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET job = excluded.job, worker = excluded.worker, request = excluded.request, units = excluded.units,
		token = excluded.token, attempt = excluded.attempt, issued = excluded.issued, expires = excluded.expires, last_beat = excluded.last_beat,
		first_beat = excluded.first_beat, run_until = excluded.run_until, ttl = excluded.ttl, beat_every = excluded.beat_every,
		lock_tokens = excluded.lock_tokens`,
		l.ID, l.JobID, l.WorkerID, text(l.RequestID), l.Units, l.Token, l.Attempt, millis(l.IssuedAt), millis(l.ExpiresAt), millis(l.LastHeartbeat),
		millis(l.FirstHeartbeat), millis(l.RunUntil), number(l.TTL), number(l.Interval), tokensText(l.LockTokens))
}

func writeAttempt(ctx context.Context, q querier, a *jobs.Attempt) error {
	return q.exec(ctx, "INSERT INTO attempts ("+attemptColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, number) DO NOTHING",
		a.JobID, a.Number, a.Token, a.LeaseID, a.WorkerID, a.Units, string(a.State), text(a.Code), millis(a.IssuedAt), millis(a.FirstBeat),
		millis(a.EndedAt), document(a.Error))
}

// writeEnded moves jobs to those that ended.
func writeEnded(ctx context.Context, q querier, ended []jobs.Job, stored uint64) error {
	var made []*jobs.Job // since the last of those that were stored before
	for i := range ended {
		if stored > 0 && ended[i].Seq > stored {
			made = append(made, &ended[i])
			continue
		}
		had, err := q.change(ctx, "DELETE FROM jobs WHERE seq = ?", ended[i].Seq)
		if err != nil {
			return err
		}
		if had == 0 && stored == 0 { // it may end in the turn in which it was made
			made = append(made, &ended[i])
		}
	}
	for _, j := range made {
		if j.ID == "" {
			return fmt.Errorf("job number %d, which has ended, is not there", j.Seq)
		}
		if err := writeSpec(ctx, q, j); err != nil {
			return err
		}
	}
	for i := range ended {
		if err := writeOutput(ctx, q, &ended[i], false); err != nil { // what was reported is never taken back
			return err
		}
	}
	for i := range ended {
		j := &ended[i]
		if err := q.exec(ctx, `INSERT INTO ended (revision, seq, state, updated_at, ready_at, started_at, ended_at, attempt, token, code, cancel, reason, ord) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (revision) DO NOTHING`,
			j.Revision, j.Seq, string(j.State), millis(j.UpdatedAt), millis(j.ReadyAt), millis(j.StartedAt), millis(j.EndedAt), j.Attempt, j.Token,
			text(j.Code), j.Cancel, text(j.Reason), j.Ord); err != nil {
			return err
		}
	}
	return nil
}

// Reading what lives, in parts that may be read at the same time: nobody but the manager that reads changes any of it.

// readCounters reads what is counted, and the floor of the tokens.
func readCounters(ctx context.Context, q querier, rows *jobs.Rows) error {
	return q.query(ctx, "SELECT job_seq, job_revision, job_event, job_clock, token_floor FROM job_state, state", nil, func(r *row) error {
		rows.Counters = jobs.Counters{Seq: r.count(), Revision: r.count(), Event: r.count(), Clock: r.number()}
		rows.TokenFloor = r.count()
		return nil
	})
}

// readLiving reads the jobs with numbers from one up to before another, in order.
func readLiving(ctx context.Context, q querier, from, to int64) (all []jobs.Job, err error) {
	n, err := one(ctx, q, "SELECT count(*) FROM jobs WHERE seq >= ? AND seq < ?", from, to)
	if err != nil {
		return nil, err
	}
	all = make([]jobs.Job, 0, n)
	err = q.query(ctx, "SELECT j.seq, j.state, j.lease_id, j.updated_at, j.ready_at, j.started_at, j.attempt, j.token, j.code, j.cancel, j.reason, "+
		"j.ord, j.revision, NULL, "+specColumns+", o.seq IS NOT NULL, "+outputColumns+" FROM jobs j CROSS JOIN specs s USING (seq) "+
		"LEFT JOIN outputs o USING (seq) WHERE j.seq >= ? AND j.seq < ? ORDER BY j.seq", []any{from, to}, func(r *row) error {
		all = append(all, readJob(r))
		return nil
	})
	return all, err
}

// readRest reads what lives beside the jobs.
func readRest(ctx context.Context, q querier, rows *jobs.Rows) error {
	for _, part := range []struct {
		statement string
		each      func(r *row)
	}{
		{"SELECT " + leaseColumns + " FROM leases", func(r *row) { rows.Leases = append(rows.Leases, readLease(r)) }},
		{"SELECT " + attemptColumns + " FROM attempts WHERE job IN (SELECT s.id FROM jobs j CROSS JOIN specs s USING (seq) WHERE j.attempt > 0) " +
			"ORDER BY job, number", func(r *row) { rows.Attempts = append(rows.Attempts, readAttempt(r)) }},
		{"SELECT key, print, job, state, expires FROM idempotency_keys", func(r *row) { rows.Keys = append(rows.Keys, readKey(r)) }},
		{"SELECT worker, request, lease, expires FROM answered", func(r *row) { rows.Answered = append(rows.Answered, readAnswered(r)) }},
		{"SELECT type FROM frozen_types ORDER BY type", func(r *row) { rows.Frozen = append(rows.Frozen, r.text()) }},
	} {
		if err := q.query(ctx, part.statement, nil, func(r *row) error {
			part.each(r)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// readJob reads a job: what is in jobs or ended, in specs, and in outputs, if it has a row there.
func readJob(r *row) (j jobs.Job) {
	j.Seq, j.State, j.LeaseID, j.UpdatedAt, j.ReadyAt, j.StartedAt = r.count(), jobs.State(r.text()), r.text(), r.millis(), r.millis(), r.millis()
	j.Attempt, j.Token, j.Code, j.Cancel, j.Reason = int(r.number()), r.count(), r.text(), r.yes(), r.text()
	j.Ord, j.Revision, j.EndedAt = r.number(), r.count(), r.millis()
	j.ID, j.Type, j.Priority, j.Units, j.Unique = r.text(), r.text(), jobs.Priority(r.text()), int(r.number()), r.yes()
	j.Payload, j.IdempotencyKey = r.document(), r.text()
	j.Tags = r.list()
	j.MaxRuntime, j.MaxAttempts, j.RetryBackoff, j.RunAt = r.span(), int(r.number()), r.span(), r.millis()
	j.Locks = r.list()
	j.CreatedAt = r.millis()
	if !r.yes() {
		return j
	}
	j.Output = &jobs.Report{
		Progress: r.float(), Message: r.text(), Metrics: r.document(), Checkpoint: r.document(), Result: r.document(), Error: r.document(),
	}
	return j
}

func readEnded(r *row) jobs.Job { return readJob(r) }

func readLease(r *row) jobs.Lease {
	l := jobs.Lease{
		ID: r.text(), JobID: r.text(), WorkerID: r.text(), RequestID: r.text(), Units: int(r.number()), Token: r.count(), Attempt: int(r.number()),
		IssuedAt: r.millis(), ExpiresAt: r.millis(), LastHeartbeat: r.millis(), FirstHeartbeat: r.millis(), RunUntil: r.millis(), TTL: r.span(), Interval: r.span(),
	}
	r.decode(&l.LockTokens)
	return l
}

// tokensText stores the tokens of a lease's locks as a JSON object; none are NULL.
func tokensText(tokens map[string]uint64) any {
	if tokens == nil {
		return nil
	}
	b, _ := json.Marshal(tokens) // numbers by name always encode
	return string(b)
}

func readAttempt(r *row) jobs.Attempt {
	return jobs.Attempt{
		JobID: r.text(), Number: int(r.number()), Token: r.count(), LeaseID: r.text(), WorkerID: r.text(), Units: int(r.number()),
		State: jobs.State(r.text()), Code: r.text(), IssuedAt: r.millis(), FirstBeat: r.millis(), EndedAt: r.millis(), Error: r.document(),
	}
}

func readKey(r *row) jobs.Key {
	k := jobs.Key{Key: r.text()}
	if copy(k.Print[:], r.bytes()) != len(k.Print) {
		r.fail("a fingerprint")
	}
	k.JobID, k.State, k.Expires = r.text(), jobs.State(r.text()), r.millis()
	return k
}

func readAnswered(r *row) jobs.Answered {
	a := jobs.Answered{WorkerID: r.text(), RequestID: r.text()}
	var lease leaseDocument
	r.decode(&lease)
	a.Lease, a.Expires = jobs.Lease(lease), r.millis()
	return a
}

func readJobEvent(r *row) jobs.Event {
	return jobs.Event{
		Seq: r.count(), Time: r.millis(), Type: jobs.EventType(r.text()), JobID: r.text(), LeaseID: r.text(), WorkerID: r.text(),
		Attempt: int(r.number()), Token: r.count(), Code: r.text(), Reason: r.text(),
	}
}
