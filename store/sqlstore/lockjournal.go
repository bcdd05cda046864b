package sqlstore

// The journal of locks. What a transaction changed about locks, and the events of that, are stored as one row. The rows of the tables
// for locks and of their events are written later, those of many transactions at once: most locks are taken and released again within
// a moment, and a row of each table is a page of each to be flushed.

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
)

// lockJournal is what is in the journal of locks and not in the tables.
type lockJournal struct {
	// Also for readers: these are the lock's of fileLocks to guard, and changed by the goroutine that commits only.
	tables map[string]*entry  // what the tables have of locks that became something else
	events []lokt.LoggedEvent // those that are stored; entries are never changed
	timer  *time.Timer        // folds; nil if none runs

	// For the goroutine that commits only.
	last   int64     // number of the last row
	size   int       // how much is to be written
	packed int       // bytes of the rows
	at     time.Time // of the last change
	body   []byte    // of a row, to be used again
}

// foldLocksSize is after how many changes and events the rows of the tables are written: writing those of many takes no longer for
// each, and others wait for it.
const foldLocksSize = 512

// unfolded reports whether something is in the journal only. It is for the goroutine that commits.
func (s *fileLocks) unfolded() bool { return len(s.journal.tables) > 0 || len(s.journal.events) > 0 }

// insertLocks adds a row to the journal.
const insertLocks = "INSERT INTO lock_journal (id, body) VALUES (?, ?)"

// prepare finds out how the batch is to be stored: in the journal, or, if that has become long, with what is in it in the tables.
func (s *fileLocks) prepare(b *batch) {
	b.events, b.body = 0, nil
	for _, told := range b.told {
		b.events += len(told)
	}
	size := s.journal.size + len(b.locks) + b.events
	long := size >= foldLocksSize || s.events.sinceTrim+b.events >= trimAfter
	fold := b.foldLocks || long && !s.db.spares(b, size, s.journal.packed)
	for name, e := range b.locks {
		putInOrder(b.were[name], e)
		e.changed = b.now
		fold = fold || !journalable(&e.lock)
	}
	if len(b.locks) == 0 && b.events == 0 && !b.foldLocks {
		return
	}
	if b.foldLocks = fold; fold {
		return
	}
	e := lockEntry{at: b.now, locks: make([]lockChange, 0, len(b.locks)), first: s.events.newest.Load() + 1, events: slices.Concat(b.told...)}
	for name, is := range b.locks {
		e.locks = append(e.locks, difference(b.were[name], is))
	}
	body := packLocks(s.journal.body[:0], &e)
	if s.journal.body = body; len(body) > keptBody {
		s.journal.body = nil
	}
	if b.foldLocks = len(body) > mostBody; !b.foldLocks {
		b.body = body
	}
}

// write stores the batch as it was prepared.
func (s *fileLocks) write(ctx context.Context, q querier, b *batch) error {
	switch {
	case b.foldLocks:
		if err := s.db.mayFold(b); err != nil {
			return err
		}
		return s.fold(ctx, q, b)
	case b.body != nil:
		return q.exec(ctx, insertLocks, s.journal.last+1, b.body)
	}
	return nil
}

// fold writes the rows of what is in the journal and of what the batch changed, and empties the journal.
func (s *fileLocks) fold(ctx context.Context, q querier, b *batch) error {
	for name, was := range s.journal.tables {
		is := b.locks[name]
		if is == nil {
			is = s.cached(name)
		}
		if err := writeLock(ctx, q, was, is, is.changed); err != nil {
			return err
		}
	}
	for name, is := range b.locks {
		if s.journal.tables[name] != nil {
			continue
		}
		if err := writeLock(ctx, q, b.were[name], is, is.changed); err != nil {
			return err
		}
	}
	j := &joined{querier: q, insertions: &s.insertions}
	if err := s.events.write(ctx, j, s.journal.events, b); err != nil {
		return err
	}
	if err := j.flush(ctx); err != nil {
		return err
	}
	if err := q.exec(ctx, "UPDATE state SET clock = max(clock, ?), lock_event = ?", b.now.UnixNano(), s.events.newest.Load()+uint64(b.events)); err != nil {
		return err
	}
	return q.exec(ctx, "DELETE FROM lock_journal")
}

// stored takes note of what was committed. It is called with the lock's guard.
func (s *fileLocks) stored(b *batch) {
	j := &s.journal
	if b.foldLocks {
		j.tables, j.events, j.size, j.packed = map[string]*entry{}, nil, 0, 0
		return
	}
	if len(b.locks) == 0 && b.events == 0 {
		return
	}
	for name := range b.locks {
		if j.tables[name] == nil {
			j.tables[name] = b.were[name]
		}
	}
	seq := s.events.newest.Load()
	for _, told := range b.told {
		for i := range told {
			seq++
			j.events = append(j.events, logged(seq, &told[i]))
		}
	}
	j.last, j.size, j.packed, j.at = j.last+1, j.size+len(b.locks)+b.events, j.packed+len(b.body), b.now
	s.arm(s.foldAfter)
}

// logged is an event as it will be read from the table.
func logged(seq uint64, e *lokt.Event) lokt.LoggedEvent {
	l := lokt.LoggedEvent{Seq: seq, Event: *e}
	l.Time, l.Expires = plain(e.Time), plain(e.Expires)
	if l.Extra = nil; len(e.Extra) > 0 { // observers have the other
		l.Extra = maps.Clone(e.Extra)
	}
	return l
}

