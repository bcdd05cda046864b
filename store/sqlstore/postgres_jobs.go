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

// serverJobs are the jobs in a database of PostgreSQL, as one of several processes has them: each runs its
// turns while it has a row locked, and is told what others changed since its last one.
type serverJobs struct {
	db      *serverDB
	changed chan struct{}
	closed  atomic.Bool

	busy chan struct{} // has an element while a turn is run
	seen pgTurn        // the last one that the manager knows of
	last time.Time     // the latest time that it has been told
}

// pgTurn names a turn. The number alone does not: an older state of the database may have been put in its
// place.
type pgTurn struct {
	number int64
	writer string
}

// How many turns are kept for others to follow, and after how many some are forgotten.
const (
	keptTurns = 20_000
	tidyTurns = 256
	perJob    = time.Millisecond // how much longer a commit may take for each job
)

var _ jobs.Sharer = (*serverJobs)(nil)

func newServerJobs(d *serverDB) *serverJobs {
	return &serverJobs{db: d, changed: make(chan struct{}, 1), busy: make(chan struct{}, 1)}
}

// Changed implements jobs.Sharer.
func (s *serverJobs) Changed() <-chan struct{} { return s.changed }

// look has the manager look for changes.
func (s *serverJobs) look() { poke(s.changed) }

func (s *serverJobs) usable(ctx context.Context) error {
	if s.closed.Load() && ctx.Err() == nil {
		return errClosed
	}
	return ctx.Err()
}

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

// run runs a turn: two exchanges with the server, and one more if others have stored something.
func (s *serverJobs) run(ctx context.Context, c *pgx.Conn, turn func(jobs.Facts) jobs.Changes) error {
	var now pgTurn
	var counted uint64
	t := s.db.locks.transaction()
	if err := t.begin(ctx, c, func(b *pgx.Batch) {
		b.Queue("SELECT turn, writer, seq FROM job_state FOR UPDATE").QueryRow(func(row pgx.Row) error {
			return row.Scan(&now.number, &now.writer, &counted)
		})
	}); err != nil {
		return err
	}
	var facts jobs.Facts
	var failed error // what the turn decides is for nothing
	if now != s.seen {
		if facts.Others, failed = s.follow(ctx, c, now); failed != nil && !errors.Is(failed, errBehind) {
			return failed
		}
	}
	step := lokt.NewStep(func(name string) (lokt.Snapshot, error) {
		snap, err := t.view(ctx, c, name)
		failed = first(failed, err)
		return snap, err
	})
	s.last = later(s.last, t.now.Truncate(time.Millisecond))
	facts.Now, facts.Locks = s.last, step
	changes := turn(facts)
	if failed != nil { // the manager reads everything anew
		return failed
	}
	s.seen = now
	for _, change := range step.Changes() {
		t.locks[change.Lock.Name].become(change)
	}
	var b pgx.Batch
	t.write(&b)
	for _, l := range t.locks {
		if l.err != nil && l.changed {
			return l.err
		}
	}
	if changes.Empty() && b.Len() == 0 {
		_, err := c.Exec(ctx, "ROLLBACK")
		return err
	}
	next := pgTurn{now.number, now.writer}
	if !changes.Empty() {
		next = pgTurn{now.number + 1, lokt.NewLeaseID()}
		if err := writeTurn(&b, &changes, next, counted); err != nil {
			return err
		}
		s.db.notice.add("!")
	}
	b.Queue("COMMIT")
	if err := exchange(ctx, c, &b, pgExchange+time.Duration(len(changes.Jobs))*perJob); err != nil {
		return err
	}
	s.seen = next
	t.publish()
	return nil
}

// first returns the first error that is none.
func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// view reads a lock within a turn, which nobody else changes until it ends.
func (t *pgLocks) view(ctx context.Context, c *pgx.Conn, name string) (lokt.Snapshot, error) {
	var b pgx.Batch
	t.ask(&b, []string{name}, forUpdate)
	if err := exchange(ctx, c, &b, pgExchange); err != nil {
		return lokt.Snapshot{}, err
	}
	l := t.locks[name]
	if t.open(name, l); l.err != nil {
		return lokt.Snapshot{Lock: lokt.Lock{Name: name, Corrupt: l.err.Error()}, Now: t.now}, nil
	}
	return t.snapshot(l), nil
}

