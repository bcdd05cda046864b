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

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Jobs are the jobs in a database: a jobs.Store. It belongs to one manager at a time, which has in memory what lives.
type Jobs struct {
	db     *DB
	closed atomic.Bool

	// For the goroutine that commits only.
	ended int64 // how many jobs that ended are stored; -1 if that is not known
	fresh int   // how many rows wait to be added up
}

var _ jobs.Store = (*Jobs)(nil)

func newJobs(d *DB) *Jobs { return &Jobs{db: d} }

// load forgets what was known of the database.
func (s *Jobs) load(ctx context.Context, q querier) error {
	n, err := one(ctx, q, "SELECT count(*) FROM stats_new")
	s.ended, s.fresh = -1, int(n)
	return err
}

func (s *Jobs) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	return nil
}

// Update implements jobs.Store. The turn is run by another goroutine: it must not use the database. If it panics, Update does.
func (s *Jobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.perform(ctx, &request{turn: turn})
}

// stored takes note of what was committed.
func (s *Jobs) stored(b *batch) {
	for _, c := range b.jobs {
		if s.ended >= 0 {
			s.ended += int64(len(c.Ended))
		}
	}
}

// Ended implements jobs.Store.
func (s *Jobs) Ended(ctx context.Context, jobID string) (j jobs.Job, attempts []jobs.Attempt, err error) {
	if err := s.usable(ctx); err != nil {
		return j, nil, err
	}
	err = s.db.reading(ctx, "read", func(c *conn) error {
		found := false
		if err := c.query(ctx, "SELECT "+endedColumns+" FROM specs s JOIN ended e USING (seq) LEFT JOIN outputs o USING (seq) WHERE s.id = ?", []any{jobID}, func(r *row) error {
			j, found = readEnded(r), true
			return nil
		}); err != nil {
			return err
		}
		if !found {
			return jobs.ErrJobNotFound
		}
		return c.query(ctx, "SELECT "+attemptColumns+" FROM attempts WHERE job = ? ORDER BY number", []any{jobID}, func(r *row) error {
			attempts = append(attempts, readAttempt(r))
			return nil
		})
	})
	return j, attempts, err
}

// ListEnded implements jobs.Store.
func (s *Jobs) ListEnded(ctx context.Context, f jobs.Filter, below uint64, limit int) (all []jobs.Job, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	where, args := []string{"e.revision < ?"}, []any{int64(min(below, 1<<63-1))}
	if f.State != "" {
		where, args = append(where, "e.state = ?"), append(args, string(f.State))
	}
	if f.Type != "" {
		where, args = append(where, "s.type = ?"), append(args, f.Type)
	}
	if f.Tag != "" {
		where, args = append(where, "s.tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(s.tags) t WHERE t.value = ?)"), append(args, f.Tag)
	}
	statement := "SELECT " + endedColumns + " FROM ended e CROSS JOIN specs s USING (seq) LEFT JOIN outputs o USING (seq) WHERE " +
		strings.Join(where, " AND ") + " ORDER BY e.revision DESC LIMIT ?"
	err = s.db.reading(ctx, "read", func(c *conn) error {
		return c.query(ctx, statement, append(args, limit), func(r *row) error {
			all = append(all, readEnded(r))
			return nil
		})
	})
	return all, err
}

