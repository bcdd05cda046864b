package etcdstore

import (
	"sync"
	"time"
)

// slot is what this process knows, and does, about one name.
type slot struct {
	name string
	pins int // who uses it; guarded by Store.mu

	mu      sync.Mutex
	queue   []*request // Updates that wait for their turn
	running bool       // a goroutine works on the queue
	valid   bool       // latest and lapsed are what the last read or event said
	latest  int64
	lapsed  int
	header  int64     // etcd's revision up to which the above is known to hold
	known   time.Time // since when latest is known
	cached  *state    // the state at latest, if it is known
	waiters map[*waiting]struct{}
}

// waiting is one call of Wait.
type waiting struct {
	leaseID string // set if it is queued behind others and cares for its own claim only
	wake    chan struct{}
}

// maxSlots bounds how many names a store keeps something about that it does not work on.
const maxSlots = 16384

// pin returns the slot of the name, which stays until it is unpinned.
func (s *Store) pin(name string) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.slots[name]
	if sl == nil {
		sl = &slot{name: name, waiters: map[*waiting]struct{}{}}
		s.slots[name] = sl
	}
	sl.pins++
	return sl
}

// peek is pin for those who only listen: it returns nil if there is no slot, unless there is room for one more.
func (s *Store) peek(name string, create bool) *slot {
	s.mu.Lock()
	sl := s.slots[name]
	room := len(s.slots) < maxSlots
	if sl != nil {
		sl.pins++
	}
	s.mu.Unlock()
	if sl == nil && create && room {
		return s.pin(name)
	}
	return sl
}

func (s *Store) unpin(sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl.pins--; sl.pins > 0 || len(s.slots) <= maxSlots {
		return
	}
	for name, other := range s.slots { // any will do
		if other.pins == 0 {
			delete(s.slots, name)
			return
		}
	}
}

// each calls f for every slot.
func (s *Store) each(f func(sl *slot)) {
	s.mu.Lock()
	all := make([]*slot, 0, len(s.slots))
	for _, sl := range s.slots {
		all = append(all, sl)
	}
	s.mu.Unlock()
	for _, sl := range all {
		f(sl)
	}
}

// learn takes in what was read, or stored, and completes it by when that was first known.
func (sl *slot) learn(st *state) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	switch {
	case sl.valid && st.header < sl.header: // an event came first
		if st.latest() == sl.latest && sl.known.Before(st.known) {
			st.known = sl.known
		}
		return
	case sl.latest == st.latest() && !sl.known.IsZero():
		if sl.known.Before(st.known) {
			st.known = sl.known
		}
	default:
		sl.latest = st.latest()
	}
	sl.known, sl.valid, sl.header, sl.lapsed, sl.cached = st.known, true, st.header, st.lapsed(), st
}

// changed takes in an event: the lock was changed at the revision.
func (sl *slot) changed(rev int64, at time.Time, wake func(*waiting) bool) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if rev > sl.latest {
		sl.latest, sl.known, sl.lapsed = rev, at, 0
		sl.cached = nil
	}
	sl.valid = true
	sl.header = max(sl.header, rev)
	sl.wake(wake)
}

// ended takes in an event: a timer has run out.
func (sl *slot) ended(rev int64) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if rev > sl.header {
		sl.header = rev
		sl.lapsed++
		sl.cached = nil
	}
	sl.wake(nil)
}

// forget says that events may have been missed. What is known to have been on record since when stays known, unless all
// of etcd is another.
func (sl *slot) forget(another bool) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.valid, sl.cached = false, nil
	if another {
		sl.latest, sl.header, sl.known = 0, 0, time.Time{}
	}
	sl.wake(nil)
}

// wake ends the waits that f lets through; nil ends all. Its caller holds the mutex.
func (sl *slot) wake(f func(*waiting) bool) {
	for w := range sl.waiters {
		if f == nil || f(w) {
			delete(sl.waiters, w)
			close(w.wake)
		}
	}
}
