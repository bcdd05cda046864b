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
	trip time.Duration // the shortest that a turn's first answer took
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

// ask adds the statement that reads it and the state of locks.
func (l *pgLast) ask(b *pgx.Batch, state *pgState) {
	b.Queue("SELECT " + pgNow + ", s.clock, token_floor, revision_floor, turn, writer, seq, revision, event, t.clock, frozen" +
		" FROM state s, (SELECT * FROM turns ORDER BY turn DESC LIMIT 1) t").QueryRow(func(row pgx.Row) error {
		var types string
		n := &l.Counters
		if err := state.scan(row, &l.number, &l.writer, &n.Seq, &n.Revision, &n.Event, &n.Clock, &types); err != nil {
			return err
		}
		l.frozen = nil
		return lokt.Unmarshal([]byte(types), &l.frozen)
	})
}

var _ jobs.Sharer = (*serverJobs)(nil)

func newServerJobs(d *serverDB) *serverJobs {
	return &serverJobs{db: d, changed: make(chan struct{}, 1), busy: make(chan struct{}, 1), keptJobs: keptJobs{
		options: &d.options, trimming: d.trimming, document: "j.id, j.doc, j.payload, j.sum", ranges: true,
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

// pgStep is a turn that was run, and is to be stored once.
type pgStep struct {
	base, next pgTurn // the last one before it, and its own name; none if it changes no jobs
	changes    jobs.Changes
	locks      *pgLocks // nil until it is run
	failed     error    // what it decided is for nothing
}

// Update implements jobs.Store. What was begun is finished, whatever becomes of who wanted it, and of the connection.
func (s *serverJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) (err error) {
	if err := s.begin(ctx); err != nil {
		return err
	}
	begun, step := time.Now(), &pgStep{}
	defer func() { s.db.options.observe("commit", begun, err); <-s.busy }()
	for lost := true; lost && time.Since(begun) < presence; {
		lost = false
		err = s.db.lend(context.WithoutCancel(ctx), s.db.writers, pgLoading, func(ctx context.Context, c *pgx.Conn) error {
			err := s.run(ctx, c, turn, step)
			lost = err != nil && step.failed == nil && c.IsClosed()
			return err
		})
	}
	return err
}

// run runs a turn and stores it: two exchanges with the server, and one more for each lock, if others have stored something, and if it was
// held up. If it was run before, and the connection was lost then, the last turn tells whether it is stored.
func (s *serverJobs) run(ctx context.Context, c *pgx.Conn, turn func(jobs.Facts) jobs.Changes, step *pgStep) error {
	var now pgLast
	t := s.db.locks.with(c)
	sent := time.Now()
	var b pgx.Batch
	pgBegin(&b)
	b.Queue("SELECT 1 FROM job_state FOR UPDATE")
	now.ask(&b, &t.state)
	if err := exchange(ctx, c, &b, pgExchange); err != nil {
		return err
	}
	took := time.Since(sent)
	s.trip = min(cmp.Or(s.trip, took), took)
	away := t.state.away()
	if !away && step.locks == nil {
		err := s.decide(ctx, &now, t, sent, turn, step)
		if away = errors.Is(err, errAway); err != nil && !away {
			return err
		}
	}
	if away {
		if err := t.startTimes(ctx); err != nil {
			return err
		}
		return s.run(ctx, c, turn, step)
	}
	locks := step.locks
	locks.conn, b = c, pgx.Batch{}
	if now.pgTurn == step.base {
		locks.write(&b, true)
		for _, l := range locks.locks {
			if l.err != nil && l.changed() {
				return l.err
			}
		}
		if step.next.number > 0 {
			if err := writeTurn(&b, &step.changes, step.next, now.Seq); err != nil {
				return err
			}
		}
	} else { // the division fails if others have stored something in its place
		b.Queue("SELECT 1 / count(*) FROM turns WHERE turn = $1 AND writer = $2", step.next.number, step.next.writer)
		locks.sent, locks.state = sent, t.state
		for _, l := range locks.locks {
			l.stored, l.is.row = l.err == nil, ""
		}
	}
	b.Queue("COMMIT")
	if err := exchange(ctx, c, &b, pgExchange+time.Duration(len(step.changes.Jobs))*perJob); err != nil {
		return err
	}
	if step.next.number > 0 {
		s.seen = step.next
		s.db.notify("!")
	}
	locks.publish()
	return nil
}

// lateTurn is how long after the database was asked for the time, beside the round trip, a turn may go by it. Later the process, or the
// database, may have stood still in between: what happens now would be dated back, and the clock seem to be set.
const lateTurn = 50 * time.Millisecond

// errAway says that nobody has used the database for so long that everybody who lives by time gets a full time first.
var errAway = errors.New("the database was not used")

// decide runs a turn.
func (s *serverJobs) decide(ctx context.Context, now *pgLast, t *pgLocks, sent time.Time, turn func(jobs.Facts) jobs.Changes, step *pgStep) (err error) {
	var facts jobs.Facts
	if now.pgTurn != s.seen {
		if facts.Others, err = s.follow(ctx, t.conn, now); err != nil && !errors.Is(err, errBehind) {
			return err
		}
		step.failed = err
	}
	if time.Since(sent) > s.trip+lateTurn {
		var b pgx.Batch
		now.ask(&b, &t.state)
		if err := exchange(ctx, t.conn, &b, pgExchange); err != nil {
			return err
		}
		if t.state.away() {
			return errAway
		}
	}
	taken := lokt.NewStep(func(name string) (lokt.Snapshot, error) {
		snap, err := t.view(ctx, name)
		step.failed = cmp.Or(step.failed, err)
		return snap, err
	})
	facts.Now, facts.Locks = t.state.now.Truncate(time.Millisecond), taken // all have the same time, also if it was set back
	step.base, step.locks = now.pgTurn, t
	if step.changes = turn(facts); step.failed != nil { // the manager reads everything anew
		return step.failed
	}
	s.seen = now.pgTurn
	for _, change := range taken.Changes() {
		t.locks[change.Lock.Name].become(change)
	}
	if !step.changes.Empty() {
		step.next = pgTurn{now.number + 1, lokt.NewLeaseID()}
	}
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

// theirs are the rows of a table that turns wrote, from after one to another. Each is looked for by itself, and so are the turns: how many
// there will be is not known when the statement is planned, and a guess too high has the whole table read in every turn.
func theirs(table string) string {
	return "(SELECT DISTINCT unnest(" + table + ") AS id FROM turns WHERE turn BETWEEN $1::bigint + 1 AND $2) t" +
		" LEFT JOIN LATERAL (SELECT * FROM " + table + " WHERE id = t.id OFFSET 0) u ON true"
}

// follow reads what others stored since the turn that the manager knows of. An older state of the database may have been
// put in its place: then that turn is not there, or another one has its number.
func (s *serverJobs) follow(ctx context.Context, c *pgx.Conn, now *pgLast) (*jobs.Changes, error) {
	all := &jobs.Changes{Counters: now.Counters, Frozen: now.frozen}
	there, damaged := false, false
	var b pgx.Batch
	b.Queue(`SELECT count(*) FILTER (WHERE turn > $1) = $2 AND coalesce(min(writer) FILTER (WHERE turn = $1), '') = $3
		FROM turns WHERE turn BETWEEN $1::bigint AND $1 + $2`, s.seen.number, now.number-s.seen.number, s.seen.writer).
		QueryRow(func(row pgx.Row) error { return row.Scan(&there) })
	// What is not there has the sum of no document.
	b.Queue(`SELECT t.id, coalesce(doc, ''), coalesce(payload, ''), coalesce(sum, -1)
		FROM `+theirs("jobs"), s.seen.number, now.number).
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
		FROM `+theirs("memos"), s.seen.number, now.number).
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
	keptTurns = 20_000           // for others to follow
	perJob    = time.Millisecond // how much longer a commit may take for each job

	insertJobs = `INSERT INTO jobs (id, revision, state, ended_at, doc, sum, seq, type, payload)
		SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::text[], $9::text[])`

	// If one is missing, the division fails, and so does the transaction.
	updateJobs = `WITH moved AS (
			UPDATE jobs j SET revision = u.revision, state = u.state, ended_at = u.ended_at, doc = u.doc, sum = u.sum
			FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[])
				AS u (id, revision, state, ended_at, doc, sum) WHERE j.id = u.id RETURNING 1)
		SELECT 1 / (count(*) = cardinality($1))::int FROM moved`

	// Only the oldest is looked for, not all that were forgotten and cannot be cleaned away yet.
	endTurn = `WITH old AS (DELETE FROM turns WHERE turn BETWEEN $1::bigint - $10::bigint - 100 AND $1 - $10)
		INSERT INTO turns (turn, writer, jobs, memos, seq, revision, event, clock, frozen) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
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
		row := []any{r.ID, nil, "", nil, d.text, d.sum}
		if r.State.Ended() {
			row[1], row[2], row[3] = int64(r.Revision), string(r.State), r.EndedAt.UnixNano()
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
		now.ask(&b, &state)
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
	s.seen = now.pgTurn
	return all, nil
}
