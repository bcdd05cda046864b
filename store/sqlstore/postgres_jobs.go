package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// serverJobs are the jobs in a database of PostgreSQL, as one of several processes has them: each runs its turns while it
// has a row locked, and is told what others changed since its last one.
type serverJobs struct {
	keptJobs
	db      *serverDB
	changed chan struct{}

	busy chan struct{} // has an element while a turn is run
	seen pgTurn        // the last one that the manager knows of
	last time.Time     // the latest time that it has been told
}

// pgTurn names a turn. The number alone does not: an older state of the database may have been put in its place.
type pgTurn struct {
	number int64
	writer string
}

// pgLast is the last turn, and what it left.
type pgLast struct {
	pgTurn
	jobs.Counters
	frozen []string
}

// ask adds the statement that reads it and the state of locks, and may lock its row.
func (l *pgLast) ask(b *pgx.Batch, state *pgState, lock string) {
	b.Queue("SELECT " + pgNow + ", s.clock, token_floor, revision_floor, turn, writer, seq, revision, event, j.clock, frozen" +
		" FROM state s, (SELECT * FROM job_state " + lock + ") j").QueryRow(func(row pgx.Row) error {
		var types string
		n := &l.Counters
		if err := state.scan(row, &l.number, &l.writer, &n.Seq, &n.Revision, &n.Event, &n.Clock, &types); err != nil {
			return err
		}
		l.frozen = nil
		return lokt.Unmarshal([]byte(types), &l.frozen)
	})
}

const (
	keptTurns = 20_000           // for others to follow
	perJob    = time.Millisecond // how much longer a commit may take for each job
)

var _ jobs.Sharer = (*serverJobs)(nil)

func newServerJobs(d *serverDB) *serverJobs {
	const columns = "j.id, j.doc, j.payload, j.sum FROM jobs j WHERE j.ended_at IS "
	return &serverJobs{db: d, changed: make(chan struct{}, 1), busy: make(chan struct{}, 1), keptJobs: keptJobs{
		warn: d.options.warn, living: "SELECT " + columns + "NULL", ended: "SELECT j.state, j.revision, " + columns + "NOT NULL",
		reading: func(ctx context.Context, op string, read func(look) error) error {
			return d.using(ctx, op, func(ctx context.Context, c *pgx.Conn) error { return read(lookWith(ctx, c)) })
		},
	}}
}

// Changed implements jobs.Sharer.
func (s *serverJobs) Changed() <-chan struct{} { return s.changed }

