package sqlstore

// The tables for jobs in PostgreSQL follow what turns changed: a turn stores one row of job_changes, while nobody else's can be run, and the rows
// of the tables are written afterwards, those of many turns at once, with what became of them in the end, by any of the servers. Who
// reads adds what is not in the tables yet.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
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

// How many turns' changes are kept for other servers to follow, and about how many bytes of them. Whoever falls back further reads everything anew.
const (
	keepChanges = 20_000
	keepBytes   = 128 << 20
)

// pgTables is what one server knows of how far the tables are behind.
type pgTables struct {
	behind chan struct{} // they may be

	mu    sync.Mutex
	late  time.Duration // how long turns may be ahead of them
	upTo  int64         // number of the last changes that are known to be in them
	turns []pgTurn      // later ones, as this server knows them, oldest first
	bytes int           // of them
	marks []pgMark      // of all servers' turns that may not be, oldest first

	newest int64 // number of the newest turn that is known of

	failure error // why they could not be written, if they were not since

	keep     int           // bytes of changes that are kept for others to follow
	patience time.Duration // for writing, unless it failed

	writing   chan struct{} // has an element while somebody writes, who alone uses the others
	conn      *pgConn       // nil if it must be opened. It is none of the readers', of whom each may take his time
	fresh     int           // how many additions to the statistics since they were added up
	fails     int           // how often they could not be written
	unweighed int           // bytes of changes that were written since it was found out how many are kept
	forgot    int64         // number of the changes after which others were forgotten last
}

// pgTurn is a turn that was stored, by whichever server.
type pgTurn struct {
	seq     int64
	id      pgTurnID
	bytes   int
	changes *jobs.Changes
}

// pgTurnID tells turns with the same number apart, of which there may be several when an older state of the database was put in its place. Those of one
// server may then be of the same time, because it lets no time go back.
type pgTurnID struct {
	origin string // whose it is
	at     int64  // of when, in milliseconds
	sum    int64  // its checksum; 0 if it was stored before there was one beside it
}

func (t pgTurnID) known() bool { return t.origin != "" }

// turnID selects what readTurnID reads.
const turnID = "origin, at, sum"

func readTurnID(r *row) pgTurnID { return pgTurnID{r.text(), r.number(), r.number()} }

func (t *pgTables) delay() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.late
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

// begin is told how far the tables are when everything was read anew, and of the turns that they do not have. They may be less far than was known
// before, if an older state of the database was put in its place.
func (t *pgTables) begin(upTo int64, ahead []pgTurn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.upTo, t.turns, t.bytes = upTo, ahead, 0
	for _, one := range ahead {
		t.bytes += one.bytes
	}
	t.newest, t.marks = 0, nil
}

// wrote takes note of how writing ended, unless somebody else was at it.
func (t *pgTables) wrote(did bool, err error) {
	switch {
	case errors.Is(err, context.Canceled): // who wanted it has left
		return
	case err != nil && !errors.Is(err, errClosed):
		t.fails = min(t.fails+1, 16)
	case did && t.fails > 0:
		t.fails-- // not to none at once: so many turns may still be too many
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if did || err != nil {
		t.failure = err
	}
}

func (t *pgTables) lastFailure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failure
}

// grow is told of turns that were stored.
func (t *pgTables) grow(stored ...pgTurn) {
	t.mu.Lock()
	for _, one := range stored {
		if one.seq > t.upTo {
			t.turns, t.bytes = append(t.turns, one), t.bytes+one.bytes
		}
	}
	t.mu.Unlock()
	t.poke()
}

// after returns the turns that follow the given one, as far as they are known: so many at most, and no more bytes than that but for the
// last of them.
func (t *pgTables) after(seq int64, atMost, bytes int) []pgTurn {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []pgTurn
	for _, one := range t.turns {
		if one.seq <= seq {
			continue
		}
		if seq++; one.seq != seq || len(all) == atMost || bytes <= 0 {
			break
		}
		all, bytes = append(all, one), bytes-one.bytes
	}
	return all
}

// far reports whether the tables are too far behind.
func (t *pgTables) far(newest int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return newest-t.upTo > mostAhead || t.bytes > mostBytes
}

// errAhead is the error of a turn for which the tables are too far behind.
var errAhead = errors.New("the tables for jobs cannot be written, and too many turns are ahead of them")

// catchUp writes the tables if they are too far behind for another turn. After a failure that is left to follow, which may take longer than
// anybody waits, and nobody is kept waiting in vain.
func (s *serverJobs) catchUp(ctx context.Context) error {
	for s.tables.far(s.seen) {
		if err := s.tables.lastFailure(); err != nil {
			s.tables.poke()
			return fmt.Errorf("%w: %w: %w", lokt.ErrUnavailable, errAhead, err)
		}
		if more, err := s.fold(ctx, true); err != nil || !more {
			return err
		}
	}
	return nil
}

