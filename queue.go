package lokt

// The rules of waiting: who is next, who may pass, who is asked to leave.

import (
	"fmt"
	"iter"
	"slices"
	"time"
)

// grantsPerStep is how many waiters one step lets in: the next step, which those take at once, lets in the rest.
const grantsPerStep = 250

// promote grants what can be granted from the queue, in order. Behind a waiter that cannot enter yet only those may
// whose owner holds the lock already: they would otherwise wait for themselves. Those that are away are passed over.
func (d *decision) promote(now time.Time) {
	l := &d.Lock
	if l.Freeze == nil && l.Corrupt == "" {
		blocked, there := false, now.Add(QueueTTL) // a place for longer than that: not away
		granted := 0
		for i := 0; i < len(l.Queue) && granted < grantsPerStep; {
			w := l.Queue[i]
			if away := !w.Until.After(there); away || blocked && !l.reenters(w.Claim) || !l.admits(w.Claim) {
				blocked = blocked || !away
				i++
				continue
			}
			l.Queue = slices.Delete(l.Queue, i, i+1)
			granted++
			h := d.grant(now, w.Claim)
			h.Pending, h.Wait = now.Add(OfferTTL), max(now.Sub(w.Since), 0)
			l.Holders[len(l.Holders)-1] = h
			d.note(now, EventWait, h, ExtraOutcome, "granted", ExtraWaited, millis(now.Sub(w.Since)))
		}
	}
	for i := range l.Holders {
		l.askToYield(i, now)
	}
}

// Away reports whether nobody is known to be there for the queued claim: its process is dead, its client has hung up,
// or it was not asked for in time. Those behind pass it until it is asked for again.
func (s Snapshot) Away(w *Waiter) bool { return s.Dead[w.LeaseID] || w.away(s.Now) }

// away is Away without regard to processes: what is left of its place tells when a claim was asked for.
func (w *Waiter) away(now time.Time) bool { return !w.Until.After(now.Add(QueueTTL)) }

// passable returns when those behind the first in the queue may pass it because it is away. It is zero if they could not
// enter anyway.
func (s Snapshot) passable() time.Time {
	first := slices.IndexFunc(s.Lock.Queue, func(w *Waiter) bool { return !s.Away(w) })
	if first < 0 || first == len(s.Lock.Queue)-1 || s.Lock.Freeze != nil ||
		slices.ContainsFunc(s.Lock.Holders, func(h Holder) bool { return h.limit() == Exclusive }) {
		return time.Time{}
	}
	return s.Lock.Queue[first].Until.Add(-QueueTTL)
}

// missed returns the place in the queue that a claim gets back, if any, because its grant was not taken up in time.
func (h *Holder) missed(reason string) (Waiter, bool) {
	if h.Pending.IsZero() || reason != ReasonUnclaimed && reason != ReasonExpired {
		return Waiter{}, false
	}
	end := h.Pending
	if !h.ExpiresAt.IsZero() && h.ExpiresAt.Before(end) {
		end = h.ExpiresAt
	}
	w := Waiter{Claim: h.Claim, Since: h.HeldSince.Add(-h.Wait), Until: end.Add(AwayTTL)}
	w.Wait = 0
	return w, true
}

// missed reports whether the holder was granted the lock from the queue, and takes it up too late.
func (s Snapshot) missed(h Holder) bool {
	reason, stale := s.Stale(h)
	_, missed := h.missed(reason)
	return stale && missed
}

// asking returns the snapshot in which the queued claim's claimant is there.
func (s Snapshot) asking(c Claim) Snapshot {
	i, queued := s.Lock.Position(c.LeaseID)
	if !queued {
		return s
	}
	if w := s.Lock.Queue[i]; !w.away(s.Now) || past(s.Now, w.Until) || w.Owner.ID != c.Owner.ID {
		return s
	}
	s.Lock.Queue = slices.Clone(s.Lock.Queue)
	s.Lock.edit(i).Until = s.Now.Add(PresenceTTL + QueueTTL)
	return s
}

// asked decides a claim that will be asked for again within that time. The end of its place differs from the last one:
// by that a request that ends can tell whether there was another since (see away).
func asked(s Snapshot, c Claim, again time.Duration) *decision {
	d := acquire(s, c)
	i, ok := d.Lock.Position(c.LeaseID)
	if !ok || !d.queued {
		return d
	}
	w := d.Lock.edit(i)
	if again < PresenceTTL {
		w.Until = s.Now.Add(again + QueueTTL)
	}
	if was := s.Lock.placeUntil(c.LeaseID); w.Until.Sub(was).Abs() <= rounding {
		w.Until = was.Add(2 * rounding)
	}
	return d
}

