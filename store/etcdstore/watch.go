package etcdstore

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt"
)

// slot is what this process knows, and does, about one name.
type slot struct {
	name string
	pins int         // users; guarded by Store.mu
	held atomic.Bool // its lock is not free, as far as is known

	mu       sync.Mutex
	queue    []*request // Updates that wait for their turn
	running  bool       // a goroutine works on the queue
	latest   int64      // revision of the last change that is known
	known    time.Time  // since when it is known
	cached   *state     // the state at latest, if it is known, and nothing was missed since
	watchers lokt.Watchers
}

// maxSlots bounds how many names of free locks a store keeps something about that it does not work on. Of the others it has to remember
// since when they are as they are: their clocks stand still otherwise.
const maxSlots = 16384

// pin returns the slot of the name, which stays until it is unpinned.
func (s *Store) pin(name string) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.slots[name]
	if sl == nil {
		sl = &slot{name: name}
		s.slots[name] = sl
	}
	sl.pins++
	return sl
}

func (s *Store) unpin(sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl.pins--; sl.pins > 0 || len(s.slots) <= maxSlots {
		return
	}
	tries := 100                       // to look at all takes long
	for name, other := range s.slots { // any will do
		if other.pins == 0 && !other.held.Load() {
			delete(s.slots, name)
			return
		}
		if tries--; tries == 0 {
			break
		}
	}
	if !sl.held.Load() {
		delete(s.slots, sl.name)
	}
}

// each calls f for every slot.
func (s *Store) each(f func(sl *slot)) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.slots))
	s.mu.Unlock()
	for _, sl := range all {
		f(sl)
	}
}

// date takes in that the change of the revision is on record, and returns since when that is known. Its caller holds
// the mutex.
func (sl *slot) date(latest int64, known time.Time) time.Time {
	switch {
	case latest < sl.latest: // a newer one was heard of first
		return known
	case latest > sl.latest || sl.known.IsZero():
		sl.latest, sl.known, sl.cached = latest, known, nil
	case known.Before(sl.known):
		sl.known = known
	}
	return sl.known
}

// glance is date for a change of which nothing else is known: whoever waits looks again.
func (sl *slot) glance(latest int64, known time.Time) time.Time {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if latest > sl.latest {
		sl.watchers.WakeAll()
	}
	return sl.date(latest, known)
}

// learn takes in a state, and since when it is known, and wakes those whom it concerns.
func (sl *slot) learn(st *state) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	was := sl.cached
	st.known = sl.date(st.latest(), st.known)
	if st.latest() != sl.latest {
		return
	}
	st.lock.Revision = uint64(st.latest())
	sl.cached = st
	sl.held.Store(!st.lock.Free())
	switch {
	case was == nil:
		sl.watchers.WakeAll()
	case was.latest() != st.latest():
		sl.watchers.Wake(&was.lock, &st.lock)
	}
}

// forget says that events may have been missed. What is known to have been on record since when stays known, unless all
// of that is gone.
func (sl *slot) forget(gone bool) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.cached = nil
	if gone {
		sl.latest, sl.known = 0, time.Time{}
	}
	sl.watchers.WakeAll()
}

// hear takes in an event about the lock's record.
func (sl *slot) hear(e *clientv3.Event, at time.Time) {
	rev := e.Kv.ModRevision
	sl.mu.Lock()
	seen, watched := rev <= sl.latest, !sl.watchers.None() && sl.cached != nil
	sl.mu.Unlock()
	switch {
	case seen: // by its answer, or the other half of a change
	case e.Type == mvccpb.DELETE: // not our doing
		sl.forget(true)
	case !watched:
		sl.glance(rev, at)
	default:
		r, err := decode(sl.name, e.Kv.Value)
		if err != nil {
			sl.glance(rev, at)
			return
		}
		st := &state{header: rev, known: at}
		if st.take(r); st.lock.Free() {
			st.free = rev
		} else {
			st.mod = rev
		}
		sl.learn(st)
	}
}

