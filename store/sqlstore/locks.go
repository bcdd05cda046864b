package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
)

// fileLocks are the locks in a database of SQLite: a lokt.Store and its lokt.EventLog. Locks that are not free are in memory, as they
// were last committed, and so are some that are.
type fileLocks struct {
	db     *fileDB
	closed atomic.Bool
	events *teller
	grown  alarm
	newest atomic.Uint64 // number of the last event that was stored

	mu      sync.Mutex
	all     map[string]*entry
	sweepAt int    // how many there are when free ones are forgotten
	floors  floors // of what is read
}

// entry is a lock in memory. The goroutine that commits changes it, with the mutex.
type entry struct {
	lock     lokt.Lock
	damaged  error         // why it cannot be read
	stored   bool          // it has a row
	watchers lokt.Watchers // anybody's, with the mutex
}

// maxFree is how many free locks are remembered in memory.
const maxFree = 50_000

func newLocks(d *fileDB) *fileLocks {
	return &fileLocks{db: d, events: newTeller(d.options.Events), all: map[string]*entry{}, sweepAt: maxFree}
}

// load replaces what is in memory by what is stored. It is for the goroutine that commits.
func (s *fileLocks) load() error {
	s.mu.Lock()
	s.floors = s.db.state.floors
	s.mu.Unlock()
	all := map[string]*entry{}
	waiting := map[string]int{}
	if err := s.db.write.query("SELECT name, waiting, free, doc, sum FROM locks", nil, func(rows *sql.Rows) error {
		name, n, e, err := s.scan(rows)
		if err == nil && (!e.lock.Free() || e.damaged != nil) {
			all[name], waiting[name] = e, n
		}
		return err
	}); err != nil {
		return err
	}
	if err := s.db.write.query("SELECT lock, lease_id, doc, sum FROM waiters", nil, func(rows *sql.Rows) error {
		var name, leaseID string
		var d document
		if err := rows.Scan(&name, &leaseID, &d.text, &d.sum); err != nil {
			return err
		}
		w, err := d.openWaiter(name, leaseID)
		if e := all[name]; err == nil && e != nil {
			e.lock.Queue = append(e.lock.Queue, w)
			waiting[name]--
		} else if err != nil {
			s.db.options.warn(err)
		}
		return nil
	}); err != nil {
		return err
	}
	for name, e := range all {
		sortQueue(e.lock.Queue)
		if e.damaged != nil {
			s.db.options.warn(e.damaged)
		} else if waiting[name] != 0 {
			s.db.options.warn(fmt.Errorf("%w: queue of lock %s: %d are missing who waited; they have to ask again", lokt.ErrDamaged, name, waiting[name]))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, e := range s.all {
		if !e.watchers.None() {
			e.watchers.WakeAll()
		}
		delete(s.all, name)
	}
	s.all = all
	s.newest.Store(s.db.state.LockEvent)
	s.grown.ring()
	return nil
}

// scan reads a row of locks.
func (s *fileLocks) scan(rows interface{ Scan(...any) error }) (name string, waiting int, e *entry, err error) {
	var d document
	var free bool
	if err := rows.Scan(&name, &waiting, &free, &d.text, &d.sum); err != nil {
		return name, 0, nil, err
	}
	e = &entry{stored: true}
	e.lock, e.damaged = d.openLock(name, waiting, free)
	if e.damaged != nil {
		e.lock = lokt.Lock{Name: name}
	}
	s.lift(&e.lock)
	return name, waiting, e, nil
}

// lift puts a lock that was read above the floors.
func (s *fileLocks) lift(l *lokt.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.Token, l.Revision = max(l.Token, s.floors.TokenFloor), max(l.Revision, s.floors.RevisionFloor)
}

// usable reports why the store cannot be used.
func (s *fileLocks) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	return nil
}

// Update implements lokt.Store. change is run by another goroutine, while nothing else in the database changes: it must not use the
// database. If it panics, Update does.
func (s *fileLocks) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.group.perform(ctx, &request{name: name, change: change})
}

// lookUp returns what was last committed about a lock. It is for the goroutine that commits.
func (s *fileLocks) lookUp(name string) (*entry, error) {
	s.mu.Lock()
	e := s.all[name]
	s.mu.Unlock()
	if e != nil {
		return e, e.damaged
	}
	e, err := s.find(name, func(statement string, scan func(*sql.Rows) error) error {
		return s.db.write.query(statement, []any{name}, scan)
	})
	if err != nil {
		return nil, translate(err)
	}
	e = s.remember(name, e)
	return e, e.damaged
}

// remember keeps a lock that was read in memory, unless somebody did so meanwhile.
func (s *fileLocks) remember(name string, e *entry) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.all[name]; have != nil {
		return have
	}
	s.all[name] = e
	return e
}

