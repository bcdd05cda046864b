package lokt

// The rules of waiting: who is next, who may pass, who is asked to leave.

import (
	"slices"
	"time"
)

// promote grants what can be granted from the queue, in order. Behind a waiter that cannot enter yet only those may whose
// owner holds the lock already: they would otherwise wait for themselves.
func (d *decision) promote(now time.Time) {
	l := &d.Lock
	if l.Freeze == nil && l.Corrupt == "" {
		blocked := false
		for i := 0; i < len(l.Queue); {
			w := l.Queue[i]
			if blocked && !l.reenters(w.Claim) || !l.admits(w.Claim) {
				blocked = true
				i++
				continue
			}
			l.Queue = slices.Delete(l.Queue, i, i+1)
			h := d.grant(now, w.Claim)
			h.Pending = now.Add(WaitLease)
			if !w.Until.After(now.Add(AwayLease)) { // nobody may be there to take it up
				h.Pending = w.Until
			}
			l.Holders[len(l.Holders)-1] = h
			d.note(now, EventWait, h, ExtraOutcome, "granted", ExtraWaited, millis(now.Sub(w.Since)))
		}
	}
	for i := range l.Holders {
		l.askToYield(i, now)
	}
}

// askToYield marks the holder as wanted by the waiters that may preempt it, or takes the mark away when none is left.
func (l *Lock) askToYield(i int, now time.Time) {
	h := &l.Holders[i]
	var by *Waiter
	for j := range l.Queue {
		w := &l.Queue[j]
		if w.Preempt > 0 && w.Priority > h.Priority && !w.Owner.Same(h.Owner) {
			by = w
			break
		}
	}
	switch {
	case by == nil:
		h.Yield = nil
	case h.Yield == nil:
		h.Yield = &Yield{To: by.Owner, AskedAt: now, Grace: by.Preempt}
		if h.TTL == 0 { // it need not come again, so its grace runs from here, or from when a program must have looked
			h.Yield.Deadline = now.Add(by.Preempt)
			if h.Attended {
				h.Yield.Deadline = h.Yield.Deadline.Add(NoticeTime)
			}
		}
	}
}

// reenters reports whether the claim's owner holds the lock already.
func (l *Lock) reenters(c Claim) bool {
	return slices.ContainsFunc(l.Holders, func(h Holder) bool { return c.Owner.Same(h.Owner) })
}

// ahead returns the waiters that come before the claim: all of at least its priority, unless its owner is in already.
func (l *Lock) ahead(c Claim) []Waiter {
	if l.reenters(c) {
		return nil
	}
	var first []Waiter
	for _, w := range l.Queue {
		if w.LeaseID == c.LeaseID {
			break
		}
		if w.Priority >= c.Priority {
			first = append(first, w)
		}
	}
	return first
}

// queue puts the claim into the queue, or lets it stay there.
func (d *decision) queue(now time.Time, c Claim) {
	l := &d.Lock
	d.queued = true
	if i, ok := l.Position(c.LeaseID); ok {
		l.Queue[i].Until = now.Add(WaitLease)
		return
	}
	if len(l.Queue)+len(l.Holders) >= maxClaimPerLock {
		d.queued = false
		d.err = invalid("lock %q has %d holders and waiters, the most there can be", l.Name, maxClaimPerLock)
		return
	}
	l.enqueue(Waiter{Claim: c, Since: now, Until: now.Add(WaitLease)})
	d.note(now, EventWait, Holder{Claim: c}, ExtraOutcome, "started")
	for i := range l.Holders {
		l.askToYield(i, now)
	}
}

// promotes reports whether any request would grant the lock to somebody in the queue.
func (s Snapshot) promotes() bool {
	d := begin(s)
	return slices.ContainsFunc(d.Lock.Holders, func(h Holder) bool {
		_, in := s.Lock.Holder(h.LeaseID)
		return !in
	})
}

// placeUntil returns when the lease's place in the queue lapses, or the zero time if it has none.
func (l *Lock) placeUntil(leaseID string) time.Time {
	if i, ok := l.Position(leaseID); ok {
		return l.Queue[i].Until
	}
	return time.Time{}
}

// away leaves a claim less time to be asked for again, unless it was since it got its place until then.
func away(s Snapshot, leaseID string, until time.Time) decision {
	d := decision{Change: Change{Lock: s.Lock}}
	i, queued := s.Lock.Position(leaseID)
	soon := s.Now.Add(AwayLease)
	if !queued || s.Lock.Queue[i].Until.After(until.Add(time.Millisecond)) || !soon.Before(until) { // stores round
		return d
	}
	d.Lock = s.Lock.clone()
	d.Lock.Queue[i].Until = soon
	return d
}

// leave takes the lease out of the queue.
func (l *Lock) leave(leaseID string) (Waiter, bool) {
	i, ok := l.Position(leaseID)
	if !ok {
		return Waiter{}, false
	}
	w := l.Queue[i]
	l.Queue = slices.Delete(l.Queue, i, i+1)
	return w, true
}