// foldAll writes the tables for all turns that were stored before. Those that are stored meanwhile are not waited for: there may always be some.
// That somebody's time is over says nothing about how long it takes, and counts as that he has left.
func (s *serverJobs) foldAll(ctx context.Context) error {
	staying, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	defer context.AfterFunc(ctx, leave)()
	first, err := s.foldSome(staying, true)
	for step := first; err == nil && step.more && step.last < first.newest; {
		step, err = s.foldSome(staying, true)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
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
	step, err := s.foldSome(ctx, wait)
	return step.more && err == nil, err
}

// folded is what a step of writing the tables came to.
type folded struct {
	did    bool  // nobody else was at it
	more   bool  // there may be more
	last   int64 // number of the last turn that is in the tables
	newest int64 // of the newest that was stored when the step began, or a moment later
}

// foldSome does what fold does.
func (s *serverJobs) foldSome(ctx context.Context, wait bool) (step folded, err error) {
	t := &s.tables
	select {
	case t.writing <- struct{}{}:
		defer func() { <-t.writing }()
	case <-ctx.Done():
		return step, ctx.Err()
	}
	// What fails may be more than can be written in the time: next time it is less, and there is more time. One turn may be a lot.
	turns, atMost := max(foldTurns>>t.fails, 1), t.patience<<min(t.fails, 5)
	fold := func(copying bool) error {
		return s.db.lend(ctx, &t.conn, atMost, func(ctx context.Context, c *pgConn) (err error) {
			c.copying = copying
			step, err = s.foldOn(ctx, c, wait, turns, atMost)
			return err
		})
	}
	err = s.db.doing("fold", func() error {
		err := fold(true)
		if alreadyThere(err) {
			err = fold(false)
		}
		return err
	})
	t.wrote(step.did, err)
	return step, err
}

// foldOn does so with a connection.
func (s *serverJobs) foldOn(ctx context.Context, c *pgConn, wait bool, turns int, idle time.Duration) (step folded, err error) {
	lock := "SELECT changes, job_seq, (SELECT oldest FROM state), (SELECT changes FROM job_state), " + endIdle + " FROM job_folded FOR UPDATE"
	if !wait {
		lock += " SKIP LOCKED"
	}
	// What is lost with it when the server ends is still in job_changes.
	if err := errors.Join(c.exec(ctx, "BEGIN"), c.exec(ctx, "SET LOCAL synchronous_commit TO off")); err != nil {
		return step, err
	}
	upTo, stored := int64(-1), uint64(0)
	if err := c.query(ctx, lock, []any{fmt.Sprint(idle.Milliseconds())}, func(r *row) error {
		upTo, stored = r.number(), r.count()
		err := s.db.fits(r.number())
		step.newest = r.number()
		return err
	}); err != nil {
		return step, err
	}
	if step.did = upTo >= 0; !step.did {
		s.tables.poke() // whoever is at it may have begun too early for what was stored last
		return step, errors.Join(c.exec(ctx, "ROLLBACK"), c.flush(ctx))
	}
	all, size, err := s.following(ctx, c, upTo, turns)
	if err != nil {
		return step, err
	}
	step.last = upTo + int64(len(all))
	if len(all) == 0 && upTo < step.newest {
		return step, damagedChanges(upTo+1, errGap)
	}
	if len(all) == 0 {
		s.tables.reached(step.last)
		return step, errors.Join(c.exec(ctx, "ROLLBACK"), c.flush(ctx))
	}
	if err := s.writeTables(ctx, c, merge(all), stored, step.last, size); err != nil {
		return step, fmt.Errorf("write the tables for turns %d to %d: %w", upTo+1, step.last, err)
	}
	s.tables.reached(step.last)
	step.more = wait || len(all) == turns || size >= foldBytes
	return step, nil
}

// following returns what turns after the given one changed, so many at most, and how many bytes that are. What this server knows of them need
// not be read, if the rows are those that it knows.
func (s *serverJobs) following(ctx context.Context, c *pgConn, upTo int64, turns int) (all []*jobs.Changes, size int, err error) {
	known := s.tables.after(upTo, turns, foldBytes)
	n := 0
	if err := c.query(ctx, "SELECT seq, "+turnID+", octet_length(body)::bigint FROM job_changes WHERE seq > ? ORDER BY seq LIMIT ?", []any{upTo, len(known)}, func(r *row) error {
		if k := known[n]; r.number() == k.seq && readTurnID(r) == k.id && int(r.number()) == k.bytes {
			all, size = append(all, k.changes), size+k.bytes
		}
		n++
		return nil
	}); err != nil {
		return nil, 0, err
	}
	if len(all) > 0 && len(all) == len(known) {
		return all, size, nil
	}
	read, size, err := readTurns(ctx, c, upTo, turns, foldBytes)
	return changesIn(read), size, err
}

// writeTables writes the rows of what turns up to the given one changed, of so many bytes, and commits.
func (s *serverJobs) writeTables(ctx context.Context, c *pgConn, changes *jobs.Changes, stored uint64, last int64, size int) error {
	t := &s.tables
	if err := writeChanges(ctx, c, changes, stored, &t.fresh); err != nil {
		return err
	}
	if err := c.pour(ctx); err != nil {
		return err
	}
	if err := c.exec(ctx, "UPDATE job_folded SET changes = ?, job_seq = greatest(job_seq, ?)", last, changes.Counters.Seq); err != nil {
		return err
	}
	if t.unweighed += size; t.unweighed > t.keep/4 || last/foldTurns != t.forgot/foldTurns {
		if err := s.forget(ctx, c, last); err != nil {
			return err
		}
	}
	return errors.Join(c.exec(ctx, "COMMIT"), c.flush(ctx))
}

// forget deletes the oldest changes that are in the tables, of which too many are kept.
func (s *serverJobs) forget(ctx context.Context, c *pgConn, last int64) error {
	t := &s.tables
	upTo := last - keepChanges
	if t.unweighed > t.keep/4 {
		heavy, err := one(ctx, c, `SELECT coalesce(max(seq), 0) FROM (SELECT seq, sum(octet_length(body)) OVER (ORDER BY seq DESC) AS bytes
			FROM job_changes WHERE seq <= ?) t WHERE bytes > ?`, last, t.keep-t.keep/4)
		if err != nil {
			return err
		}
		upTo, t.unweighed = max(upTo, heavy), 0
	}
	t.forgot = last
	return c.exec(ctx, "DELETE FROM job_changes WHERE seq <= ?", upTo)
}

// errGap is the error when a row of job_changes is not there.
var errGap = errors.New("a row of job_changes is missing that is not in the tables")

// readTurns reads turns after the given one: so many at most, and no more bytes than that but for the last of them. It returns how many bytes that
// are.
func readTurns(ctx context.Context, q querier, after int64, turns, bytes int) (all []pgTurn, size int, err error) {
	last := after
	err = q.query(ctx, "SELECT seq, "+turnID+`, body FROM (SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
		FROM (SELECT seq, `+turnID+`, body FROM job_changes WHERE seq > ? ORDER BY seq LIMIT ?) oldest) t WHERE before < ? ORDER BY seq`,
		[]any{after, turns, bytes}, func(r *row) error {
			if last++; r.number() != last {
				return damagedChanges(last, errGap)
			}
			id, body := readTurnID(r), r.bytes()
			size += len(body)
			c, err := unpackChanges(body)
			if err != nil {
				return damagedChanges(last, err)
			}
			all = append(all, pgTurn{last, id, len(body), c})
			return nil
		})
	return all, size, err
}

func changesIn(turns []pgTurn) []*jobs.Changes {
	all := make([]*jobs.Changes, len(turns))
	for i := range turns {
		all[i] = turns[i].changes
	}
	return all
}

// damagedChanges is the error of a row of job_changes, without which nothing after it can be told.
func damagedChanges(seq int64, err error) error {
	return fmt.Errorf("%w: %w: row %d of table job_changes: %w", lokt.ErrUnavailable, lokt.ErrDamaged, seq, err)
}

// ahead returns what turns changed that is not in the tables yet, as a transaction sees them.
func (s *serverJobs) ahead(ctx context.Context, q querier) ([]*jobs.Changes, error) {
	_, all, err := s.aheadOf(ctx, q)
	return changesIn(all), err
}

// aheadOf does so, and returns the number of the last changes that are in the tables.
func (s *serverJobs) aheadOf(ctx context.Context, q querier) (upTo int64, all []pgTurn, err error) {
	newest := int64(0)
	if err = q.query(ctx, "SELECT f.changes, s.changes FROM job_folded f, job_state s", nil, func(r *row) error {
		upTo, newest = r.number(), r.number()
		return nil
	}); err != nil {
		return 0, nil, err
	}
	all, _, err = readTurns(ctx, q, upTo, math.MaxInt32, math.MaxInt)
	if last := upTo + int64(len(all)); err == nil && last < newest {
		err = damagedChanges(last+1, errGap)
	}
	return upTo, all, err
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
