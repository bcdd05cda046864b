// Package memstore keeps locks in memory: the reference for what a lokt.Store does, a store for tests, and one for programs whose
// locks need not outlive them. It takes the time from package time, so it works in testing/synctest bubbles, and knows of no process
// that died.
package memstore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
)

// defaultKeep is how many events are remembered unless Options say otherwise.
const defaultKeep = 1000

// Options are what a store may be told. The zero Options are good.
type Options struct {
	// Observe, if set, is called with the events of each change, after the change is stored: in the order of the
	// changes, one call at a time, by the goroutine of one of the Updates that run at the moment. An Update may return
	// before its events were observed only if another one is running. Observe may use the store.
	Observe func([]lokt.Event)

	// Keep is how many events the store remembers for Events and ReadEvents; 0 means 1000, negative none.
	Keep int
}

// Store is a lokt.Store in memory. Its methods may be called by any number of goroutines.
type Store struct {
	observe func([]lokt.Event)
	keep    int

	mu        sync.Mutex
	closed    bool
	locks     map[string]*entry  // that are not free, or are watched
	most      lokt.Lock          // the highest token and revision that any other ever had: theirs from then on
	events    []lokt.LoggedEvent // the newest keep of them, oldest first, after up to as many that are forgotten
	last      uint64             // number of the last event
	grown     chan struct{}      // closed when there are more events
	unseen    [][]lokt.Event     // stored, but not observed yet
	observing bool               // some Update is busy observing
}

var (
	_ lokt.Store    = (*Store)(nil)
	_ lokt.EventLog = (*Store)(nil)
)

// entry is one lock and who watches it.
type entry struct {
	lock     lokt.Lock
	watchers lokt.Watchers
}

// New returns an empty store.
func New() *Store { return NewWith(Options{}) }

// NewWith returns an empty store with options.
func NewWith(o Options) *Store {
	if o.Keep == 0 {
		o.Keep = defaultKeep
	}
	return &Store{observe: o.Observe, keep: max(o.Keep, 0), locks: map[string]*entry{}, grown: make(chan struct{})}
}

// errClosed is what every method answers after Close.
var errClosed = fmt.Errorf("%w: memory store is closed", lokt.ErrUnavailable)

// usable reports why the store cannot be used. Its caller holds the mutex.
func (s *Store) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed {
		return errClosed
	}
	return nil
}

// entry returns what is known of the name. Its caller holds the mutex.
func (s *Store) entry(name string) *entry {
	if e := s.locks[name]; e != nil {
		return e
	}
	e := &entry{lock: s.most}
	e.lock.Name = name
	return e
}

// forget forgets a lock that is free and not watched. Its caller holds the mutex.
func (s *Store) forget(name string) {
	if e := s.locks[name]; e != nil && e.lock.Free() && e.watchers.None() {
		s.most.Token, s.most.Revision = max(s.most.Token, e.lock.Token), max(s.most.Revision, e.lock.Revision)
		delete(s.locks, name)
	}
}

// Update implements lokt.Store. It runs change once, while nothing else in the store changes: change must not use the store.
func (s *Store) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	observe, err := s.update(ctx, name, change)
	if observe {
		s.drain()
	}
	return err
}

// update stores the change, and reports whether its caller has to see to its observation.
func (s *Store) update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) (observe bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return false, err
	}
	c := change(s.snapshot(name))
	c.Lock.Name = name
	return s.store(c), nil
}

// snapshot returns the lock as rules are to see it. Its caller holds the mutex.
func (s *Store) snapshot(name string) lokt.Snapshot {
	return lokt.Snapshot{Lock: s.entry(name).lock, Now: time.Now()}
}

// store keeps what became of a lock, and reports whether nobody is busy observing. Its caller holds the mutex.
func (s *Store) store(c lokt.Change) (observe bool) {
	e := s.entry(c.Lock.Name)
	have := e.lock
	c.Lock.Revision = have.Revision
	if !c.Lock.Equal(&have) {
		s.locks[have.Name], e.lock = e, c.Lock
		e.lock.Revision++
		e.watchers.Wake(&have, &e.lock)
		s.forget(have.Name)
	}
	return s.record(c.Events)
}

// record keeps the events, and reports whether nobody is busy observing.
func (s *Store) record(events []lokt.Event) (observe bool) {
	if len(events) == 0 {
		return false
	}
	s.log(events)
	if s.observe == nil {
		return false
	}
	s.unseen = append(s.unseen, events)
	observe, s.observing = !s.observing, true
	return observe
}

// drain hands events to the observer until there are none, or it panics.
func (s *Store) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.observing = false }()
	for len(s.unseen) > 0 {
		events := s.unseen[0]
		s.unseen = s.unseen[1:]
		func() {
			s.mu.Unlock()
			defer s.mu.Lock()
			s.observe(events)
		}()
	}
}

// View implements lokt.Store.
func (s *Store) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return lokt.Snapshot{}, err
	}
	return s.snapshot(name), nil
}

// List implements lokt.Store: the locks as they are at one moment.
func (s *Store) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		if f.Spent {
			s.listSpent(ctx, f.Prefix, yield)
			return
		}
		all, err := s.list(ctx, f)
		if err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		slices.SortFunc(all, func(a, b lokt.Lock) int { return strings.Compare(a.Name, b.Name) })
		for _, l := range all {
			if !yield(lokt.Snapshot{Lock: l, Now: time.Now()}, nil) {
				return
			}
		}
	}
}

// listSpent yields the locks of which something is over. The store goes on meanwhile: every thousand locks it lets others in.
func (s *Store) listSpent(ctx context.Context, prefix string, yield func(lokt.Snapshot, error) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, now, err := 0, time.Now(), s.usable(ctx)
	for name, e := range s.locks {
		snap := lokt.Snapshot{Lock: e.lock, Now: now}
		spent := strings.HasPrefix(name, prefix) && snap.Spent()
		if n++; err != nil {
			break
		} else if !spent && n%1000 != 0 {
			continue
		}
		s.mu.Unlock()
		goesOn := !spent || yield(snap, nil)
		s.mu.Lock()
		if now, err = time.Now(), s.usable(ctx); !goesOn {
			return
		}
	}
	if err != nil {
		yield(lokt.Snapshot{}, err)
	}
}

func (s *Store) list(ctx context.Context, f lokt.Filter) (all []lokt.Lock, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, e := range s.locks {
		if !e.lock.Free() && strings.HasPrefix(name, f.Prefix) && (!f.Queued || len(e.lock.Queue) > 0) {
			all = append(all, e.lock)
		}
	}
	return all, s.usable(ctx)
}

// Wait implements lokt.Store. A watcher whose claim is queued behind others sleeps until it is first, or not queued.
func (s *Store) Wait(ctx context.Context, watch lokt.Watch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	e := s.entry(watch.Name)
	s.locks[e.lock.Name] = e
	defer s.forget(e.lock.Name)
	w := e.watchers.Watch(&e.lock, watch)
	if w == nil {
		return nil
	}
	defer e.watchers.Remove(w)
	return s.await(ctx, w.Changed)
}

// await waits, without the mutex that its caller holds, until something has happened or ctx ends.
func (s *Store) await(ctx context.Context, happened <-chan struct{}) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-happened:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.usable(context.WithoutCancel(ctx))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close makes every later call fail, and those that wait return.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		close(s.grown)
	}
	s.closed = true
	for _, e := range s.locks {
		e.watchers.WakeAll()
	}
	return nil
}
