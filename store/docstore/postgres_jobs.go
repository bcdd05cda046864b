package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// serverJobs are the jobs in a database of PostgreSQL, as one of several processes has them: each runs its turns while it has a row
// locked, and is told what others changed since its last one.
type serverJobs struct {
	db      *serverDB
	changed chan struct{}
	closed  atomic.Bool

	turn chan struct{} // has an element while a turn is run
	seen pgTurn        // the last one that the manager knows of
	last time.Time     // the latest time that it has been told
}

// pgTurn names a turn. The number alone does not: an older state of the database may have been put in its place.
type pgTurn struct {
	number int64
	writer string
}

// keptTurns is how many turns are kept for others to follow; each tidyTurns some are forgotten.
const (
	keptTurns = 20_000
	tidyTurns = 256
)

var _ jobs.Sharer = (*serverJobs)(nil)

func newServerJobs(d *serverDB) *serverJobs {
	return &serverJobs{db: d, changed: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// Changed implements jobs.Sharer.
func (s *serverJobs) Changed() <-chan struct{} { return s.changed }

// look has the manager look for changes.
func (s *serverJobs) look() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *serverJobs) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	return nil
}

// begin waits until no turn of this process is run.
func (s *serverJobs) begin(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errBehind is the error of a turn that was not told all that others had changed.
var errBehind = fmt.Errorf("%w: too much has changed elsewhere to follow", lokt.ErrUnavailable)

// Update implements jobs.Store.
func (s *serverJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) (err error) {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer func() { <-s.turn }()
	start := time.Now()
	defer func() { s.db.options.observe("commit", start, err) }()
	// What was begun is finished, whatever becomes of who wanted it.
	return s.db.lend(context.WithoutCancel(ctx), pgTimeout, func(ctx context.Context, c *pgx.Conn) error { return s.run(ctx, c, turn) })
}

// run runs a turn: two exchanges with the server, and one more if others have stored something.
func (s *serverJobs) run(ctx context.Context, c *pgx.Conn, turn func(jobs.Facts) jobs.Changes) error {
	var now pgTurn
	var seq int64
	t := &pgLocks{store: s.db.locks, locks: map[string]*pgLock{}}
	for range 2 {
		var b pgx.Batch
		b.Queue("BEGIN")
		b.Queue(pgLimits)
		b.Queue("SELECT turn, writer, seq FROM job_state FOR UPDATE").QueryRow(func(row pgx.Row) error { return row.Scan(&now.number, &now.writer, &seq) })
		t.askState(&b)
		if err := c.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		if !t.away() {
			break
		}
		if _, err := c.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
		if err := s.db.arrive(ctx); err != nil {
			return err
		}
	}
	var others *jobs.Changes
	var behind error
	if now != s.seen {
		if others, behind = s.follow(ctx, c, now); behind != nil && !errors.Is(behind, errBehind) {
			return behind
		}
	}
	var failed error // to read a lock
	step := lokt.NewStep(func(name string) (lokt.Snapshot, error) {
		snap, err := t.view(ctx, c, name)
		failed = first(failed, err)
		return snap, err
	})
	s.last = later(s.last, t.now.Truncate(time.Millisecond))
	changes := turn(jobs.Facts{Now: s.last, Others: others, Locks: step})
	switch {
	case behind != nil: // what it decided is for nothing: it must read everything anew
		return behind
	case failed != nil:
		return failed
	}
	s.seen = now
	for _, change := range step.Changes() {
		t.locks[change.Lock.Name].become(change)
	}
	var b pgx.Batch
	names, events := t.write(&b)
	for _, l := range t.locks {
		if l.err != nil && l.changed {
			return l.err
		}
	}
	if changes.Empty() && len(names)+events == 0 {
		_, err := c.Exec(ctx, "ROLLBACK")
		return err
	}
	next := pgTurn{now.number + 1, lokt.NewLeaseID()}
	if err := writeTurn(&b, &changes, next, uint64(seq)); err != nil {
		return err
	}
	b.Queue("COMMIT")
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	s.seen = next
	t.publish()
	s.db.notice.add(nil, false, true)
	return nil
}

// view reads a lock within a turn, which nobody else changes until it ends.
func (t *pgLocks) view(ctx context.Context, c *pgx.Conn, name string) (lokt.Snapshot, error) {
	var b pgx.Batch
	t.ask(&b, []string{name}, forUpdate)
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return lokt.Snapshot{}, err
	}
	l := t.locks[name]
	t.open(name, l)
	if l.err != nil {
		return lokt.Snapshot{Lock: lokt.Lock{Name: name, Corrupt: l.err.Error()}, Now: t.now}, nil
	}
	return t.snapshot(l), nil
}

