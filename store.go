package lokt

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"
)

// Store remembers locks. It knows nothing of claims, limits or expiry: it reports facts and keeps what the rules
// decide. Implementations pass the suite lokttest.TestStore.
//
// Errors wrap ErrUnavailable if the store cannot be reached or written, and ErrDamaged if what it holds about the lock
// cannot be read. Names have been validated by the caller.
type Store interface {
	// Update replaces the named lock with what change returns, as one atomic step: nothing else changes the lock
	// between what change sees and what is stored. change may run again after a conflict, so it has no side effects; it
	// leaves what it is given as it is, and what it returns is the store's. When Update returns nil, the change is
	// stored as durably as the store promises, its events are kept in the order of the changes, and waiters will look
	// again. When it returns an error the outcome is unknown: either everything was stored or nothing was.
	Update(ctx context.Context, name string, change func(Snapshot) Change) error

	// View reads a lock. It changes nothing, and an unknown name is a free lock.
	View(ctx context.Context, name string) (Snapshot, error)

	// List reads every lock that the filter lets through and that is not free, in name order. A lock that cannot be
	// read yields its name and an error, and the sequence goes on.
	List(ctx context.Context, f Filter) iter.Seq2[Snapshot, error]

	// Wait returns nil once the lock's revision is no longer w.Seen, and may return nil earlier: callers look again.
	// If w.LeaseID is queued, Wait may sleep through changes that leave it queued and send it not away (Waiter.Ousted). It
	// returns the context's error when that ends.
	Wait(ctx context.Context, w Watch) error

	Close() error
}

// Filter says which locks to list. The zero Filter lists all.
type Filter struct {
	Prefix string // names that begin so
	Queued bool   // only locks for which somebody waits
	Spent  bool   // only locks that are Snapshot.Spent; a store may list others too, and may go on meanwhile
}

// Watch says which change of a lock to wait for.
type Watch struct {
	Name    string
	Seen    uint64 // the revision that the caller has seen
	LeaseID string // the caller's own claim, if it is queued
}

// Snapshot is what a store knows about a lock at one moment. Whoever gets one shares it with others: nothing in it is
// to be changed.
type Snapshot struct {
	Lock Lock
	Now  time.Time       // by the clock that wrote the lock's times
	Dead map[string]bool // lease IDs whose process, or waiter, is known to be gone

	here func(leaseID string) bool // a request for the queued claim waits in this process; nil for none
}

// Change is a new state of a lock, and what happened to bring it about.
type Change struct {
	Lock   Lock
	Events []Event // for the store to keep, in order
}

// Watchers are those who wait in this process for a lock to change: what stores need for Store.Wait. The zero Watchers
// are none. They are not safe for use by several goroutines.
type Watchers struct {
	by map[string][]*Watcher // lease ID of a claim in the lock's queue; empty for all others
}

// Watcher is one who waits.
type Watcher struct {
	Changed <-chan struct{} // closed when the watcher is to look again

	changed chan struct{}
	leaseID string // of the queued claim; empty if there is none
}

// Watch adds who waits for what w says. It returns nil if there is nothing to wait for: the lock has changed already.
func (ws *Watchers) Watch(l *Lock, w Watch) *Watcher {
	at, queued := l.Position(w.LeaseID)
	if l.Revision != w.Seen && (!queued || l.Queue[at].Ousted != "" || ws.first(l, w.LeaseID)) {
		return nil
	}
	c := make(chan struct{})
	me := &Watcher{Changed: c, changed: c}
	if queued {
		me.leaseID = w.LeaseID
	}
	if ws.by == nil {
		ws.by = map[string][]*Watcher{}
	}
	ws.by[me.leaseID] = append(ws.by[me.leaseID], me)
	return me
}

// first reports whether nobody who waits here is before the lease in the queue.
func (ws *Watchers) first(l *Lock, leaseID string) bool {
	i := slices.IndexFunc(l.Queue, func(w *Waiter) bool { return w.LeaseID == leaseID || len(ws.by[w.LeaseID]) > 0 })
	return i < 0 || l.Queue[i].LeaseID == leaseID
}

// Remove takes out who does not wait any more.
func (ws *Watchers) Remove(w *Watcher) {
	rest := slices.DeleteFunc(ws.by[w.leaseID], func(have *Watcher) bool { return have == w })
	if ws.by[w.leaseID] = rest; len(rest) == 0 {
		delete(ws.by, w.leaseID)
	}
}

