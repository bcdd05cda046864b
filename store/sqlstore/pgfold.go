package sqlstore

// The tables for jobs in PostgreSQL follow what turns changed: a turn stores one row of job_changes, while nobody else's can be run, and the rows
// of the tables are written afterwards, those of many turns at once, with what became of them in the end, by any of the servers. Who
// reads adds what is not in the tables yet.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// Bounds on one step of writing the tables, for which a turn may wait, and on by how much turns may be ahead of the tables before the next
// one does. Bytes are those of the rows of job_changes.
const (
	foldTurns = 256
	foldBytes = 2 << 20
	mostAhead = 2 * foldTurns
	mostBytes = 8 * foldBytes
)

// keepChanges is how many turns' changes are kept for other servers to follow. Whoever falls back further reads everything anew.
const keepChanges = 20_000

// pgTables is what one server knows of how far the tables are behind.
type pgTables struct {
	behind chan struct{} // they may be

	mu    sync.Mutex
	after time.Duration // how long turns may be ahead of them
	upTo  int64         // number of the last changes that are known to be in them
	turns []pgTurn      // of this server that may not be, oldest first
	bytes int           // of them

	writing sync.Mutex // guards the others
	fresh   int        // how many additions to the statistics since they were added up
	fails   int        // how often they could not be written, since they were
}

// pgTurn is a turn that was stored.
type pgTurn struct {
	seq   int64
	bytes int
}

func (t *pgTables) delay() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.after
}

func (t *pgTables) poke() {
	select {
	case t.behind <- struct{}{}:
	default:
	}
}

// reached is told the number of the last changes that are in the tables.
func (t *pgTables) reached(seq int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.upTo = max(t.upTo, seq)
	n := 0
	for n < len(t.turns) && t.turns[n].seq <= t.upTo {
		t.bytes -= t.turns[n].bytes
		n++
	}
	t.turns = slices.Delete(t.turns, 0, n)
}

// grow is told of a turn that was stored.
func (t *pgTables) grow(seq int64, bytes int) {
	t.mu.Lock()
	t.turns, t.bytes = append(t.turns, pgTurn{seq, bytes}), t.bytes+bytes
	t.mu.Unlock()
	t.poke()
}

// far reports whether the tables are too far behind.
func (t *pgTables) far(newest int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return newest-t.upTo > mostAhead || t.bytes > mostBytes
}

// catchUp writes the tables if they are too far behind for another turn.
func (s *serverJobs) catchUp(ctx context.Context) error {
	for s.tables.far(s.seen) {
		if more, err := s.fold(ctx, true); err != nil || !more {
			return err
		}
	}
	return nil
}

// foldAll writes the tables for all turns that were stored before.
func (s *serverJobs) foldAll(ctx context.Context) error {
	for {
		if more, err := s.fold(ctx, true); err != nil || !more {
			return err
		}
	}
}

// follow writes the tables a moment after there is something to be written, until the database is closed.
func (s *serverJobs) follow(ctx context.Context) {
	for {
		select {
		case <-s.tables.behind:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(s.tables.delay()):
		case <-ctx.Done():
			return
		}
		for more := true; more && ctx.Err() == nil; {
			more, _ = s.fold(ctx, false) // what fails is tried again soon
		}
	}
}

