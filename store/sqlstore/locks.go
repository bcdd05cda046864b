package sqlstore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
)

// fileLocks are the locks in a database of SQLite: a lokt.Store and its lokt.EventLog. Those that are not free are in
// memory, as they were last committed. Of all others no more is kept than the highest token and revision there ever
// was: theirs from then on.
type fileLocks struct {
	closable
	db     *fileDB
	grown  alarm
	newest atomic.Uint64 // number of the last event

	mu              sync.Mutex
	all             map[string]*entry // that are not free, or are watched
	token, revision uint64
}

var (
	_ lokt.Store    = (*fileLocks)(nil)
	_ lokt.EventLog = (*fileLocks)(nil)
)

// entry is a lock in memory. The goroutine that commits changes it, with the mutex.
type entry struct {
	lock     lokt.Lock
	damaged  error         // why it cannot be read
	watchers lokt.Watchers // anybody's, with the mutex
}

// load replaces what is in memory by what is stored. It is for the goroutine that commits.
func (s *fileLocks) load() error {
	all, missing := map[string]*entry{}, map[string]int{}
	w, warn := s.db.write, s.db.options.warn
	if err := w.query("SELECT name, waiting, doc, sum FROM locks", nil, func(from row) error {
		var name string
		var waiting int
		var d document
		if err := from.Scan(&name, &waiting, &d.text, &d.sum); err != nil {
			return err
		}
		e := &entry{lock: lokt.Lock{Name: name}}
		if l, err := d.openLock(name, waiting, false); err != nil {
			e.lock.Name, e.damaged = strings.ToValidUTF8(name, "?"), err
			warn(err)
			_ = lokt.Unmarshal([]byte(d.text), &l) // has the right name, if the column's is what is damaged
			if l.Name != "" && all[l.Name] == nil {
				all[l.Name] = &entry{lock: lokt.Lock{Name: l.Name}, damaged: err}
			}
		} else {
			e.lock, missing[name] = l, waiting
		}
		all[name] = e
		return nil
	}); err != nil {
		return err
	}
	if err := w.query("SELECT lock, lease_id, doc, sum FROM waiters", nil, func(from row) error {
		var name, leaseID string
		var d document
		if err := from.Scan(&name, &leaseID, &d.text, &d.sum); err != nil {
			return err
		}
		if waiter, err := d.openWaiter(name, leaseID); err != nil {
			warn(err)
		} else if e := all[name]; e != nil {
			e.lock.Queue = append(e.lock.Queue, waiter)
			missing[name]--
		}
		return nil
	}); err != nil {
		return err
	}
	for name, e := range all {
		if sortQueue(e.lock.Queue); missing[name] != 0 {
			warn(fmt.Errorf("%w: queue of lock %s: %d are missing, who have to ask again", lokt.ErrDamaged, name, missing[name]))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeAll()
	s.all = all
	s.told()
	return nil
}

// told takes over what the database says about itself. Its caller holds the mutex.
func (s *fileLocks) told() {
	s.token, s.revision = s.db.state.Token, s.db.state.Revision
	s.newest.Store(s.db.state.LockEvent)
}

// get returns what is known of a lock. Its caller holds the mutex.
func (s *fileLocks) get(name string) *entry {
	if e := s.all[name]; e != nil {
		return e
	}
	return &entry{lock: lokt.Lock{Name: name, Token: s.token, Revision: s.revision}}
}

// forget forgets a lock that is free and not watched. Its caller holds the mutex.
func (s *fileLocks) forget(name string) {
	if e := s.all[name]; e != nil && e.lock.Free() && e.damaged == nil && e.watchers.None() {
		delete(s.all, name)
	}
}

// Update implements lokt.Store. change is run by another goroutine, while nothing else in the database changes: it
// must not use the database. If it panics, Update does.
func (s *fileLocks) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.group.perform(ctx, &request{name: name, change: change})
}

var (
	locksTable      = table{name: "locks", columns: "name, waiting, doc, sum"}
	lockEventsTable = table{name: "lock_events", columns: "first, last, since, until, locks, doc, sum"}
)

// write writes what the batch does to locks.
func (s *fileLocks) write(b *batch, next *state) {
	w := s.db.write
	for name, c := range b.locks {
		l := &c.lock
		next.Token, next.Revision = max(next.Token, l.Token), max(next.Revision, l.Revision)
		gone, put := l.QueueChange(&c.entry.lock)
		for _, leaseID := range gone {
			w.do("DELETE FROM waiters WHERE lock = ? AND lease_id = ?", name, leaseID)
		}
		for _, p := range put {
			w.document(waitersTable, waiterKey(name, p.LeaseID), p, name, p.LeaseID)
		}
		if l.Free() {
			w.do("DELETE FROM locks WHERE name = ?", name)
			continue
		}
		alone := *l
		alone.Queue = nil
		w.document(locksTable, lockKey(name, len(l.Queue), false), &alone, name, len(l.Queue))
	}
	if n := len(b.events); n > 0 {
		first := next.LockEvent + 1
		next.LockEvent += uint64(n)
		since, until := span(b.events)
		w.document(lockEventsTable, number(first), b.events,
			int64(first), int64(next.LockEvent), since, until, names(b.events))
	}
}

// publish makes what was committed visible, and wakes whom it concerns.
func (s *fileLocks) publish(b *batch) {
	s.mu.Lock()
	for name, c := range b.locks {
		e := s.all[name]
		if e == nil {
			e = c.entry
			s.all[name] = e
		}
		was := e.lock
		e.lock = c.lock
		e.watchers.Wake(&was, &c.lock)
		s.forget(name)
	}
	s.told()
	s.mu.Unlock()
	if len(b.events) > 0 {
		s.grown.ring()
	}
}

// View implements lokt.Store.
func (s *fileLocks) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	if err := s.usable(ctx); err != nil {
		return lokt.Snapshot{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.get(name)
	return lokt.Snapshot{Lock: e.lock, Now: s.db.clock.now()}, e.damaged
}

// List implements lokt.Store: the locks as they are at one moment.
func (s *fileLocks) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		begin := time.Now()
		if err := s.usable(ctx); err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		if f.Spent {
			s.listSpent(ctx, f.Prefix, yield)
			return
		}
		var all []entry
		s.mu.Lock()
		for _, e := range s.all {
			l := &e.lock
			there := e.damaged != nil || !l.Free() && (!f.Queued || len(l.Queue) > 0)
			if there && strings.HasPrefix(l.Name, f.Prefix) {
				all = append(all, entry{lock: *l, damaged: e.damaged})
			}
		}
		s.mu.Unlock()
		slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.lock.Name, b.lock.Name) })
		s.db.options.observe("list", begin, nil)
		for i := range all {
			if !yield(lokt.Snapshot{Lock: all[i].lock, Now: s.db.clock.now()}, all[i].damaged) {
				return
			}
		}
	}
}

