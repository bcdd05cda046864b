package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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

// How many turns are kept for others to follow, and after how many some are forgotten.
const (
	keptTurns = 20_000
	tidyTurns = 256
	perJob    = time.Millisecond // how much longer a commit may take for each job
)

var _ jobs.Sharer = (*serverJobs)(nil)

func newServerJobs(d *serverDB) *serverJobs {
	const columns = "SELECT j.id, j.state, j.revision, j.doc, j.payload, j.sum FROM jobs j WHERE j.ended_at IS "
	return &serverJobs{db: d, changed: make(chan struct{}, 1), busy: make(chan struct{}, 1), keptJobs: keptJobs{
		warn: d.options.warn, living: columns + "NULL", ended: columns + "NOT NULL",
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
	var now pgTurn
	var counted uint64
	t := s.db.locks.with(c)
	for n := 0; n == 0 || t.state.away(); n++ {
		var b pgx.Batch
		if n > 0 {
			if _, err := c.Exec(ctx, "ROLLBACK"); err != nil {
				return err
			}
			if err := t.arrive(ctx, c); err != nil {
				return err
			}
		}
		pgBegin(&b)
		b.Queue("SELECT " + pgNow + ", clock, token_floor, revision_floor, turn, writer, seq FROM state, (SELECT turn, writer, seq FROM job_state FOR UPDATE) j").
			QueryRow(func(row pgx.Row) error { return t.state.scan(row, &now.number, &now.writer, &counted) })
		if err := exchange(ctx, c, &b, pgExchange); err != nil {
			return err
		}
	}
	var facts jobs.Facts
	var failed error // what the turn decides is for nothing
	if now != s.seen {
		if facts.Others, failed = s.follow(ctx, c, now); failed != nil && !errors.Is(failed, errBehind) {
			return failed
		}
	}
	step := lokt.NewStep(func(name string) (lokt.Snapshot, error) {
		snap, err := t.view(ctx, name)
		if failed == nil {
			failed = err
		}
		return snap, err
	})
	s.last = later(s.last, t.state.now.Truncate(time.Millisecond))
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
	t.write(&b, true)
	for _, l := range t.locks {
		if l.err != nil && l.changed() {
			return l.err
		}
	}
	next := now
	if !changes.Empty() {
		next = pgTurn{now.number + 1, lokt.NewLeaseID()}
		if err := writeTurn(&b, &changes, next, counted); err != nil {
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
func (s *serverJobs) follow(ctx context.Context, c *pgx.Conn, now pgTurn) (*jobs.Changes, error) {
	all := &jobs.Changes{}
	var before string
	var turns, wanted, damaged int
	var b pgx.Batch
	b.Queue(`SELECT coalesce((SELECT writer FROM turns WHERE turn = $1), ''), (SELECT count(*) FROM turns WHERE turn > $1),
		(SELECT count(DISTINCT id) FROM turns, unnest(jobs) id WHERE turn > $1) +
		(SELECT count(DISTINCT id) FROM turns, unnest(memos) id WHERE turn > $1)`,
		s.seen.number).QueryRow(func(row pgx.Row) error { return row.Scan(&before, &turns, &wanted) })
	b.Queue(`SELECT id, state, revision, doc, payload, sum FROM jobs
		WHERE id IN (SELECT unnest(jobs) FROM turns WHERE turn > $1) ORDER BY revision`, s.seen.number).
		Query(func(rows pgx.Rows) error {
			return eachRow(rows, func(from row) error {
				var r jobRow
				err := r.scan(from)
				if r.decode(); r.err != nil {
					damaged++
				}
				all.Jobs = append(all.Jobs, r.Record)
				return err
			})
		})
	b.Queue("SELECT id, doc, sum FROM memos WHERE id IN (SELECT unnest(memos) FROM turns WHERE turn > $1)", s.seen.number).
		Query(func(rows pgx.Rows) error {
			return eachRow(rows, func(from row) error {
				m, err := readMemo(from)
				if all.Memos = append(all.Memos, m); errors.Is(err, lokt.ErrDamaged) {
					damaged++
					return nil
				}
				return err
			})
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

const selectCounters = "SELECT turn, writer, seq, revision, event, clock, frozen FROM job_state"

func scanCounters(from row, t *pgTurn, n *jobs.Counters, frozen *[]string) error {
	var types string
	if err := from.Scan(&t.number, &t.writer, &n.Seq, &n.Revision, &n.Event, &n.Clock, &types); err != nil {
		return err
	}
	return lokt.Unmarshal([]byte(types), frozen)
}

// writeTurn adds the statements that store what a turn changed. Jobs up to the number that was counted are there already,
// and their payloads are not written again.
func writeTurn(b *pgx.Batch, c *jobs.Changes, turn pgTurn, counted uint64) error {
	made := pgRows{table: "jobs", columns: "id, seq, revision, state, type, ended_at, doc, sum, payload"}
	moved := pgRows{table: "jobs", columns: "id, revision, state, ended_at, doc, sum", keys: 1}
	memos := pgRows{table: "memos", columns: "id, expires, doc, sum", keys: 1}
	stats := pgRows{table: "statistics", columns: "hour, source, type, tag, doc, sum", keys: 4}
	events := pgRows{table: "job_events", columns: "first, last, until, doc, sum"}
	moves := 0
	ids, memoIDs := make([]string, 0, len(c.Jobs)), make([]string, 0, len(c.Memos))
	for i := range c.Jobs {
		r := &c.Jobs[i]
		d, err := sealJob(r)
		if err != nil {
			return err
		}
		ids = append(ids, r.ID)
		ended := orNull(r.EndedAt.UnixNano(), r.State.Ended())
		if 0 < r.Seq && r.Seq <= counted {
			moves++
			moved.add(r.ID, int64(r.Revision), string(r.State), ended, d.text, d.sum)
		} else {
			made.add(r.ID, int64(r.Seq), int64(r.Revision), string(r.State), r.Type, ended, d.text, d.sum, d.payload)
		}
	}
	for i := range c.Memos {
		m := &c.Memos[i]
		d, err := seal(m.ID, m)
		if err != nil {
			return err
		}
		memoIDs = append(memoIDs, m.ID)
		memos.add(m.ID, orNull(m.Expires.UnixNano(), !m.Expires.IsZero()), d.text, d.sum)
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
		first, last := c.Events[0].Seq, c.Events[n-1]
		d, err := seal(number(first), c.Events)
		if err != nil {
			return err
		}
		events.add(int64(first), int64(last.Seq), last.Time.UnixNano(), d.text, d.sum)
	}
	for _, rows := range []*pgRows{&made, &memos, &stats, &events} {
		if rows.lists != nil {
			var s script
			s.queue(b, s.insert(rows, ""))
		}
	}
	if moved.lists != nil { // if one is missing, the division fails, and so does the transaction
		var s script
		s.with("moved", s.update(&moved, "")+" RETURNING 1")
		s.queue(b, "SELECT 1 / (count(*) = "+s.arg(int64(moves))+")::int FROM moved")
	}
	if turn.number%tidyTurns == 0 {
		b.Queue("DELETE FROM turns WHERE turn <= $1", turn.number-keptTurns)
	}
	frozen, err := lokt.Marshal(c.Frozen)
	n := c.Counters
	b.Queue(`WITH turn AS (INSERT INTO turns (turn, writer, jobs, memos) VALUES ($1, $2, $3, $4))
		UPDATE job_state SET turn = $1, writer = $2, seq = $5, revision = $6, event = $7, clock = $8, frozen = $9`,
		turn.number, turn.writer, ids, memoIDs, int64(n.Seq), int64(n.Revision), int64(n.Event), n.Clock, string(frozen))
	return err
}

// orNull returns the value, or nil if there is none.
func orNull(v int64, there bool) *int64 {
	if !there {
		return nil
	}
	return &v
}

// Load implements jobs.Store.
func (s *serverJobs) Load(ctx context.Context) (all jobs.Living, err error) {
	if err := s.begin(ctx); err != nil {
		return all, err
	}
	defer func() { <-s.busy }()
	defer func(begin time.Time) { s.db.options.observe("load", begin, err) }(time.Now())
	var seen pgTurn
	if err := s.db.lend(ctx, s.db.writers, pgLoading, atOneMoment(func(ctx context.Context, c *pgx.Conn) error {
		var state pgState
		if err := state.scan(c.QueryRow(ctx, "SELECT "+stateColumns+" FROM state")); err != nil {
			return err
		}
		all = jobs.Living{Now: state.now.Truncate(time.Millisecond), TokenFloor: state.tokens}
		if err := scanCounters(c.QueryRow(ctx, selectCounters), &seen, &all.Counters, &all.Frozen); err != nil {
			return err
		}
		return s.load(lookWith(ctx, c), all.Now, &all)
	})); err != nil {
		return jobs.Living{}, err
	}
	s.last = later(s.last, all.Now)
	all.Now, s.seen = s.last, seen
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
