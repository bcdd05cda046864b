package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// fileJobs are the jobs in a database of SQLite. It belongs to one manager at a time, which has in memory what lives.
type fileJobs struct {
	*jobReader
	db *fileDB

	// For the goroutine that commits only.
	ended int64 // how many jobs that ended are stored; -1 if that is not known
	fresh int   // how many rows wait to be added up
}

var _ jobs.Store = (*fileJobs)(nil)

func newJobs(d *fileDB) *fileJobs {
	const hasTag = "s.tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(s.tags) t WHERE t.value = ?)"
	return &fileJobs{jobReader: &jobReader{reading: d.reading, hasTag: hasTag}, db: d}
}

// load forgets what was known of the database.
func (s *fileJobs) load(ctx context.Context, q querier) error {
	n, err := one(ctx, q, "SELECT count(*) FROM stats_new")
	s.ended, s.fresh = -1, int(n)
	return err
}

// Update implements jobs.Store. The turn may be run by another goroutine: it must not use the database. If it panics, Update does.
func (s *fileJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.group.perform(ctx, &request{turn: turn})
}

// write stores what the batch's turns changed.
func (s *fileJobs) write(ctx context.Context, q querier, b *batch) error {
	for _, c := range b.jobs {
		if err := writeChanges(ctx, q, c, &s.fresh); err != nil {
			return err
		}
		if err := q.exec(ctx, "UPDATE job_state SET job_seq = ?, job_revision = ?, job_event = ?, job_clock = ?",
			c.Counters.Seq, c.Counters.Revision, c.Counters.Event, c.Counters.Clock); err != nil {
			return err
		}
	}
	return nil
}

// stored takes note of what was committed.
func (s *fileJobs) stored(b *batch) {
	for _, c := range b.jobs {
		if s.ended >= 0 {
			s.ended += int64(len(c.Ended))
		}
	}
}

// Trim implements jobs.Store. Events go when they are older than every job that is kept, or too many.
func (s *fileJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	err = s.db.group.perform(ctx, &request{write: func(ctx context.Context, c querier) error {
		n, err = s.trim(ctx, c, before, keep, atMost)
		return err
	}})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (s *fileJobs) trim(ctx context.Context, c querier, before time.Time, keep, atMost int) (int, error) {
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
	n, err := trimJobs(ctx, c, beyond, before, atMost)
	if err != nil {
		return 0, err
	}
	if err := trimJobEvents(ctx, c, before, int64(s.db.options.KeepEvents), atMost); err != nil {
		return 0, err
	}
	if n > 0 {
		s.ended = -1 // until it is committed, and counted
		if err := shrink(ctx, c); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Load implements jobs.Store.
func (s *fileJobs) Load(ctx context.Context) (rows jobs.Rows, err error) {
	if err := s.usable(ctx); err != nil {
		return rows, err
	}
	// Only a request finds out what is stored after a transaction of which that is not known.
	if err := s.db.group.perform(ctx, &request{}); err != nil {
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
func (s *fileJobs) read(ctx context.Context) (rows jobs.Rows, err error) {
	var middle int64
	if err := s.db.reading(ctx, "load", func(c querier) error {
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
	parts := []func(c querier) error{
		func(c querier) (err error) { lower, err = readLiving(ctx, c, -1<<63, middle); return err },
		func(c querier) (err error) { upper, err = readLiving(ctx, c, middle, 1<<63-1); return err },
		func(c querier) error { return readRest(ctx, c, &rows) },
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