// follow reads what others stored since the turn that the manager knows of. An older state of the database
// may have been put in its place: then that turn is not there, or another one has its number.
func (s *serverJobs) follow(ctx context.Context, c *pgx.Conn, now pgTurn) (*jobs.Changes, error) {
	all := &jobs.Changes{}
	var before string
	var turns, wanted, damaged int
	var b pgx.Batch
	b.Queue(`SELECT coalesce((SELECT writer FROM turns WHERE turn = $1), ''), (SELECT count(*) FROM turns WHERE turn > $1),
		(SELECT count(DISTINCT id) FROM turns, unnest(jobs) id WHERE turn > $1) +
		(SELECT count(DISTINCT id) FROM turns, unnest(memos) id WHERE turn > $1)`,
		s.seen.number).QueryRow(func(row pgx.Row) error { return row.Scan(&before, &turns, &wanted) })
	b.Queue("SELECT "+pgJobColumns+` FROM jobs
		WHERE id IN (SELECT unnest(jobs) FROM turns WHERE turn > $1) ORDER BY revision`, s.seen.number).
		Query(func(rows pgx.Rows) error {
			return eachJob(rows, func(r *pgJob) {
				record, err := r.openJob(r.id)
				if all.Jobs = append(all.Jobs, record); err != nil {
					damaged++
				}
			})
		})
	b.Queue("SELECT id, doc, sum FROM memos WHERE id IN (SELECT unnest(memos) FROM turns WHERE turn > $1)", s.seen.number).
		Query(func(rows pgx.Rows) (err error) {
			all.Memos, err = readMemos(rows, func(error) { damaged++ })
			return err
		})
	b.Queue(selectCounters).QueryRow(func(row pgx.Row) error {
		return scanCounters(row, &pgTurn{}, &all.Counters, &all.Frozen)
	})
	if err := exchange(ctx, c, &b, pgTimeout); err != nil {
		return nil, err
	}
	if before != s.seen.writer || int64(turns) != now.number-s.seen.number ||
		len(all.Jobs)+len(all.Memos) != wanted || damaged > 0 {
		return nil, errBehind
	}
	return all, nil
}

// writeTurn adds the statements that store what a turn changed. Jobs up to the number that was counted are
// there already, and their payloads are not written again.
func writeTurn(b *pgx.Batch, c *jobs.Changes, turn pgTurn, counted uint64) error {
	var made, moved, memos, stats, events columns
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
		made.add(r.ID, int64(r.Seq), int64(r.Revision), string(r.State), r.Type, orNull(string(tags), len(r.Tags) > 0), ended,
			d.text, d.sum, d.payload)
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
		stats.add(t.Hour.Unix(), t.Source, t.Type, t.Tag, d.text, d.sum)
	}
	if n := len(c.Events); n > 0 {
		d, err := sealEvents(c.Events[0].Seq, c.Events)
		if err != nil {
			return err
		}
		events.add(int64(c.Events[0].Seq), int64(c.Events[n-1].Seq), c.Events[n-1].Time.UnixMilli(), d.text, d.sum)
	}
	made.queue(b, `INSERT INTO jobs (id, seq, revision, state, type, tags, ended_at, doc, sum, payload)
		SELECT * FROM ROWS`)
	// If one is missing, the division fails, and so does the transaction.
	moved.queue(b, `WITH done AS (
			UPDATE jobs j SET revision = u.revision, state = u.state, ended_at = u.ended_at, doc = u.doc, sum = u.sum
			FROM ROWS AS u (id, revision, state, ended_at, doc, sum) WHERE j.id = u.id RETURNING 1
		) SELECT 1 / (count(*) = cardinality($1))::int FROM done`)
	memos.queue(b, `INSERT INTO memos (id, expires, doc, sum) SELECT * FROM ROWS
		ON CONFLICT (id) DO UPDATE SET expires = excluded.expires, doc = excluded.doc, sum = excluded.sum`)
	stats.queue(b, `INSERT INTO statistics (hour, source, type, tag, doc, sum) SELECT * FROM ROWS
		ON CONFLICT (hour, source, type, tag) DO UPDATE SET doc = excluded.doc, sum = excluded.sum`)
	events.queue(b, "INSERT INTO job_events (first, last, until, doc, sum) SELECT * FROM ROWS")
	b.Queue("INSERT INTO turns (turn, writer, jobs, memos) VALUES ($1, $2, $3, $4)",
		turn.number, turn.writer, ids, memoIDs)
	if turn.number%tidyTurns == 0 {
		b.Queue("DELETE FROM turns WHERE turn <= $1", turn.number-keptTurns)
	}
	frozen, err := lokt.Marshal(c.Frozen)
	n := c.Counters
	b.Queue("UPDATE job_state SET turn = $1, writer = $2, seq = $3, revision = $4, event = $5, clock = $6, frozen = $7",
		turn.number, turn.writer, int64(n.Seq), int64(n.Revision), int64(n.Event), n.Clock, string(frozen))
	return err
}

