package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// fileJobs are the jobs in a database of SQLite. It belongs to one manager at a time, which has in memory what lives.
//
// What a turn changed is stored as one row of a journal. The rows of the tables for jobs are written later, those of many turns at
// once, with what became of them in the end: most jobs change several times within a moment.
type fileJobs struct {
	*jobReader
	db *fileDB

	mu      sync.Mutex
	pending []turnChanges // stored in the journal only; entries are never changed
	timer   *time.Timer   // folds; nil if none runs

	// For the goroutine that commits only.
	ended      int64  // how many jobs that ended are stored; -1 if that is not known
	fresh      int    // how many rows wait to be added up
	size       int    // of what is pending
	packed     int    // bytes of its rows in the journal
	last       int64  // number of the last turn in the journal
	newest     uint64 // number of the newest job
	folded     uint64 // number of the newest job of which the tables have rows, if it lives
	body       []byte // of an entry of the journal, to be used again
	insertions insertions
	behind     bool // there was no room for the rows of what is in the journal: they are written before anything else about jobs is
}

// keptBody is the largest entry whose memory is used again. What is larger than mostBody is not worth storing twice, and may be more than
// a row can hold.
const (
	keptBody = 256 << 10
	mostBody = 4 << 20
)

// turnChanges is what a turn changed.
type turnChanges struct {
	id int64 // in the journal
	at time.Time
	*jobs.Changes
}

func changesOf(turns []turnChanges) []*jobs.Changes {
	all := make([]*jobs.Changes, len(turns))
	for i := range turns {
		all[i] = turns[i].Changes
	}
	return all
}

// When the rows of the tables are written: when so much has changed, or so much time has passed.
const (
	foldSize  = 2048
	foldEvery = 100 * time.Millisecond
)

var _ jobs.Store = (*fileJobs)(nil)

func newJobs(d *fileDB) *fileJobs {
	const hasTag = "s.tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(s.tags) t WHERE t.value = ?)"
	return &fileJobs{jobReader: &jobReader{reading: d.reading, hasTag: hasTag}, db: d}
}

// load forgets what was known of the database, and writes the rows of what its journal has.
func (s *fileJobs) load(ctx context.Context, q querier) error {
	if err := s.replay(ctx, q); err != nil {
		return err
	}
	newest, err := one(ctx, q, "SELECT job_seq FROM job_state")
	if err != nil {
		return err
	}
	n, err := one(ctx, q, "SELECT count(*) FROM stats_new")
	s.ended, s.fresh, s.size, s.newest, s.folded = -1, int(n), 0, uint64(newest), uint64(newest)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending, s.packed, s.behind = nil, 0, false
	return nil
}

// replay writes the rows of every turn in the journal.
func (s *fileJobs) replay(ctx context.Context, q querier) error {
	left, err := one(ctx, q, "SELECT count(*) FROM job_journal")
	if err != nil || left == 0 {
		return err
	}
	return atomically(ctx, q, func() error { return s.replayRows(ctx, q) })
}

// replayRows does so within a transaction.
func (s *fileJobs) replayRows(ctx context.Context, q querier) error {
	var all []*jobs.Changes
	if err := q.query(ctx, "SELECT id, body FROM job_journal ORDER BY id", nil, func(r *row) error {
		id := r.number()
		s.last = max(s.last, id)
		c, err := unpackChanges(r.bytes())
		if err != nil {
			return damagedRow("job_journal", id, err)
		}
		all = append(all, c)
		return nil
	}); err != nil {
		return err
	}
	for _, c := range all { // not merged: they have only what changed about a job
		if err := s.rows(ctx, q, c, 0); err != nil {
			return err
		}
	}
	return q.exec(ctx, "DELETE FROM job_journal")
}

// rows writes the rows of what was changed. The tables have those of jobs with numbers up to stored; 0: that is not known.
func (s *fileJobs) rows(ctx context.Context, q querier, c *jobs.Changes, stored uint64) error {
	j := &joined{querier: q, insertions: &s.insertions}
	if err := writeChanges(ctx, j, c, stored, &s.fresh); err != nil {
		return err
	}
	if err := j.flush(ctx); err != nil {
		return err
	}
	return q.exec(ctx, "UPDATE job_state SET job_seq = ?, job_revision = ?, job_event = ?, job_clock = ?",
		c.Counters.Seq, c.Counters.Revision, c.Counters.Event, c.Counters.Clock)
}

