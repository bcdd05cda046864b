package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// fileJobs are the jobs in a database of SQLite: a jobs.Store.
type fileJobs struct {
	db     *fileDB
	closed atomic.Bool

	mu      sync.Mutex
	damaged map[string]error // living jobs that cannot be read, by ID
}

func newJobs(d *fileDB) *fileJobs { return &fileJobs{db: d} }

// usable reports why the store cannot be used.
func (s *fileJobs) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	return nil
}

// Update implements jobs.Store. The turn is run by another goroutine, while nothing else in the database changes: it must not use the
// database. If it panics, Update does.
func (s *fileJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.group.perform(ctx, &request{turn: turn})
}

// largePayload is how long a payload is that has a row of its own.
const largePayload = 1 << 10

// write writes what a turn changed.
func (s *fileJobs) write(c *jobs.Changes, next *state) error {
	w := s.db.write
	for i := range c.Jobs {
		if err := s.writeJob(&c.Jobs[i]); err != nil {
			return err
		}
		next.Token = max(next.Token, c.Jobs[i].Token)
	}
	for i := range c.Memos {
		m := &c.Memos[i]
		d, err := seal(m.ID, m)
		if err == nil {
			err = w.exec(`INSERT INTO memos (id, expires, doc, sum) VALUES (?, ?, ?, ?)
				ON CONFLICT (id) DO UPDATE SET expires = excluded.expires, doc = excluded.doc, sum = excluded.sum`, m.ID, nanos(m.Expires), d.text, d.sum)
		}
		if err != nil {
			return err
		}
	}
	for i := range c.Stats {
		t := &c.Stats[i]
		d, err := seal(statisticKey(t), t)
		if err == nil {
			err = w.exec(`INSERT INTO statistics (hour, source, type, tag, doc, sum) VALUES (?, ?, ?, ?, ?, ?)
				ON CONFLICT (hour, source, type, tag) DO UPDATE SET doc = excluded.doc, sum = excluded.sum`, t.Hour.Unix(), t.Source, t.Type, t.Tag, d.text, d.sum)
		}
		if err != nil {
			return err
		}
	}
	if n := len(c.Events); n > 0 {
		first, last := c.Events[0].Seq, c.Events[n-1].Seq
		d, err := sealEvents(first, c.Events)
		if err == nil {
			err = w.exec("INSERT OR REPLACE INTO job_events (first, last, until, doc, sum) VALUES (?, ?, ?, ?, ?)",
				int64(first), int64(last), c.Events[n-1].Time.UnixNano(), d.text, d.sum)
		}
		if err != nil {
			return err
		}
	}
	next.Counters, next.Frozen = c.Counters, c.Frozen
	return nil
}

func statisticKey(t *jobs.Statistic) string {
	return fmt.Sprintf("%d %s %s %s", t.Hour.Unix(), t.Source, t.Type, t.Tag)
}

