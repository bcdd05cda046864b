package lokt

// The rules of waiting: who is next, who may pass, who is asked to leave.

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"
	"time"
)

// grantsPerStep is how many waiters one step lets in: the next step, which those take at once, lets in the rest.
const grantsPerStep = 250

// serve goes through the queue once. It drops who is gone, grants what can be granted, in order (see Lock.passes), and asks
// holders to yield. Those that are away are passed over.
func (d *decision) serve(s Snapshot) {
	l, now := &d.Lock, s.Now
	open, granted, at := l.Freeze == nil && l.Corrupt == "", 0, 0
	var before, preempting []*Waiter // before are those there that cannot enter yet
	calm, plain, whole := time.Time{}, true, false
	look := !l.plain || !now.Before(l.calm) || len(s.Dead) > 0
	for _, w := range l.Queue {
		if !look && (!open || l.full()) {
			break
		}
		if w.Ticket > 0 && s.Dead[w.LeaseID] && !w.away(now) {
			w = l.quit(at, now)
		}
		away := look && w.away(now)
		if away || len(s.Dead) > 0 {
			if reason := s.left(w); reason != "" {
				if l.leave(at); w.Ousted == "" {
					d.removed = append(d.removed, Removed{Holder: Holder{Claim: w.Claim}, Waiter: true, Reason: reason})
				}
				d.noteEnd(now, w, "died", now.Sub(w.Since), ExtraReason, reason)
				continue
			}
		}
		passed := func(first *Waiter) bool { return l.passes(first, &w.Claim) }
		if !away && open && !slices.ContainsFunc(before, passed) && l.admits(&w.Claim) && l.passing(w) < 0 {
			if granted++; granted <= grantsPerStep {
				l.leave(at)
				h := d.grant(now, w.Claim, at)
				h.Messages = w.Messages
				if !w.absent() && (w.TTL == 0 || s.here == nil || !s.here(w.LeaseID)) {
					h.Pending, h.Wait = now.Add(OfferTTL), max(now.Sub(w.Since), 0)
				}
				if l.Holders[len(l.Holders)-1] = h; !w.absent() {
					d.note(now, EventWait, h, ExtraOutcome, "granted", ExtraWaited, millis(now.Sub(w.Since)))
				}
				continue
			}
			open = false
		}
		if at++; !away && (!whole || look && len(w.Paths) > 0) { // the first that is about everything stands for all such
			before, whole = append(before, w), whole || len(w.Paths) == 0
		}
		if !look {
			continue
		}
		if w.Preempt > 0 {
			preempting = append(preempting, w)
		}
		end := w.Until
		if !away {
			end = end.Add(-w.Keeps(QueueTTL))
		}
		if plain = plain && !away && w.plain(); calm.IsZero() || end.Before(calm) {
			calm = end
		}
	}
	if look {
		l.calm, l.plain = calm, plain
	}
	l.open = granted > grantsPerStep // the next step goes on
	for i := range l.Holders {
		l.Holders[i].askToYield(preempting, now)
	}
}

// plain reports whether the claim is a strict one that may not preempt and is not about paths.
func (c *Claim) plain() bool { return c.Strict && c.Preempt == 0 && len(c.Paths) == 0 }

// full reports whether no plain claim can enter, whoever makes it.
func (l *Lock) full() bool {
	n, limit := 0, Shared
	for i := range l.Holders {
		if h := &l.Holders[i]; h.Strict {
			n, limit = n+1, min(limit, h.limit())
		}
	}
	return n >= limit
}

// left returns why the waiter is not in the queue any more, or nothing if it is.
func (s Snapshot) left(w *Waiter) string {
	switch {
	case s.Dead[w.LeaseID] && w.Ticket == 0:
		return ReasonDead
	case past(s.Now, w.Until):
		return ReasonGaveUp
	}
	return ""
}

// Away reports whether nobody is known to be there for the queued claim: its process is dead, its client has hung up,
// or it was not asked for in time. Those behind pass it until it is asked for again.
func (s Snapshot) Away(w *Waiter) bool { return s.Dead[w.LeaseID] || w.away(s.Now) }