// clean replaces what PostgreSQL does not take in text, and no valid name has.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// orNull returns the value, or nil if there is none.
func orNull[T any](v T, there bool) *T {
	if !there {
		return nil
	}
	return &v
}

// pgJobColumns are those of a job's document.
const pgJobColumns = "id, state, revision, ended_at IS NOT NULL, doc, payload, sum"

// pgJob is the row of a job.
type pgJob struct {
	id, state string
	revision  uint64
	ended     bool
	document
}

func eachJob(rows pgx.Rows, f func(r *pgJob)) error {
	var r pgJob
	into := []any{&r.id, &r.state, &r.revision, &r.ended, &r.text, &r.payload, &r.sum}
	_, err := pgx.ForEachRow(rows, into, func() error {
		one := r
		f(&one)
		return nil
	})
	return err
}

func readMemos(rows pgx.Rows, warn func(error)) (all []jobs.Memo, err error) {
	var id string
	var d document
	_, err = pgx.ForEachRow(rows, []any{&id, &d.text, &d.sum}, func() error {
		var m jobs.Memo
		if err := d.open("memo "+id, id, &m); err != nil {
			warn(err)
		} else {
			all = append(all, m)
		}
		return nil
	})
	return all, err
}

const selectCounters = "SELECT turn, writer, seq, revision, event, clock, frozen FROM job_state"

func scanCounters(row pgx.Row, t *pgTurn, n *jobs.Counters, frozen *[]string) error {
	var types string
	if err := row.Scan(&t.number, &t.writer, &n.Seq, &n.Revision, &n.Event, &n.Clock, &types); err != nil {
		return err
	}
	return lokt.Unmarshal([]byte(types), frozen)
}

// Load implements jobs.Store. Jobs that cannot be read are left out: they stay as they are, whoever asks for
// one is told, and so is the operator.
func (s *serverJobs) Load(ctx context.Context) (all jobs.Living, err error) {
	if err := s.begin(ctx); err != nil {
		return all, err
	}
	defer func() { <-s.busy }()
	defer func(begin time.Time) { s.db.options.observe("load", begin, err) }(time.Now())
	var seen pgTurn
	if err := s.db.lend(ctx, s.db.writers, pgLoading, atOneMoment(func(ctx context.Context, c *pgx.Conn) error {
		var now int64
		if err := c.QueryRow(ctx, "SELECT "+pgNow+", token_floor FROM state").Scan(&now, &all.TokenFloor); err != nil {
			return err
		}
		all.Now = time.UnixMicro(now).UTC().Truncate(time.Millisecond)
		if err := scanCounters(c.QueryRow(ctx, selectCounters), &seen, &all.Counters, &all.Frozen); err != nil {
			return err
		}
		rows, _ := c.Query(ctx, "SELECT id, doc, sum FROM memos WHERE expires IS NULL OR expires > $1", all.Now.UnixMilli())
		if all.Memos, err = readMemos(rows, s.db.options.warn); err != nil {
			return err
		}
		rows, _ = c.Query(ctx, "SELECT "+pgJobColumns+" FROM jobs WHERE ended_at IS NULL")
		all.Jobs, err = s.decode(rows)
		return err
	})); err != nil {
		return jobs.Living{}, err
	}
	s.last = later(s.last, all.Now)
	all.Now, s.seen = s.last, seen
	return all, nil
}

// decode decodes jobs by two goroutines, while another one reads them.
func (s *serverJobs) decode(rows pgx.Rows) ([]jobs.Record, error) {
	parts := make(chan []*pgJob, 2)
	var found [2][]jobs.Record
	var busy sync.WaitGroup
	for i := range found {
		busy.Go(func() {
			for part := range parts {
				for _, r := range part {
					if record, err := r.openJob(r.id); err != nil {
						s.db.options.warn(err)
					} else {
						found[i] = append(found[i], record)
					}
				}
			}
		})
	}
	var part []*pgJob
	err := eachJob(rows, func(r *pgJob) {
		if part = append(part, r); len(part) == 256 {
			parts <- part
			part = nil
		}
	})
	parts <- part
	close(parts)
	busy.Wait()
	return slices.Concat(found[:]...), err
}

// read lends a connection to who reads what ended.
func (s *serverJobs) read(ctx context.Context, statement string, args []any, read func(rows pgx.Rows) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.using(ctx, "read", func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, statement, args...)
		return read(rows)
	})
}