// follow reads what others stored since the turn that the manager knows of. An older state of the database may have been put in
// its place: then that turn is not there, or another one has its number.
func (s *serverJobs) follow(ctx context.Context, c *pgx.Conn, now pgTurn) (*jobs.Changes, error) {
	all := &jobs.Changes{}
	var before string
	var turns, wanted int64
	var b pgx.Batch
	var damage error
	found := 0
	b.Queue("SELECT coalesce((SELECT writer FROM turns WHERE turn = $1), ''), (SELECT count(*) FROM turns WHERE turn > $1)", s.seen.number).
		QueryRow(func(row pgx.Row) error { return row.Scan(&before, &turns) })
	b.Queue(`SELECT (SELECT count(DISTINCT id) FROM turns, unnest(jobs) id WHERE turn > $1) + (SELECT count(DISTINCT id) FROM turns, unnest(memos) id WHERE turn > $1)`,
		s.seen.number).QueryRow(func(row pgx.Row) error { return row.Scan(&wanted) })
	b.Queue("SELECT "+pgJobColumns+" FROM jobs WHERE id IN (SELECT unnest(jobs) FROM turns WHERE turn > $1) ORDER BY revision", s.seen.number).
		Query(func(rows pgx.Rows) error {
			return eachJob(rows, func(r *pgJob) error {
				record, err := r.openJob(r.id)
				damage = first(damage, err)
				all.Jobs = append(all.Jobs, record)
				found++
				return nil
			})
		})
	b.Queue("SELECT id, doc, sum FROM memos WHERE id IN (SELECT unnest(memos) FROM turns WHERE turn > $1)", s.seen.number).Query(func(rows pgx.Rows) (err error) {
		all.Memos, err = readMemos(rows, func(err error) { damage = first(damage, err) })
		found += len(all.Memos)
		return err
	})
	b.Queue(selectCounters).QueryRow(func(row pgx.Row) error { return scanCounters(row, &now, &all.Counters, &all.Frozen) })
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return nil, err
	}
	if before != s.seen.writer || turns != now.number-s.seen.number || int64(found) != wanted || damage != nil {
		return nil, errBehind
	}
	return all, nil
}