// away is Away without regard to processes: what is left of its place tells when a claim was asked for.
func (w *Waiter) away(now time.Time) bool {
	return w.Ousted != "" || past(now, w.Until) || !w.absent() && !w.Until.After(now.Add(w.Keeps(QueueTTL)))
}

// absent reports whether a hold was passed to an owner of whom nobody waits.
func (w *Waiter) absent() bool { return w.Passed > 0 && w.Wait == 0 }

// passing returns the place of the hold that is to end before the waiter, if any, to whom it was passed on, enters; or -1.
func (l *Lock) passing(w *Waiter) int {
	return slices.IndexFunc(l.Holders, func(h Holder) bool { return w != nil && h.Token == w.Passed })
}

// Keeps returns for how long the claim keeps its place while it is away: so long, or as its ticket says.
func (c *Claim) Keeps(usual time.Duration) time.Duration {
	if c.Ticket > 0 {
		return TicketTTL
	}
	return usual
}

// refresh returns how often the claimant asks again to stay in the queue. On files that is to read and write the whole queue, and
// needless where the kernel shows that the claimant lives.
func (c *Claim) refresh() time.Duration {
	if c.Owner.Process.Liveness != "" {
		return 6 * WaitRefresh
	}
	return WaitRefresh
}

// presence returns how long the claim counts as attended after it was asked for.
func (c *Claim) presence() time.Duration { return c.refresh() / WaitRefresh * PresenceTTL }

// missed returns the place in the queue that a claim gets back, if any, because its grant was not taken up in time.
func (h *Holder) missed(reason string) (Waiter, bool) {
	if h.Pending.IsZero() || reason == "" || reason == ReasonDead && h.Ticket == 0 {
		return Waiter{}, false
	}
	end := h.Pending
	if !h.ExpiresAt.IsZero() && h.ExpiresAt.Before(end) {
		end = h.ExpiresAt
	}
	w := Waiter{Claim: h.Claim, Since: h.HeldSince.Add(-h.Wait), Until: end.Add(h.Keeps(AwayTTL)), Messages: h.Messages}
	w.Wait = 0
	return w, true
}

// asking returns the snapshot in which the claimant is there, whichever process it is: for its place in the queue, if it
// has one, or to take up a grant.
func (s Snapshot) asking(at int, c *Claim) Snapshot {
	w := &Waiter{}
	if h, _ := s.Lock.Holder(c.LeaseID); at >= 0 {
		w = s.Lock.Queue[at]
	} else if !h.Pending.IsZero() {
		w.Owner = h.Owner
	}
	if s.Dead[c.LeaseID] && w.Owner.ID == c.Owner.ID {
		s.Dead = maps.Clone(s.Dead)
		delete(s.Dead, c.LeaseID)
	}
	later := w.Ticket > 0 && c.Ticket > w.Ticket
	if (w.Owner.Process != c.Owner.Process || later || w.away(s.Now)) && at >= 0 && w.Ousted == "" && !past(s.Now, w.Until) && w.Owner.ID == c.Owner.ID {
		back := *w
		back.Owner, back.Process, back.Until = c.Owner, c.Process, s.Now.Add(c.presence()+w.Keeps(QueueTTL))
		if later {
			back.Ticket = c.Ticket
		}
		s.Lock.replace(at, &back)
		s.Lock.calm = time.Time{}
	}
	return s
}

// asked decides a claim that will be asked for again within that time. The end of its place differs from the last one:
// by that a request that ends can tell whether there was another since (see away).
func asked(s Snapshot, c Claim, again time.Duration) *decision {
	d := acquire(s, c)
	if d.was != nil && d.was.Ousted != "" { // it hears so again if this answer is lost
		d.Change = Change{Lock: s.Lock}
	}
	w := d.place // which nobody else has seen yet
	if w == nil {
		return d
	}
	if again < PresenceTTL {
		w.Until = s.Now.Add(again + w.Keeps(QueueTTL))
	}
	if d.was != nil && w.Until.Sub(d.was.Until).Abs() <= rounding {
		w.Until = d.was.Until.Add(2 * rounding)
	}
	d.Lock.expect(w)
	return d
}