func (s *fileJobs) writeJob(r *jobs.Record) error {
	w := s.db.write
	d, err := sealJob(r)
	if err != nil {
		return err
	}
	payload := any(d.payload)
	if len(d.payload) > largePayload {
		payload = nil
		if stored, err := w.number("SELECT count(*) FROM payloads WHERE seq = ?", int64(r.Seq)); err != nil {
			return err
		} else if stored == 0 {
			if err := w.exec("INSERT INTO payloads (seq, payload) VALUES (?, ?)", int64(r.Seq), d.payload); err != nil {
				return err
			}
		}
	}
	if !r.State.Ended() {
		return w.exec(`INSERT INTO living (seq, id, doc, payload, sum) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (seq) DO UPDATE SET doc = excluded.doc, sum = excluded.sum`, int64(r.Seq), r.ID, d.text, payload, d.sum)
	}
	if err := w.exec("DELETE FROM living WHERE seq = ?", int64(r.Seq)); err != nil {
		return err
	}
	return w.exec("INSERT OR REPLACE INTO ended (revision, seq, id, state, type, ended_at, doc, payload, sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		int64(r.Revision), int64(r.Seq), r.ID, string(r.State), r.Type, nanos(r.EndedAt), d.text, payload, d.sum)
}

// jobColumns are those of a job's document, in both tables.
const jobColumns = "j.id, j.doc, coalesce(j.payload, (SELECT p.payload FROM payloads p WHERE p.seq = j.seq), ''), j.sum"

// jobRow is a job that was read.
type jobRow struct {
	id string
	document
}

func (r *jobRow) scan(rows *sql.Rows) error { return rows.Scan(&r.id, &r.text, &r.payload, &r.sum) }

// Load implements jobs.Store. Jobs that cannot be read are left out: they stay as they are, whoever asks for one is told, and so is the
// operator.
func (s *fileJobs) Load(ctx context.Context) (all jobs.Living, err error) {
	if err := s.usable(ctx); err != nil {
		return all, err
	}
	damaged := map[string]error{}
	err = s.db.reading(ctx, "load", func(tx *sql.Tx) error {
		if all.Jobs, err = s.loadJobs(ctx, tx, damaged); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, "SELECT id, doc, sum FROM memos WHERE expires IS NULL OR expires > ?", s.db.clock.now().UnixNano())
		err = each(rows, err, func(rows *sql.Rows) error {
			var id string
			var d document
			var m jobs.Memo
			if err := rows.Scan(&id, &d.text, &d.sum); err != nil {
				return err
			}
			if err := d.open("memo "+id, id, &m); err != nil {
				s.db.options.warn(err)
				return nil
			}
			all.Memos = append(all.Memos, m)
			return nil
		})
		if err != nil {
			return err
		}
		st, err := readState(func(statement string, args []any, scan func(*sql.Rows) error) error {
			rows, err := tx.QueryContext(ctx, statement, args...)
			return each(rows, err, scan)
		})
		all.Frozen, all.Counters, all.TokenFloor = st.Frozen, st.Counters, st.TokenFloor
		return err
	})
	for _, err := range damaged {
		s.db.options.warn(err)
	}
	s.mu.Lock()
	s.damaged = damaged
	s.mu.Unlock()
	return all, err
}

// loadJobs reads the living jobs, and decodes them with all processors.
func (s *fileJobs) loadJobs(ctx context.Context, tx *sql.Tx, damaged map[string]error) ([]jobs.Record, error) {
	var mu sync.Mutex
	var all []jobs.Record
	var wait sync.WaitGroup
	batches := make(chan []jobRow, 4)
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for rows := range batches {
				records := make([]jobs.Record, 0, len(rows))
				for i := range rows {
					r, err := rows[i].openJob(rows[i].id)
					if err != nil {
						mu.Lock()
						damaged[rows[i].id] = err
						mu.Unlock()
						continue
					}
					records = append(records, r)
				}
				mu.Lock()
				all = append(all, records...)
				mu.Unlock()
			}
		})
	}
	var next []jobRow
	rows, err := tx.QueryContext(ctx, "SELECT "+jobColumns+" FROM living j")
	err = each(rows, err, func(rows *sql.Rows) error {
		var r jobRow
		err := r.scan(rows)
		if next = append(next, r); len(next) == 256 {
			batches <- next
			next = nil
		}
		return err
	})
	batches <- next
	close(batches)
	wait.Wait()
	return all, err
}

// Ended implements jobs.Store.
func (s *fileJobs) Ended(ctx context.Context, jobID string) (jobs.Record, error) {
	if err := s.usable(ctx); err != nil {
		return jobs.Record{}, err
	}
	s.mu.Lock()
	err := s.damaged[jobID]
	s.mu.Unlock()
	if err != nil {
		return jobs.Record{}, err
	}
	all, err := s.ended(ctx, "j.id = ?", []any{jobID})
	if err == nil && len(all) == 0 {
		err = jobs.ErrJobNotFound
	}
	if err != nil {
		return jobs.Record{}, err
	}
	return all[0].openJob(jobID)
}

// ended reads rows of jobs that ended.
func (s *fileJobs) ended(ctx context.Context, where string, args []any) (all []jobRow, err error) {
	err = s.db.reading(ctx, "read", func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, "SELECT "+jobColumns+" FROM ended j WHERE "+where, args...)
		return each(rows, err, func(rows *sql.Rows) error {
			all = append(all, jobRow{})
			return all[len(all)-1].scan(rows)
		})
	})
	return all, err
}

