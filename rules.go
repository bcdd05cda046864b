package lokt

// The rules: what becomes of a lock, as pure functions of what the store knows and what is asked. No I/O, no clock.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Reasons why a hold, or a place in the queue, ended without its owner's doing.
const (
	ReasonExpired   = "expired"    // its time to live, or its maximum hold, is over
	ReasonDead      = "dead"       // its process is known to be gone
	ReasonUnclaimed = "unclaimed"  // granted from the queue, but its waiter never took it up
	ReasonPreempted = "preempted"  // it was asked to leave, and its grace is over
	ReasonGaveUp    = "not-asking" // a waiter that stopped asking
	ReasonTakenOver = "taken-over" // another process goes on with the claim's ticket
)

// Removed is a holder or waiter that was stale, and why.
type Removed struct {
	Holder Holder `json:"holder"`
	Waiter bool   `json:"waiter,omitzero"` // it was queued; only Holder.Claim is set
	Reason string `json:"reason"`
}

// decision is what the rules answer to one request.
type decision struct {
	Change
	holder    Holder
	place     *Waiter // the claim's place in the queue, if it waits
	was       *Waiter // the place that it had before this request, if any
	removed   []Removed
	succeeded []string // lease IDs of those removed that have a successor
	ended     []Holder
	freeze    Freeze
	err       error
}

// Stale reports whether the holder has lost the lock to time or death, and why. The lock is the next claimant's then,
// but until somebody's request removes the holder it is still on record.
func (s Snapshot) Stale(h Holder) (reason string, stale bool) {
	switch {
	case s.Dead[h.LeaseID]:
		return ReasonDead, true
	case h.Yield != nil && past(s.Now, h.Yield.Deadline) && (h.Yield.Heard || past(s.Now, h.ExpiresAt)):
		return ReasonPreempted, true
	case past(s.Now, h.ExpiresAt):
		return ReasonExpired, true
	case past(s.Now, h.Pending):
		return ReasonUnclaimed, true
	}
	return "", false
}

// Live returns the holders that are not stale.
func (s Snapshot) Live() []Holder {
	return slices.DeleteFunc(slices.Clone(s.Lock.Holders), func(h Holder) bool {
		_, stale := s.Stale(h)
		return stale
	})
}

// count returns how much of the lock counts, and how much is stale, or over.
func (s Snapshot) count() (live, over int) {
	add := func(ended bool) {
		if ended {
			over++
		} else {
			live++
		}
	}
	for i := range s.Lock.Holders {
		_, stale := s.Stale(s.Lock.Holders[i])
		add(stale)
	}
	for _, w := range s.Lock.Queue {
		add(s.left(w) != "")
	}
	if s.Lock.Freeze != nil {
		add(s.Frozen() == nil)
	}
	return live, over
}

// Spent reports whether something of the lock does not count any more.
func (s Snapshot) Spent() bool {
	_, over := s.count()
	return over > 0
}

// Over reports whether nothing of the lock counts any more: everything that is on record is stale, or over.
func (s Snapshot) Over() bool {
	live, _ := s.count()
	return live == 0 && s.Lock.Corrupt == ""
}

// Frozen returns the freeze that is in force, or nil.
func (s Snapshot) Frozen() *Freeze {
	if f := s.Lock.Freeze; f != nil && (f.Damaged != "" || !past(s.Now, f.ExpiresAt)) {
		return f
	}
	return nil
}

// past reports whether the deadline, if there is one, is over: strictly after it.
func past(now, deadline time.Time) bool { return !deadline.IsZero() && now.After(deadline) }