// rounding is by how much a time may be off that a store has kept.
const rounding = time.Millisecond

// askToYield marks the holder as wanted by a waiter that may preempt it, or takes the mark away when none is left. Those
// that are away do not ask.
func (h *Holder) askToYield(preempting []*Waiter, now time.Time) {
	by, wanted := (*Waiter)(nil), false
	for _, w := range preempting {
		if w.Passed > 0 && w.Passed == h.Token || w.Passed == 0 && w.Priority > h.Priority && !w.Owner.Same(h.Owner) && w.overlaps(&h.Claim) {
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
		if h.TTL == 0 && !h.Attended { // no program is there to hear
			h.Yield.Deadline, h.Yield.Heard = now.Add(by.Preempt), true
		}
	}
}

// passes reports whether the claim has to let the waiter pass, who was first: not if they are about nothing in common, and not
// if it is about what the claim's owner holds already, who would otherwise wait for himself.
func (l *Lock) passes(w *Waiter, c *Claim) bool {
	for i := range l.Holders {
		if h := &l.Holders[i]; c.Owner.ID == h.Owner.ID && c.Owner.Same(h.Owner) && w.overlaps(&h.Claim) { // IDs first: Same copies
			return false
		}
	}
	return w.overlaps(c)
}

// ahead yields the waiters that come before the claim: of those of at least its priority that are not away, the ones that
// it has to let pass.
func (l *Lock) ahead(c *Claim, now time.Time) iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		for _, w := range l.Queue {
			if w.LeaseID == c.LeaseID || w.Priority >= c.Priority && !w.away(now) && l.passes(w, c) && !yield(w) {
				return
			}
		}
	}
}

// behind reports whether somebody comes before the claim.
func (l *Lock) behind(c *Claim, now time.Time) bool {
	for range l.ahead(c, now) {
		return true
	}
	return false
}

// queue puts the claim into the queue, or lets it stay there at its place.
func (d *decision) queue(s Snapshot, c Claim, at int) {
	l := &d.Lock
	w := &Waiter{Claim: c, Since: s.Now, Until: s.Now.Add(c.presence() + c.Keeps(QueueTTL))}
	switch {
	case d.was != nil:
		*w = *d.was
		w.Claim, w.Until = c, s.Now.Add(c.presence()+c.Keeps(QueueTTL))
		l.replace(at, w)
	case len(l.Queue)-l.ousted() >= MaxWaiters || c.pathBytes() > 0 && l.waitingBytes()+c.pathBytes() > MaxPaths:
		d.err = fmt.Errorf("%w: %d wait for %q already: try again later, or spread the work over several locks",
			ErrFull, len(l.Queue), l.Name)
		d.note(s.Now, EventDeny, Holder{Claim: c}, ExtraReason, ErrFull.Error())
		return
	default:
		l.enqueue(w)
		d.note(s.Now, EventWait, Holder{Claim: c}, ExtraOutcome, "started")
	}
	if d.place = w; w.Preempt > 0 {
		d.serve(s)
	}
}

// oust sends away the waiters that want nobody newer before them. From now on they are passed over, as those that are away, and are on
// record only to be told so.
func (d *decision) oust(c *Claim, now time.Time) (found bool) {
	l := &d.Lock
	for i, w := range l.Queue {
		if w.Newest && w.Ousted == "" && w.Passed == 0 && w.Priority <= c.Priority && w.overlaps(c) {
			d.noteEnd(now, w, "ousted", now.Sub(w.Since))
			gone := *w
			gone.Ousted, gone.Until = c.Owner.String(), now.Add(w.Keeps(QueueTTL))
			gone.Paths, gone.Within, gone.Metadata, gone.Preempt = nil, nil, nil, 0
			l.replace(i, &gone)
			found = true
		}
	}
	if found && l.ousted() > maxOusted {
		l.leave(slices.IndexFunc(l.Queue, func(w *Waiter) bool { return w.Ousted != "" }))
	}
	return found
}

// maxOusted is how many waiters that were sent away a lock knows at most.
const maxOusted = 100

