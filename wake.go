package lokt

import "slices"

// Watchers are those who wait in this process for a lock to change: what stores need for Store.Wait. The zero Watchers
// are none. They are not safe for use by several goroutines.
type Watchers struct {
	queued map[string][]*Watcher // by lease ID: those whose claim waits in the lock's queue
	others []*Watcher
}

// Watcher is one who waits.
type Watcher struct {
	Changed <-chan struct{} // closed when the watcher is to look again

	changed chan struct{}
	leaseID string // of the queued claim; empty if there is none
}

// Watch adds who waits for what w says. It returns nil if there is nothing to wait for: the lock has changed already.
func (ws *Watchers) Watch(l *Lock, w Watch) *Watcher {
	_, queued := l.Position(w.LeaseID)
	if l.Revision != w.Seen && (!queued || ws.first(l, w.LeaseID)) {
		return nil
	}
	c := make(chan struct{})
	me := &Watcher{Changed: c, changed: c}
	if queued {
		if me.leaseID = w.LeaseID; ws.queued == nil {
			ws.queued = map[string][]*Watcher{}
		}
		ws.queued[w.LeaseID] = append(ws.queued[w.LeaseID], me)
	} else {
		ws.others = append(ws.others, me)
	}
	return me
}

// first reports whether nobody who waits here is before the lease in the queue.
func (ws *Watchers) first(l *Lock, leaseID string) bool {
	for _, w := range l.Queue {
		if w.LeaseID == leaseID {
			return true
		}
		if len(ws.queued[w.LeaseID]) > 0 {
			return false
		}
	}
	return true
}

// Remove takes out who does not wait any more.
func (ws *Watchers) Remove(w *Watcher) {
	same := func(have *Watcher) bool { return have == w }
	if w.leaseID == "" {
		ws.others = slices.DeleteFunc(ws.others, same)
	} else if rest := slices.DeleteFunc(ws.queued[w.leaseID], same); len(rest) > 0 {
		ws.queued[w.leaseID] = rest
	} else {
		delete(ws.queued, w.leaseID)
	}
}

// None reports whether nobody waits.
func (ws *Watchers) None() bool { return len(ws.queued) == 0 && len(ws.others) == 0 }

// Wake wakes those whom a change concerns: who has no claim in the queue, whose claim has left it, and the first in the
// queue who waits here, because that one looks when holds expire. Those behind sleep on.
func (ws *Watchers) Wake(was, is *Lock) {
	for _, w := range ws.others {
		close(w.changed)
	}
	ws.others = nil
	if len(ws.queued) == 0 {
		return
	}
	for _, leaseID := range left(was.Queue, is.Queue) {
		ws.wake(leaseID)
	}
	for _, w := range is.Queue {
		if ws.wake(w.LeaseID) {
			return
		}
	}
}

// WakeAll wakes everybody.
func (ws *Watchers) WakeAll() {
	for id := range ws.queued {
		ws.wake(id)
	}
	for _, w := range ws.others {
		close(w.changed)
	}
	ws.others = nil
}

func (ws *Watchers) wake(leaseID string) bool {
	all := ws.queued[leaseID]
	delete(ws.queued, leaseID)
	for _, w := range all {
		close(w.changed)
	}
	return len(all) > 0
}

// left returns the lease IDs that were in the queue and are not any more. Mostly a queue only loses some and gains some at
// its end, so both are walked side by side first.
func left(was, is []*Waiter) (ids []string) {
	j := 0
	for _, w := range was {
		if j < len(is) && (is[j] == w || is[j].LeaseID == w.LeaseID) {
			j++
		} else {
			ids = append(ids, w.LeaseID)
		}
	}
	if len(ids) == 0 || j == len(is) {
		return ids
	}
	in := make(map[string]bool, len(is)-j)
	for _, w := range is[j:] {
		in[w.LeaseID] = true
	}
	return slices.DeleteFunc(ids, func(id string) bool { return in[id] })
}