// ListEnded implements jobs.Store.
func (s *fileJobs) ListEnded(ctx context.Context, f jobs.Filter, below uint64, limit int) (all []jobs.Record, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	where, args := "j.revision < ?", []any{int64(min(below, 1<<63-1))}
	if f.State != "" {
		where, args = where+" AND j.state = ?", append(args, string(f.State))
	}
	if f.Type != "" {
		where, args = where+" AND j.type = ?", append(args, f.Type)
	}
	err = s.db.reading(ctx, "read", func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, "SELECT "+jobColumns+", j.state, j.revision FROM ended j WHERE "+where+" ORDER BY j.revision DESC", args...)
		return each(rows, err, func(rows *sql.Rows) error {
			var row jobRow
			var state string
			var revision uint64
			if len(all) == limit {
				return errEnough
			}
			if err := rows.Scan(&row.id, &row.text, &row.payload, &row.sum, &state, &revision); err != nil {
				return err
			}
			r, err := row.openJob(row.id)
			if err != nil { // it has its place, and who asks for it is told
				r = jobs.Record{Job: jobs.Job{ID: strings.ToValidUTF8(row.id, "?"), State: jobs.State(state), Revision: revision, Reason: err.Error()}}
			}
			if f.Tag == "" || slices.Contains(r.Tags, f.Tag) {
				all = append(all, r)
			}
			return nil
		})
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return all, err
}

// History implements jobs.Store.
func (s *fileJobs) History(ctx context.Context, from time.Time) (all []jobs.Statistic, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	err = s.db.reading(ctx, "read", func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, "SELECT hour, source, type, tag, doc, sum FROM statistics WHERE hour >= ?", from.Unix())
		return each(rows, err, func(rows *sql.Rows) error {
			var key, t jobs.Statistic
			var hour int64
			var d document
			if err := rows.Scan(&hour, &key.Source, &key.Type, &key.Tag, &d.text, &d.sum); err != nil {
				return err
			}
			key.Hour = time.Unix(hour, 0)
			if err := d.open("statistic "+statisticKey(&key), statisticKey(&key), &t); err != nil {
				return err
			}
			all = append(all, t)
			return nil
		})
	})
	return all, err
}

// Trim implements jobs.Store.
func (s *fileJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	begin := time.Now()
	defer func() { s.db.options.observe("trim", begin, err) }()
	err = s.db.group.perform(ctx, &request{write: func() error {
		n, err = s.trim(before, keep, atMost)
		return err
	}})
	return n, err
}

func (s *fileJobs) trim(before time.Time, keep, atMost int) (n int, err error) {
	w, d := s.db.write, s.db
	most := int64(0)
	if keep >= 0 {
		if most, err = w.number("SELECT count(*) FROM ended"); err != nil {
			return 0, err
		}
		most = max(most-int64(keep), 0)
	}
	var revisions, seqs []int64
	if err := w.query("SELECT revision, seq, ended_at FROM ended ORDER BY revision LIMIT ?", []any{atMost}, func(rows *sql.Rows) error {
		var revision, seq int64
		var at sql.NullInt64
		err := rows.Scan(&revision, &seq, &at)
		if int64(len(revisions)) < most || at.Int64 < before.UnixNano() {
			revisions, seqs = append(revisions, revision), append(seqs, seq)
		}
		return err
	}); err != nil {
		return 0, err
	}
	for i := range revisions {
		if err := w.exec("DELETE FROM ended WHERE revision = ?", revisions[i]); err != nil {
			return 0, err
		}
		if err := w.exec("DELETE FROM payloads WHERE seq = ?", seqs[i]); err != nil {
			return 0, err
		}
	}
	upTo := int64(-1)
	if d.options.KeepEvents >= 0 {
		upTo = int64(d.state.Counters.Event) - int64(d.options.KeepEvents)
	}
	if err := w.exec(`DELETE FROM job_events WHERE first IN (
		SELECT first FROM (SELECT first, last, until FROM job_events ORDER BY first LIMIT ?) WHERE last <= ? OR until < ?)`, atMost, upTo, before.UnixNano()); err != nil {
		return 0, err
	}
	if err := w.exec("DELETE FROM memos WHERE id IN (SELECT id FROM memos WHERE expires <= ? LIMIT ?)", d.clock.now().UnixNano(), atMost); err != nil {
		return 0, err
	}
	return len(revisions), w.script("PRAGMA incremental_vacuum(64)")
}

// Close makes every later call fail. The database stays open.
func (s *fileJobs) Close() error {
	s.closed.Store(true)
	return nil
}

var (
	_ lokt.Store    = (*fileLocks)(nil)
	_ lokt.EventLog = (*fileLocks)(nil)
	_ jobs.Store    = (*fileJobs)(nil)
)