// ousted returns how many waiters were sent away.
func (l *Lock) ousted() (n int) {
	for _, w := range l.Queue {
		if w.Ousted != "" {
			n++
		}
	}
	return n
}

// told returns the snapshot as others than those see it who are to be told that they were sent away.
func (s Snapshot) told() Snapshot {
	if s.Lock.ousted() > 0 {
		s.Lock.Queue = slices.DeleteFunc(slices.Clone(s.Lock.Queue), func(w *Waiter) bool { return w.Ousted != "" && s.left(w) == "" })
	}
	return s
}

// away leaves a claim less time to be asked for again, unless that happened since it got its place until then.
func away(s Snapshot, leaseID string, ticket int, until time.Time) *decision {
	d := &decision{Change: Change{Lock: s.Lock}}
	i, queued := s.Lock.Position(leaseID)
	if !queued || s.Lock.Queue[i].Ticket != ticket || s.Lock.Queue[i].Until.Sub(until).Abs() > rounding {
		return d
	}
	w := *s.Lock.Queue[i]
	if w.Until = s.Now.Add(w.Keeps(AwayTTL)); w.Until.Before(until) {
		s.Lock.replace(i, &w)
		d = begin(s)
	}
	return d
}

// waitingBytes returns how long the patterns of all waiters are.
func (l *Lock) waitingBytes() (n int) {
	for _, w := range l.Queue {
		n += w.pathBytes()
	}
	return n
}

// The queue is shared by snapshots, so its slice and its waiters are replaced, and never changed in place.

// enqueue puts w behind every waiter of at least its priority.
func (l *Lock) enqueue(w *Waiter) {
	i := sort.Search(len(l.Queue), func(i int) bool { return l.Queue[i].Priority < w.Priority })
	if w.Place = 1; i > 0 && l.Queue[i-1].Priority == w.Priority {
		w.Place = l.Queue[i-1].Place + 1
	}
	l.insert(i, w)
}

// putBack puts waiters, in their order, before all others of their priority.
func (l *Lock) putBack(all []Waiter) {
	for _, w := range slices.Backward(all) {
		if _, queued := l.Position(w.LeaseID); queued {
			continue
		}
		i := sort.Search(len(l.Queue), func(i int) bool { return l.Queue[i].Priority <= w.Priority })
		if w.Place = 0; i < len(l.Queue) && l.Queue[i].Priority == w.Priority {
			w.Place = l.Queue[i].Place - 1
		}
		l.insert(i, &w)
	}
}

func (l *Lock) insert(i int, w *Waiter) {
	l.Queue = slices.Concat(l.Queue[:i], []*Waiter{w}, l.Queue[i:])
	l.expect(w)
}

func (l *Lock) replace(i int, w *Waiter) {
	l.Queue = slices.Clone(l.Queue)
	l.Queue[i] = w
	l.expect(w)
}

// leave takes the i-th waiter out of the queue.
func (l *Lock) leave(i int) *Waiter {
	w := l.Queue[i]
	if l.open = true; i == 0 {
		l.Queue = l.Queue[1:]
	} else {
		l.Queue = slices.Concat(l.Queue[:i], l.Queue[i+1:])
	}
	return w
}

// quit has the i-th waiter wait no more: it leaves the queue, or is away if it has a ticket.
func (l *Lock) quit(i int, now time.Time) *Waiter {
	if w := l.Queue[i]; w.Ticket == 0 || past(now, w.Until) {
		return l.leave(i)
	}
	w := *l.Queue[i]
	w.Until = now.Add(TicketTTL)
	l.open, l.calm = true, time.Time{}
	l.replace(i, &w)
	return &w
}

// expect sees to it that the queue is looked at again when the waiter goes away.
func (l *Lock) expect(w *Waiter) {
	l.plain = l.plain && w.plain()
	if at := w.Until.Add(-w.Keeps(QueueTTL)); at.Before(l.calm) {
		l.calm = at
	}
}

