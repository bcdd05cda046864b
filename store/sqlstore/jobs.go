package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// keptJobs are the jobs in a database of either kind, but for what its turns need.
type keptJobs struct {
	options *Options
	reading func(ctx context.Context, op string, read func(look) error) error // the database as it is at one moment

	// trimming has something forgotten in one transaction, and tells what time it is.
	trimming func(ctx context.Context, forget func(execute, time.Time) error) error

	document string // what a job j is opened with: id, doc, payload, sum

	// ranges has ended jobs of a state or a type looked for as a range of (state, revision): PostgreSQL, if it is told of a state that the
	// job has, may look through all jobs by revision instead, because it does not know how few have it.
	ranges bool
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
	own string // the ID that a damaged document has: the right one, if the column's is what is damaged
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
		_ = lokt.Unmarshal([]byte(r.doc.text), r.Record)
		r.own, *r.Record = r.Record.ID, found
		r.ID, r.State, r.Reason = strings.ToValidUTF8(r.ID, "?"), jobs.State(strings.ToValidUTF8(string(r.State), "?")), r.err.Error()
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
	err := read("SELECT "+s.document+" FROM living j", nil, func(from row) error {
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
				damaged[r.ID], damaged[r.own] = r.err, r.err
				s.options.warn(r.err)
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
			s.options.warn(err)
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

// ended is the statement that finds ended jobs j: state, revision, and what they are opened with.
func (s *keptJobs) ended(where string) string {
	return "SELECT j.state, j.revision, " + s.document + " FROM ended j WHERE " + where
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
	err = s.rows(ctx, s.ended("j.id = ?"), []any{jobID}, func(from row) error {
		err := found.scan(from, &found.State, &found.Revision)
		found.decode()
		return err
	})
	if err = cmp.Or(err, found.err); err != nil {
		return jobs.Record{}, err
	}
	return *found.Record, nil
}

// newest completes the statement that finds ended jobs j: of the state and the type, unless they are empty, with a revision from one to
// below another, the newest first. The last of its arguments is the revision below which they are; the limit is to be added.
func (s *keptJobs) newest(where string, args []any, state jobs.State, jobType string, from, below uint64) (string, []any) {
	columns := [][2]string{{"j.type", jobType}, {"j.state", string(state)}}
	if state != jobs.Completed { // fewer jobs than are of a type
		slices.Reverse(columns)
	}
	in, least, end := []string{"j.revision"}, []any{int64(min(from, math.MaxInt64))}, []any{int64(min(below, math.MaxInt64))}
	for _, c := range columns {
		switch column, is := c[0], c[1]; {
		case is == "":
		case s.ranges && len(in) == 1:
			in, least, end = []string{column, in[0]}, []any{is, least[0]}, []any{is, end[0]}
		default:
			where, args = where+" AND "+column+" = ?", append(args, is)
		}
	}
	where += fmt.Sprintf(" AND (%[1]s) >= (%[2]s) AND (%[1]s) < (%[2]s) ORDER BY %[3]s DESC LIMIT ?",
		strings.Join(in, ", "), "?"+strings.Repeat(", ?", len(in)-1), strings.Join(in, " DESC, "))
	return where, slices.Concat(args, least, end)
}

// holding is the condition that a column's text has another in it, and its argument.
func holding(column, text string) (string, []any) {
	return column + " LIKE ? ESCAPE '!'", []any{"%" + strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(text) + "%"}
}

// ListEnded implements jobs.Store. A job that cannot be read has its place; who asks for it is told why.
func (s *keptJobs) ListEnded(
	ctx context.Context, f jobs.Filter, from, below uint64, limit int,
) (all []jobs.Record, err error) {
	where, args := "true", []any(nil)
	if f.Tag != "" { // finds few others
		tag, err := lokt.Marshal(f.Tag)
		if err != nil {
			return nil, nil //nolint:nilerr // no job has it
		}
		where, args = holding("j.doc", string(tag))
	}
	where, args = s.newest(where, args, f.State, f.Type, from, below)
	for n := limit; n == limit && len(all) < limit; {
		n = 0
		err := s.rows(ctx, s.ended(where), append(args, limit), func(from row) error {
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

// CountEnded implements jobs.Store.
func (s *keptJobs) CountEnded(ctx context.Context, state jobs.State, jobType string) (n int, err error) {
	where, args := "true LIMIT ?", []any(nil) // of all jobs, in no order: SQLite need not look into a document
	if state != "" || jobType != "" {
		where, args = s.newest("true", nil, state, jobType, 0, math.MaxUint64)
	}
	err = s.rows(ctx, "SELECT count(*) FROM (SELECT 1 FROM ended j WHERE "+where+") found", append(args, jobs.MaxCount), func(from row) error { return from.Scan(&n) })
	return n, err
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

// History implements jobs.Store.
func (s *keptJobs) History(ctx context.Context, from time.Time) ([]jobs.Statistic, error) {
	const statement = "SELECT hour || ' ' || source || ' ' || type || ' ' || tag, doc, sum FROM statistics WHERE hour >= ?"
	return documents[jobs.Statistic](ctx, s, "statistic", statement, from.Unix())
}

// table is one whose rows are documents: its key, all columns, and for PostgreSQL lists of what is in them.
type table struct{ name, key, columns, lists string }

var (
	memosTable      = table{"memos", "id", "id, expires, doc, sum", "$1::text[], $2::bigint[], $3::text[], $4::bigint[]"}
	outputTable     = table{"output", "job, until", "job, until, doc, sum", "$1::text[], $2::bigint[], $3::text[], $4::bigint[]"}
	statisticsTable = table{"statistics", "hour, source, type, tag", "hour, source, type, tag, doc, sum",
		"$1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[]"}
	jobEventsTable = table{"job_events", "first", "first, last, until, doc, sum", "$1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[]"}
	waitersTable   = table{"waiters", "lock, lease_id", "lock, lease_id, doc, sum", "$1::text[], $2::text[], $3::text[], $4::bigint[]"}
)

// putter inserts or replaces a row with the document of v, which has the key.
type putter func(into table, key string, v any, columns ...any)

// besideJobs puts what a turn stores beside its jobs.
func besideJobs(c *jobs.Changes, put putter) {
	for i := range c.Memos {
		m := &c.Memos[i]
		put(memosTable, m.ID, m, m.ID, nanos(m.Expires))
	}
	for i := range c.Output {
		p := &c.Output[i]
		put(outputTable, fmt.Sprint(p.JobID, " ", p.End()), p, p.JobID, p.End())
	}
	for i := range c.Stats {
		t := &c.Stats[i]
		hour := t.Hour.Unix()
		put(statisticsTable, fmt.Sprintf("%d %s %s %s", hour, t.Source, t.Type, t.Tag), t, hour, t.Source, t.Type, t.Tag)
	}
	if n := len(c.Events); n > 0 {
		first, last := c.Events[0].Seq, c.Events[n-1]
		put(jobEventsTable, number(first), c.Events, int64(first), int64(last.Seq), last.Time.UnixNano())
	}
}

// Trim implements jobs.Store.
func (s *keptJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if keep < 0 {
		keep = math.MaxInt
	}
	err = s.trimming(ctx, func(exec execute, now time.Time) error {
		gone, err := exec(`DELETE FROM ended WHERE revision IN (
			SELECT revision FROM (
				SELECT revision, ended_at, row_number() OVER (ORDER BY revision) AS n
				FROM (SELECT revision, ended_at FROM ended ORDER BY revision LIMIT ?) oldest) numbered
			WHERE coalesce(ended_at, 0) < ? OR n <= (SELECT count(*) FROM ended) - ?)`, atMost, before.UnixNano(), keep)
		if n = int(gone); err == nil {
			_, err = exec("DELETE FROM memos WHERE id IN (SELECT id FROM memos WHERE expires <= ? LIMIT ?)", now.UnixNano(), atMost)
		}
		return cmp.Or(err, forgetEvents(exec, "job_events", before.UnixNano(), s.options.KeepEvents))
	})
	return n, err
}