// plain is a time as it is stored.
func plain(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return time.Unix(0, unixNano(t)).UTC()
}

// arm has the rows of what is in the journal written after a while. It is called with the lock's guard.
func (s *fileLocks) arm(after time.Duration) {
	if s.journal.timer == nil && s.unfolded() {
		s.journal.timer = time.AfterFunc(after, s.settle)
	}
}

// settle has the rows of what is in the journal written.
func (s *fileLocks) settle() {
	s.mu.Lock()
	s.journal.timer = nil
	s.mu.Unlock()
	begin := time.Now()
	if err := s.db.group.perform(context.Background(), &request{fold: true}); err == nil || errors.Is(err, errClosed) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arm(max(10*s.foldAfter, foldFactor*time.Since(begin))) // it is in the journal, and may be there for longer
}

// replay adds what the journal has to what was read of the tables, and returns what is then in the journal only. It writes nothing.
func (s *fileLocks) replay(ctx context.Context, q querier, all map[string]*entry, newest uint64) (lockJournal, error) {
	j := lockJournal{tables: map[string]*entry{}}
	var entries []*lockEntry
	if err := q.query(ctx, "SELECT id, body FROM lock_journal ORDER BY id", nil, func(r *row) error {
		j.last = r.number()
		body := r.bytes()
		j.packed += len(body)
		e, err := unpackLocks(body)
		if err != nil {
			return damagedRow("lock_journal", j.last, err)
		}
		entries = append(entries, e)
		return nil
	}); err != nil {
		return j, err
	}
	changes := map[string][]*lockChange{}
	last := map[string]time.Time{}
	for _, e := range entries {
		for i := range e.locks {
			name := e.locks[i].name
			changes[name], last[name] = append(changes[name], &e.locks[i]), e.at
		}
		for i := range e.events {
			if seq := e.first + uint64(i); seq > newest {
				j.events = append(j.events, logged(seq, &e.events[i]))
			}
		}
		j.size, j.at = j.size+len(e.locks)+len(e.events), e.at
	}
	for name, of := range changes {
		was := all[name]
		if was == nil {
			found, err := readLocks(ctx, q, named(name), s.unknown)
			if err != nil {
				return j, err
			}
			if was = found[name]; was == nil {
				was = s.unknown(name)
			}
		}
		is := total(of).after(was)
		is.changed = last[name]
		j.tables[name], all[name] = was, is
	}
	return j, nil
}

// finish writes the rows of what is in the journal, when nobody else uses the database: it is opened, or about to be closed.
func (s *fileLocks) finish(ctx context.Context, q querier) error {
	s.mu.Lock()
	if s.journal.timer != nil {
		s.journal.timer.Stop()
	}
	s.mu.Unlock()
	if !s.unfolded() {
		return nil
	}
	return atomically(ctx, q, func() error { return s.fold(ctx, q, &batch{now: s.journal.at}) })
}

// ReadEvents implements lokt.EventLog. Events that are in the journal are added as of the moment that a reader sees: what it finds in the
// tables already is not taken from what was in the journal before that.
func (s *fileLocks) ReadEvents(ctx context.Context, q lokt.EventQuery) (lokt.EventPage, error) {
	if err := s.usable(ctx); err != nil {
		return lokt.EventPage{}, err
	}
	s.mu.Lock()
	rest := s.journal.events
	s.mu.Unlock()
	return readEvents(ctx, s.db.reading, newestNumber, q, rest)
}

// addEvents adds what the query finds of events that are in none of the tables, whose newest is given, to the first limit that it
// found there.
func addEvents(page *lokt.EventPage, q lokt.EventQuery, limit int, rest []lokt.LoggedEvent) {
	for len(rest) > 0 && rest[0].Seq <= page.Newest {
		rest = rest[1:]
	}
	if len(rest) == 0 {
		return
	}
	page.Newest = rest[len(rest)-1].Seq
	if page.Oldest == 0 {
		page.Oldest = rest[0].Seq
	}
	var found []lokt.LoggedEvent
	for _, e := range rest {
		if finds(q, &e) {
			e.Event = cloneEvents([]lokt.Event{e.Event})[0]
			found = append(found, e)
		}
	}
	if q.Latest {
		slices.Reverse(found)
		page.Events = append(found, page.Events...)
	} else {
		page.Events = append(page.Events, found...)
	}
	page.Events = page.Events[:min(len(page.Events), limit)]
}

// finds reports whether a query lets an event through, as selectEvents says it to the database.
func finds(q lokt.EventQuery, e *lokt.LoggedEvent) bool {
	return e.Seq > q.After && (q.Before == 0 || e.Seq < q.Before) && (q.Name == "" || e.Name == q.Name) &&
		(q.Prefix == "" || len(e.Name) >= len(q.Prefix) && e.Name[:len(q.Prefix)] == q.Prefix) &&
		(q.Owner == "" || e.Owner.ID == q.Owner) && (len(q.Types) == 0 || slices.Contains(q.Types, e.Type)) &&
		(q.Since.IsZero() || !e.Time.IsZero() && !e.Time.Before(q.Since)) && (q.Until.IsZero() || !e.Time.IsZero() && e.Time.Before(q.Until))
}
