package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
)

// mix has an action be more than a hold that is renewed, or something else.
func mix(r *rand.Rand, a action) action {
	a.again, a.curious, a.closes = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(8) == 0
	switch how := r.IntN(10); {
	case len(a.names) > 1:
	case how < 4:
		a.how, a.o.Newest = asLease+how, r.IntN(3) == 0
	case how == 4:
		a.o.ManualHeartbeat = true
	case how == 5:
		a.o.TTL, a.o.MaxHold = lokt.NoTTL, max(a.o.MaxHold, time.Second)
	case how == 6:
		a.o.Newest = true
	case a.names[0] == "s":
		a.o.Weight = lokt.Weight{Takes: 1 + r.Int64N(3), Of: 3}
	}
	return a
}

// accompany adds those who read events, and in some courses a crowd: the queue has room for sixteen that name so much.
func (w *world) accompany(r *rand.Rand, ttl time.Duration) {
	w.follow(r, "")
	w.follow(r, "a")
	for k := range 20 * (r.IntN(4) / 3) {
		a := action{id: 800 + k, how: asLease, names: []string{"a"}, idle: randomly(r, time.Millisecond, ttl), paths: []string{strings.Repeat("x", 1024)}}
		a.o, a.touches, a.gap = lokt.Options{TTL: ttl, Wait: randomly(r, 5*time.Second, 20*time.Second), Newest: r.IntN(20) == 0}, 1, ttl/2
		w.scripts = append(w.scripts, &client{actor: w.newActor(fmt.Sprint("guest", k), r), todo: []action{a}})
		w.begin(w.scripts[len(w.scripts)-1], 1)
	}
}

// tends does with a lease what its holder may, and reports whether it was asked to leave.
func (c *client) tends(a action, l *lokt.Lease) bool {
	if a.o.ManualHeartbeat {
		_ = l.Renew(c.ctx)
	}
	if a.curious {
		there, err := c.locker.HeldByMe(c.ctx, l.Name())
		for s, failed := range c.service.List(c.ctx, lokt.Filter{Prefix: l.Name()}) {
			_, in := s.Lock.Holder(l.ID())
			there, err = there && in, errors.Join(err, failed)
		}
		if left := l.Remaining(); err == nil && !there && l.Err() == nil && !c.w.forcedOut[grant{l.ID(), l.Token()}] {
			c.w.broke("record", "lock %s: %s holds it with token %d for %v, and is not on record", l.Name(), c.name, l.Token(), left)
		}
	}
	select {
	case <-l.Yield():
		c.w.count("a holder sees that it is asked to leave")
		return a.again
	default:
		return false
	}
}

// reclaims takes a lock again that was lost.
func (c *client) reclaims(l *lokt.Lease, lost error) (lokt.Leases, error) {
	l.StopHeartbeat()
	again, err := c.locker.Reclaim(c.ctx, l)
	if err != nil {
		return lokt.Leases{l}, lost
	}
	c.w.say(c.actor, "holds %s again, with token %d", l.Name(), again.Token())
	c.w.count("a lock that was lost is taken again")
	c.held, c.told = lokt.Leases{again}, map[string]bool{}
	return c.held, l.Release(c.ctx) // which ends nothing
}

// closes ends the client's locker while it acquires more. Another process goes on.
func (c *client) closes(leases lokt.Leases) {
	var late error
	var both sync.WaitGroup
	both.Go(func() {
		var l *lokt.Lease
		if l, late = c.locker.Acquire(c.apart(), "b", lokt.Options{Wait: 10 * time.Second, Strict: true}); late == nil {
			leases = append(leases, l)
		}
	})
	c.pass(c.ctx, pointWork, "closes its locker")
	err := c.locker.Close(c.ctx)
	if both.Wait(); errors.Is(late, lokt.ErrClosed) {
		c.w.count("a locker is closed while it acquires")
	}
	for _, l := range leases {
		if left := c.locker.Leases(); c.ctx.Err() == nil && l.Err() == nil || err == nil && len(left) > 0 {
			c.w.broke("close", "lock %s: %s has closed its locker, whose lease is %v, and which has %d", l.Name(), c.name, l.State(), len(left))
		}
	}
	if c.over = c.ctx.Err() == nil; c.over {
		c.w.revive(c)
	}
}

// apart tells two of one process apart that do the same.
func (c *client) apart() context.Context {
	return context.WithValue(c.ctx, originKey{}, c.name+", too")
}