// Trim implements jobs.Store. Events go when they are older than every job that is kept, or too many.
func (s *Jobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	err = s.db.perform(ctx, &request{write: func(ctx context.Context, c *conn) error {
		n, err = s.trim(ctx, c, before, keep, atMost)
		return err
	}})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (s *Jobs) trim(ctx context.Context, c *conn, before time.Time, keep, atMost int) (int, error) {
	if s.ended < 0 {
		n, err := one(ctx, c, "SELECT count(*) FROM ended")
		if err != nil {
			return 0, err
		}
		s.ended = n
	}
	beyond := int64(0)
	if keep >= 0 {
		beyond = max(s.ended-int64(keep), 0)
	}
	type old struct {
		revision, seq int64
		id            string
	}
	var all []old
	if err := c.query(ctx, `SELECT e.revision, e.seq, s.id, e.ended_at FROM ended e CROSS JOIN specs s USING (seq)
		ORDER BY e.revision LIMIT ?`, []any{atMost}, func(r *row) error {
		o := old{r.number(), r.number(), r.text()}
		if at := r.millis(); int64(len(all)) < beyond || at.Before(before) {
			all = append(all, o)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	for _, o := range all {
		for _, d := range []struct {
			statement string
			key       any
		}{
			{"DELETE FROM ended WHERE revision = ?", o.revision}, {"DELETE FROM specs WHERE seq = ?", o.seq},
			{"DELETE FROM outputs WHERE seq = ?", o.seq}, {"DELETE FROM attempts WHERE job = ?", o.id},
		} {
			if err := c.exec(ctx, d.statement, d.key); err != nil {
				return 0, err
			}
		}
	}
	if err := s.trimEvents(ctx, c, before, atMost); err != nil {
		return 0, err
	}
	if len(all) > 0 {
		s.ended = -1 // not before it is committed
		if err := shrink(ctx, c); err != nil {
			return 0, err
		}
	}
	return len(all), nil
}

// trimEvents forgets the oldest events.
func (s *Jobs) trimEvents(ctx context.Context, c *conn, before time.Time, atMost int) error {
	newest, err := one(ctx, c, "SELECT max(seq) FROM job_events")
	if err != nil {
		return err
	}
	upTo := int64(-1)
	if err := c.query(ctx, "SELECT seq, at FROM job_events ORDER BY seq LIMIT ?", []any{atMost}, func(r *row) error {
		seq, at := r.number(), r.millis()
		if most := int64(s.db.options.KeepEvents); at.Before(before) || most >= 0 && newest-seq >= most {
			upTo = seq
		}
		return nil
	}); err != nil || upTo < 0 {
		return err
	}
	return c.exec(ctx, "DELETE FROM job_events WHERE seq <= ?", upTo)
}

// Events returns up to limit events of jobs with higher numbers than after, oldest first; after 0 they begin with the oldest that
// is kept.
func (s *Jobs) Events(ctx context.Context, after uint64, limit int) (all []jobs.Event, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	err = s.db.reading(ctx, "events", func(c *conn) error {
		return c.query(ctx, "SELECT "+jobEventColumns+" FROM job_events WHERE seq > ? ORDER BY seq LIMIT ?", []any{after, limit}, func(r *row) error {
			all = append(all, readJobEvent(r))
			return nil
		})
	})
	return all, err
}

// Load implements jobs.Store.
func (s *Jobs) Load(ctx context.Context) (rows jobs.Rows, err error) {
	if err := s.usable(ctx); err != nil {
		return rows, err
	}
	// Only a request finds out what is stored after a transaction of which that is not known.
	if err := s.db.perform(ctx, &request{}); err != nil {
		return rows, err
	}
	if rows, err = s.read(ctx); err != nil {
		return jobs.Rows{}, err
	}
	if err := check(&rows); err != nil {
		return jobs.Rows{}, fmt.Errorf("%w: %w: jobs of database %s: %w", lokt.ErrUnavailable, lokt.ErrDamaged, s.db.path, err)
	}
	return rows, nil
}

// read reads what lives, with several connections at once.
func (s *Jobs) read(ctx context.Context) (rows jobs.Rows, err error) {
	var middle int64
	if err := s.db.reading(ctx, "load", func(c *conn) error {
		if err := readCounters(ctx, c, &rows); err != nil {
			return err
		}
		var first, last int64
		if err := c.query(ctx, "SELECT (SELECT min(seq) FROM jobs), (SELECT max(seq) FROM jobs)", nil, func(r *row) error {
			first, last = r.number(), r.number()
			return nil
		}); err != nil {
			return err
		}
		middle = first + (last-first)/2
		return nil
	}); err != nil {
		return rows, err
	}
	var lower, upper []jobs.Job
	parts := []func(c *conn) error{
		func(c *conn) (err error) { lower, err = readLiving(ctx, c, -1<<63, middle); return err },
		func(c *conn) (err error) { upper, err = readLiving(ctx, c, middle, 1<<63-1); return err },
		func(c *conn) error { return readRest(ctx, c, &rows) },
	}
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() { errs[i] = s.db.reading(ctx, "load", part) })
	}
	wg.Wait()
	rows.Jobs = append(lower, upper...)
	return rows, errors.Join(errs...)
}

// check reports what cannot be: a lease of no job, a job that is leased without a lease or with another one.
func check(rows *jobs.Rows) error {
	leases := make(map[string]string, len(rows.Leases))
	for i := range rows.Leases {
		l := &rows.Leases[i]
		if l.Units < 0 {
			return fmt.Errorf("lease %s of job %s has %d units", l.ID, l.JobID, l.Units)
		}
		leases[l.ID] = l.JobID
	}
	active := 0
	for i := range rows.Jobs {
		j := &rows.Jobs[i]
		if !j.State.Active() {
			continue
		}
		active++
		if leases[j.LeaseID] != j.ID {
			return fmt.Errorf("job %s is %s, but its lease %q is not there", j.ID, j.State, j.LeaseID)
		}
	}
	if active != len(leases) {
		return fmt.Errorf("%d leases, but %d jobs have one", len(leases), active)
	}
	if !slices.ContainsFunc(rows.Jobs, func(j jobs.Job) bool { return j.Units < 0 }) {
		return nil
	}
	return fmt.Errorf("a job has less than no units")
}

// Close makes every later call fail. The database stays open.
func (s *Jobs) Close() error {
	s.closed.Store(true)
	return nil
}