// find reads a lock that is not in memory, so free.
func (s *fileLocks) find(name string, query func(string, func(*sql.Rows) error) error) (*entry, error) {
	e := &entry{lock: lokt.Lock{Name: name}}
	s.lift(&e.lock)
	err := query("SELECT name, waiting, free, doc, sum FROM locks WHERE name = ?", func(rows *sql.Rows) (err error) {
		_, _, e, err = s.scan(rows)
		return err
	})
	return e, err
}

// lazy reports whether the batch says no more than that holders and waiters are still there, or that somebody was refused.
func (s *fileLocks) lazy(b *batch) bool {
	for _, c := range b.locks {
		if !c.entry.stored || !lazy(&c.entry.lock, &c.lock) {
			return false
		}
	}
	return true
}

// write writes what the batch does to locks.
func (s *fileLocks) write(b *batch, next *state) error {
	w := s.db.write
	for name, c := range b.locks {
		l := &c.lock
		d, err := sealLock(l)
		if err != nil {
			return err
		}
		if err := w.exec(`INSERT INTO locks (name, waiting, free, doc, sum) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET waiting = excluded.waiting, free = excluded.free, doc = excluded.doc, sum = excluded.sum`,
			name, len(l.Queue), l.Free(), d.text, d.sum); err != nil {
			return err
		}
		gone, put := queueChange(c.entry.lock.Queue, l.Queue)
		for _, leaseID := range gone {
			if err := w.exec("DELETE FROM waiters WHERE lock = ? AND lease_id = ?", name, leaseID); err != nil {
				return err
			}
		}
		for _, p := range put {
			d, err := sealWaiter(name, p)
			if err != nil {
				return err
			}
			if err := w.exec(`INSERT INTO waiters (lock, lease_id, doc, sum) VALUES (?, ?, ?, ?)
				ON CONFLICT (lock, lease_id) DO UPDATE SET doc = excluded.doc, sum = excluded.sum`, name, p.LeaseID, d.text, d.sum); err != nil {
				return err
			}
		}
		next.Token, next.Revision = max(next.Token, l.Token), max(next.Revision, l.Revision)
	}
	for _, events := range b.events {
		first := next.LockEvent + 1
		next.LockEvent += uint64(len(events))
		d, err := sealEvents(first, events)
		if err != nil {
			return err
		}
		since, until := span(events)
		if err := w.exec("INSERT INTO lock_events (first, last, since, until, lock, doc, sum) VALUES (?, ?, ?, ?, ?, ?, ?)",
			int64(first), int64(next.LockEvent), since, until, events[0].Name, d.text, d.sum); err != nil {
			return err
		}
	}
	return s.trim(b.now, next)
}

// span returns the times of the earliest and the latest event, in nanoseconds.
func span(events []lokt.Event) (since, until int64) {
	since, until = events[0].Time.UnixNano(), events[0].Time.UnixNano()
	for i := range events {
		t := events[i].Time.UnixNano()
		since, until = min(since, t), max(until, t)
	}
	return since, until
}

// When the oldest events are looked at: after so many more, or so much time; and how many rows are looked at.
const (
	trimAfter = 256
	trimEvery = time.Hour
	trimRows  = 2 * trimAfter
)

// trim forgets some of the oldest events that are too old or too many.
func (s *fileLocks) trim(now time.Time, next *state) error {
	d := s.db
	if d.untrimmed += int(next.LockEvent - d.state.LockEvent); d.untrimmed < trimAfter && now.Sub(d.trimmed) < trimEvery {
		return nil
	}
	rows := max(trimRows, 2*d.untrimmed)
	d.untrimmed, d.trimmed = 0, now
	upTo, before := int64(-1), int64(-1<<63)
	if keep := d.options.KeepEvents; keep >= 0 {
		upTo = int64(next.LockEvent) - int64(keep)
	}
	if keep := d.options.KeepEventsFor; keep >= 0 {
		before = now.Add(-keep).UnixNano()
	}
	if err := d.write.exec(`DELETE FROM lock_events WHERE first IN (
		SELECT first FROM (SELECT first, last, until FROM lock_events ORDER BY first LIMIT ?) WHERE last <= ? OR until < ?)`, rows, upTo, before); err != nil {
		return err
	}
	return d.write.script("PRAGMA incremental_vacuum(64)")
}

// publish makes what was committed visible, and wakes whom it concerns.
func (s *fileLocks) publish(b *batch) {
	s.mu.Lock()
	for _, c := range b.locks {
		was := c.entry.lock
		c.entry.lock, c.entry.stored = c.lock, true
		c.entry.watchers.Wake(&was, &c.lock)
	}
	if len(s.all) > s.sweepAt {
		for name, e := range s.all {
			if e.lock.Free() && e.damaged == nil && e.watchers.None() {
				delete(s.all, name)
			}
		}
		s.sweepAt = len(s.all) + maxFree
	}
	s.mu.Unlock()
	s.newest.Store(s.db.state.LockEvent)
	for _, events := range b.events {
		s.events.add(events)
	}
	if len(b.events) > 0 {
		s.grown.ring()
	}
}

