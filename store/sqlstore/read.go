package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// row is a row that was found.
type row interface{ Scan(into ...any) error }

// look runs a statement over a database of either kind, in which a question mark stands for each argument, and has scan
// read each row. errEnough ends it.
type look func(statement string, args []any, scan func(row) error) error

// closable is closed before its database is, or with it.
type closable struct{ closed atomic.Bool }

// usable reports why it cannot be used.
func (c *closable) usable(ctx context.Context) error {
	if c.closed.Load() && ctx.Err() == nil {
		return errClosed
	}
	return ctx.Err()
}

// keptJobs reads the jobs in a database of either kind.
type keptJobs struct {
	// reading reads the database as it is at one moment.
	reading func(ctx context.Context, op string, read func(look) error) error

	living string // statement that finds jobs: id, doc, payload, sum
	ended  string // statement that finds jobs j: state and revision before these
	warn   func(error)
	closable

	mu      sync.Mutex
	damaged map[string]error // living jobs that cannot be read, by ID
}

// Close makes every later call fail. The database stays open.
func (s *keptJobs) Close() error {
	s.closed.Store(true)
	return nil
}

// rows reads what a statement finds.
func (s *keptJobs) rows(ctx context.Context, statement string, args []any, scan func(row) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.reading(ctx, "read", func(read look) error { return read(statement, args, scan) })
}

// jobRow is a job that was read. What is damaged has the columns only.
type jobRow struct {
	*jobs.Record
	doc document
	err error
}

// scan reads a row that has columns for so much more of the record before its own.
func (r *jobRow) scan(from row, more ...any) error {
	return from.Scan(append(more, &r.ID, &r.doc.text, &r.doc.payload, &r.doc.sum)...)
}

// decode reads the document. A damaged job has its place in lists, and the reason says why.
func (r *jobRow) decode() {
	found := *r.Record
	if r.err = r.doc.openJob(found.ID, r.Record); r.err != nil {
		*r.Record = found
		r.ID, r.Reason = strings.ToValidUTF8(r.ID, "?"), r.err.Error()
	}
}

// load reads the living jobs, and the memos that have not expired. What cannot be read is left out: it stays as it is,
// who asks for such a job is told, and so is the operator.
func (s *keptJobs) load(read look, now time.Time, all *jobs.Changes) error {
	var crew sync.WaitGroup
	var chunks [][]jobRow
	decode := func(rows []jobRow) {
		chunks = append(chunks, rows)
		crew.Go(func() {
			for i := range rows {
				rows[i].decode()
			}
		})
	}
	var next []jobRow
	err := read(s.living, nil, func(from row) error {
		if len(next) == cap(next) {
			decode(next)
			next = make([]jobRow, 0, 512)
		}
		next = append(next, jobRow{Record: &jobs.Record{}})
		return next[len(next)-1].scan(from)
	})
	decode(next)
	crew.Wait()
	if err != nil {
		return err
	}
	damaged := map[string]error{}
	all.Jobs = make([]*jobs.Record, 0, len(chunks)*cap(next))
	for _, rows := range chunks {
		for i := range rows {
			if r := &rows[i]; r.err != nil {
				damaged[r.ID] = r.err
				s.warn(r.err)
			} else {
				all.Jobs = append(all.Jobs, r.Record)
			}
		}
	}
	s.mu.Lock()
	s.damaged = damaged
	s.mu.Unlock()
	const memos = "SELECT id, doc, sum FROM memos WHERE expires IS NULL OR expires > ?"
	return read(memos, []any{now.UnixNano()}, func(from row) error {
		m, err := readMemo(from)
		switch {
		case err == nil:
			all.Memos = append(all.Memos, m)
		case errors.Is(err, lokt.ErrDamaged):
			s.warn(err)
			return nil
		}
		return err
	})
}

// readMemo reads a memo: its id, doc and sum.
func readMemo(from row) (m jobs.Memo, err error) {
	var id string
	var d document
	if err = from.Scan(&id, &d.text, &d.sum); err == nil {
		err = d.open("memo "+id, id, &m)
	}
	return m, err
}

// Ended implements jobs.Store. It says of a living job, too, that it could not be read.
func (s *keptJobs) Ended(ctx context.Context, jobID string) (jobs.Record, error) {
	s.mu.Lock()
	err := s.damaged[jobID]
	s.mu.Unlock()
	if err != nil {
		return jobs.Record{}, err
	}
	found := jobRow{Record: &jobs.Record{}, err: jobs.ErrJobNotFound}
	err = s.rows(ctx, s.ended+" AND j.id = ?", []any{jobID}, func(from row) error {
		err := found.scan(from, &found.State, &found.Revision)
		found.decode()
		return err
	})
	if err = cmp.Or(err, found.err); err != nil {
		return jobs.Record{}, err
	}
	return *found.Record, nil
}