// NextChange returns the earliest moment after now at which time alone changes who may enter: an expiry of a holder or
// a freeze, or that a waiter goes away or leaves. It is zero if there is none.
func (s Snapshot) NextChange() time.Time {
	var next time.Time
	consider := func(t time.Time) {
		if !t.IsZero() && !past(s.Now, t) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, h := range s.Lock.Holders {
		consider(h.ExpiresAt)
		consider(h.Pending)
		if h.Yield != nil && h.Yield.Heard {
			consider(h.Yield.Deadline)
		}
	}
	if s.Now.Before(s.Lock.calm) {
		consider(s.Lock.calm)
	} else {
		for _, w := range s.Lock.Queue {
			consider(w.Until)
			consider(w.Until.Add(-w.Keeps(QueueTTL)))
		}
	}
	if s.Lock.Freeze != nil {
		consider(s.Lock.Freeze.ExpiresAt)
	}
	return next
}

// WouldGrant answers as an Acquire of the claim without waiting would at this moment, changing nothing: nil, or the
// *BlockedError that it would return.
func (s Snapshot) WouldGrant(c Claim) error {
	c.Wait = 0
	return acquire(s, c).err
}

// begin prunes what is stale and lets in who may enter. Every rule starts from here. The decision's holders may be
// changed; its queue is the snapshot's.
func begin(s Snapshot) *decision {
	d := &decision{Change: Change{Lock: s.Lock}}
	l := &d.Lock
	var missed []Waiter
	l.Holders = slices.DeleteFunc(slices.Clone(l.Holders), func(h Holder) bool {
		reason, stale := s.Stale(h)
		if stale {
			if w, stays := h.missed(reason); stays {
				missed = append(missed, w)
			}
			d.removed = append(d.removed, Removed{Holder: h, Reason: reason})
			d.note(s.Now, EventAutoPrune, h, ExtraReason, reason)
		}
		return stale
	})
	l.putBack(missed)
	changed := len(d.removed) > 0 || len(s.Dead) > 0
	if f := l.Freeze; f != nil && s.Frozen() == nil {
		l.Freeze, changed = nil, true
		d.noteFreeze(s.Now, EventUnfreeze, *f, f.Owner, ExtraReason, ReasonExpired)
	}
	if changed || l.open || !s.Now.Before(l.calm) {
		d.serve(s)
	}
	return d
}

// note adds an event about a hold or claim; extra are keys and values.
func (d *decision) note(now time.Time, t EventType, h Holder, extra ...string) {
	e := Event{Time: now, Type: t, Name: d.Lock.Name, LeaseID: h.LeaseID, Owner: h.Owner, Token: h.Token, TTL: h.TTL}
	if t == EventAcquire || t == EventRenew {
		e.Expires = h.ExpiresAt
	}
	if t != EventRelease && (h.Strict || h.limit() != Exclusive || h.Priority != 0 || h.Weight.Of != 0 || h.Owner.AnySession) {
		extra = append(extra, ExtraTerms, fmt.Sprintf(TermsForm, h.limit(), h.Strict, h.Priority, h.Weight.Takes, h.Weight.Of, h.Owner.AnySession))
	}
	for pair := range slices.Chunk(append(extra, "paths", strings.Join(h.Paths, " ")), 2) {
		if e.Extra == nil && pair[1] != "" {
			e.Extra = map[string]string{}
		}
		if pair[1] != "" {
			e.Extra[pair[0]] = pair[1]
		}
	}
	d.Events = append(d.Events, e)
}

// noteEnd adds an event about a wait that ended without a grant; one that was sent away has ended before.
func (d *decision) noteEnd(now time.Time, w *Waiter, how string, waited time.Duration, extra ...string) {
	if w.Ousted == "" {
		d.note(now, EventWait, Holder{Claim: w.Claim}, append(extra, ExtraOutcome, how, ExtraWaited, millis(waited))...)
	}
}

func (d *decision) noteFreeze(now time.Time, t EventType, f Freeze, by Owner, extra ...string) {
	if f.Reason != "" {
		extra = append(extra, "freeze_reason", f.Reason)
	}
	d.note(now, t, Holder{Claim: Claim{LeaseID: f.ID, Owner: by, TTL: f.TTL}}, extra...)
}

// admits reports whether the claim could hold the lock beside those that do: with it counted, there are no more holders
// than the smallest limit among all of them, and they take no more than the least that there is. Holds of one owner count
// once, but strict ones count each. A lock has at
// most MaxHolders holds, whatever the limits.
func (l *Lock) admits(c *Claim) bool {
	if len(l.Holders) >= MaxHolders && l.held(c.LeaseID) < 0 {
		return false
	}
	apart, bytes := l.apart(c), c.pathBytes()
	limit, own, weight := c.limit(), 0, c.Weight
	if c.Strict {
		own++
	}
	strict := make(map[Owner]int, len(l.Holders))
	for i := range l.Holders {
		h := &l.Holders[i]
		if h.LeaseID == c.LeaseID {
			continue
		}
		if bytes += h.pathBytes(); apart && !c.overlaps(&h.Claim) {
			continue
		}
		limit = min(limit, h.limit())
		if h.Weight.Of > 0 {
			weight.Takes, weight.Of = weight.Takes+h.Weight.Takes, min(cmp.Or(weight.Of, h.Weight.Of), h.Weight.Of)
		}
		n := 0
		if h.Strict {
			n = 1
		}
		if c.Owner.Same(h.Owner) {
			own += n
		} else {
			strict[h.Owner.alone()] += n
		}
	}
	units := max(own, 1)
	for _, n := range strict {
		units += max(n, 1)
	}
	return units <= limit && weight.Takes <= weight.Of && bytes <= MaxPaths
}

// freeSlot returns the lowest number that no hold has. Those that have one are strict, so there are never more of them than
// the smallest limit.
func (l *Lock) freeSlot() int {
	taken := make([]bool, len(l.Holders)+2)
	for i := range l.Holders {
		taken[min(l.Holders[i].Slot, len(l.Holders)+1)] = true
	}
	return 1 + slices.Index(taken[1:], false)
}

// apart reports whether holds that have no path in common with the claim do not count for it: unless one has a limit between
// one and all, which is about everything, and counts those, too.
func (l *Lock) apart(c *Claim) bool {
	return len(c.Paths) > 0 && !slices.ContainsFunc(l.Holders, func(h Holder) bool { return h.limit() != Exclusive && h.limit() != Shared })
}

// grant adds the claim to the holders, with a new token, after so many in the queue.
func (d *decision) grant(now time.Time, c Claim, after int) Holder {
	l, passed := &d.Lock, ""
	for _, w := range l.Queue[:after] {
		if w.away(now) && w.Ousted == "" {
			passed += " " + PublicID(w.LeaseID)
		}
	}
	l.Token++
	c.Wait, c.Preempt, c.Refresh, c.Within = 0, 0, false, nil
	h := Holder{Claim: c, Token: l.Token, HeldSince: now}
	h.extend(now)
	if c.Strict && c.limit() > Exclusive {
		h.Slot = l.freeSlot()
	}
	l.Holders = append(l.Holders, h)
	if was, ok := d.displaces(&c); ok && was.Holder.LeaseID != h.LeaseID {
		d.note(now, EventTakeover, h,
			ExtraDisplaced, was.Holder.Owner.String(), ExtraLeaseWas, was.Holder.LeaseID, ExtraReason, was.Reason)
	}
	d.note(now, EventAcquire, h, ExtraPassed, passed)
	return h
}

// displaces returns the stale holder whose place the claim takes: each has one successor.
func (d *decision) displaces(c *Claim) (Removed, bool) {
	for _, r := range d.removed {
		if !r.Waiter && !slices.Contains(d.succeeded, r.Holder.LeaseID) && c.overlaps(&r.Holder.Claim) {
			d.succeeded = append(d.succeeded, r.Holder.LeaseID)
			return r, true
		}
	}
	return Removed{}, false
}

// extend starts the hold's time to live again, within its maximum hold.
func (h *Holder) extend(now time.Time) {
	h.AcquiredAt, h.ExpiresAt = now, time.Time{}
	if h.TTL > 0 {
		h.ExpiresAt = now.Add(h.TTL)
	}
	if h.MaxHold > 0 {
		if end := h.HeldSince.Add(h.MaxHold); h.ExpiresAt.IsZero() || end.Before(h.ExpiresAt) {
			h.ExpiresAt = end
		}
	}
}

// tooLate refuses what comes with this number of a ticket if a later process has gone on with the lease.
func (s Snapshot) tooLate(leaseID string, ticket int) *decision {
	h, _ := s.Lock.Holder(leaseID)
	if i, queued := s.Lock.Position(leaseID); queued {
		h.Ticket = s.Lock.Queue[i].Ticket
	}
	if h.Ticket <= ticket {
		return nil
	}
	d := begin(s)
	d.err = &GoneError{Name: s.Lock.Name, LeaseID: leaseID, Cause: ReasonTakenOver, Holders: slices.Clone(d.Lock.Holders)}
	return d
}

// acquire decides a claim.
func acquire(s Snapshot, c Claim) *decision {
	if late := s.tooLate(c.LeaseID, c.Ticket); late != nil {
		return late
	}
	before := s
	at, queued := s.Lock.Position(c.LeaseID)
	s = s.asking(at, &c)
	d := begin(s)
	l := &d.Lock
	s.Dead = nil // which are out, or away, now: the lease's is not the claimant
	if i := l.held(c.LeaseID); i >= 0 {
		return d.resend(s.Now, i, c)
	}
	if queued || len(d.removed) > 0 {
		had := queued
		if at, queued = l.Position(c.LeaseID); queued && !had { // it has its place again, whichever process asks for it
			*l = Snapshot{Lock: *l, Now: s.Now}.asking(at, &c).Lock
		}
	}
	if queued {
		d.was = l.Queue[at]
		first := d.was.Claim
		if first.Owner.ID != c.Owner.ID {
			d.err = invalid("lease ID is in use by %s", first.Owner)
			return d
		}
		if d.was.Ousted != "" {
			l.leave(at)
			blocked := l.blocked(&c, s.Now)
			blocked.Ousted, d.err = d.was.Ousted, blocked
			d.serve(s)
			return d
		}
		first.Wait, first.Owner, first.Process = c.Wait, c.Owner, c.Process
		if first.Preempt == 0 && len(first.Within) == 0 { // which a grant that was not taken up has lost
			first.Preempt, first.Within = c.Preempt, c.Within
		}
		c = first // its place in the queue is that of the claim as it was first made
	}
	if c.Refresh && d.refresh(s, c) {
		return d
	}
	ousted := c.Newest && c.Wait != 0 && !queued && d.oust(&c, s.Now)
	admitted := l.Freeze == nil && l.admits(&c) && l.passing(d.was) < 0
	switch {
	case admitted && !l.behind(&c, s.Now):
		if l.Corrupt != "" {
			d.note(s.Now, EventCorruptBreak, Holder{Claim: c}, ExtraReason, l.Corrupt)
			l.Corrupt = ""
		}
		leaseID := d.grant(s.Now, c, len(l.Queue)).LeaseID
		if queued {
			l.Holders[len(l.Holders)-1].Messages = l.leave(at).Messages
		}
		d.settle(s, leaseID)
	case c.Wait != 0:
		if d.queue(s, c, at); !ousted {
			break
		}
		if d.err != nil { // nobody is sent away for a claim that is refused
			c.Newest = false
			return acquire(before, c)
		}
		if d.serve(s); l.held(c.LeaseID) >= 0 { // those before it are in now
			d.place = nil
			return d.resend(s.Now, l.held(c.LeaseID), c)
		}
	case l.Freeze != nil:
		d.err = l.blocked(&c, s.Now)
		d.note(s.Now, EventFreezeDeny, Holder{Claim: c}, "frozen_by", l.Freeze.Owner.String())
	default:
		blocked := l.blocked(&c, s.Now)
		d.err = blocked
		d.note(s.Now, EventDeny, Holder{Claim: c}, "holder", firstOwner(blocked))
	}
	return d
}

// settle lets in whom the change of a hold made room for, asks to yield whom it concerns, and answers with the hold.
func (d *decision) settle(s Snapshot, leaseID string) {
	d.serve(s)
	d.holder, _ = d.Lock.Holder(leaseID)
}

// firstOwner names who is first in the way.
func firstOwner(e *BlockedError) string {
	switch {
	case len(e.Holders) > 0:
		return e.Holders[0].Owner.String()
	case len(e.Ahead) > 0:
		return e.Ahead[0].Owner.String()
	}
	return ""
}

// refresh renews a re-entrant hold of the claim's owner on the claim's terms, if it may. A hold that went stale and that
// nobody took since is taken up again under its lease ID, as a new grant with a new token.
func (d *decision) refresh(s Snapshot, c Claim) bool {
	l, now := &d.Lock, s.Now
	own := func(h Holder) bool {
		return !h.Strict && h.Pending.IsZero() && c.Owner.Same(h.Owner) && slices.Equal(c.Paths, h.Paths)
	}
	var again Holder
	was := -1
	i := slices.IndexFunc(l.Holders, own)
	if i >= 0 {
		again = l.Holders[i]
	} else { // it was not renewed in time
		was = slices.IndexFunc(d.removed, func(r Removed) bool { return !r.Waiter && own(r.Holder) })
		if was < 0 || l.Freeze != nil {
			return false
		}
		again = d.removed[was].Holder
		again.HeldSince, again.Yield = now, nil
	}
	again = again.refreshed(now, c)
	if _, over := s.Stale(again); over || !l.admits(&again.Claim) || i < 0 && l.behind(&again.Claim, now) {
		return false // also if it is older already than the claim lets it become, or was to leave before
	}
	if i >= 0 {
		l.Holders[i] = again
	} else {
		d.removed = slices.Delete(d.removed, was, was+1)
		d.Events = slices.DeleteFunc(d.Events, func(e Event) bool {
			return e.Type == EventAutoPrune && e.LeaseID == again.LeaseID
		})
		l.Token++
		again.Token = l.Token
		l.Holders = append(l.Holders, again)
	}
	if i, queued := l.Position(c.LeaseID); queued {
		l.leave(i)
	}
	d.note(now, EventRenew, again)
	d.settle(s, again.LeaseID)
	return true
}

// resend answers a claim whose lease is in already: its time to live starts again, and if it was granted from the queue
// it is taken up.
func (d *decision) resend(now time.Time, i int, c Claim) *decision {
	h := &d.Lock.Holders[i]
	if h.Owner.ID != c.Owner.ID {
		d.err = invalid("lease ID is in use by %s", h.Owner)
		return d
	}
	if !h.Pending.IsZero() || c.Ticket > 0 { // which another process may ask for
		h.Pending, h.Wait, h.Ticket = time.Time{}, 0, c.Ticket
		h.Owner.Process, h.Process = c.Owner.Process, c.Process
	}
	h.renew(now)
	d.holder = *h
	return d
}

// renew starts the hold's time to live again. A holder that was asked to leave is told so now, and its grace begins; it
// reports whether this is the first time. That answer may be lost: until the holder says that it has heard, if a program is there, the hold lasts as
// long as it was told before.
func (h *Holder) renew(now time.Time) (told bool) {
	end := h.ExpiresAt
	h.extend(now)
	if h.Yield == nil {
		return false
	}
	y := *h.Yield
	if told = y.Deadline.IsZero(); told {
		y.Deadline = now.Add(y.Grace)
	}
	y.Heard = y.Heard || h.TTL == 0 && !h.Attended
	if h.Yield = &y; y.Heard || end.Before(y.Deadline) {
		end = y.Deadline
	}
	if h.TTL > 0 && h.ExpiresAt.After(end) {
		h.ExpiresAt = end
	}
	return told
}

// blocked says what keeps the claim out: a freeze, holders that it cannot share with, those who were first.
func (l *Lock) blocked(c *Claim, now time.Time) *BlockedError {
	e := &BlockedError{Name: l.Name, Freeze: l.Freeze, Ahead: slices.Collect(l.ahead(c, now)), Now: now}
	if !l.admits(c) || len(e.Ahead) == 0 && l.Freeze == nil { // the latter: it waits for a hold that is passed on to it
		e.Holders = l.inTheWay(c)
	}
	return e
}

// inTheWay returns the holders that keep out a claim that is not admitted: all but its own re-entrant ones, or all there are
// if none but those are left, which are too many, or take too much.
func (l *Lock) inTheWay(c *Claim) []Holder {
	apart := l.apart(c)
	others := slices.DeleteFunc(slices.Clone(l.Holders), func(h Holder) bool {
		counts := c.Strict && h.Strict || c.Weight.Of > 0 && h.Weight.Of > 0
		return apart && !c.overlaps(&h.Claim) || c.Owner.Same(h.Owner) && !counts
	})
	if len(others) == 0 {
		return slices.Clone(l.Holders)
	}
	return others
}

// refreshed returns the hold as the same owner's new claim has it: its lease, its token and its age stay, and what the claim does
// not say of a maximum hold and metadata.
func (h Holder) refreshed(now time.Time, c Claim) Holder {
	c.LeaseID, c.Ticket, c.Strict, c.Refresh, c.Wait, c.Preempt, c.Within = h.LeaseID, h.Ticket, h.Strict, false, 0, 0, nil
	c.MaxHold = cmp.Or(c.MaxHold, h.MaxHold)
	if c.Metadata == nil {
		c.Metadata = maps.Clone(h.Metadata)
	}
	h.Claim = c
	h.Renewals++
	h.renew(now)
	return h
}

// hearing returns the snapshot in which the holder has said by when it is to leave, which may be over.
func (s Snapshot) hearing(r Renewal) Snapshot {
	i := s.Lock.held(r.LeaseID)
	if i < 0 || !r.Owner.recorded(s.Lock.Holders[i].Owner) {
		return s
	}
	if y := s.Lock.Holders[i].Yield; y != nil && !y.Deadline.IsZero() && y.Deadline.Sub(r.Heard).Abs() <= rounding {
		heard := *y
		heard.Heard = true
		s.Lock.Holders = slices.Clone(s.Lock.Holders)
		s.Lock.Holders[i].Yield = &heard
	}
	return s
}

// renew decides a renewal.
func renew(s Snapshot, r Renewal) *decision {
	s = s.hearing(r)
	was, had := s.Lock.Holder(r.LeaseID)
	d := begin(s)
	l := &d.Lock
	i := l.held(r.LeaseID)
	if i < 0 || !r.Owner.recorded(l.Holders[i].Owner) {
		gone := &GoneError{Name: l.Name, LeaseID: r.LeaseID, Holders: slices.Clone(l.Holders)}
		if had {
			gone.Cause, _ = s.Stale(was)
		} else {
			was = Holder{Claim: Claim{LeaseID: r.LeaseID}}
			if r.Owner != nil {
				was.Owner = *r.Owner
			}
		}
		d.note(s.Now, EventRenewFail, was, ExtraReason, gone.Error())
		d.err = gone
		return d
	}
	h := &l.Holders[i]
	h.Pending, h.Wait = time.Time{}, 0 // it is taken up
	h.Renewals++
	if h.renew(s.Now) {
		d.note(s.Now, EventPreempt, *h, ExtraBy, h.Yield.To.String())
	}
	d.holder = *h
	d.note(s.Now, EventRenew, *h)
	return d
}

// recorded reports whether o, if known at all, is the very process's owner that is on record.
func (o *Owner) recorded(have Owner) bool {
	return o == nil || o.ID == have.ID && o.Host == have.Host && (o.Process.PID == 0 || o.Process.PID == have.Process.PID)
}

// prune decides a request to remove what is stale.
func prune(s Snapshot) *decision {
	d := begin(s)
	for i := range d.Events {
		if e := &d.Events[i]; e.Type == EventAutoPrune {
			e.Extra[ExtraCleaned] = "true"
		}
	}
	if d.Lock.Corrupt != "" {
		d.note(s.Now, EventCorruptBreak, Holder{}, ExtraReason, d.Lock.Corrupt)
		d.Lock.Corrupt = ""
		d.serve(s)
	}
	return d
}

func millis(t time.Duration) string {
	return strconv.FormatInt(int64(math.Round(float64(t)/float64(time.Millisecond))), 10)
}

// then goes on with what the decision has made of the lock.
func (d *decision) then(s Snapshot) *decision {
	s.Lock, s.Lock.open = d.Lock, true
	rest := begin(s)
	rest.Events = append(d.Events, rest.Events...)
	rest.ended = d.ended
	return rest
}

// release decides a request to end holds. What is expired but still there is released like anything else: its owner
// gives it back late, and is told so.
func release(s Snapshot, t Target) *decision {
	if late := s.tooLate(t.LeaseID, t.Ticket); late != nil && t.Ticket > 0 {
		late.note(s.Now, EventMismatch, Holder{Claim: Claim{LeaseID: t.LeaseID, Owner: t.Owner}}, ExtraReason, late.err.Error())
		return late
	}
	d := &decision{Change: Change{Lock: s.Lock}}
	l := &d.Lock
	how, by := EventRelease, ""
	switch {
	case t.Stale:
		how, by = EventStaleBreak, t.Owner.String()
	case t.Force:
		how, by = EventForceBreak, t.Owner.String()
	}
	everybodys := t.LeaseID == "" && how != EventRelease
	l.Holders = slices.DeleteFunc(slices.Clone(l.Holders), func(h Holder) bool {
		reason, stale := s.Stale(h)
		switch {
		case t.LeaseID != "" && h.LeaseID != t.LeaseID, t.Stale && !stale:
			return false
		case t.LeaseID == "" && !everybodys && (h.Strict || !t.Owner.Same(h.Owner)), t.later(h):
			return false
		}
		if w, offered := h.missed(ReasonUnclaimed); offered && w.Ticket > 0 && how == EventRelease {
			w.Until = s.Now.Add(TicketTTL)
			l.putBack([]Waiter{w})
		}
		d.ended = append(d.ended, h)
		d.note(s.Now, how, h, ExtraHeld, millis(s.Now.Sub(h.HeldSince)), ExtraBy, by, ExtraReason, reason)
		return true
	})
	found := len(d.ended) > 0
	if t.LeaseID != "" && !t.Stale && !found {
		if i, waiting := l.Position(t.LeaseID); waiting {
			w := l.quit(i, s.Now)
			found = true
			d.noteEnd(s.Now, w, "cancelled", s.Now.Sub(w.Since))
		}
	}
	if everybodys && l.Corrupt != "" {
		found = true
		d.note(s.Now, EventCorruptBreak, Holder{Claim: Claim{Owner: t.Owner}}, ExtraReason, l.Corrupt)
		l.Corrupt = ""
	}
	rest := d.then(s)
	switch {
	case found:
	case !everybodys:
		rest.err = t.refusal(rest.Lock)
		asked := Holder{Claim: Claim{LeaseID: t.LeaseID, Owner: t.Owner}}
		rest.note(s.Now, EventMismatch, asked, ExtraReason, rest.err.Error())
	case len(rest.Lock.Holders) > 0:
		rest.err = &BlockedError{Name: l.Name, Holders: slices.Clone(rest.Lock.Holders), Now: s.Now}
	default:
		rest.err = &GoneError{Name: l.Name}
	}
	return rest
}

// later reports whether the hold was granted after the target's request, which names none, was made.
func (t Target) later(h Holder) bool { return t.LeaseID == "" && t.UpTo > 0 && h.Token > t.UpTo }

// refusal explains why there was nothing for the target to end.
func (t Target) refusal(l Lock) error {
	live := l.Holders
	if t.LeaseID != "" || len(live) == 0 {
		return &GoneError{Name: l.Name, LeaseID: t.LeaseID, Holders: slices.Clone(live)}
	}
	own := slices.DeleteFunc(slices.Clone(live), func(h Holder) bool { return !t.Owner.Same(h.Owner) })
	if len(own) > 0 {
		return &NotOwnerError{Name: l.Name, Holders: own, Guard: own[0].Strict}
	}
	return &NotOwnerError{Name: l.Name, Holders: slices.Clone(live)}
}

// freeze decides a request to keep newcomers out.
func freeze(s Snapshot, f Freeze) *decision {
	d := begin(s)
	if have := d.Lock.Freeze; have != nil {
		if have.Damaged != "" || !f.Owner.Same(have.Owner) {
			d.err = &BlockedError{Name: d.Lock.Name, Freeze: have, Now: s.Now}
			return d
		}
		f.ID = have.ID
	}
	f.At, f.ExpiresAt = s.Now, time.Time{}
	if f.TTL > 0 {
		f.ExpiresAt = s.Now.Add(f.TTL)
	}
	d.Lock.Freeze = &f
	d.freeze = f
	d.noteFreeze(s.Now, EventFreeze, f, f.Owner)
	return d
}

// unfreeze decides a request to let newcomers in again.
func unfreeze(s Snapshot, t Target) *decision {
	f := s.Lock.Freeze
	if f == nil || !t.Force && (f.Damaged != "" || !t.Owner.Same(f.Owner)) || t.another(f) {
		d := begin(s)
		switch {
		case d.Lock.Freeze == nil:
			d.err = &GoneError{Name: d.Lock.Name}
		case f.Damaged != "" && !t.Force:
			d.err = &BlockedError{Name: d.Lock.Name, Freeze: f, Now: s.Now}
		default:
			d.err = &NotOwnerError{Name: d.Lock.Name, Freeze: f}
		}
		return d
	}
	d := &decision{Change: Change{Lock: s.Lock}}
	d.Lock.Freeze = nil
	how := EventUnfreeze
	if t.Force {
		how = EventForceThaw
	}
	d.noteFreeze(s.Now, how, *f, t.Owner)
	rest := d.then(s)
	rest.freeze = *f
	return rest
}

// another reports whether the freeze is not the one that the target names, if it names one.
func (t Target) another(f *Freeze) bool {
	return t.LeaseID != "" && t.LeaseID != f.ID && t.LeaseID != PublicID(f.ID)
}

// leaveQueue decides about a waiting claim whose time is up. If it was granted meanwhile it keeps the grant, unless it
// was cancelled.
func leaveQueue(s Snapshot, c Claim, how string) *decision {
	if late := s.tooLate(c.LeaseID, c.Ticket); late != nil {
		return late
	}
	if i, queued := s.Lock.Position(c.LeaseID); queued && s.Lock.Queue[i].Ousted != "" && how != leftCancelled {
		c.Wait = 0
		return asked(s, c, 0)
	}
	h, in := s.Lock.Holder(c.LeaseID)
	reason, _ := s.Stale(h)
	if _, missed := h.missed(reason); in && !missed {
		if how == leftCancelled {
			return release(s, Target{Name: c.Name, LeaseID: c.LeaseID})
		}
		c.Wait = 0
		return acquire(s, c)
	}
	d := begin(s)
	var w *Waiter
	if i, ok := d.Lock.Position(c.LeaseID); ok {
		w = d.Lock.Queue[i]
		c = w.Claim // the terms on which it waited
		if how == leftDeadlock {
			d.Lock.leave(i)
		} else {
			d.Lock.quit(i, s.Now)
		}
		d.noteEnd(s.Now, w, how, s.Now.Sub(w.Since))
		d.serve(s)
	}
	if i := d.Lock.held(c.LeaseID); i >= 0 { // in this very step
		if how == leftCancelled {
			return release(s, Target{Name: c.Name, LeaseID: c.LeaseID})
		}
		return d.resend(s.Now, i, c)
	}
	if how == leftTimeout && d.Lock.Freeze == nil && (w == nil || d.Lock.passing(w) < 0) && d.Lock.admits(&c) && !d.Lock.behind(&c, s.Now) { // it had lost its place
		c.Wait = 0
		return acquire(s, c)
	}
	e := d.Lock.blocked(&c, s.Now)
	if how == leftTimeout && w != nil {
		e.TimedOut = s.Now.Sub(w.Since)
	}
	d.err = e
	return d
}