// Update implements jobs.Store. The turn may be run by another goroutine: it must not use the database. If it panics, Update does.
func (s *fileJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.group.perform(ctx, &request{turn: turn})
}

// sizeOf returns how much there is to be written of what a turn changed.
func sizeOf(c *jobs.Changes) int {
	return len(c.Jobs) + len(c.Leases) + len(c.Unleased) + len(c.Attempts) + len(c.Ended) + len(c.Keys) + len(c.Dropped) + len(c.Answered) +
		len(c.Forgot) + len(c.Events) + len(c.Counts) + len(c.Frozen)
}

// write stores what the batch's turns changed: in the journal, or, if that has become long, with what is pending in the tables.
func (s *fileJobs) write(ctx context.Context, q querier, b *batch) error {
	size := s.size
	b.packed = 0
	for _, c := range b.jobs {
		size += sizeOf(c)
		b.fold = b.fold || c.Refrozen // seldom, and could be refused
	}
	if b.fold = b.fold || size >= foldSize && !s.db.spares(b, size, s.packed); b.fold {
		return s.foldAt(ctx, q, b)
	}
	known := s.newest
	for i, c := range b.jobs {
		if s.body = packChanges(s.body[:0], c, known); len(s.body) > mostBody {
			s.body, b.fold = nil, true
			return s.foldAt(ctx, q, b)
		}
		known, b.packed = max(known, c.Counters.Seq), b.packed+len(s.body)
		if err := q.exec(ctx, "INSERT INTO job_journal (id, body) VALUES (?, ?)", s.last+int64(i)+1, s.body); err != nil {
			return err
		}
	}
	if cap(s.body) > keptBody {
		s.body = nil
	}
	return nil
}

// foldAt does what fold does for a batch, and notes when: what has ended by then is not to be revived.
func (s *fileJobs) foldAt(ctx context.Context, q querier, b *batch) error {
	if err := s.db.mayFold(b); err != nil {
		return err
	}
	if err := s.fold(ctx, q, b.jobs); err != nil {
		return err
	}
	return q.exec(ctx, "UPDATE state SET clock = ?", b.now.UnixNano())
}

// fold writes the rows of what is pending, and then of what else was changed, and empties the journal.
func (s *fileJobs) fold(ctx context.Context, q querier, more []*jobs.Changes) error {
	all := append(changesOf(s.unfolded()), more...)
	if len(all) == 0 {
		return nil
	}
	if err := s.rows(ctx, q, merge(all), s.folded); err != nil {
		return err
	}
	return q.exec(ctx, "DELETE FROM job_journal")
}

// unfolded returns what is in the journal only.
func (s *fileJobs) unfolded() []turnChanges {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}

// stored takes note of what was committed.
func (s *fileJobs) stored(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.fold {
		s.pending, s.size, s.packed = nil, 0, 0
	} else {
		s.packed += b.packed
	}
	for _, c := range b.jobs {
		if s.newest = max(s.newest, c.Counters.Seq); s.ended >= 0 {
			s.ended += int64(len(c.Ended))
		}
		if !b.fold {
			s.last++
			s.pending, s.size = append(s.pending, turnChanges{s.last, time.Now(), c}), s.size+sizeOf(c)
		}
	}
	if b.fold {
		s.folded = s.newest
	}
	if len(b.jobs) > 0 && len(b.writes) > 0 {
		s.ended = -1 // they may have been counted within the transaction
	}
	if len(s.pending) > 0 && s.timer == nil {
		s.timer = time.AfterFunc(foldEvery, s.settle)
	}
}

// settle has the rows of what is pending written.
func (s *fileJobs) settle() {
	s.mu.Lock()
	s.timer = nil
	s.mu.Unlock()
	begin := time.Now()
	if err := s.db.group.perform(context.Background(), &request{fold: true}); err == nil || errors.Is(err, errClosed) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil { // it is in the journal, and may be there for longer
		s.timer = time.AfterFunc(max(foldPause, foldFactor*time.Since(begin)), s.settle)
	}
}