// Wait implements lokt.Store. One watch of all locks wakes everybody.
func (s *Store) Wait(ctx context.Context, w lokt.Watch) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	sl := s.pin(w.Name)
	defer s.unpin(sl)
	me, known := sl.watch(w)
	if !known {
		if _, err := s.look(ctx, sl); err != nil {
			return s.explain(ctx, err)
		}
		me, _ = sl.watch(w)
	}
	if me == nil { // changed already, or events come in faster than answers
		return nil
	}
	defer func() {
		sl.mu.Lock()
		defer sl.mu.Unlock()
		sl.watchers.Remove(me)
	}()
	return s.sleep(ctx, me.Changed)
}

// watch adds a watcher, or nil if there is nothing to wait for. It reports false if the lock is not known.
func (sl *slot) watch(w lokt.Watch) (me *lokt.Watcher, known bool) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.cached == nil {
		return nil, false
	}
	return sl.watchers.Watch(&sl.cached.lock, w), true
}

// sleep returns when it is woken, and after a while in any case, because watches can be lost.
func (s *Store) sleep(ctx context.Context, wake <-chan struct{}) error {
	select {
	case <-wake:
		return s.usable(context.WithoutCancel(ctx))
	case <-time.After(s.anyway):
		return nil
	case <-s.ctx.Done():
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rewatch has the watch begin anew.
func (s *Store) rewatch() {
	select {
	case s.renew <- struct{}{}:
	default:
	}
}

// watch hands on events from the revision on, until the store is closed. When some may have been missed everybody looks
// again.
func (s *Store) watch(from int64) {
	for n := 0; s.ctx.Err() == nil; n++ {
		next, seen := s.follow(from)
		if seen {
			n = 0
		}
		if from = next; from == 0 {
			from = s.fromNow()
		}
		s.tail.ring()
		s.each(func(sl *slot) { sl.forget(false) })
		if from == 0 || n > 0 {
			s.pause(s.ctx, n)
		}
	}
}

// fromNow returns the revision of the next change, or 0 if etcd does not answer.
func (s *Store) fromNow() int64 {
	ctx, cancel := s.bound(s.ctx)
	defer cancel()
	r, err := s.getEvents(ctx, clientv3.SortAscend, 1, 0)
	if err != nil {
		return 0
	}
	return r.Header.Revision + 1
}

// follow hands on the events of one watch. It returns the revision to go on from, or 0 if that is not known.
func (s *Store) follow(from int64) (next int64, seen bool) {
	if from == 0 {
		return 0, false
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	defer cancel()
	events := s.client.Watch(ctx, s.prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithProgressNotify())
	for {
		select {
		case <-s.renew:
			return 0, seen
		case r, ok := <-events:
			switch {
			case !ok:
				return from, seen
			case r.CompactRevision > 0:
				return 0, seen
			case r.Err() != nil:
				return from, seen
			}
			seen = true
			for _, e := range r.Events {
				s.hear(e)
			}
			from = max(from, r.Header.Revision+1)
		}
	}
}

// hear hands an event to those whom it concerns.
func (s *Store) hear(e *clientv3.Event) {
	at := time.Now()
	dir, name := s.nameOf(e.Kv.Key)
	if dir == "event" {
		s.tail.ring()
		return
	}
	s.mu.Lock()
	known := s.slots[name] != nil || len(s.slots) < maxSlots
	s.mu.Unlock()
	if known && (dir == "lock" || dir == "free") {
		sl := s.pin(name)
		defer s.unpin(sl)
		if e.Type == mvccpb.PUT {
			sl.held.Store(dir == "lock")
		}
		sl.hear(e, at)
	}
}

// keepTime learns of all locks, whose clocks advance here then, and stores clocks that nothing else does: the time of a
// hold goes on over restarts.
func (s *Store) keepTime() {
	for {
		for snap, err := range s.list(s.ctx, lokt.Filter{}) {
			if err == nil && snap.stale(snap.look(s.now())) {
				_ = s.Update(s.ctx, snap.lock.Name, func(snap lokt.Snapshot) lokt.Change { return lokt.Change{Lock: snap.Lock} })
			}
		}
		select {
		case <-time.After(resync):
		case <-s.ctx.Done():
			return
		}
	}
}
