package lokt

// The rules of leaving: release, freeze, unfreeze.

import (
	"slices"
	"strconv"
	"time"
)

// release decides a request to end holds.
func release(s Snapshot, t Target) *decision {
	if t.LeaseID == "" && (t.Force || t.Stale) {
		return breakHolds(s, t)
	}
	d := &decision{Change: Change{Lock: s.Lock.clone()}}
	mine := func(h Holder) bool {
		if t.LeaseID != "" {
			_, stale := s.Stale(h)
			return h.LeaseID == t.LeaseID && (stale || !t.Stale)
		}
		return !h.Strict && t.Owner.Same(h.Owner)
	}
	// What is expired but still there is released like anything else: its owner gives it back late, and is told so.
	for _, h := range d.Lock.Holders {
		if mine(h) {
			d.ended = append(d.ended, h)
		}
	}
	d.Lock.Holders = slices.DeleteFunc(d.Lock.Holders, mine)
	waiting := false
	if t.LeaseID != "" && !t.Stale {
		var w *Waiter
		if w, waiting = d.Lock.leave(t.LeaseID); waiting {
			d.note(s.Now, EventWait, Holder{Claim: w.Claim}, ExtraOutcome, "cancelled", ExtraWaited, millis(s.Now.Sub(w.Since)))
		}
	}
	for _, h := range d.ended {
		how := EventRelease
		switch {
		case t.Stale:
			how = EventStaleBreak
		case t.Force:
			how = EventForceBreak
		}
		extra := []string{ExtraHeld, millis(s.Now.Sub(h.HeldSince))}
		if t.Force || t.Stale {
			extra = append(extra, ExtraBy, t.Owner.String())
		}
		if reason, stale := s.Stale(h); stale {
			extra = append(extra, ExtraReason, reason)
		}
		d.note(s.Now, how, h, extra...)
	}
	rest := begin(Snapshot{Lock: d.Lock, Now: s.Now, Dead: s.Dead})
	rest.Events = append(d.Events, rest.Events...)
	rest.ended = d.ended
	if len(d.ended) == 0 && !waiting {
		rest.err = t.refusal(rest.Lock)
		rest.note(s.Now, EventMismatch, Holder{Claim: Claim{LeaseID: t.LeaseID, Owner: t.Owner}}, ExtraReason, rest.err.Error())
	}
	return rest
}

// refusal explains why there was nothing for the target to end.
func (t Target) refusal(l Lock) error {
	live := l.Holders
	switch {
	case t.LeaseID != "":
		return &GoneError{Name: l.Name, LeaseID: t.LeaseID, Holders: slices.Clone(live)}
	case len(live) == 0:
		return &GoneError{Name: l.Name}
	}
	own := slices.DeleteFunc(slices.Clone(live), func(h Holder) bool { return !t.Owner.Same(h.Owner) })
	if len(own) > 0 {
		return &NotOwnerError{Name: l.Name, Holders: own, Guard: true}
	}
	return &NotOwnerError{Name: l.Name, Holders: slices.Clone(live)}
}

// breakHolds ends holds whoever's they are: all by force, or the stale ones.
func breakHolds(s Snapshot, t Target) *decision {
	d := &decision{Change: Change{Lock: s.Lock.clone()}}
	l := &d.Lock
	l.Holders = slices.DeleteFunc(l.Holders, func(h Holder) bool {
		reason, stale := s.Stale(h)
		switch {
		case t.Stale && !stale:
			return false
		case t.Stale:
			d.note(s.Now, EventStaleBreak, h, ExtraReason, reason, ExtraBy, t.Owner.String(), ExtraHeld, millis(s.Now.Sub(h.HeldSince)))
		default:
			d.note(s.Now, EventForceBreak, h, ExtraReason, reason, ExtraBy, t.Owner.String(), ExtraHeld, millis(s.Now.Sub(h.HeldSince)))
		}
		d.ended = append(d.ended, h)
		return true
	})
	corrupt := l.Corrupt != ""
	if corrupt {
		d.note(s.Now, EventCorruptBreak, Holder{Claim: Claim{Owner: t.Owner}}, ExtraReason, l.Corrupt)
		l.Corrupt = ""
	}
	rest := begin(Snapshot{Lock: *l, Now: s.Now, Dead: s.Dead})
	rest.Events = append(d.Events, rest.Events...)
	rest.ended = d.ended
	switch {
	case len(d.ended) > 0 || corrupt:
	case len(rest.Lock.Holders) > 0:
		rest.err = &BlockedError{Name: l.Name, Holders: slices.Clone(rest.Lock.Holders), Now: s.Now}
	default:
		rest.err = &GoneError{Name: l.Name}
	}
	return rest
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
	f.At = s.Now
	f.ExpiresAt = time.Time{}
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
	if f == nil {
		d := begin(s)
		d.err = &GoneError{Name: d.Lock.Name}
		return d
	}
	if !t.Force && (f.Damaged != "" || !t.Owner.Same(f.Owner)) {
		d := begin(s)
		if d.Lock.Freeze == nil {
			d.err = &GoneError{Name: d.Lock.Name}
		} else if f.Damaged != "" {
			d.err = &BlockedError{Name: d.Lock.Name, Freeze: f, Now: s.Now}
		} else {
			d.err = &NotOwnerError{Name: d.Lock.Name, Freeze: f}
		}
		return d
	}
	thawed := s.Lock.clone()
	thawed.Freeze = nil
	d := &decision{Change: Change{Lock: thawed}}
	how := EventUnfreeze
	if t.Force {
		how = EventForceThaw
	}
	d.noteFreeze(s.Now, how, *f, t.Owner)
	rest := begin(Snapshot{Lock: thawed, Now: s.Now, Dead: s.Dead})
	rest.Events = append(d.Events, rest.Events...)
	rest.freeze = *f
	return rest
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// leaveQueue decides what becomes of a waiting claim whose time is up. If it was granted in the meantime, a claim that
// only ran out of patience keeps the grant; a cancelled one gives it back.
func leaveQueue(s Snapshot, c Claim, how string, waited time.Duration) *decision {
	if h, in := s.Lock.Holder(c.LeaseID); in && !s.missed(h) {
		if how == leftCancelled {
			return release(s, Target{Name: c.Name, LeaseID: c.LeaseID})
		}
		c.Wait = 0
		return acquire(s, c)
	}
	d := begin(s)
	if w, ok := d.Lock.leave(c.LeaseID); ok {
		d.note(s.Now, EventWait, Holder{Claim: w.Claim}, ExtraOutcome, how, ExtraWaited, millis(waited))
		d.promote(s.Now)
	}
	if i := d.Lock.held(c.LeaseID); i >= 0 { // in this very step
		if how == leftCancelled {
			return release(s, Target{Name: c.Name, LeaseID: c.LeaseID})
		}
		return d.resend(s.Now, i, c)
	}
	if how == leftTimeout && d.Lock.Freeze == nil && d.Lock.admits(c) && len(d.Lock.ahead(c, s.Now)) == 0 { // it had lost its place
		c.Wait = 0
		return acquire(s, c)
	}
	d.err = d.Lock.blocked(c, s.Now)
	return d
}