// None reports whether nobody waits.
func (ws *Watchers) None() bool { return len(ws.by) == 0 }

// Wake wakes those whom a change concerns: who has no claim in the queue, whose claim has left it or was sent away, and the first in the
// queue who waits here, because that one looks when holds expire. Those behind sleep on.
func (ws *Watchers) Wake(was, is *Lock) {
	ws.wake("")
	if len(ws.by) == 0 {
		return
	}
	gone, put := is.QueueChange(was)
	for _, leaseID := range gone {
		ws.wake(leaseID)
	}
	for _, w := range put {
		if w.Ousted != "" {
			ws.wake(w.LeaseID)
		}
	}
	for _, w := range is.Queue {
		if ws.wake(w.LeaseID) {
			return
		}
	}
}

// WakeAll wakes everybody.
func (ws *Watchers) WakeAll() {
	for id := range ws.by {
		ws.wake(id)
	}
}

func (ws *Watchers) wake(leaseID string) bool {
	all := ws.by[leaseID]
	delete(ws.by, leaseID)
	for _, w := range all {
		close(w.changed)
	}
	return len(all) > 0
}

// Step answers claims and releases within one atomic step of a store, by the rules: what it changes is stored together
// with everything else in the step, or not at all. Errors are those of Service.
type Step interface {
	// Acquire grants all the claims, without waiting, or none: then it leaves no trace.
	Acquire(claims ...Claim) ([]Holder, error)

	Release(t Target) ([]Holder, error)
}

// Steps is the Step for stores to hand out. It reads each lock once and collects what becomes of it.
type Steps struct {
	view func(name string) (Snapshot, error)
	seen map[string]stepped
}

// stepped is a lock within a step.
type stepped struct {
	Snapshot
	was    Lock
	events []Event
}

var _ Step = (*Steps)(nil)

// NewStep returns a step over the locks that view reads. The store keeps them as they are until it has stored the
// changes.
func NewStep(view func(name string) (Snapshot, error)) *Steps {
	return &Steps{view: view, seen: map[string]stepped{}}
}

// Changes returns what became of the locks that changed or had events, one change for each, by name.
func (s *Steps) Changes() []Change {
	var all []Change
	for _, name := range slices.Sorted(maps.Keys(s.seen)) {
		if l := s.seen[name]; len(l.events) > 0 || !l.Lock.Equal(&l.was) {
			all = append(all, Change{Lock: l.Lock, Events: l.events})
		}
	}
	return all
}

// Acquire implements Step.
func (s *Steps) Acquire(claims ...Claim) ([]Holder, error) {
	before := make(map[string]stepped, len(claims))
	holders := make([]Holder, 0, len(claims))
	for _, c := range claims {
		if c.LeaseID == "" {
			c.LeaseID = NewLeaseID()
		}
		c.Wait = 0
		err := c.Validate()
		if err == nil {
			var was stepped
			if was, err = s.lock(c.Name); err == nil {
				if _, twice := before[c.Name]; !twice {
					before[c.Name] = was
				}
				d := s.apply(was, acquire(was.Snapshot, c))
				holders, err = append(holders, d.holder), d.err
			}
		}
		if err != nil {
			maps.Copy(s.seen, before)
			return nil, err
		}
	}
	return holders, nil
}

// Release implements Step.
func (s *Steps) Release(t Target) ([]Holder, error) {
	was, err := s.lock(t.Name)
	if err != nil {
		return nil, err
	}
	d := s.apply(was, release(was.Snapshot, t))
	return d.ended, d.err
}

// lock returns a lock as the step has it now.
func (s *Steps) lock(name string) (stepped, error) {
	if l, seen := s.seen[name]; seen {
		return l, nil
	}
	if err := ValidateName(name); err != nil {
		return stepped{}, err
	}
	snap, err := s.view(name)
	if err == nil {
		s.seen[name] = stepped{Snapshot: snap, was: snap.Lock}
	}
	return s.seen[name], err
}

// apply takes in what the rules decided about a lock.
func (s *Steps) apply(l stepped, d *decision) *decision {
	l.Lock, l.events = d.Lock, slices.Concat(l.events, d.Events)
	s.seen[d.Lock.Name] = l
	return d
}
