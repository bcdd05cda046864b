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
		wg.Go(func() { errs[i] = s.db.reading(ctx, "load", part) })
	}
	wg.Wait()
	copy(rows.Jobs[len(lower):], upper) // where they are already, if nothing is missing
	rows.Jobs = rows.Jobs[:len(lower)+len(upper)]
	return rows, errors.Join(errs...)
}

// untouched is true of jobs to which nothing has happened since they were submitted, which ask for nothing special: most of a long queue.
// Of these it is enough to read some columns.
const untouched = `(j.state = 'queued' AND j.attempt = 0 AND j.token = 0 AND j.cancel = 0 AND j.lease_id IS NULL AND j.started_at IS NULL
	AND j.code IS NULL AND j.reason IS NULL AND j.updated_at IS s.created_at AND j.ready_at IS s.created_at AND s.only_one = 0
	AND s.idempotency_key IS NULL AND s.max_runtime IS NULL AND s.run_at IS NULL AND s.locks IS NULL AND o.seq IS NULL)`

// readHalf appends the jobs with numbers from one up to before another, in order.
func readHalf(ctx context.Context, q querier, all []jobs.Job, from, to int64) ([]jobs.Job, error) {
	const where = " FROM jobs j CROSS JOIN specs s USING (seq) LEFT JOIN outputs o USING (seq) WHERE j.seq >= ? AND j.seq < ? AND "
	var others []jobs.Job
	if err := q.query(ctx, "SELECT j.seq, j.state, j.lease_id, j.updated_at, j.ready_at, j.started_at, j.attempt, j.token, j.code, j.cancel, j.reason, "+
		"j.ord, j.revision, NULL, "+specColumns+", o.seq IS NOT NULL, "+outputColumns+where+"NOT "+untouched+" ORDER BY j.seq", []any{from, to}, func(r *row) error {
		others = append(others, readJob(r))
		return nil
	}); err != nil {
		return all, err
	}
	next := 0 // of the others
	err := q.query(ctx, "SELECT j.seq, j.ord, j.revision, s.id, s.type, s.priority, s.units, s.payload, s.tags, s.max_attempts, s.retry_backoff, s.created_at"+
		where+untouched+" ORDER BY j.seq", []any{from, to}, func(r *row) error {
		j := jobs.Job{Seq: r.count(), Ord: r.number(), Revision: r.count(), ID: r.text(), State: jobs.Queued}
		j.Type, j.Priority, j.Units, j.Payload = r.word(), jobs.Priority(r.word()), int(r.number()), r.document()
		j.Tags, j.MaxAttempts, j.RetryBackoff, j.CreatedAt = r.list(), int(r.number()), r.span(), r.millis()
		j.UpdatedAt, j.ReadyAt = j.CreatedAt, j.CreatedAt
		for ; next < len(others) && others[next].Seq < j.Seq; next++ {
			all = append(all, others[next])
		}
		all = append(all, j)
		return nil
	})
	return append(all, others[next:]...), err
}