// writeTurn adds the statements that store what a turn changed. Jobs up to the number that was counted are there already, and
// their payloads are not written again.
func writeTurn(b *pgx.Batch, c *jobs.Changes, turn pgTurn, counted uint64) error {
	var made, moved, memos, stats pgRows
	ids, memoIDs := make([]string, 0, len(c.Jobs)), make([]string, 0, len(c.Memos))
	for i := range c.Jobs {
		r := &c.Jobs[i]
		d, err := sealJob(r)
		if err != nil {
			return err
		}
		ids = append(ids, r.ID)
		ended := orNull(r.EndedAt.UnixMilli(), r.State.Ended())
		if 0 < r.Seq && r.Seq <= counted {
			moved.add(r.ID, int64(r.Revision), string(r.State), ended, d.text, d.sum)
			continue
		}
		tags, err := lokt.Marshal(r.Tags)
		if err != nil {
			return err
		}
		made.add(r.ID, int64(r.Seq), int64(r.Revision), string(r.State), clean(r.Type), orNull(string(tags), len(r.Tags) > 0), ended, d.text, d.sum, d.payload)
	}
	for i := range c.Memos {
		m := &c.Memos[i]
		d, err := seal(m.ID, m)
		if err != nil {
			return err
		}
		memoIDs = append(memoIDs, m.ID)
		memos.add(m.ID, orNull(m.Expires.UnixMilli(), !m.Expires.IsZero()), d.text, d.sum)
	}
	for i := range c.Stats {
		t := &c.Stats[i]
		d, err := seal(statisticKey(t), t)
		if err != nil {
			return err
		}
		stats.add(t.Hour.UnixMilli(), clean(t.Source), clean(t.Type), clean(t.Tag), d.text, d.sum)
	}
	made.queue(b, 10, `INSERT INTO jobs (id, seq, revision, state, type, tags, ended_at, doc, sum, payload) SELECT * FROM unnest(
		$1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::bigint[], $10::text[])`)
	// If one is missing, the division fails, and so does the transaction.
	moved.queue(b, 6, `WITH done AS (UPDATE jobs j SET revision = u.revision, state = u.state, ended_at = u.ended_at, doc = u.doc, sum = u.sum
		FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[]) AS u (id, revision, state, ended_at, doc, sum)
		WHERE j.id = u.id RETURNING 1) SELECT 1 / (count(*) = cardinality($1))::int FROM done`)
	memos.queue(b, 4, `INSERT INTO memos (id, expires, doc, sum) SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[])
		ON CONFLICT (id) DO UPDATE SET expires = excluded.expires, doc = excluded.doc, sum = excluded.sum`)
	stats.queue(b, 6, `INSERT INTO job_stats (hour, source, type, tag, doc, sum)
		SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])
		ON CONFLICT (hour, source, type, tag) DO UPDATE SET doc = excluded.doc, sum = excluded.sum`)
	if n := len(c.Events); n > 0 {
		from, last := c.Events[0].Seq, c.Events[n-1]
		d, err := sealEvents(from, c.Events)
		if err != nil {
			return err
		}
		b.Queue("INSERT INTO job_events (seq, upto, at, doc, sum) VALUES ($1, $2, $3, $4, $5)", int64(from), int64(last.Seq), last.Time.UnixMilli(), d.text, d.sum)
	}
	b.Queue("INSERT INTO turns (turn, writer, jobs, memos) VALUES ($1, $2, $3, $4)", turn.number, turn.writer, ids, memoIDs)
	if turn.number%tidyTurns == 0 {
		b.Queue("DELETE FROM turns WHERE turn <= $1", turn.number-keptTurns)
	}
	frozen, err := lokt.Marshal(c.Frozen)
	if err != nil {
		return err
	}
	if c.Empty() { // locks changed only
		b.Queue("UPDATE job_state SET turn = $1, writer = $2", turn.number, turn.writer)
		return nil
	}
	n := c.Counters
	b.Queue("UPDATE job_state SET turn = $1, writer = $2, seq = $3, revision = $4, event = $5, clock = $6, frozen = $7",
		turn.number, turn.writer, int64(n.Seq), int64(n.Revision), int64(n.Event), n.Clock, string(frozen))
	return nil
}

// orNull returns the value, or nil if there is none.
func orNull[T any](v T, there bool) *T {
	if !there {
		return nil
	}
	return &v
}

// clean replaces what PostgreSQL does not take in text. Documents have it as it is, escaped.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// pgJobColumns are those of a job's document.
const pgJobColumns = "id, state, revision, ended_at IS NOT NULL, doc, payload, sum"

// pgJob is the row of a job.
type pgJob struct {
	id, state string
	revision  int64
	ended     bool
	document
}

func eachJob(rows pgx.Rows, f func(r *pgJob) error) error {
	for rows.Next() {
		r := &pgJob{}
		if err := rows.Scan(&r.id, &r.state, &r.revision, &r.ended, &r.text, &r.payload, &r.sum); err != nil {
			return err
		}
		if err := f(r); err != nil {
			return err
		}
	}
	return rows.Err()
}

func readMemos(rows pgx.Rows, warn func(error)) (all []jobs.Memo, err error) {
	for rows.Next() {
		var id string
		var d document
		var m jobs.Memo
		if err := rows.Scan(&id, &d.text, &d.sum); err != nil {
			return nil, err
		}
		if err := d.open("memo "+id, id, &m); err != nil {
			warn(err)
		} else {
			all = append(all, m)
		}
	}
	return all, rows.Err()
}