// listSpent yields the locks of which something is over, and those that are damaged. The store goes on meanwhile: every thousand
// locks it lets others in.
func (s *fileLocks) listSpent(ctx context.Context, prefix string, yield func(lokt.Snapshot, error) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, now := 0, s.db.clock.now()
	for name, e := range s.all {
		snap, err := lokt.Snapshot{Lock: e.lock, Now: now}, e.damaged
		spent := strings.HasPrefix(name, prefix) && (err != nil || snap.Spent())
		if n++; !spent && n%1000 != 0 {
			continue
		}
		s.mu.Unlock()
		goesOn := ctx.Err() == nil && (!spent || yield(snap, err))
		s.mu.Lock()
		if now = s.db.clock.now(); !goesOn {
			return
		}
	}
}

// Wait implements lokt.Store. A watcher whose claim is queued behind others sleeps until it is first, or not queued.
func (s *fileLocks) Wait(ctx context.Context, watch lokt.Watch) error {
	s.mu.Lock()
	e := s.get(watch.Name)
	w := e.watchers.Watch(&e.lock, watch)
	if w != nil {
		s.all[watch.Name] = e
	}
	s.mu.Unlock()
	if err := s.usable(ctx); w == nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.watchers.Remove(w)
		s.forget(watch.Name)
	}()
	return s.await(ctx, w.Changed)
}

// await returns when something has happened, or nothing can any more.
func (s *fileLocks) await(ctx context.Context, happened <-chan struct{}) error {
	if err := s.usable(ctx); err != nil { // it may have been closed before it was asked to tell
		return err
	}
	select {
	case <-happened:
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
	s.wakeAll()
	return nil
}

func (s *fileLocks) wakeAll() {
	for _, e := range s.all {
		e.watchers.WakeAll()
	}
	s.grown.ring()
}

// ReadEvents implements lokt.EventLog.
func (s *fileLocks) ReadEvents(ctx context.Context, q lokt.EventQuery) (page lokt.EventPage, err error) {
	if err := s.usable(ctx); err != nil {
		return page, err
	}
	err = s.db.reading(ctx, "events", func(read look) error {
		st, err := readState(read)
		if err == nil {
			page, err = readEvents(read, fileEvents, q)
		}
		page.Newest = st.LockEvent
		return err
	})
	return page, err
}

// WaitEvents implements lokt.EventLog.
func (s *fileLocks) WaitEvents(ctx context.Context, after uint64) error {
	grown := s.grown.next()
	if s.newest.Load() > after {
		return s.usable(ctx)
	}
	return s.await(ctx, grown)
}