// tell decides a question, an answer or, with Pass, that a hold goes on.
func tell(s Snapshot, t Target, m Message) *decision {
	d := begin(s)
	next := m.Pass
	m.From, m.From.Process, m.At, m.Pass = t.Owner, Process{}, s.Now, nil
	d.err = cmp.Or(validateText("message", m.Text), validateText("answer", m.Answer), validateText("message ID", m.ID))
	for i := range d.Lock.Holders {
		h := &d.Lock.Holders[i]
		own, named := t.Owner.Same(h.Owner), t.LeaseID != "" && (t.LeaseID == h.LeaseID || next == nil && t.LeaseID == PublicID(h.LeaseID))
		switch {
		case d.err != nil, next != nil && (next.Owner.Same(h.Owner) || t.later(*h)):
		case next != nil && (named || t.LeaseID == "" && (own || t.Force)):
			d.pass(s, i, *next, m)
			return d
		case next == nil && m.Text == "" && own:
			h.Messages = slices.Clone(h.Messages)
			for j := range h.Messages {
				h.Messages[j].Answer = cmp.Or(h.Messages[j].Answer, m.Answer)
			}
			d.holder = *h
			d.note(s.Now, EventAnswer, *h, ExtraText, m.Answer)
		case next == nil && m.Text != "" && d.holder.LeaseID == "" && (named || t.LeaseID == "" && !own):
			if !slices.ContainsFunc(h.Messages, func(have Message) bool { return have.ID == m.ID }) {
				h.Messages = append(slices.Clone(h.Messages[max(len(h.Messages)-MaxMessages+1, 0):]), m)
				d.note(s.Now, EventAsk, *h, ExtraBy, m.From.String(), ExtraText, m.Text)
			}
			d.holder = *h
		}
	}
	if d.err == nil && d.holder.LeaseID == "" {
		d.err = t.refusal(d.Lock)
	}
	return d
}

// pass lets the i-th hold go on to the owner of c, by way of the head of the queue.
func (d *decision) pass(s Snapshot, i int, c Claim, m Message) {
	l, now, h := &d.Lock, s.Now, d.Lock.Holders[i]
	d.err = c.Validate()
	c.Limit, c.Paths, c.Weight, c.Priority, c.Owner.Process = h.Limit, h.Paths, h.Weight, h.Priority, Process{}
	w := Waiter{Claim: c, Since: now, Until: now.Add(h.TTL + PassTimeout + time.Minute)} // by when the hold has ended
	queue := slices.DeleteFunc(slices.Clone(l.Queue), func(w *Waiter) bool { return w.absent() && w.Passed == h.Token })
	if at := slices.IndexFunc(queue, func(w *Waiter) bool {
		return !s.Away(w) && !w.absent() && (w.Passed == h.Token || l.passing(w) < 0) && c.Owner.Same(w.Owner)
	}); at >= 0 {
		w = *queue[at]
		queue = slices.Delete(queue, at, at+1)
	}
	rest := &Lock{Name: l.Name, Freeze: l.Freeze, Holders: slices.Delete(slices.Clone(l.Holders), i, i+1)}
	lease := !h.Attended && !h.Strict // no program would be told
	if d.err == nil && (l.Freeze != nil || lease && !rest.admits(&w.Claim)) {
		d.err = rest.blocked(&w.Claim, now)
	}
	if d.err != nil {
		return
	}
	if w.Passed, w.Preempt = h.Token, PassTimeout; m.Text != "" {
		w.Messages = []Message{m}
	}
	if l.Queue = queue; len(queue) > 0 {
		w.Priority = max(w.Priority, queue[0].Priority)
	}
	l.putBack([]Waiter{w})
	d.note(now, EventPass, h, ExtraBy, m.From.String(), ExtraTo, w.Owner.String(), ExtraText, m.Text)
	if lease {
		l.Holders = rest.Holders
		d.note(now, EventRelease, h, ExtraHeld, millis(now.Sub(h.HeldSince)))
	} else if y := h.Yield; y != nil && (y.Grace > PassTimeout || y.Deadline.IsZero()) { // another has asked it
		l.Holders[i].Yield = nil
	}
	if d.settle(s, w.LeaseID); d.holder.LeaseID == "" {
		d.holder, _ = l.Holder(h.LeaseID)
	}
}