const selectCounters = "SELECT turn, writer, seq, revision, event, clock, frozen FROM job_state"

func scanCounters(row pgx.Row, t *pgTurn, n *jobs.Counters, frozen *[]string) error {
	var seq, revision, event int64
	var types string
	if err := row.Scan(&t.number, &t.writer, &seq, &revision, &event, &n.Clock, &types); err != nil {
		return err
	}
	n.Seq, n.Revision, n.Event = uint64(seq), uint64(revision), uint64(event)
	return lokt.Unmarshal([]byte(types), frozen)
}

// Load implements jobs.Store. Jobs that cannot be read are left out: they stay as they are, whoever asks for one is told, and so is
// the operator.
func (s *serverJobs) Load(ctx context.Context) (all jobs.Living, err error) {
	if err := s.begin(ctx); err != nil {
		return all, err
	}
	defer func() { <-s.turn }()
	start := time.Now()
	defer func() { s.db.options.observe("load", start, err) }()
	var seen pgTurn
	err = s.db.lend(ctx, pgLoading, func(ctx context.Context, c *pgx.Conn) error {
		return atOneMoment(ctx, c, func(ctx context.Context, c *pgx.Conn) error {
			var now, floor int64
			if err := c.QueryRow(ctx, "SELECT "+pgNow+", token_floor FROM state").Scan(&now, &floor); err != nil {
				return err
			}
			all.Now, all.TokenFloor = time.UnixMicro(now).UTC().Truncate(time.Millisecond), uint64(floor)
			if err := scanCounters(c.QueryRow(ctx, selectCounters), &seen, &all.Counters, &all.Frozen); err != nil {
				return err
			}
			rows, err := c.Query(ctx, "SELECT id, doc, sum FROM memos WHERE expires IS NULL OR expires > $1", all.Now.UnixMilli())
			if err != nil {
				return err
			}
			if all.Memos, err = readMemos(rows, s.db.options.warn); err != nil {
				return err
			}
			if rows, err = c.Query(ctx, "SELECT "+pgJobColumns+" FROM jobs WHERE ended_at IS NULL"); err != nil {
				return err
			}
			all.Jobs, err = s.decode(rows)
			return err
		})
	})
	if err != nil {
		return jobs.Living{}, err
	}
	s.last = later(s.last, all.Now)
	all.Now, s.seen = s.last, seen
	return all, nil
}

// decoders is how many goroutines decode jobs that are loaded, while another one reads them.
const decoders = 2

func (s *serverJobs) decode(rows pgx.Rows) ([]jobs.Record, error) {
	parts := make(chan []*pgJob, decoders)
	var found [decoders][]jobs.Record
	var busy sync.WaitGroup
	for i := range found {
		busy.Go(func() {
			for part := range parts {
				for _, r := range part {
					record, err := r.openJob(r.id)
					if err != nil {
						s.db.options.warn(err)
						continue
					}
					found[i] = append(found[i], record)
				}
			}
		})
	}
	var part []*pgJob
	err := eachJob(rows, func(r *pgJob) error {
		if part = append(part, r); len(part) == 256 {
			parts <- part
			part = nil
		}
		return nil
	})
	parts <- part
	close(parts)
	busy.Wait()
	return slices.Concat(found[:]...), err
}

// readJobs reads rows of jobs.
func (s *serverJobs) readJobs(ctx context.Context, where string, args ...any) (all []*pgJob, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	err = s.db.using(ctx, "read", func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT "+pgJobColumns+" FROM jobs WHERE "+where, args...)
		if err != nil {
			return err
		}
		return eachJob(rows, func(r *pgJob) error {
			all = append(all, r)
			return nil
		})
	})
	return all, err
}

// Ended implements jobs.Store. It says of a living job, too, that it cannot be read.
func (s *serverJobs) Ended(ctx context.Context, jobID string) (jobs.Record, error) {
	all, err := s.readJobs(ctx, "id = $1", clean(jobID))
	if err != nil {
		return jobs.Record{}, err
	}
	if len(all) == 0 {
		return jobs.Record{}, jobs.ErrJobNotFound
	}
	r, err := all[0].openJob(jobID)
	if err == nil && !all[0].ended {
		err = jobs.ErrJobNotFound
	}
	return r, err
}

