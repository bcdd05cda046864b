package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

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
	return &serverJobs{db: d, changed: make(chan struct{}, 1), busy: make(chan struct{}, 1), keptJobs: keptJobs{
		options: &d.options, trimming: d.trimming, document: "j.id, j.doc, j.payload, j.sum",
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
			return each(rows, func(from row) error {
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
			return each(rows, func(from row) error {
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

	endTurn = `WITH turn AS (INSERT INTO turns (turn, writer, jobs, memos) VALUES ($1, $2, $3, $4)),
			old AS (DELETE FROM turns WHERE turn <= $1 - $10)
		UPDATE job_state SET turn = $1, writer = $2, seq = $5, revision = $6, event = $7, clock = $8, frozen = $9`
)

// writeTurn adds the statements that store what a turn changed. Jobs up to the number that was counted are there already,
// and their payloads are not written again.
func writeTurn(b *pgx.Batch, c *jobs.Changes, turn pgTurn, counted uint64) error {
	var made, moved pgRows
	beside := newTables()
	ids, memoIDs := make([]string, len(c.Jobs)), make([]string, len(c.Memos))
	for i, r := range c.Jobs {
		d, err := sealJob(r)
		beside.err = cmp.Or(beside.err, err)
		ids[i] = r.ID
		row := []any{r.ID, int64(r.Revision), string(r.State), nil, d.text, d.sum}
		if r.State.Ended() {
			row[3] = r.EndedAt.UnixNano()
		}
		if 0 < r.Seq && r.Seq <= counted {
			moved = append(moved, row)
		} else {
			made = append(made, append(row, int64(r.Seq), r.Type, d.payload))
		}
	}
	for i := range c.Memos {
		memoIDs[i] = c.Memos[i].ID
	}
	besideJobs(c, beside.put)
	made.queue(b, insertJobs)
	moved.queue(b, updateJobs)
	beside.queue(b, "")
	frozen, err := lokt.Marshal(c.Frozen)
	n := c.Counters
	b.Queue(endTurn, turn.number, turn.writer, ids, memoIDs, int64(n.Seq), int64(n.Revision), int64(n.Event), n.Clock, string(frozen), keptTurns)
	return cmp.Or(beside.err, err)
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
