package sqlstore

import (
	"context"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
)

// watcher is one call of Wait.
type watcher struct {
	leaseID string // set if the watcher is queued and cares for its own claim only
	wake    chan struct{}
}

// watchers are the calls of Wait, by the lock that they wait for.
type watchers struct {
	mu  sync.Mutex
	all map[string]map[*watcher]struct{}
}

// wait implements lokt.Store's Wait over a view of the locks: until the lock is another than the one seen, somebody wakes the
// watcher, or, if that is positive, the time is over.
func (s *watchers) wait(ctx context.Context, watch lokt.Watch, most time.Duration, view func(context.Context, string) (lokt.Snapshot, error)) error {
	w := s.register(watch)
	defer s.unregister(watch.Name, w)
	// Looking after registering misses no change.
	snap, err := view(ctx, watch.Name)
	if err != nil {
		return err
	}
	if snap.Lock.Revision != watch.Seen && !s.sleepers(&snap.Lock)[watch.LeaseID] {
		return nil
	}
	var over <-chan time.Time
	if most > 0 {
		timer := time.NewTimer(most)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-w.wake:
		return nil
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *watchers) register(watch lokt.Watch) *watcher {
	w := &watcher{leaseID: watch.LeaseID, wake: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]map[*watcher]struct{}{}
	}
	if s.all[watch.Name] == nil {
		s.all[watch.Name] = map[*watcher]struct{}{}
	}
	s.all[watch.Name][w] = struct{}{}
	return w
}

func (s *watchers) unregister(name string, w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all[name], w)
	if len(s.all[name]) == 0 {
		delete(s.all, name)
	}
}

// sleepers returns the queued claims that a change of the lock does not concern.
func (s *watchers) sleepers(l *lokt.Lock) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sleepers(l, s.all[l.Name])
}

func sleepers(l *lokt.Lock, all map[*watcher]struct{}) map[string]bool {
	here := make(map[string]bool, len(all))
	for w := range all {
		here[w.leaseID] = true
	}
	return l.Sleepers(here)
}

// wake wakes those whom a change concerns: who is not queued, or no longer, and the first in the queue that waits here, because
// that one watches for the holders' expiry.
func (s *watchers) wake(l *lokt.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all[l.Name]
	if len(all) == 0 {
		return
	}
	asleep := sleepers(l, all)
	for w := range all {
		if w.leaseID == "" || !asleep[w.leaseID] {
			delete(all, w)
			close(w.wake)
		}
	}
}

// wakeAll wakes everybody.
func (s *watchers) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.all {
		for w := range all {
			delete(all, w)
			close(w.wake)
		}
	}
}

// wakeName wakes everybody who waits for a lock.
func (s *watchers) wakeName(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all[name] {
		delete(s.all[name], w)
		close(w.wake)
	}
}
