package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// fileJobs are the jobs in a database of SQLite: a jobs.Store.
type fileJobs struct {
	db     *fileDB
	closed atomic.Bool

	mu      sync.Mutex
	damaged map[string]error // living jobs that cannot be read, by ID
}

var _ jobs.Store = (*fileJobs)(nil)

// Update implements jobs.Store. The turn is run by another goroutine, while nothing else in the database changes: it
// must not use the database. If it panics, Update does.
func (s *fileJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	if s.closed.Load() {
		return errClosed
	}
	return s.db.group.perform(ctx, &request{turn: turn})
}

// largePayload is how long a payload is that has a row of its own, which no change of the job writes again.
const largePayload = 1 << 10

// write writes what a turn changed.
func (s *fileJobs) write(c *jobs.Changes, next *state) error {
	w := s.db.write
	for i := range c.Jobs {
		if err := s.writeJob(&c.Jobs[i]); err != nil {
			return err
		}
		next.JobToken = max(next.JobToken, c.Jobs[i].Token)
	}
	for i := range c.Memos {
		m := &c.Memos[i]
		if err := w.document("memos", "id, expires", m.ID, m, m.ID, nanos(m.Expires)); err != nil {
			return err
		}
	}
	for i := range c.Stats {
		t := &c.Stats[i]
		if err := w.document("statistics", "hour, source, type, tag", statisticKey(t), t,
			t.Hour.Unix(), t.Source, t.Type, t.Tag); err != nil {
			return err
		}
	}
	if n := len(c.Events); n > 0 {
		first, last := c.Events[0].Seq, c.Events[n-1]
		if err := w.document("job_events", "first, last, until", number(first), c.Events,
			int64(first), int64(last.Seq), last.Time.UnixNano()); err != nil {
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
	seq, payload := int64(r.Seq), any(d.payload)
	if len(d.payload) > largePayload {
		payload = nil
		if err := w.exec("INSERT OR IGNORE INTO payloads (seq, payload) VALUES (?, ?)", seq, d.payload); err != nil {
			return err
		}
	}
	if !r.State.Ended() {
		return w.put("living", "seq, id, doc, payload, sum", seq, r.ID, d.text, payload, d.sum)
	}
	if err := w.exec("DELETE FROM living WHERE seq = ?", seq); err != nil {
		return err
	}
	return w.put("ended", "revision, seq, id, state, type, ended_at, doc, payload, sum",
		int64(r.Revision), seq, r.ID, string(r.State), r.Type, nanos(r.EndedAt), d.text, payload, d.sum)
}

// jobColumns are those of a job's document, in both tables.
const jobColumns = "j.id, j.doc, coalesce(j.payload, (SELECT p.payload FROM payloads p WHERE p.seq = j.seq), ''), j.sum"

// jobRow is a job that was read.
type jobRow struct {
	id string
	document
}

// rows reads what a statement finds as it is at one moment.
func (s *fileJobs) rows(ctx context.Context, statement string, args []any, scan func(*sql.Rows) error) error {
	if s.closed.Load() {
		return errClosed
	}
	return s.db.reading(ctx, "read", func(tx *sql.Tx) error { return reader(ctx, tx)(statement, args, scan) })
}

// Load implements jobs.Store. Jobs that cannot be read are left out: they stay as they are, who asks for one is told,
// and so is the operator.
func (s *fileJobs) Load(ctx context.Context) (all jobs.Living, err error) {
	if s.closed.Load() {
		return all, errClosed
	}
	damaged := map[string]error{}
	err = s.db.reading(ctx, "load", func(tx *sql.Tx) error {
		query := reader(ctx, tx)
		if all.Jobs, err = loadJobs(query, damaged); err != nil {
			return err
		}
		const memos = "SELECT id, doc, sum FROM memos WHERE expires IS NULL OR expires > ?"
		if err := query(memos, []any{s.db.clock.now().UnixNano()}, func(rows *sql.Rows) error {
			var id string
			var d document
			var m jobs.Memo
			if err := rows.Scan(&id, &d.text, &d.sum); err != nil {
				return err
			}
			if err := d.open("memo "+id, id, &m); err != nil {
				s.db.options.warn(err)
			} else {
				all.Memos = append(all.Memos, m)
			}
			return nil
		}); err != nil {
			return err
		}
		st, err := readState(query)
		all.Frozen, all.Counters, all.TokenFloor = st.Frozen, st.Counters, st.JobFloor
		return err
	})
	for _, err := range damaged {
		s.db.options.warn(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damaged = damaged
	return all, err
}

// loadJobs reads the living jobs, and decodes them with all processors.
func loadJobs(query query, damaged map[string]error) (all []jobs.Record, err error) {
	var mu sync.Mutex
	var crew sync.WaitGroup
	batches := make(chan []jobRow, 4)
	for range runtime.GOMAXPROCS(0) {
		crew.Go(func() {
			for rows := range batches {
				records := make([]jobs.Record, len(rows))
				errs := make([]error, len(rows))
				for i := range rows {
					records[i], errs[i] = rows[i].openJob(rows[i].id)
				}
				mu.Lock()
				for i := range rows {
					if errs[i] != nil {
						damaged[rows[i].id] = errs[i]
					} else {
						all = append(all, records[i])
					}
				}
				mu.Unlock()
			}
		})
	}
	var next []jobRow
	err = query("SELECT "+jobColumns+" FROM living j", nil, func(rows *sql.Rows) error {
		var r jobRow
		err := rows.Scan(&r.id, &r.text, &r.payload, &r.sum)
		if next = append(next, r); len(next) == 256 {
			batches <- next
			next = nil
		}
		return err
	})
	batches <- next
	close(batches)
	crew.Wait()
	return all, err
}

// Ended implements jobs.Store.
func (s *fileJobs) Ended(ctx context.Context, jobID string) (jobs.Record, error) {
	s.mu.Lock()
	err := s.damaged[jobID]
	s.mu.Unlock()
	if err != nil {
		return jobs.Record{}, err
	}
	var found *jobRow
	err = s.rows(ctx, "SELECT "+jobColumns+" FROM ended j WHERE j.id = ?", []any{jobID}, func(rows *sql.Rows) error {
		found = &jobRow{}
		return rows.Scan(&found.id, &found.text, &found.payload, &found.sum)
	})
	if err == nil && found == nil {
		err = jobs.ErrJobNotFound
	}
	if err != nil {
		return jobs.Record{}, err
	}
	return found.openJob(jobID)
}

// ListEnded implements jobs.Store. A job that cannot be read has its place; who asks for it is told why.
func (s *fileJobs) ListEnded(
	ctx context.Context, f jobs.Filter, below uint64, limit int,
) (all []jobs.Record, err error) {
	statement := "SELECT " + jobColumns + ", j.state, j.revision FROM ended j WHERE j.revision < ?"
	args := []any{int64(min(below, 1<<63-1))}
	if f.State != "" {
		statement, args = statement+" AND j.state = ?", append(args, string(f.State))
	}
	if f.Type != "" {
		statement, args = statement+" AND j.type = ?", append(args, f.Type)
	}
	err = s.rows(ctx, statement+" ORDER BY j.revision DESC", args, func(rows *sql.Rows) error {
		var row jobRow
		bad := jobs.Record{}
		if len(all) == limit {
			return errEnough
		}
		if err := rows.Scan(&row.id, &row.text, &row.payload, &row.sum, &bad.State, &bad.Revision); err != nil {
			return err
		}
		r, err := row.openJob(row.id)
		if err != nil {
			bad.ID, bad.Reason = strings.ToValidUTF8(row.id, "?"), err.Error()
			r = bad
		}
		if f.Tag == "" || slices.Contains(r.Tags, f.Tag) {
			all = append(all, r)
		}
		return nil
	})
	return all, err
}

// History implements jobs.Store.
func (s *fileJobs) History(ctx context.Context, from time.Time) (all []jobs.Statistic, err error) {
	const statement = "SELECT hour || ' ' || source || ' ' || type || ' ' || tag, doc, sum FROM statistics WHERE hour >= ?"
	err = s.rows(ctx, statement, []any{from.Unix()}, func(rows *sql.Rows) error {
		var key string
		var d document
		var t jobs.Statistic
		if err := rows.Scan(&key, &d.text, &d.sum); err != nil {
			return err
		}
		if err := d.open("statistic "+key, key, &t); err != nil {
			return err
		}
		all = append(all, t)
		return nil
	})
	return all, err
}

// Trim implements jobs.Store.
func (s *fileJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if s.closed.Load() {
		return 0, errClosed
	}
	begin := time.Now()
	defer func() { s.db.options.observe("trim", begin, err) }()
	err = s.db.group.perform(ctx, &request{write: func() error {
		n, err = s.trim(before.UnixNano(), keep, atMost)
		return err
	}})
	return n, err
}

func (s *fileJobs) trim(before int64, keep, atMost int) (n int, err error) {
	w, d := s.db.write, s.db
	beyond := int64(0)
	if keep >= 0 {
		if beyond, err = w.number("SELECT count(*) FROM ended"); err != nil {
			return 0, err
		}
		beyond -= int64(keep)
	}
	var gone [][2]int64
	const oldest = "SELECT revision, seq, coalesce(ended_at, 0) FROM ended ORDER BY revision LIMIT ?"
	if err := w.query(oldest, []any{atMost}, func(rows *sql.Rows) error {
		var revision, seq, at int64
		err := rows.Scan(&revision, &seq, &at)
		if int64(len(gone)) < beyond || at < before {
			gone = append(gone, [2]int64{revision, seq})
		}
		return err
	}); err != nil {
		return 0, err
	}
	for _, g := range gone {
		if err := w.exec("DELETE FROM ended WHERE revision = ?", g[0]); err != nil {
			return 0, err
		}
		if err := w.exec("DELETE FROM payloads WHERE seq = ?", g[1]); err != nil {
			return 0, err
		}
	}
	const expired = "DELETE FROM memos WHERE id IN (SELECT id FROM memos WHERE expires <= ? LIMIT ?)"
	if err := w.exec(expired, d.clock.now().UnixNano(), atMost); err != nil {
		return 0, err
	}
	return len(gone), d.forgetEvents("job_events", d.state.Counters.Event, before, atMost)
}

// Close makes every later call fail. The database stays open.
func (s *fileJobs) Close() error {
	s.closed.Store(true)
	return nil
}
