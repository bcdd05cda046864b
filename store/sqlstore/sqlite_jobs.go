package sqlstore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt"
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

// state is what a database of SQLite says about itself: one document, written with every transaction.
type state struct {
	Database string    `json:"database"` // tells it from others
	Commits  uint64    `json:"commits"`  // transactions so far
	Clock    time.Time `json:"clock"`    // at the last one
	Backup   bool      `json:"backup,omitzero"`
	highest

	JobFloor  uint64        `json:"job_floor,omitzero"` // below every token of a job from now on
	LockEvent uint64        `json:"lock_event"`         // number of the last
	Counters  jobs.Counters `json:"counters"`
	Frozen    []string      `json:"frozen"`
}

// highest are the highest numbers there ever were.
type highest struct {
	Token    uint64 `json:"token"` // of locks
	Revision uint64 `json:"revision"`
	JobToken uint64 `json:"job_token"`
}

// By how much tokens and revisions jump: after a start that was not clean, when only changes may be missing that were
// not flushed or not acknowledged; and if it is not known how much is missing.
const (
	jumpUnclean = 1 << 20
	jumpLoss    = 1 << 32
)

// raise raises what will be given beyond anything that was, by what is known here and elsewhere.
func (s *state) raise(other highest, jump uint64) {
	s.Token = max(s.Token, other.Token) + jump
	s.Revision = max(s.Revision, other.Revision) + jump
	s.JobToken = max(s.JobToken, other.JobToken) + jump
	s.JobFloor = s.JobToken
}

const stateKey = "state"

func readState(read look) (s state, err error) {
	err = fmt.Errorf("%w: the database does not say what it is", lokt.ErrDamaged)
	if e := read("SELECT doc, sum FROM state", nil, func(from row) error {
		var d document
		if e := from.Scan(&d.text, &d.sum); e != nil {
			return e
		}
		err = d.open("what the database says about itself", stateKey, &s)
		return nil
	}); e != nil {
		err = e
	}
	return s, err
}

func (s *state) write(w *writer) {
	w.document(table{name: "state", columns: "id, doc, sum"}, stateKey, s, 1)
}

// clock is the time of a store. It goes on from where it was when the store was last changed, or from the wall clock
// if that is later, and then by the monotonic clock alone: no step of the wall clock moves it, and it never goes
// back.
type clock struct{ start, base time.Time }

// newClock returns a clock that is not behind the given time.
func newClock(notBefore time.Time) *clock {
	start := time.Now()
	return &clock{start, later(start.Round(0).UTC(), notBefore)}
}

func (c *clock) now() time.Time { return c.base.Add(time.Since(c.start)) }
