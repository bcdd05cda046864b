package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
)

// check looks at what everybody believes, while nothing moves.
func (w *world) check() {
	w.settle()
	if w.board != nil {
		w.checkJobs()
	}
	for _, name := range slices.Sorted(maps.Keys(lockNames)) {
		w.checkLock(name)
	}
	if w.calm {
		w.checkQueues()
	}
}

// checkLock compares those who were told that they hold a lock with each other, and with those whom the store has let in.
func (w *world) checkLock(name string) {
	snap := w.look(name)
	limit, inside, beside := lockNames[name], map[grant]string{}, map[grant]bool{}
	live := snap.Live()
	for i, h := range live {
		limit = min(limit, max(h.Limit, 1))
		own := func(o lokt.Holder) bool { return h.Owner.Same(o.Owner) }
		if !h.Strict && (slices.ContainsFunc(live[:i], own) || slices.ContainsFunc(live[i:], func(o lokt.Holder) bool { return o.Strict && own(o) })) {
			beside[grant{h.LeaseID, h.Token}] = true // it counts once with others of its owner
			continue
		}
		inside[grant{h.LeaseID, h.Token}] = fmt.Sprintf("the store has let %s in with token %d", h.Owner.ID, h.Token)
	}
	if len(inside) > limit {
		w.broke("capacity", "lock %s is for %d, and %s", name, limit, strings.Join(slices.Sorted(maps.Values(inside)), ", "))
	}
	for _, c := range slices.Concat(w.scripts, w.probers) {
		for _, l := range c.held {
			held := grant{l.ID(), l.Token()}
			until, ended := w.ended[held]
			switch {
			case l.Name() != name || c.gone(l) || w.now() < c.dazed && c.index%2 == 0: // to look would hide that nothing else has it look
			case c.believes(l) && ended:
				if h, again := snap.Lock.Holder(l.ID()); again && h.Token != l.Token() {
					w.count(grantedAgain)
				}
				if w.now() > until || c.heard.lease == held.lease && c.heard.token > held.token {
					w.broke("forced end", "lock %s: %s holds it with token %d, which was ended by force, and renewals were answered since", name, c.name, l.Token())
				}
			case c.believes(l):
				limit = min(limit, c.limit)
				inside[held] = fmt.Sprintf("%s was told that it holds it with token %d, and nothing else since", c.name, l.Token())
			case !c.told[l.ID()]:
				c.told[l.ID()] = true
				w.say(c.actor, "is told that %s is lost", name)
			}
		}
	}
	limit = w.inside(name, inside, limit)
	maps.DeleteFunc(inside, func(g grant, _ string) bool { return beside[g] })
	if len(inside) > limit {
		w.broke("exclusion", "lock %s is for %d, but %s", name, limit, strings.Join(slices.Sorted(maps.Values(inside)), ", and "))
	}
}

