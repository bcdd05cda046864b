package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// serverJobs are the jobs in a database of PostgreSQL, as one of several processes has them: each runs its turns while it has a row locked,
// and is told what others changed since its last one.
type serverJobs struct {
	*jobReader
	db      *serverDB
	changed chan struct{}

	mu   sync.Mutex
	conn *pgConn   // nil if it must be opened
	seen int64     // number of the last changes that the manager has been told
	by   pgTurnID  // whose they are, if that is known
	last time.Time // the latest time that it has been told
	body []byte    // of a row of job_changes, to be used again

	places map[string]int // of texts in it

	idle   time.Duration // after which the database ends a turn of which it hears nothing
	tables pgTables
}

var _ jobs.Sharer = (*serverJobs)(nil)

func newServerJobs(d *serverDB) *serverJobs {
	const hasTag = "s.tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_array_elements_text(s.tags::json) t WHERE t = ?)"
	s := &serverJobs{jobReader: &jobReader{reading: d.reading, hasTag: hasTag}, db: d, changed: make(chan struct{}, 1), idle: pgTimeout, places: map[string]int{}}
	s.tables.behind, s.tables.writing = make(chan struct{}, 1), make(chan struct{}, 1)
	s.tables.late, s.tables.patience, s.tables.keep, s.tables.unweighed = foldEvery, pgTimeout, keepBytes, keepBytes
	return s
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

// hangUp closes the connections.
func (s *serverJobs) hangUp(ctx context.Context) {
	s.tables.writing <- struct{}{}
	if s.tables.conn != nil {
		_ = s.tables.conn.Close(ctx)
		s.tables.conn = nil
	}
	<-s.tables.writing
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close(ctx)
		s.conn = nil
	}
}

// endIdle has the database end a transaction of which it hears nothing for so many milliseconds: a server that is stopped or cut off in
// the middle of one would keep all others from theirs.
const endIdle = "set_config('idle_in_transaction_session_timeout', CAST(? AS TEXT), true)"

// errBehind is the error of a turn that was not told all that others had changed.
var errBehind = errors.New("too much has changed elsewhere to follow")