// rounding is by how much a time may be off that a store has kept.
const rounding = time.Millisecond

// askToYield marks the holder as wanted by the waiters that may preempt it, or takes the mark away when none is left.
// Those that are away do not ask.
func (l *Lock) askToYield(i int, now time.Time) {
	h := &l.Holders[i]
	var by *Waiter
	wanted := false
	for j := range l.Queue {
		w := l.Queue[j]
		if w.Preempt > 0 && w.Priority > h.Priority && !w.Owner.Same(h.Owner) {
			wanted = true
			if !w.away(now) {
				by = w
				break
			}
		}
	}
	switch {
	case !wanted:
		h.Yield = nil
	case h.Yield == nil && by != nil:
		h.Yield = &Yield{To: by.Owner, AskedAt: now, Grace: by.Preempt}
		if h.TTL == 0 { // it need not come again, so its grace runs from here, or from when a program must have looked
			h.Yield.Deadline = now.Add(by.Preempt)
			if h.Attended {
				h.Yield.Deadline = h.Yield.Deadline.Add(NoticeTimeout)
			}
		}
	}
}

// reenters reports whether the claim's owner holds the lock already.
func (l *Lock) reenters(c Claim) bool {
	for i := range l.Holders {
		if c.Owner.Same(l.Holders[i].Owner) {
			return true
		}
	}
	return false
}

// ahead yields the waiters that come before the claim: all of at least its priority that are not away, unless its owner
// is in already.
func (l *Lock) ahead(c Claim, now time.Time) iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		if l.reenters(c) {
			return
		}
		for _, w := range l.Queue {
			if w.LeaseID == c.LeaseID || w.Priority >= c.Priority && !w.away(now) && !yield(w) {
				return
			}
		}
	}
}

// behind reports whether somebody comes before the claim.
func (l *Lock) behind(c Claim, now time.Time) bool {
	for range l.ahead(c, now) {
		return true
	}
	return false
}

// queue puts the claim into the queue, or lets it stay there.
func (d *decision) queue(now time.Time, c Claim) {
	l := &d.Lock
	d.queued = true
	if i, ok := l.Position(c.LeaseID); ok {
		w := l.edit(i)
		w.Preempt, w.Within, w.Until = c.Preempt, c.Within, now.Add(PresenceTTL+QueueTTL)
		for i := range l.Holders {
			l.askToYield(i, now)
		}
		return
	}
	if len(l.Queue) >= MaxWaiters {
		d.queued = false
		d.err = fmt.Errorf("%w: %d wait for %q already: try again later, or spread the work over several locks",
			ErrFull, len(l.Queue), l.Name)
		d.note(now, EventDeny, Holder{Claim: c}, ExtraReason, ErrFull.Error())
		return
	}
	l.enqueue(Waiter{Claim: c, Since: now, Until: now.Add(PresenceTTL + QueueTTL)})
	d.note(now, EventWait, Holder{Claim: c}, ExtraOutcome, "started")
	for i := range l.Holders {
		l.askToYield(i, now)
	}
}

// promotes reports whether any request would grant the lock to somebody in the queue.
func (s Snapshot) promotes() bool {
	d := begin(s)
	for i := range d.Lock.Holders {
		if s.Lock.held(d.Lock.Holders[i].LeaseID) < 0 {
			return true
		}
	}
	return false
}

// placeUntil returns when the lease's place in the queue lapses, or the zero time if it has none.
func (l *Lock) placeUntil(leaseID string) time.Time {
	if i, ok := l.Position(leaseID); ok {
		return l.Queue[i].Until
	}
	return time.Time{}
}

// away leaves a claim less time to be asked for again, unless that happened since it got its place until then.
func away(s Snapshot, leaseID string, until time.Time) *decision {
	i, queued := s.Lock.Position(leaseID)
	soon := s.Now.Add(AwayTTL)
	if !queued || s.Lock.Queue[i].Until.Sub(until).Abs() > rounding || !soon.Before(until) {
		return &decision{Change: Change{Lock: s.Lock}}
	}
	s.Lock = s.Lock.clone()
	s.Lock.edit(i).Until = soon
	return begin(s)
}

// leave takes the lease out of the queue.
func (l *Lock) leave(leaseID string) (*Waiter, bool) {
	i, ok := l.Position(leaseID)
	if !ok {
		return nil, false
	}
	w := l.Queue[i]
	l.Queue = slices.Delete(l.Queue, i, i+1)
	return w, true
}