// changed looks at one change of a lock.
func (w *world) changed(before lokt.Snapshot, c lokt.Change) {
	was, after := &before.Lock, &c.Lock
	for _, q := range slices.Backward(after.Queue) {
		old, had := was.Holder(q.LeaseID)
		at, queued := was.Position(q.LeaseID)
		_, over := before.Stale(old)
		if had && (over || q.Ticket > 0) || q.Passed > 0 && (!queued || was.Queue[at].Passed == 0) { // its turn had come: it is the next one, unless that was taken back
			w.arrivals = append([]string{q.LeaseID}, slices.DeleteFunc(w.arrivals, func(id string) bool { return id == q.LeaseID })...)
		}
	}
	passed := false
	for _, e := range c.Events {
		w.forced(e)
		passed = passed || e.Type == lokt.EventPass
		if e.Type == lokt.EventWait && e.Extra[lokt.ExtraOutcome] == "started" {
			w.arrivals = append(slices.DeleteFunc(w.arrivals, func(id string) bool { return id == e.LeaseID }), e.LeaseID)
		}
	}
	if after.Token < was.Token {
		w.broke("tokens", "lock %s: the last token was %d, and is %d now", after.Name, was.Token, after.Token)
	}
	slots, weight := map[int]bool{}, lokt.Weight{Of: math.MaxInt64}
	for _, h := range after.Holders {
		if slots[h.Slot] && h.Slot > 0 || h.Slot == 0 && h.Strict && h.Limit > 1 {
			w.broke("slots", "lock %s: two have the slot %d, or one has none", after.Name, h.Slot)
		}
		if slots[h.Slot] = true; h.MaxHold > 0 && h.ExpiresAt.After(h.HeldSince.Add(h.MaxHold)) {
			w.broke("maximum hold", "lock %s: %s may keep it for %v, and has it until %v", after.Name, h.Owner.ID, h.MaxHold, h.ExpiresAt.Sub(h.HeldSince))
		}
		if h.Weight.Of > 0 {
			weight = lokt.Weight{Takes: weight.Takes + h.Weight.Takes, Of: min(weight.Of, h.Weight.Of)}
		}
		old, had := was.Holder(h.LeaseID)
		if had && old.Token == h.Token {
			continue
		}
		if f, now := was.Freeze, after.Freeze; f != nil && now != nil && now.ID == f.ID && now.ExpiresAt.After(before.Now) {
			w.broke("freeze", "lock %s is frozen, and %s is let in", after.Name, h.Owner.ID)
		}
		if at, queued := was.Position(h.LeaseID); queued && was.Queue[at].Until.After(before.Now) && w.sentAway[h.LeaseID] {
			w.broke("newest", "lock %s: %s is let in, and was sent away", after.Name, h.Owner.ID)
		}
		if h.Token <= was.Token {
			w.broke("tokens", "lock %s: %s is let in with token %d, and there was %d before", after.Name, h.Owner.ID, h.Token, was.Token)
		}
		if !had && !passed { // to whom it is passed on comes first
			w.checkOrder(before, after, h)
		}
	}
	if weight.Takes > weight.Of {
		w.broke("weight", "lock %s: its holders take %d of %d", after.Name, weight.Takes, weight.Of)
	}
}

// checkOrder looks whether somebody was passed who came first: of no lower priority, there, and waiting still.
func (w *world) checkOrder(before lokt.Snapshot, after *lokt.Lock, h lokt.Holder) {
	came, now := len(w.arrivals), lokt.Snapshot{Lock: *after, Now: before.Now}
	if _, queued := before.Lock.Position(h.LeaseID); queued {
		came = slices.Index(w.arrivals, h.LeaseID)
	}
	for _, own := range after.Holders {
		if own.LeaseID != h.LeaseID && own.Owner.Same(h.Owner) { // who has a part of it may pass
			return
		}
	}
	for _, q := range before.Lock.Queue {
		still, waits := after.Position(q.LeaseID)
		first := q.Priority > h.Priority || q.Priority == h.Priority && slices.Index(w.arrivals, q.LeaseID) < came
		if waits && first && !before.Away(q) && !now.Away(after.Queue[still]) {
			w.broke("order", "lock %s: %s is let in, and %s came first and waits still", after.Name, h.Owner.ID, q.Owner.ID)
		}
	}
}

// settleIn is how long after the last fault answers may be missing: until requests that were lost are made again.
const settleIn = time.Minute

// checkQueues looks for wake-ups that were lost: somebody waits for what it has, or for what nobody has.
func (w *world) checkQueues() {
	for _, c := range w.scripts {
		if c.died || c.locker == nil || len(c.asks) != 1 || w.net && w.now()-w.calmSince < settleIn {
			c.late = 0
			continue
		}
		snap := w.look(c.asks[0])
		free := len(snap.Live()) == 0 && snap.Lock.Freeze == nil
		waits := slices.ContainsFunc(snap.Lock.Queue, func(q *lokt.Waiter) bool { return free && c.is(q.Owner) && !snap.Away(q) && !q.Since.Before(c.asked) })
		has := slices.ContainsFunc(snap.Lock.Holders, func(h lokt.Holder) bool {
			return c.is(h.Owner) && !h.Pending.IsZero() && !h.HeldSince.Add(-h.Wait).Before(c.asked.Add(time.Millisecond))
		})
		switch {
		case !waits && !has:
			c.late = 0
		case c.late == 0:
			c.late = w.now()
		}
		if late := w.now() - cmp.Or(c.late, w.now()); late > time.Second && has && w.host == nil { // a process that died has woken nobody
			w.broke("wake-up", "%s has lock %s for %v, waits for it, and was not told", c.name, snap.Lock.Name, late)
		} else if late > 3*time.Second {
			w.broke("wake-up", "nobody has lock %s for %v, and %s waits for it", snap.Lock.Name, late, c.name)
		}
	}
}