// entry returns what is known of a lock, which is read if it is not in memory, and remembered if it is watched.
func (s *fileLocks) entry(ctx context.Context, name string) (*entry, error) {
	s.mu.Lock()
	e := s.all[name]
	s.mu.Unlock()
	if e != nil {
		return e, nil
	}
	err := s.db.reading(ctx, "view", func(tx *sql.Tx) (err error) {
		e, err = s.find(name, func(statement string, scan func(*sql.Rows) error) error {
			rows, err := tx.QueryContext(ctx, statement, name)
			return each(rows, err, scan)
		})
		return err
	})
	return e, err
}

// View implements lokt.Store.
func (s *fileLocks) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	if err := s.usable(ctx); err != nil {
		return lokt.Snapshot{}, err
	}
	e, err := s.entry(ctx, name)
	if err != nil {
		return lokt.Snapshot{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return lokt.Snapshot{Lock: e.lock, Now: s.db.clock.now()}, e.damaged
}

// List implements lokt.Store. Each lock is as it was when the sequence came to it.
func (s *fileLocks) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		begin := time.Now()
		if err := s.usable(ctx); err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		names := s.names(f)
		s.db.options.observe("list", begin, nil)
		for _, name := range names {
			if err := s.usable(ctx); err != nil {
				yield(lokt.Snapshot{Lock: lokt.Lock{Name: name}}, err)
				return
			}
			s.mu.Lock()
			e := s.all[name]
			var snap lokt.Snapshot
			shown := e != nil && listed(e, f)
			if shown {
				snap = lokt.Snapshot{Lock: e.lock, Now: s.db.clock.now()}
			}
			s.mu.Unlock()
			if shown && !yield(snap, e.damaged) {
				return
			}
		}
	}
}

// names returns those that the filter lets through, in order.
func (s *fileLocks) names(f lokt.Filter) []string {
	s.mu.Lock()
	var names []string
	for name, e := range s.all {
		if listed(e, f) {
			names = append(names, name)
		}
	}
	s.mu.Unlock()
	slices.Sort(names)
	return names
}

func listed(e *entry, f lokt.Filter) bool {
	return strings.HasPrefix(e.lock.Name, f.Prefix) && (e.damaged != nil || !e.lock.Free() && (!f.Queued || len(e.lock.Queue) > 0))
}

// Wait implements lokt.Store. A watcher whose claim is queued behind others sleeps until it is first, or not queued.
func (s *fileLocks) Wait(ctx context.Context, watch lokt.Watch) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	e, err := s.entry(ctx, watch.Name)
	if err != nil {
		return err
	}
	e = s.remember(watch.Name, e)
	s.mu.Lock()
	w := e.watchers.Watch(&e.lock, watch)
	s.mu.Unlock()
	if w == nil {
		return e.damaged
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.watchers.Remove(w)
	}()
	if err := s.usable(ctx); err != nil { // it may have been closed since
		return err
	}
	select {
	case <-w.Changed:
		return s.usable(context.WithoutCancel(ctx))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close makes every later call fail, and waits return. The database stays open.
func (s *fileLocks) Close() error {
	s.closed.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.all {
		e.watchers.WakeAll()
	}
	s.grown.ring()
	return nil
}

// ReadEvents implements lokt.EventLog.
func (s *fileLocks) ReadEvents(ctx context.Context, q lokt.EventQuery) (page lokt.EventPage, err error) {
	if err := s.usable(ctx); err != nil {
		return page, err
	}
	statement, args := selectEvents(q, func(int) string { return "?" })
	err = s.db.reading(ctx, "events", func(tx *sql.Tx) error {
		page = lokt.EventPage{Newest: s.newest.Load()}
		p := newPager(q, &page)
		if err := tx.QueryRowContext(ctx, "SELECT coalesce(min(first), 0), coalesce(max(last), 0) FROM lock_events").Scan(&page.Oldest, &page.Newest); err != nil {
			return err
		}
		page.Newest = max(page.Newest, s.newest.Load())
		rows, err := tx.QueryContext(ctx, statement, args...)
		err = each(rows, err, func(rows *sql.Rows) error {
			var first uint64
			var lock string
			var since int64
			var d document
			if err := rows.Scan(&first, &lock, &since, &d.text, &d.sum); err != nil {
				return err
			}
			if !p.add(d.openEvents(number(first), lock, first, since)) {
				return errEnough
			}
			return nil
		})
		p.end()
		if errors.Is(err, errEnough) {
			return nil
		}
		return err
	})
	return page, err
}

// WaitEvents implements lokt.EventLog.
func (s *fileLocks) WaitEvents(ctx context.Context, after uint64) error {
	grown := s.grown.next()
	if err := s.usable(ctx); err != nil {
		return err
	}
	if s.newest.Load() > after {
		return nil
	}
	select {
	case <-grown:
		return s.usable(context.WithoutCancel(ctx))
	case <-ctx.Done():
		return ctx.Err()
	}
}