// Update implements jobs.Store.
func (s *serverJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) (err error) {
	if err := s.usable(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	begin := time.Now()
	defer func() { s.db.observe("commit", begin, err) }()
	// What was begun is finished, whatever becomes of who wanted it.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), pgTimeout)
	defer cancel()
	if err := s.catchUp(limited); err != nil {
		return err
	}
	if s.conn != nil && s.conn.gone() {
		_ = s.conn.Close(limited)
		s.conn = nil
	}
	if s.conn == nil {
		if s.conn, err = s.db.dial(limited); err != nil {
			s.conn = nil
			return pgError(err)
		}
	}
	returned := false
	defer func() {
		if !returned { // the turn has panicked, or ended its goroutine, within a transaction that keeps all others from theirs
			_ = s.conn.Close(limited)
			s.conn = nil
		}
	}()
	err = s.turn(limited, s.conn, turn)
	if returned = true; err != nil {
		if !s.conn.abandon(limited) {
			_ = s.conn.Close(limited)
			s.conn = nil
		}
		return pgError(err)
	}
	return nil
}

func (s *serverJobs) turn(ctx context.Context, c *pgConn, turn func(jobs.Facts) jobs.Changes) error {
	if err := c.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	var f jobs.Facts
	var newest int64
	behind, confirmed := false, false
	next, by := s.seen+1, s.by
	var others []pgTurn
	// What others changed is read by a statement of its own, because only that sees what they stored while the row was waited for.
	if err := c.ask(ctx,
		question{"SELECT changes, " + pgNow + " / 1000, (SELECT oldest FROM state), (SELECT changes FROM job_folded), " + endIdle + " FROM job_state FOR UPDATE", []any{fmt.Sprint(s.idle.Milliseconds())}, func(r *row) error {
			newest, f.Now = r.number(), r.millis()
			err := s.db.fits(r.number())
			s.tables.reached(r.number())
			return err
		}},
		question{"SELECT seq, " + turnID + ", CASE WHEN seq > ? THEN body END FROM job_changes WHERE seq >= ? ORDER BY seq", []any{s.seen, s.seen}, func(r *row) error {
			seq, id := r.number(), readTurnID(r)
			if seq == s.seen {
				behind = s.by.known() && id != s.by
				confirmed = true
				return nil
			}
			behind = behind || seq != next
			next, by = next+1, id
			if id.origin == s.db.origin {
				return nil
			}
			body := r.bytes()
			c, err := unpackChanges(body)
			if behind = behind || err != nil || r.err != nil; !behind { // otherwise by a program of another version
				f.Others = append(f.Others, *c)
				others = append(others, pgTurn{seq, id, len(body), c})
			}
			r.err = nil
			return nil
		}},
	); err != nil {
		return err
	}
	// An older state of the database may have been put in its place: then it knows of more than is there, or what others stored since has the
	// numbers of what it knows.
	behind = behind || next != newest+1 || s.by.known() && !confirmed
	s.last = later(s.last, f.Now)
	f.Now = s.last
	changes := turn(f)
	if behind { // what it decided is for nothing: it must read everything anew
		return unavailable(errBehind)
	}
	s.seen, s.by = newest, by
	s.tables.grow(others...)
	s.tables.learned(newest)
	if changes.Empty() {
		if err := c.exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
		return c.flush(ctx)
	}
	return s.store(ctx, c, &changes, newest+1)
}

// store writes what a turn changed, for the other processes and for whoever writes the tables, and commits.
func (s *serverJobs) store(ctx context.Context, c *pgConn, changes *jobs.Changes, seq int64) error {
	body := packWhole(s.body[:0], changes, s.places)
	id := pgTurnID{s.db.origin, changes.Time.UnixMilli(), sumOf(body)}
	if s.body = body; len(body) > keptBody {
		s.body = nil
	}
	for _, w := range []struct {
		statement string
		args      []any
	}{
		{"INSERT INTO job_changes (seq, origin, at, body, sum) VALUES (?, ?, ?, ?, ?)", []any{seq, id.origin, id.at, body, id.sum}},
		{"UPDATE job_state SET job_seq = ?, job_revision = ?, job_event = ?, job_clock = ?, changes = ?",
			[]any{changes.Counters.Seq, changes.Counters.Revision, changes.Counters.Event, changes.Counters.Clock, seq}},
	} {
		if err := c.exec(ctx, w.statement, w.args...); err != nil {
			return err
		}
	}
	if err := c.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	s.seen, s.by = seq, id
	s.tables.grow(pgTurn{seq, id, len(body), changes})
	s.tables.learned(seq)
	s.db.notice.turn()
	return nil
}

// Load implements jobs.Store.
func (s *serverJobs) Load(ctx context.Context) (rows jobs.Rows, err error) {
	if err := s.usable(ctx); err != nil {
		return rows, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var seen int64
	var by pgTurnID
	if err := s.db.reading(ctx, "load", func(q querier) (err error) {
		if seen, err = one(ctx, q, "SELECT changes FROM job_state"); err != nil {
			return err
		}
		if err := q.query(ctx, "SELECT "+turnID+" FROM job_changes WHERE seq = ?", []any{seen}, func(r *row) error {
			by = readTurnID(r)
			return nil
		}); err != nil {
			return err
		}
		if err := readCounters(ctx, q, &rows); err != nil {
			return err
		}
		if rows.Jobs, err = readLiving(ctx, q, -1<<63, 1<<63-1); err != nil {
			return err
		}
		if err := readRest(ctx, q, &rows); err != nil {
			return err
		}
		upTo, ahead, err := s.aheadOf(ctx, q)
		if err != nil {
			return err
		}
		s.tables.begin(upTo, ahead)
		s.tables.learned(seen)
		amend(&rows, changesIn(ahead))
		return q.query(ctx, "SELECT "+pgNow+" / 1000", nil, func(r *row) error {
			rows.Now = r.millis()
			return nil
		})
	}); err != nil {
		return jobs.Rows{}, err
	}
	if err := check(&rows); err != nil {
		return jobs.Rows{}, damaged(err)
	}
	s.last = later(s.last, rows.Now)
	rows.Now, s.seen, s.by = s.last, seen, by
	return rows, nil
}

// Trim implements jobs.Store.
func (s *serverJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if err := s.foldAll(ctx); err != nil {
		return 0, err
	}
	err = s.db.using(ctx, "trim", func(ctx context.Context, c *pgConn) error {
		if err := c.exec(ctx, "BEGIN"); err != nil {
			return err
		}
		mine := false // one process at a time
		if err := c.query(ctx, "SELECT pg_try_advisory_xact_lock(hashtextextended(?, 1)), oldest FROM state", []any{s.db.channel}, func(r *row) error {
			mine = r.yes()
			return s.db.fits(r.number())
		}); err != nil {
			return err
		}
		if mine {
			beyond := int64(0)
			if keep >= 0 {
				have, err := one(ctx, c, "SELECT count(*) FROM ended")
				if err != nil {
					return err
				}
				beyond = max(have-int64(keep), 0)
			}
			if n, err = trimJobs(ctx, c, beyond, before, atMost); err != nil {
				return err
			}
			if err := trimJobEvents(ctx, c, before, int64(s.db.options.KeepEvents), atMost); err != nil {
				return err
			}
		}
		if err := c.exec(ctx, "COMMIT"); err != nil {
			return err
		}
		return c.flush(ctx)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}