// Ended implements jobs.Store. It says of a living job, too, that it cannot be read.
func (s *serverJobs) Ended(ctx context.Context, jobID string) (r jobs.Record, err error) {
	var row *pgJob
	statement := "SELECT " + pgJobColumns + " FROM jobs WHERE id = $1"
	if err := s.read(ctx, statement, []any{clean(jobID)}, func(rows pgx.Rows) error {
		return eachJob(rows, func(r *pgJob) { row = r })
	}); err != nil {
		return r, err
	}
	if row == nil {
		return r, jobs.ErrJobNotFound
	}
	if r, err = row.openJob(jobID); err == nil && !row.ended {
		return jobs.Record{}, jobs.ErrJobNotFound
	}
	return r, err
}

// ListEnded implements jobs.Store. A job that cannot be read has its place, and who asks for it is told.
func (s *serverJobs) ListEnded(
	ctx context.Context, f jobs.Filter, below uint64, limit int,
) (all []jobs.Record, err error) {
	statement := "SELECT " + pgJobColumns + ` FROM jobs WHERE ended_at IS NOT NULL AND revision < $1
		AND ($2 = '' OR state = $2) AND ($3 = '' OR type = $3)
		AND ($4 = '' OR EXISTS (SELECT 1 FROM json_array_elements_text(tags::json) t WHERE t = $4))
		ORDER BY revision DESC LIMIT $5`
	args := []any{int64(min(below, 1<<63-1)), clean(string(f.State)), clean(f.Type), clean(f.Tag), limit}
	err = s.read(ctx, statement, args, func(rows pgx.Rows) error {
		return eachJob(rows, func(row *pgJob) {
			r, err := row.openJob(row.id)
			if err != nil {
				j := jobs.Job{ID: row.id, State: jobs.State(row.state), Revision: row.revision, Reason: err.Error()}
				r = jobs.Record{Job: j}
			}
			all = append(all, r)
		})
	})
	return all, err
}

// History implements jobs.Store.
func (s *serverJobs) History(ctx context.Context, from time.Time) (all []jobs.Statistic, err error) {
	const statement = "SELECT hour, source, type, tag, doc, sum FROM statistics WHERE hour >= $1"
	err = s.read(ctx, statement, []any{from.Unix()}, func(rows pgx.Rows) error {
		var key jobs.Statistic
		var hour int64
		var d document
		_, err := pgx.ForEachRow(rows, []any{&hour, &key.Source, &key.Type, &key.Tag, &d.text, &d.sum}, func() error {
			var t jobs.Statistic
			key.Hour = time.Unix(hour, 0)
			err := d.open("statistic "+statisticKey(&key), statisticKey(&key), &t)
			all = append(all, t)
			return err
		})
		return err
	})
	return all, err
}

// Trim implements jobs.Store. One process at a time does it.
func (s *serverJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	err = s.db.using(ctx, "trim", func(ctx context.Context, c *pgx.Conn) error {
		const mine = "(SELECT pg_try_advisory_xact_lock(hashtextextended($1, 1)))"
		var b pgx.Batch
		b.Queue("BEGIN")
		b.Queue(`DELETE FROM jobs WHERE `+mine+` AND id IN (SELECT id FROM (
				SELECT id, revision, ended_at FROM jobs WHERE ended_at IS NOT NULL ORDER BY revision LIMIT $2) oldest
			WHERE ended_at < $3 OR revision <= (
				SELECT revision FROM jobs WHERE ended_at IS NOT NULL AND $4 >= 0
				ORDER BY revision DESC OFFSET greatest($4, 0) LIMIT 1))`,
			s.db.channel, atMost, before.UnixMilli(), int64(keep)).Exec(func(tag pgconn.CommandTag) error {
			n = int(tag.RowsAffected())
			return nil
		})
		b.Queue(`DELETE FROM job_events WHERE `+mine+` AND first IN (
			SELECT first FROM (SELECT * FROM job_events ORDER BY first LIMIT $2) oldest
			WHERE until < $3 OR $4::bigint >= 0 AND last <= (SELECT event FROM job_state) - $4::bigint)`,
			s.db.channel, atMost, before.UnixMilli(), int64(s.db.options.KeepEvents))
		b.Queue("DELETE FROM memos WHERE "+mine+` AND id IN (
			SELECT id FROM memos WHERE expires <= `+pgNow+" / 1000 LIMIT $2)", s.db.channel, atMost)
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
