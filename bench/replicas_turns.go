package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"
)

// turners is how many workers ask for jobs and complete them, half of them of each scheduler or batcher.
const turners = 256

// stock is how many jobs are queued before workers take them for so long: more than the schedulers hand out.
func stock(d time.Duration) int { return int(30_000 * d.Seconds()) }

// replicaTurns measures two schedulers, each in a process of its own, which share a database, against plain batches.
func replicaTurns(e *env, pg *postgres) (row result, err error) {
	url, err := pg.schema("turns")
	if err != nil {
		return row, err
	}
	plain, err := pg.schema("batches")
	if err != nil {
		return row, err
	}
	var both []*scheduler
	for range 2 {
		s, err := startScheduler(e.ctx, url)
		if err != nil {
			return row, err
		}
		defer s.stop()
		both = append(both, s)
	}
	batches, err := newBatches(e.ctx, plain)
	if err != nil {
		return row, err
	}
	d := e.span(3 * time.Second)
	r, err := rounds(fewRounds,
		func() (float64, error) { return schedulerTurns(e.ctx, url, both, d) },
		func() (float64, error) { return batches.turns(e.ctx, d) },
	)
	if err != nil {
		return row, err
	}
	row = faster(fmt.Sprintf("request + complete without HTTP, PostgreSQL, two schedulers, %d workers", turners), r[0], r[1],
		"two goroutines that claim and delete jobs in batches with FOR UPDATE SKIP LOCKED", 0.46)
	row.note = "the batches leave out capacity, order by class, fairness, locks and history"
	return row, nil
}

// schedulerTurns has workers take jobs from the schedulers and complete them. The time counts until all of that is in the tables.
func schedulerTurns(ctx context.Context, url string, all []*scheduler, d time.Duration) (float64, error) {
	if _, err := all[0].do(order{Stock: stock(d)}); err != nil {
		return 0, err
	}
	if err := tablesComplete(ctx, url); err != nil {
		return 0, err
	}
	type outcome struct {
		rate float64
		err  error
	}
	ended := make(chan outcome, len(all))
	for _, s := range all {
		go func() {
			r, err := s.do(order{Workers: turners / len(all), Span: d})
			ended <- outcome{r, err}
		}()
	}
	var total float64
	var err error
	for range all {
		o := <-ended
		total, err = total+o.rate, errors.Join(err, o.err)
	}
	begun := time.Now()
	if err == nil {
		err = tablesComplete(ctx, url)
	}
	return total * d.Seconds() / (d + time.Since(begun)).Seconds(), err
}

// tablesComplete waits until the tables for jobs have all that turns changed.
func tablesComplete(ctx context.Context, url string) error {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	for behind := true; behind && err == nil; time.Sleep(time.Millisecond) {
		err = c.QueryRow(ctx, "SELECT f.changes < s.changes FROM job_folded f, job_state s").Scan(&behind)
	}
	return errors.Join(err, c.Close(ctx))
}

// batches are jobs in a table that nobody but workers looks at.
type batches struct{ url string }

// want is a worker who asks for a job, or has done one.
type want struct {
	done int64 // the job's ID; 0 asks for one
	told chan int64
}

func newBatches(ctx context.Context, url string) (*batches, error) {
	b := &batches{url}
	return b, b.exec(ctx, `CREATE TABLE batched (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload TEXT NOT NULL, leased_until TIMESTAMPTZ);
		CREATE INDEX batched_ready ON batched (id) WHERE leased_until IS NULL`)
}

func (b *batches) exec(ctx context.Context, sql string) error {
	c, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, sql)
	return errors.Join(err, c.Close(ctx))
}

// turns has workers take jobs from two batchers and complete them.
func (b *batches) turns(ctx context.Context, d time.Duration) (float64, error) {
	full := 4 * stock(d) // batches are faster
	if err := b.exec(ctx, fmt.Sprintf(`INSERT INTO batched (payload) SELECT '{"n":1}' FROM
		generate_series(1, %d - (SELECT count(*) FROM batched)); ANALYZE batched`, full)); err != nil {
		return 0, err
	}
	ended := make(chan error, 2)
	var queues [2]chan want
	for i := range queues {
		queues[i] = make(chan want, turners)
		go func() { ended <- b.batch(ctx, queues[i]) }()
	}
	r, err := rate(turners, d, func(i int) (func() error, func(), error) {
		q, told := queues[i%2], make(chan int64, 1)
		return func() error {
			q <- want{told: told}
			id := <-told
			if id == 0 {
				return errors.New("no job")
			}
			q <- want{done: id, told: told}
			if <-told == 0 {
				return errors.New("not done")
			}
			return nil
		}, func() {}, nil
	})
	for _, q := range queues {
		close(q)
	}
	return r, errors.Join(err, <-ended, <-ended)
}

// batch does what workers want, all that has come since the last time in one transaction, until the queue is closed.
func (b *batches) batch(ctx context.Context, queue <-chan want) error {
	c, err := pgx.Connect(ctx, b.url)
	for first := range queue {
		all := []want{first}
		for n := -1; n < len(queue); runtime.Gosched() { // those who were just told are about to want something
			n = len(queue)
		}
		for range len(queue) {
			all = append(all, <-queue)
		}
		var ids []int64
		if err == nil {
			ids, err = transact(ctx, c, all)
		}
		for _, w := range all {
			id := w.done
			if id == 0 && len(ids) > 0 {
				id, ids = ids[0], ids[1:]
			}
			if err != nil {
				id = 0
			}
			w.told <- id
		}
	}
	if c != nil {
		err = errors.Join(err, c.Close(ctx))
	}
	return err
}

// transact deletes the jobs that are done, and returns those that it claimed for who asks.
func transact(ctx context.Context, c *pgx.Conn, all []want) (ids []int64, err error) {
	var done []int64
	for _, w := range all {
		if w.done != 0 {
			done = append(done, w.done)
		}
	}
	var sent pgx.Batch // which is one transaction
	if len(done) > 0 {
		sent.Queue("DELETE FROM batched WHERE id = ANY($1)", done)
	}
	if n := len(all) - len(done); n > 0 {
		sent.Queue(`UPDATE batched SET leased_until = now() + interval '1 minute' WHERE id IN
			(SELECT id FROM batched WHERE leased_until IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING id`, n).Query(
			func(rows pgx.Rows) (err error) {
				ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
				return err
			})
	}
	return ids, c.SendBatch(ctx, &sent).Close()
}
