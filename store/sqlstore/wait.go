package sqlstore

import (
	"context"

	"github.com/lokt-dev/lokt"
)

// watcher is one call of Wait.
type watcher struct {
	leaseID string // set if the watcher is queued and cares for its own claim only
	wake    chan struct{}
}

// Wait implements lokt.Store. A watcher whose claim is queued behind others sleeps until it is first, or not queued.
func (s *fileLocks) Wait(ctx context.Context, watch lokt.Watch) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	w := s.register(watch)
	defer s.unregister(watch.Name, w)
	// Looking after registering misses no change.
	snap, err := s.View(ctx, watch.Name)
	if err != nil {
		return err
	}
	position, queued := snap.Lock.Position(watch.LeaseID)
	if (!queued || position == 0) && snap.Lock.Revision != watch.Seen {
		return nil
	}
	select {
	case <-w.wake:
		return s.usable(context.WithoutCancel(ctx))
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *fileLocks) register(watch lokt.Watch) *watcher {
	w := &watcher{leaseID: watch.LeaseID, wake: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers[watch.Name] == nil {
		s.watchers[watch.Name] = map[*watcher]struct{}{}
	}
	s.watchers[watch.Name][w] = struct{}{}
	return w
}

func (s *fileLocks) unregister(name string, w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers[name], w)
	if len(s.watchers[name]) == 0 {
		delete(s.watchers, name)
	}
}

// wake wakes those whom a change concerns: who is not queued, or no longer, and who is first in the queue, because that one
// watches for the holders' expiry. Its caller holds the mutex.
func (s *fileLocks) wake(name string, l *lokt.Lock) {
	all := s.watchers[name]
	if len(all) == 0 {
		return
	}
	sleeping := map[string]bool{}
	for i, w := range l.Queue {
		sleeping[w.LeaseID] = i > 0
	}
	for w := range all {
		if w.leaseID == "" || !sleeping[w.leaseID] {
			delete(all, w)
			close(w.wake)
		}
	}
}

// wakeAll wakes everybody. Its caller holds the mutex.
func (s *fileLocks) wakeAll() {
	for _, all := range s.watchers {
		for w := range all {
			delete(all, w)
			close(w.wake)
		}
	}
}