// ListEnded implements jobs.Store. A job that cannot be read has its place, and who asks for it is told.
func (s *serverJobs) ListEnded(ctx context.Context, f jobs.Filter, below uint64, limit int) ([]jobs.Record, error) {
	all, err := s.readJobs(ctx, `ended_at IS NOT NULL AND revision < $1 AND ($2 = '' OR state = $2) AND ($3 = '' OR type = $3)
		AND ($4 = '' OR tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_array_elements_text(tags::json) t WHERE t = $4)) ORDER BY revision DESC LIMIT $5`,
		int64(min(below, 1<<63-1)), string(f.State), clean(f.Type), f.Tag, limit)
	records := make([]jobs.Record, len(all))
	for i, row := range all {
		r, err := row.openJob(row.id)
		if err != nil {
			r = jobs.Record{Job: jobs.Job{ID: row.id, State: jobs.State(row.state), Revision: uint64(row.revision), Reason: err.Error()}}
		}
		records[i] = r
	}
	return records, err
}

// History implements jobs.Store.
func (s *serverJobs) History(ctx context.Context, from time.Time) (all []jobs.Statistic, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	err = s.db.using(ctx, "read", func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT hour, source, type, tag, doc, sum FROM job_stats WHERE hour >= $1", from.UnixMilli())
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var key, t jobs.Statistic
			var hour int64
			var d document
			if err := rows.Scan(&hour, &key.Source, &key.Type, &key.Tag, &d.text, &d.sum); err != nil {
				return err
			}
			key.Hour = time.UnixMilli(hour)
			if err := d.open("statistic "+statisticKey(&key), statisticKey(&key), &t); err != nil {
				return err
			}
			all = append(all, t)
		}
		return rows.Err()
	})
	return all, err
}

// Trim implements jobs.Store. One process at a time does it.
func (s *serverJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	err = s.db.using(ctx, "trim", func(ctx context.Context, c *pgx.Conn) error {
		mine := false
		var b pgx.Batch
		b.Queue("BEGIN")
		b.Queue("SELECT pg_try_advisory_xact_lock(hashtextextended($1, 1))", s.db.channel).QueryRow(func(row pgx.Row) error { return row.Scan(&mine) })
		if err := c.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		if !mine {
			_, err := c.Exec(ctx, "ROLLBACK")
			return err
		}
		b = pgx.Batch{}
		b.Queue(`DELETE FROM jobs WHERE id IN (SELECT id FROM (SELECT id, revision, ended_at FROM jobs WHERE ended_at IS NOT NULL ORDER BY revision LIMIT $1) oldest
			WHERE ended_at < $2 OR revision <= (SELECT revision FROM jobs WHERE ended_at IS NOT NULL AND $3 >= 0 ORDER BY revision DESC OFFSET greatest($3, 0) LIMIT 1))`,
			atMost, before.UnixMilli(), int64(keep)).Exec(func(tag pgconn.CommandTag) error {
			n = int(tag.RowsAffected())
			return nil
		})
		b.Queue(`DELETE FROM job_events WHERE seq IN (SELECT seq FROM (SELECT seq, upto, at FROM job_events ORDER BY seq LIMIT $1) oldest
			WHERE at < $2 OR $3::bigint >= 0 AND upto <= (SELECT event FROM job_state) - $3::bigint)`, atMost, before.UnixMilli(), int64(s.db.options.KeepEvents))
		b.Queue("DELETE FROM memos WHERE id IN (SELECT id FROM memos WHERE expires <= "+pgNow+" / 1000 LIMIT $1)", atMost)
		b.Queue("COMMIT")
		return c.SendBatch(ctx, &b).Close()
	})
	return n, err
}

// Close makes every later call fail. The database stays open.
func (s *serverJobs) Close() error {
	s.closed.Store(true)
	return nil
}
