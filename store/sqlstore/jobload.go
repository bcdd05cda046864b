package sqlstore

// Reading what lives from SQLite, which decides how soon the first request is answered after a start.

import (
	"context"
	"errors"
	"sync"

	"github.com/lokt-dev/lokt/jobs"
)

// read reads what lives, with several connections at once.
func (s *fileJobs) read(ctx context.Context) (rows jobs.Rows, err error) {
	var n, middle int64
	if err := s.db.reading(ctx, "load", func(c querier) error {
		if err := readCounters(ctx, c, &rows); err != nil {
			return err
		}
		if n, err = one(ctx, c, "SELECT count(*) FROM jobs"); err != nil {
			return err
		}
		middle, err = one(ctx, c, "SELECT seq FROM jobs ORDER BY seq LIMIT 1 OFFSET ?", n/2)
		return err
	}); err != nil {
		return rows, err
	}
	rows.Jobs = make([]jobs.Job, n)
	lower, upper := rows.Jobs[:0:n/2], rows.Jobs[n/2:n/2]
	parts := []func(c querier) error{
		func(c querier) (err error) { lower, err = readHalf(ctx, c, lower, -1<<63, middle); return err },
		func(c querier) (err error) { upper, err = readHalf(ctx, c, upper, middle, 1<<63-1); return err },
		func(c querier) error { return readRest(ctx, c, &rows) },
	}
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() {
			errs[i] = s.db.reading(ctx, "load", func(c querier) error { return scanning(ctx, c, part) })
		})
	}
	wg.Wait()
	copy(rows.Jobs[len(lower):], upper) // where they are already, if nothing is missing
	rows.Jobs = rows.Jobs[:len(lower)+len(upper)]
	return rows, errors.Join(errs...)
}

// scanning has a connection keep few pages while it reads each page once: memory that it has already is there at once.
func scanning(ctx context.Context, q querier, read func(querier) error) error {
	c, ok := q.(*conn)
	if !ok {
		return read(q)
	}
	if err := c.once(ctx, "PRAGMA cache_size = -2048"); err != nil {
		return err
	}
	return errors.Join(read(c), c.once(context.WithoutCancel(ctx), "PRAGMA cache_size = "+readerCache))
}

// untouched is true of jobs to which nothing has happened since they were submitted, which ask for nothing special: most of a long queue.
// Of these it is enough to read some columns.
const untouched = `(j.state = 'queued' AND j.attempt = 0 AND j.token = 0 AND j.cancel = 0 AND j.lease_id IS NULL AND j.started_at IS NULL
	AND j.code IS NULL AND j.reason IS NULL AND j.updated_at IS s.created_at AND j.ready_at IS s.created_at AND s.only_one = 0
	AND s.idempotency_key IS NULL AND s.max_runtime IS NULL AND s.run_at IS NULL AND s.locks IS NULL AND o.seq IS NULL)`

// nearby is how many untouched jobs there may be between two others that are read by one statement.
const nearby = 64

// readHalf appends the jobs with numbers from one up to before another, in order.
func readHalf(ctx context.Context, q querier, all []jobs.Job, from, to int64) ([]jobs.Job, error) {
	const where = " FROM jobs j CROSS JOIN specs s USING (seq) LEFT JOIN outputs o USING (seq) WHERE j.seq >= ? AND j.seq < ?"
	var others []int // where those are of which more has to be read
	if err := q.query(ctx, "SELECT j.seq, "+untouched+", j.ord, j.revision, s.id, s.type, s.priority, s.units, s.payload, s.tags, s.max_attempts, s.retry_backoff, "+
		"s.created_at"+where+" ORDER BY j.seq", []any{from, to}, func(r *row) error {
		all = append(all, jobs.Job{Seq: r.count()})
		if !r.yes() {
			others = append(others, len(all)-1)
			return nil
		}
		j := &all[len(all)-1]
		j.Ord, j.Revision, j.ID, j.State = r.number(), r.count(), r.text(), jobs.Queued
		j.Type, j.Priority, j.Units, j.Payload = r.word(), jobs.Priority(r.word()), int(r.number()), r.document()
		j.Tags, j.MaxAttempts, j.RetryBackoff, j.CreatedAt = r.list(), int(r.number()), r.span(), r.millis()
		j.UpdatedAt, j.ReadyAt = j.CreatedAt, j.CreatedAt
		return nil
	}); err != nil {
		return all, err
	}
	for len(others) > 0 {
		n := 1
		for n < len(others) && others[n]-others[n-1] <= nearby {
			n++
		}
		next := 0 // of the others
		if err := q.query(ctx, "SELECT j.seq, j.state, j.lease_id, j.updated_at, j.ready_at, j.started_at, j.attempt, j.token, j.code, j.cancel, j.reason, "+
			"j.ord, j.revision, NULL, "+specColumns+", o.seq IS NOT NULL, "+outputColumns+where+" AND NOT "+untouched+" ORDER BY j.seq",
			[]any{all[others[0]].Seq, all[others[n-1]].Seq + 1}, func(r *row) error {
				all[others[next]] = readJob(r)
				next++
				return nil
			}); err != nil {
			return all, err
		}
		others = others[n:]
	}
	return all, nil
}