// finish writes the tables once more when the database is about to be closed. If that fails, others do.
func (s *serverJobs) finish() {
	s.mu.Lock()
	newest := s.seen
	s.mu.Unlock()
	s.tables.mu.Lock()
	complete := newest <= s.tables.upTo
	s.tables.mu.Unlock()
	if complete {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for more := true; more; {
		more, _ = s.fold(ctx, false)
	}
}

// fold writes the rows of the tables for the oldest turns that are not in them, and reports whether there may be more. If another server does so,
// it is left alone, or waited for.
func (s *serverJobs) fold(ctx context.Context, wait bool) (more bool, err error) {
	s.tables.writing.Lock()
	defer s.tables.writing.Unlock()
	turns := max(foldTurns>>s.tables.fails, 1) // many may take longer than a statement may
	err = s.db.using(ctx, "fold", func(ctx context.Context, c *pgConn) error {
		more, err = s.foldOn(ctx, c, wait, turns)
		return err
	})
	if err != nil {
		s.tables.fails = min(s.tables.fails+1, 16)
		return false, err
	}
	s.tables.fails = 0
	return more, nil
}

func (s *serverJobs) foldOn(ctx context.Context, c *pgConn, wait bool, turns int) (more bool, err error) {
	lock := "SELECT changes, job_seq, (SELECT oldest FROM state) FROM job_folded FOR UPDATE"
	if !wait {
		lock += " SKIP LOCKED"
	}
	// What is lost with it when the server ends is still in job_changes.
	if err := errors.Join(c.exec(ctx, "BEGIN"), c.exec(ctx, "SET LOCAL synchronous_commit TO off")); err != nil {
		return false, err
	}
	upTo, stored := int64(-1), uint64(0)
	if err := c.query(ctx, lock, nil, func(r *row) error {
		upTo, stored = r.number(), r.count()
		return s.db.fits(r.number())
	}); err != nil {
		return false, err
	}
	var all []*jobs.Changes
	if upTo >= 0 {
		if all, more, err = readChanges(ctx, c, upTo, turns, foldBytes); err != nil {
			return false, err
		}
	}
	if len(all) == 0 {
		if upTo < 0 {
			s.tables.poke() // whoever is at it may have begun too early for what was stored last
		}
		return false, errors.Join(c.exec(ctx, "ROLLBACK"), c.flush(ctx))
	}
	last, changes := upTo+int64(len(all)), merge(all)
	if err := writeChanges(ctx, c, changes, stored, &s.tables.fresh); err != nil {
		return false, err
	}
	if err := c.exec(ctx, "UPDATE job_folded SET changes = ?, job_seq = ?", last, changes.Counters.Seq); err != nil {
		return false, err
	}
	if last/foldTurns > upTo/foldTurns {
		if err := c.exec(ctx, "DELETE FROM job_changes WHERE seq <= ?", last-keepChanges); err != nil {
			return false, err
		}
	}
	if err := errors.Join(c.exec(ctx, "COMMIT"), c.flush(ctx)); err != nil {
		return false, err
	}
	s.tables.reached(last)
	return more, nil
}

// errGap is the error when a row of job_changes is not there.
var errGap = errors.New("a row of job_changes is missing that is not in the tables")

// readChanges reads what turns after the given one changed: so many turns at most, and no more bytes than that but for the last of them. It
// reports whether it left something out.
func readChanges(ctx context.Context, q querier, after int64, turns, bytes int) (all []*jobs.Changes, more bool, err error) {
	last, size := after, 0
	err = q.query(ctx, `SELECT seq, body FROM (SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
		FROM (SELECT seq, body FROM job_changes WHERE seq > ? ORDER BY seq LIMIT ?) oldest) t WHERE before < ? ORDER BY seq`,
		[]any{after, turns, bytes}, func(r *row) error {
			if last++; r.number() != last {
				return damaged(errGap)
			}
			body := r.bytes()
			size += len(body)
			c, err := unpackChanges(body)
			if err != nil {
				return damaged(fmt.Errorf("row %d of table job_changes: %w", last, err))
			}
			all = append(all, c)
			return nil
		})
	return all, len(all) == turns || size >= bytes, err
}

// ahead returns what turns changed that is not in the tables yet, as a transaction sees them.
func (s *serverJobs) ahead(ctx context.Context, q querier) (all []*jobs.Changes, err error) {
	upTo, err := one(ctx, q, "SELECT changes FROM job_folded")
	if err != nil {
		return nil, err
	}
	all, _, err = readChanges(ctx, q, upTo, 1<<31-1, 1<<62)
	return all, err
}

// Ended implements jobs.Store.
func (s *serverJobs) Ended(ctx context.Context, jobID string) (jobs.Job, []jobs.Attempt, error) {
	return s.endedBeside(ctx, jobID, s.ahead)
}

// ListEnded implements jobs.Store.
func (s *serverJobs) ListEnded(ctx context.Context, f jobs.Filter, below uint64, limit int) ([]jobs.Job, error) {
	return s.listBeside(ctx, f, below, limit, s.ahead)
}

// History implements jobs.Store.
func (s *serverJobs) History(ctx context.Context, from time.Time) ([]jobs.Tally, []jobs.Count, error) {
	return s.historyBeside(ctx, from, s.ahead)
}

// Events returns events as those of jobs in SQLite do.
func (s *serverJobs) Events(ctx context.Context, after uint64, limit int) ([]jobs.Event, error) {
	return s.eventsBeside(ctx, after, limit, s.ahead)
}