// finish writes the rows of what is pending when the database is about to be closed and nobody else uses it.
func (s *fileJobs) finish(ctx context.Context, q querier) error {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	if s.behind || len(s.unfolded()) == 0 { // whoever opens it next writes what the journal has
		return nil
	}
	return atomically(ctx, q, func() error { return s.fold(ctx, q, nil) })
}

// beside returns what is in the journal only, of the database as a reader sees it. It is called outside of any transaction, so that
// nothing that was acknowledged before can be missing in both; what a reader finds in the tables already is no longer in the
// journal that it sees.
func (s *fileJobs) beside() unfolded {
	pending := s.unfolded()
	if len(pending) == 0 {
		return nil
	}
	return func(ctx context.Context, c querier) (rest []*jobs.Changes, err error) {
		oldest := int64(math.MaxInt64)
		err = c.query(ctx, "SELECT id FROM job_journal ORDER BY id LIMIT 1", nil, func(r *row) error {
			oldest = r.number()
			return nil
		})
		for _, p := range pending {
			if p.id >= oldest {
				rest = append(rest, p.Changes)
			}
		}
		return rest, err
	}
}

// Ended implements jobs.Store.
func (s *fileJobs) Ended(ctx context.Context, jobID string) (jobs.Job, []jobs.Attempt, error) {
	return s.endedBeside(ctx, jobID, s.beside())
}

// ListEnded implements jobs.Store.
func (s *fileJobs) ListEnded(ctx context.Context, f jobs.Filter, below uint64, limit int) ([]jobs.Job, error) {
	return s.listBeside(ctx, f, below, limit, s.beside())
}

// History implements jobs.Store.
func (s *fileJobs) History(ctx context.Context, from time.Time) ([]jobs.Tally, []jobs.Count, error) {
	return s.historyBeside(ctx, from, s.beside())
}

// Events returns what jobReader.Events does.
func (s *fileJobs) Events(ctx context.Context, after uint64, limit int) ([]jobs.Event, error) {
	return s.eventsBeside(ctx, after, limit, s.beside())
}

// Trim implements jobs.Store. Events go when they are older than every job that is kept, or too many.
func (s *fileJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (n int, err error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	err = s.db.group.perform(ctx, &request{fold: true, write: func(ctx context.Context, c querier) error {
		n, err = s.trim(ctx, c, before, keep, atMost)
		return err
	}})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (s *fileJobs) trim(ctx context.Context, c querier, before time.Time, keep, atMost int) (int, error) {
	if s.ended < 0 {
		n, err := one(ctx, c, "SELECT count(*) FROM ended")
		if err != nil {
			return 0, err
		}
		s.ended = n
	}
	beyond := int64(0)
	if keep >= 0 {
		beyond = max(s.ended-int64(keep), 0)
	}
	n, err := trimJobs(ctx, c, beyond, before, atMost)
	if err != nil {
		return 0, err
	}
	if err := trimJobEvents(ctx, c, before, int64(s.db.options.KeepEvents), atMost); err != nil {
		return 0, err
	}
	if n > 0 {
		s.ended = -1 // until it is committed, and counted
		if err := shrink(ctx, c); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Load implements jobs.Store.
func (s *fileJobs) Load(ctx context.Context) (rows jobs.Rows, err error) {
	if err := s.usable(ctx); err != nil {
		return rows, err
	}
	// Only a request finds out what is stored after a transaction of which that is not known.
	if err := s.db.group.perform(ctx, &request{fold: true}); err != nil && !isCramped(err) {
		return rows, err
	}
	pending := s.unfolded() // for want of room
	if rows, err = s.read(ctx); err != nil {
		return jobs.Rows{}, err
	}
	amend(&rows, changesOf(pending))
	if err := check(&rows); err != nil {
		return jobs.Rows{}, fmt.Errorf("%w: %w: jobs of database %s: %w", lokt.ErrUnavailable, lokt.ErrDamaged, s.db.path, err)
	}
	return rows, nil
}
