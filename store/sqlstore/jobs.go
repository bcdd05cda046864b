package sqlstore

import (
	"cmp"
	"context"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// fileJobs are the jobs in a database of SQLite: a jobs.Store.
type fileJobs struct {
	keptJobs
	db *fileDB
}

var _ jobs.Store = (*fileJobs)(nil)

func newFileJobs(d *fileDB) *fileJobs {
	return &fileJobs{db: d, keptJobs: keptJobs{
		warn: d.options.warn, reading: d.reading,
		living: "SELECT j.id, " + jobDocument + " FROM living j",
		ended:  "SELECT j.state, j.revision, j.id, " + jobDocument + " FROM ended j WHERE true",
	}}
}

// jobDocument are the columns of a job's document, in both tables.
const jobDocument = "j.doc, coalesce(j.payload, (SELECT p.payload FROM payloads p WHERE p.seq = j.seq), ''), j.sum"

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
func (s *fileJobs) write(c *jobs.Changes, next *state) {
	w := s.db.write
	for _, r := range c.Jobs {
		s.writeJob(r)
		next.JobToken = max(next.JobToken, r.Token)
	}
	for i := range c.Memos {
		m := &c.Memos[i]
		w.document("memos", "id, expires", m.ID, m, m.ID, nanos(m.Expires))
	}
	for i := range c.Output {
		p := &c.Output[i]
		w.document("output", "job, until", pieceKey(p.JobID, p.End()), p, p.JobID, p.End())
	}
	for i := range c.Stats {
		t := &c.Stats[i]
		w.document("statistics", "hour, source, type, tag", statisticKey(t), t, t.Hour.Unix(), t.Source, t.Type, t.Tag)
	}
	if n := len(c.Events); n > 0 {
		first, last := c.Events[0].Seq, c.Events[n-1]
		w.document("job_events", "first, last, until", number(first), c.Events,
			int64(first), int64(last.Seq), last.Time.UnixNano())
	}
	next.Counters, next.Frozen = c.Counters, c.Frozen
}

func (s *fileJobs) writeJob(r *jobs.Record) {
	w := s.db.write
	d, err := sealJob(r)
	w.err = cmp.Or(w.err, err)
	seq, payload := int64(r.Seq), any(d.payload)
	if len(d.payload) > largePayload {
		payload = nil
		w.do("INSERT OR IGNORE INTO payloads (seq, payload) VALUES (?, ?)", seq, d.payload)
	}
	if !r.State.Ended() {
		w.put("living", "seq, id, doc, payload, sum", seq, r.ID, d.text, payload, d.sum)
		return
	}
	w.do("DELETE FROM living WHERE seq = ?", seq)
	w.put("ended", "revision, seq, id, state, type, ended_at, doc, payload, sum",
		int64(r.Revision), seq, r.ID, string(r.State), r.Type, nanos(r.EndedAt), d.text, payload, d.sum)
}

// Load implements jobs.Store.
func (s *fileJobs) Load(ctx context.Context) (all jobs.Changes, err error) {
	if err := s.usable(ctx); err != nil {
		return all, err
	}
	err = s.db.reading(ctx, "load", func(read look) error {
		st, err := readState(read)
		if err != nil {
			return err
		}
		all = jobs.Changes{Frozen: st.Frozen, Counters: st.Counters, TokenFloor: st.JobFloor}
		return s.load(read, s.db.clock.now(), &all)
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
	if keep < 0 {
		keep = 1 << 62
	}
	w.do(`DELETE FROM ended WHERE revision IN (
		SELECT revision FROM (
			SELECT revision, ended_at, row_number() OVER (ORDER BY revision) AS n
			FROM (SELECT revision, ended_at FROM ended ORDER BY revision LIMIT ?))
		WHERE coalesce(ended_at, 0) < ? OR n <= (SELECT count(*) FROM ended) - ?)`, atMost, before, keep)
	if w.err == nil {
		n, w.err = w.number("SELECT changes()")
	}
	w.do("DELETE FROM memos WHERE id IN (SELECT id FROM memos WHERE expires <= ? LIMIT ?)", d.clock.now().UnixNano(), atMost)
	if w.err == nil {
		w.err = d.forgetEvents("job_events", d.state.Counters.Event, before, atMost)
	}
	return n, w.err
}
