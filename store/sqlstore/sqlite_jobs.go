package sqlstore

import (
	"cmp"
	"context"

	"github.com/lokt-dev/lokt/jobs"
)

// fileJobs are the jobs in a database of SQLite: a jobs.Store.
type fileJobs struct {
	keptJobs
	db *fileDB
}

var _ jobs.Store = (*fileJobs)(nil)

const fileJobDocument = "j.id, j.doc, coalesce(j.payload, (SELECT p.payload FROM payloads p WHERE p.seq = j.seq), ''), j.sum"

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
	for _, r := range c.Jobs {
		s.writeJob(r)
		next.JobToken = max(next.JobToken, r.Token)
	}
	besideJobs(c, s.db.write.document)
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
