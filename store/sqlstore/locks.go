package sqlstore

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
)

// fileLocks are the locks in a database: a lokt.Store and its lokt.EventLog. Locks that are not free, and some that are, are
// also in memory, as they were last committed.
type fileLocks struct {
	db     *fileDB
	events *events
	watch  watchers
	closed atomic.Bool

	insertions insertions // for the goroutine that commits only

	mu            sync.Mutex
	cache         map[string]*entry // every lock that is not free
	free          int               // how many of them are
	mostFree      int               // how many may be
	foldAfter     time.Duration     // how long something may be in the journal only
	tokenFloor    uint64            // no lock's token or revision is below these
	revisionFloor uint64
	journal       lockJournal
}

var (
	_ lokt.Store    = (*fileLocks)(nil)
	_ lokt.EventLog = (*fileLocks)(nil)
)

// maxFree is how many free locks are remembered in memory.
const maxFree = 50_000

func newLocks(d *fileDB) *fileLocks {
	return &fileLocks{db: d, events: newEvents(d.options), mostFree: maxFree, foldAfter: foldEvery}
}

// load replaces what is in memory by what is stored.
func (s *fileLocks) load(ctx context.Context, q querier) error {
	var tokens, revisions uint64
	if err := q.query(ctx, "SELECT token_floor, revision_floor FROM state", nil, func(r *row) error {
		tokens, revisions = r.count(), r.count()
		return nil
	}); err != nil {
		return err
	}
	s.mu.Lock()
	s.tokenFloor, s.revisionFloor = tokens, revisions
	s.mu.Unlock()
	all, err := readLocks(ctx, q, notFree(), s.unknown)
	if err != nil {
		return err
	}
	newest, err := newestNumber(ctx, q)
	if err != nil {
		return err
	}
	journal, err := s.replay(ctx, q, all, newest)
	if err != nil {
		return err
	}
	if n := len(journal.events); n > 0 {
		newest = journal.events[n-1].Seq
	}
	s.mu.Lock()
	journal.timer = s.journal.timer
	s.cache, s.free, s.journal = all, 0, journal
	for _, e := range all {
		if e.lock.Free() {
			s.free++
		}
	}
	s.mu.Unlock()
	s.events.load(newest)
	s.watch.wakeAll()
	return nil
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

// Update implements lokt.Store. change is run, maybe by another goroutine, while nothing else in the database changes: it must not
// use the database. If it panics, Update does.
func (s *fileLocks) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.group.perform(ctx, &request{name: name, change: change})
}

// decide runs a request's change.
func (s *fileLocks) decide(ctx context.Context, b *batch, r *request) error {
	have := b.locks[r.name]
	if have == nil {
		was, err := s.lookUp(ctx, s.db.writer, r.name)
		if err != nil {
			return translate(err)
		}
		b.were[r.name], have = was, was
	}
	b.run(r, have, s.db.clock.now())
	return nil
}

// cached returns what is in memory about a lock, or nil.
func (s *fileLocks) cached(name string) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cache[name]
}

// lookUp returns what was last committed about a lock.
func (s *fileLocks) lookUp(ctx context.Context, q querier, name string) (*entry, error) {
	if e := s.cached(name); e != nil {
		return e, nil
	}
	found, err := readLocks(ctx, q, named(name), s.unknown)
	if err != nil {
		return nil, err
	}
	if e := found[name]; e != nil {
		return e, nil
	}
	return s.unknown(name), nil
}

// unknown is a lock that nobody ever had.
func (s *fileLocks) unknown(name string) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &entry{lock: lokt.Lock{Name: name, Token: s.tokenFloor, Revision: s.revisionFloor}}
}

// lazy reports whether the batch says no more than that holders and waiters are still there, or that somebody was refused.
func (s *fileLocks) lazy(b *batch) bool {
	for name, e := range b.locks {
		if was := b.were[name]; !was.stored || !onlyRenewed(&was.lock, &e.lock) {
			return false
		}
	}
	return true
}

// publish makes what was committed visible, and wakes whom it concerns.
func (s *fileLocks) publish(b *batch) {
	s.mu.Lock()
	s.stored(b)
	for name, e := range b.locks {
		if was := s.cache[name]; was != nil && was.lock.Free() {
			s.free--
		}
		if e.lock.Free() {
			s.free++
		}
		s.cache[name] = e
	}
	if s.free > s.mostFree {
		for name, e := range s.cache {
			if e.lock.Free() && s.journal.tables[name] == nil { // or the tables have another state of it
				delete(s.cache, name)
				s.free--
			}
		}
	}
	s.mu.Unlock()
	for _, e := range b.locks {
		s.watch.wake(&e.lock)
	}
	s.events.publish(b)
}

// View implements lokt.Store.
func (s *fileLocks) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	if err := s.usable(ctx); err != nil {
		return lokt.Snapshot{}, err
	}
	e := s.cached(name)
	if e == nil {
		if err := s.db.reading(ctx, "view", func(q querier) (err error) {
			e, err = s.lookUp(ctx, q, name)
			return err
		}); err != nil {
			return lokt.Snapshot{}, err
		}
	}
	return lokt.Snapshot{Lock: e.lock.Clone(), Now: s.db.clock.now()}, nil
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
		s.db.observe("list", begin, nil)
		for _, name := range names {
			if err := s.usable(ctx); err != nil {
				yield(lokt.Snapshot{Lock: lokt.Lock{Name: name}}, err)
				return
			}
			e := s.cached(name)
			if e != nil && listed(&e.lock, f) && !yield(lokt.Snapshot{Lock: e.lock.Clone(), Now: s.db.clock.now()}, nil) {
				return
			}
		}
	}
}

// names returns those that the filter lets through, in order.
func (s *fileLocks) names(f lokt.Filter) []string {
	s.mu.Lock()
	var names []string
	for name, e := range s.cache {
		if listed(&e.lock, f) {
			names = append(names, name)
		}
	}
	s.mu.Unlock()
	slices.Sort(names)
	return names
}

func listed(l *lokt.Lock, f lokt.Filter) bool {
	return !l.Free() && strings.HasPrefix(l.Name, f.Prefix) && (!f.Queued || len(l.Queue) > 0)
}

// Wait implements lokt.Store. A watcher whose claim is queued behind others sleeps until it is first, or not queued.
func (s *fileLocks) Wait(ctx context.Context, watch lokt.Watch) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if err := s.watch.wait(ctx, watch, 0, s.View); err != nil {
		return err
	}
	return s.usable(context.WithoutCancel(ctx))
}

// Close makes every later call fail, and waits return. The database stays open.
func (s *fileLocks) Close() error {
	s.closed.Store(true)
	s.watch.wakeAll()
	s.events.wakeAll()
	return nil
}

// end closes the locks with the database.
func (s *fileLocks) end() {
	_ = s.Close()
	s.events.end()
}