// campaigns has the client lead, twice at a time, until its time is over or it has done what there was to do.
func (c *client) campaigns(a action) {
	other, both := &client{actor: c.actor, locker: c.locker}, sync.WaitGroup{}
	c.w.scripts = append(c.w.scripts, other)
	both.Go(func() { c.leads(c.ctx, a, "leads") })
	both.Go(func() { other.leads(c.apart(), a, "leads, too") })
	both.Wait()
}

func (c *client) leads(ctx context.Context, a action, what string) {
	w, terms := c.w, 0
	ctx, done := context.WithTimeout(ctx, max(a.gives, a.o.TTL)+a.o.Wait+time.Duration(len(what)))
	defer done()
	if c.pass(ctx, pointWork, "campaigns and "+what) != fine {
		return
	}
	a.o.Strict = false
	_ = c.locker.Lead(ctx, a.names[0], a.o, func(term context.Context, token uint64) error {
		all := slices.DeleteFunc(c.locker.Leases(), func(l *lokt.Lease) bool { return l.Name() != a.names[0] || l.Token() != token })
		if terms++; terms > 1 {
			w.count("a leader that lost its lead leads again")
		}
		w.say(c.actor, "%s with token %d", what, token)
		c.held, c.limit, c.told = all, a.o.Limit, map[string]bool{}
		defer func() { c.held = nil }()
		for range a.touches {
			if w.sleep(a.gap); c.pass(c.ctx, pointWork, what) != fine || term.Err() != nil {
				return context.Cause(term)
			}
		}
		return nil
	})
}

// visits looks at a lock, waits for a change, and has all that is stale removed.
func (c *client) visits(a action) {
	s, _ := c.service.Get(c.ctx, a.names[0])
	ctx, done := context.WithTimeout(c.ctx, 4*a.gap)
	defer done()
	_ = c.service.Wait(ctx, lokt.Watch{Name: a.names[0], Seen: s.Lock.Revision})
	if n, _ := c.locker.CleanupStale(c.ctx); n > 0 {
		c.w.count("all that is stale is removed")
	}
}

// checkEnds looks whether who has gone has gone for a reason, which is told, whether all others keep their order, and who was sent away.
func (w *world) checkEnds(before lokt.Snapshot, c lokt.Change) {
	after, last, now := &c.Lock, -1, before.Now
	past := func(t time.Time) bool { return !t.IsZero() && now.After(t) }
	said := func(lease string, all ...lokt.EventType) bool {
		return slices.ContainsFunc(c.Events, func(e lokt.Event) bool { return e.LeaseID == lease && slices.Contains(all, e.Type) })
	}
	for _, h := range before.Lock.Holders {
		over := past(h.ExpiresAt) || past(h.Pending) || h.Yield != nil && past(h.Yield.Deadline)
		is, _ := after.Holder(h.LeaseID)
		told := said(h.LeaseID, lokt.EventRelease, lokt.EventForceBreak) || over && said(h.LeaseID, lokt.EventAutoPrune, lokt.EventRenew)
		if is.Token != h.Token && !told {
			w.broke("end", "lock %s: %s has lost it with token %d until %v, at %v, and nobody is told why", after.Name, h.Owner.ID, h.Token, h.ExpiresAt, now)
		}
	}
	for _, q := range before.Lock.Queue {
		_, in := after.Holder(q.LeaseID)
		at, still := after.Position(q.LeaseID)
		moved := q.Passed > 0 || q.Ousted != "" || said(q.LeaseID, lokt.EventWait)
		switch {
		case !still && !in && !moved:
			w.broke("end", "lock %s: %s waited for it and does not any more, and nobody is told why", after.Name, q.Owner.ID)
		case still && !moved && after.Queue[at].Passed == 0:
			if at < last {
				w.broke("order", "lock %s: %s and another that waited have changed places", after.Name, q.Owner.ID)
			}
			last = at
		}
	}
	for _, e := range c.Events {
		_, in := after.Holder(e.LeaseID)
		_, waits := after.Position(e.LeaseID)
		if e.Type == lokt.EventWait && waits {
			w.sentAway[e.LeaseID] = e.Extra[lokt.ExtraOutcome] == "ousted"
		}
		if e.Extra[lokt.ExtraReason] != lokt.ErrFull.Error() {
			continue
		}
		if w.count("the queue is full"); in || waits {
			w.broke("full", "lock %s: %s was refused, and is on record", after.Name, e.Owner.ID)
		}
	}
}