// begin waits until no turn of this process is run.
func (s *serverJobs) begin(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	select {
	case s.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errBehind is the error of a turn that was not told all that others had changed.
var errBehind = fmt.Errorf("%w: too much has changed elsewhere to follow", lokt.ErrUnavailable)

// Update implements jobs.Store. What was begun is finished, whatever becomes of who wanted it.
func (s *serverJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) (err error) {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer func() { <-s.busy }()
	defer func(begin time.Time) { s.db.options.observe("commit", begin, err) }(time.Now())
	return s.db.lend(context.WithoutCancel(ctx), s.db.writers, pgLoading, func(ctx context.Context, c *pgx.Conn) error {
		return s.run(ctx, c, turn)
	})
}

// run runs a turn: two exchanges with the server, and one more for each lock, and if others have stored something.
func (s *serverJobs) run(ctx context.Context, c *pgx.Conn, turn func(jobs.Facts) jobs.Changes) error {
	var now pgLast
	t := s.db.locks.with(c)
	var b pgx.Batch
	pgBegin(&b)
	now.ask(&b, &t.state, "FOR UPDATE")
	if err := exchange(ctx, c, &b, pgExchange); err != nil {
		return err
	}
	if t.state.away() {
		if err := t.startTimes(ctx); err != nil {
			return err
		}
		return s.run(ctx, c, turn)
	}
	var facts jobs.Facts
	var failed error // what the turn decides is for nothing
	if now.pgTurn != s.seen {
		if facts.Others, failed = s.follow(ctx, c, &now); failed != nil && !errors.Is(failed, errBehind) {
			return failed
		}
	}
	step := lokt.NewStep(func(name string) (lokt.Snapshot, error) {
		snap, err := t.view(ctx, name)
		failed = cmp.Or(failed, err)
		return snap, err
	})
	s.last = later(s.last, t.state.now.Truncate(time.Millisecond))
	facts.Now, facts.Locks = s.last, step
	changes := turn(facts)
	if failed != nil { // the manager reads everything anew
		return failed
	}
	s.seen = now.pgTurn
	for _, change := range step.Changes() {
		t.locks[change.Lock.Name].become(change)
	}
	b = pgx.Batch{}
	t.write(&b, true)
	for _, l := range t.locks {
		if l.err != nil && l.changed() {
			return l.err
		}
	}
	next := now.pgTurn
	if !changes.Empty() {
		next = pgTurn{now.number + 1, lokt.NewLeaseID()}
		if err := writeTurn(&b, &changes, next, now.Seq); err != nil {
			return err
		}
		s.db.notify("!")
	}
	b.Queue("COMMIT")
	if err := exchange(ctx, c, &b, pgExchange+time.Duration(len(changes.Jobs))*perJob); err != nil {
		return err
	}
	s.seen = next
	t.publish()
	return nil
}

// view reads a lock within a turn, which nobody else changes until it ends.
func (t *pgLocks) view(ctx context.Context, name string) (lokt.Snapshot, error) {
	if err := t.fetch(ctx, &pgx.Batch{}, []string{name}, true); err != nil {
		return lokt.Snapshot{}, err
	}
	l := t.locks[name]
	if l.err != nil {
		return lokt.Snapshot{Lock: lokt.Lock{Name: name, Corrupt: l.err.Error()}, Now: t.state.now}, nil
	}
	return l.is.snapshot(t.state.now), nil
}

// follow reads what others stored since the turn that the manager knows of. An older state of the database may have been
// put in its place: then that turn is not there, or another one has its number.
func (s *serverJobs) follow(ctx context.Context, c *pgx.Conn, now *pgLast) (*jobs.Changes, error) {
	all := &jobs.Changes{Counters: now.Counters, Frozen: now.frozen}
	there, damaged := false, false
	var b pgx.Batch
	b.Queue(`SELECT count(*) FILTER (WHERE turn > $1) = $2 AND coalesce(min(writer) FILTER (WHERE turn = $1), '') = $3
		FROM turns WHERE turn >= $1`, s.seen.number, now.number-s.seen.number, s.seen.writer).
		QueryRow(func(row pgx.Row) error { return row.Scan(&there) })
	// What is not there has the sum of no document.
	b.Queue(`SELECT t.id, coalesce(doc, ''), coalesce(payload, ''), coalesce(sum, -1)
		FROM (SELECT DISTINCT unnest(jobs) AS id FROM turns WHERE turn > $1) t LEFT JOIN jobs j ON j.id = t.id ORDER BY revision`, s.seen.number).
		Query(func(rows pgx.Rows) error {
			return eachRow(rows, func(from row) error {
				r := jobRow{Record: &jobs.Record{}}
				err := r.scan(from)
				r.decode()
				all.Jobs, damaged = append(all.Jobs, r.Record), damaged || r.err != nil
				return err
			})
		})
	b.Queue(`SELECT t.id, coalesce(doc, ''), coalesce(sum, -1)
		FROM (SELECT DISTINCT unnest(memos) AS id FROM turns WHERE turn > $1) t LEFT JOIN memos m ON m.id = t.id`, s.seen.number).
		Query(func(rows pgx.Rows) error {
			return eachRow(rows, func(from row) error {
				m, err := readMemo(from)
				if all.Memos = append(all.Memos, m); errors.Is(err, lokt.ErrDamaged) {
					damaged, err = true, nil
				}
				return err
			})
		})
	if err := exchange(ctx, c, &b, pgTimeout); err != nil {
		return nil, err
	}
	if !there || damaged {
		return nil, errBehind
	}
	return all, nil
}

const (
	insertJobs = `INSERT INTO jobs (id, revision, state, ended_at, doc, sum, seq, type, payload)
		SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::text[], $9::text[])`

	// If one is missing, the division fails, and so does the transaction.
	updateJobs = `WITH moved AS (
			UPDATE jobs j SET revision = u.revision, state = u.state, ended_at = u.ended_at, doc = u.doc, sum = u.sum
			FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[])
				AS u (id, revision, state, ended_at, doc, sum) WHERE j.id = u.id RETURNING 1)
		SELECT 1 / (count(*) = cardinality($1))::int FROM moved`

	putMemos = `INSERT INTO memos (id, expires, doc, sum)
		SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[])
		ON CONFLICT (id) DO UPDATE SET expires = excluded.expires, doc = excluded.doc, sum = excluded.sum`

	putOutput = `INSERT INTO output (job, until, doc, sum)
		SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[])
		ON CONFLICT (job, until) DO UPDATE SET doc = excluded.doc, sum = excluded.sum`

	putStatistics = `INSERT INTO statistics (hour, source, type, tag, doc, sum)
		SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])
		ON CONFLICT (hour, source, type, tag) DO UPDATE SET doc = excluded.doc, sum = excluded.sum`

	endTurn = `WITH turn AS (INSERT INTO turns (turn, writer, jobs, memos) VALUES ($1, $2, $3, $4)),
			old AS (DELETE FROM turns WHERE turn <= $1 - $10)
		UPDATE job_state SET turn = $1, writer = $2, seq = $5, revision = $6, event = $7, clock = $8, frozen = $9`
)

// writeTurn adds the statements that store what a turn changed. Jobs up to the number that was counted are there already,
// and their payloads are not written again.
func writeTurn(b *pgx.Batch, c *jobs.Changes, turn pgTurn, counted uint64) (err error) {
	sealed := func(d document, e error) document {
		err = cmp.Or(err, e)
		return d
	}
	var made, moved, memos, output, stats pgRows
	ids, memoIDs := make([]string, len(c.Jobs)), make([]string, len(c.Memos))
	for i, r := range c.Jobs {
		d := sealed(sealJob(r))
		ids[i] = r.ID
		row := []any{r.ID, int64(r.Revision), string(r.State), orNull(r.EndedAt, r.State.Ended()), d.text, d.sum}
		if 0 < r.Seq && r.Seq <= counted {
			moved = append(moved, row)
		} else {
			made = append(made, append(row, int64(r.Seq), r.Type, d.payload))
		}
	}
	for i := range c.Memos {
		m := &c.Memos[i]
		d := sealed(seal(m.ID, m))
		memoIDs[i] = m.ID
		memos = append(memos, []any{m.ID, orNull(m.Expires, !m.Expires.IsZero()), d.text, d.sum})
	}
	for i := range c.Output {
		p := &c.Output[i]
		d := sealed(seal(pieceKey(p.JobID, p.End()), p))
		output = append(output, []any{p.JobID, p.End(), d.text, d.sum})
	}
	for i := range c.Stats {
		t := &c.Stats[i]
		d := sealed(seal(statisticKey(t), t))
		stats = append(stats, []any{t.Hour.Unix(), t.Source, t.Type, t.Tag, d.text, d.sum})
	}
	made.queue(b, insertJobs)
	moved.queue(b, updateJobs)
	memos.queue(b, putMemos)
	output.queue(b, putOutput)
	stats.queue(b, putStatistics)
	if n := len(c.Events); n > 0 {
		first, last := c.Events[0].Seq, c.Events[n-1]
		d := sealed(seal(number(first), c.Events))
		b.Queue("INSERT INTO job_events (first, last, until, doc, sum) VALUES ($1, $2, $3, $4, $5)",
			int64(first), int64(last.Seq), last.Time.UnixNano(), d.text, d.sum)
	}
	frozen, e := lokt.Marshal(c.Frozen)
	n := c.Counters
	b.Queue(endTurn, turn.number, turn.writer, ids, memoIDs, int64(n.Seq), int64(n.Revision), int64(n.Event), n.Clock, string(frozen), keptTurns)
	return cmp.Or(err, e)
}

func orNull(t time.Time, there bool) pgtype.Int8 {
	return pgtype.Int8{Int64: t.UnixNano(), Valid: there}
}

// Load implements jobs.Store.
func (s *serverJobs) Load(ctx context.Context) (all jobs.Changes, err error) {
	if err := s.begin(ctx); err != nil {
		return all, err
	}
	defer func() { <-s.busy }()
	defer func(begin time.Time) { s.db.options.observe("load", begin, err) }(time.Now())
	var now pgLast
	if err := s.db.lend(ctx, s.db.writers, pgLoading, atOneMoment(func(ctx context.Context, c *pgx.Conn) error {
		var b pgx.Batch
		var state pgState
		now.ask(&b, &state, "")
		if err := exchange(ctx, c, &b, pgExchange); err != nil {
			return err
		}
		all = jobs.Changes{
			Now: state.now.Truncate(time.Millisecond), TokenFloor: state.tokens, Counters: now.Counters, Frozen: now.frozen,
		}
		return s.load(lookWith(ctx, c), all.Now, &all)
	})); err != nil {
		return jobs.Changes{}, err
	}
	s.last = later(s.last, all.Now)
	all.Now, s.seen = s.last, now.pgTurn
	return all, nil
}

// Trim implements jobs.Store. One process at a time does it.
func (s *serverJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	err = s.db.using(ctx, "trim", func(ctx context.Context, c *pgx.Conn) error {
		const mine = "(SELECT pg_try_advisory_xact_lock(hashtextextended($1, 1)))"
		var b pgx.Batch
		b.Queue(`DELETE FROM jobs WHERE `+mine+` AND id IN (SELECT id FROM (
				SELECT id, revision, ended_at FROM jobs WHERE ended_at IS NOT NULL ORDER BY revision LIMIT $2) oldest
			WHERE ended_at < $3 OR revision <= (
				SELECT revision FROM jobs WHERE ended_at IS NOT NULL AND $4 >= 0
				ORDER BY revision DESC OFFSET greatest($4, 0) LIMIT 1))`,
			s.db.channel, atMost, before.UnixNano(), int64(keep)).Exec(func(tag pgconn.CommandTag) error {
			n = int(tag.RowsAffected())
			return nil
		})
		b.Queue(`DELETE FROM job_events WHERE `+mine+` AND first IN (
			SELECT first FROM (SELECT * FROM job_events ORDER BY first LIMIT $2) oldest
			WHERE until < $3 OR $4::bigint >= 0 AND last <= (SELECT event FROM job_state) - $4::bigint)`,
			s.db.channel, atMost, before.UnixNano(), int64(s.db.options.KeepEvents))
		b.Queue("DELETE FROM memos WHERE "+mine+` AND id IN (
			SELECT id FROM memos WHERE expires <= `+pgNow+" * 1000 LIMIT $2)", s.db.channel, atMost)
		return c.SendBatch(ctx, &b).Close()
	})
	return n, err
}