// ListEnded implements jobs.Store. A job that cannot be read has its place; who asks for it is told why.
func (s *keptJobs) ListEnded(
	ctx context.Context, f jobs.Filter, from, below uint64, limit int,
) (all []jobs.Record, err error) {
	statement, args := s.ended+" AND j.revision >= ?", []any{int64(min(from, 1<<63-1))}
	add := func(condition string, value any) {
		statement, args = statement+" AND "+condition, append(args, value)
	}
	if f.State != "" {
		add("j.state = ?", string(f.State))
	}
	if f.Type != "" {
		add("j.type = ?", f.Type)
	}
	if f.Tag != "" { // finds few others
		tag, err := lokt.Marshal(f.Tag)
		if err != nil {
			return nil, nil //nolint:nilerr // no job has it
		}
		add("j.doc LIKE ? ESCAPE '!'", "%"+strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(string(tag))+"%")
	}
	add("j.revision < ?", int64(min(below, 1<<63-1)))
	for n := limit; n == limit && len(all) < limit; {
		n = 0
		err := s.rows(ctx, statement+" ORDER BY j.revision DESC LIMIT ?", append(args, limit), func(from row) error {
			r := jobRow{Record: &jobs.Record{}}
			err := r.scan(from, &r.State, &r.Revision)
			n, args[len(args)-1] = n+1, int64(r.Revision)
			if r.decode(); len(all) < limit && (f.Tag == "" || slices.Contains(r.Tags, f.Tag)) {
				all = append(all, *r.Record)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// documents reads what a statement finds of one kind: key, doc, sum.
func documents[T any](ctx context.Context, s *keptJobs, what, statement string, args ...any) (all []T, err error) {
	err = s.rows(ctx, statement, args, func(from row) error {
		var key string
		var d document
		var v T
		if err := from.Scan(&key, &d.text, &d.sum); err != nil {
			return err
		}
		err := d.open(what+" "+key, key, &v)
		all = append(all, v)
		return err
	})
	return all, err
}

// Output implements jobs.Store.
func (s *keptJobs) Output(ctx context.Context, jobID string, from int64) ([]jobs.Piece, error) {
	const statement = "SELECT job || ' ' || until, doc, sum FROM output WHERE job = ? AND until > ? ORDER BY until"
	return documents[jobs.Piece](ctx, s, "output", statement, jobID, from)
}

func pieceKey(jobID string, until int64) string { return jobID + " " + strconv.FormatInt(until, 10) }

// History implements jobs.Store.
func (s *keptJobs) History(ctx context.Context, from time.Time) ([]jobs.Statistic, error) {
	const statement = "SELECT hour || ' ' || source || ' ' || type || ' ' || tag, doc, sum FROM statistics WHERE hour >= ?"
	return documents[jobs.Statistic](ctx, s, "statistic", statement, from.Unix())
}

func statisticKey(t *jobs.Statistic) string {
	return fmt.Sprintf("%d %s %s %s", t.Hour.Unix(), t.Source, t.Type, t.Tag)
}

// mostWrong is how much damage is named.
const mostWrong = 100

// wrongs collects what is wrong with a database.
type wrongs []error

func (w *wrongs) note(err error) {
	if err != nil && len(*w) < mostWrong {
		*w = append(*w, fmt.Errorf("%w: %w", lokt.ErrDamaged, err))
	}
}

// err returns the error that names all of it.
func (w *wrongs) err(database string, err error) error {
	if err == nil && len(*w) > 0 {
		return fmt.Errorf("database %s: %w", database, errors.Join(*w...))
	}
	return err
}

// check notes every document that is not what its checksum says. The statements find what it is, the key of its row, its
// text, payload and sum; more are those of one kind of database.
func (w *wrongs) check(ctx context.Context, read look, more ...string) error {
	for _, statement := range append([]string{
		"SELECT 'who waits for lock ' || lock, lock || ' ' || lease_id, doc, '', sum FROM waiters",
		`SELECT 'queue of lock ' || name || ', where some are missing', '', '', '', -1 FROM locks l
			WHERE waiting <> (SELECT count(*) FROM waiters w WHERE w.lock = l.name)`,
		"SELECT 'output of job ' || job, job || ' ' || until, doc, '', sum FROM output",
		"SELECT 'memo ' || id, id, doc, '', sum FROM memos",
		"SELECT 'a statistic', hour || ' ' || source || ' ' || type || ' ' || tag, doc, '', sum FROM statistics",
		"SELECT 'events of jobs from number ' || first, CAST(first AS TEXT), doc, '', sum FROM job_events",
	}, more...) {
		if err := read(statement, nil, func(from row) error {
			var what, key string
			var d document
			if err := from.Scan(&what, &key, &d.text, &d.payload, &d.sum); err != nil {
				return err
			}
			if d.sum != checksum([]byte(key), []byte(d.text), []byte(d.payload)) {
				w.note(fmt.Errorf("%s: %w", what, errChecksum))
			}
			return nil
		}); err != nil && (ctx.Err() != nil || code(err) == 0) {
			return err
		} else if err != nil { // SQLite cannot read it
			w.note(err)
		}
	}
	return nil
}
