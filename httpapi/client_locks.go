package httpapi

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/lokt-dev/lokt"
)

// longPoll is how long one request of a client waits.
const longPoll = 30 * time.Second

// leastPoll is how long one request for a claim waits at least, however short the time to live, unless the wait is
// over.
const leastPoll = time.Second

// circlePoll is the same for a claim that may be part of a circle.
const circlePoll = 5 * time.Second

// undoTimeout bounds how long a claim that its caller gave up may take to be taken back.
const undoTimeout = 5 * time.Second

// errOutcomeUnknown is wrapped, beside lokt.ErrUnavailable, by the error of a request to end something that may have
// done so, and of which the answer was lost.
var errOutcomeUnknown = errors.New("an answer was lost, and by now there is nothing to end")

// longPolls notes that the server waits until there is something newer than what was seen.
func (x *exchange) longPolls() *exchange {
	x.wait, x.patience = longPoll, lokt.QueueTTL
	return x
}

// notUnless refuses an answer that is not what was asked for: nothing counts that a proxy may have made up.
func notUnless(whole bool) error {
	if !whole {
		return errGarbage
	}
	return nil
}

// holds reports whether an answer tells of a hold of the lock: of that lease, if one is named.
func holds(h *lokt.Holder, name, leaseID string) bool {
	return h != nil && h.Name == name && h.Token > 0 && (leaseID == "" || Shown(cmp.Or(h.LeaseID, h.ID)) == Shown(leaseID))
}

// provedBy has the request prove that its sender has the lease.
func (x *exchange) provedBy(leaseID string) *exchange {
	x.header = map[string]string{headerLease: leaseID}
	x.lease, x.invalid = leaseID, cmp.Or(x.invalid, checkLeaseID(leaseID))
	return x
}

// Acquire implements lokt.Service. If ctx ends while the claim waits, it is taken back before Acquire returns, within
// five seconds; if the server cannot be told, others pass it as soon as the server misses it, or it ends with its time
// to live.
func (c *Client) Acquire(ctx context.Context, claim lokt.Claim) (lokt.Holder, error) {
	claim.LeaseID = cmp.Or(claim.LeaseID, lokt.NewLeaseID())
	if err := cmp.Or(claim.Validate(), checkLeaseID(claim.LeaseID), context.Cause(ctx)); err != nil {
		return lokt.Holder{}, err
	}
	c.know(claim.LeaseID)
	operation := lokt.NewLeaseID()
	h, x, err := c.acquire(ctx, claim, operation)
	if err == nil {
		if !isPublicID(h.LeaseID) {
			c.granted(h, x.sent, operation)
		}
		return h, nil
	}
	if x.seen && (ctx.Err() != nil || x.doubtful) {
		untold := c.takeBack(ctx, claim, operation)
		if blocked := (*lokt.BlockedError)(nil); errors.As(err, &blocked) && untold != nil {
			blocked.Unsure = true
		}
	}
	if _, held := c.lasting(claim.LeaseID); !held {
		c.forget(claim.LeaseID)
	}
	return lokt.Holder{}, err
}

// acquire asks until the claim is granted or denied. A claim that waits is asked for again and again.
func (c *Client) acquire(
	ctx context.Context, claim lokt.Claim, operation string,
) (h lokt.Holder, x *exchange, err error) {
	begun := time.Now()
	x = routeAcquire.to(nil, claim.Name)
	x.lease, x.header = claim.LeaseID, map[string]string{headerOperation: operation}
	if claim.Wait != 0 {
		x.patience = lokt.QueueTTL
	}
	if claim.Wait > 0 { // who does not want to wait any more does not wait for a server either
		x.patience, x.most, x.attempt = min(x.patience, claim.Wait), claim.Wait, max(claim.Wait, leastPoll)
	}
	poll := longPoll
	if claim.TTL > 0 { // a grant of which the answer is lost without a word is asked for again while it lasts
		again := max(claim.TTL/3, leastPoll)
		poll, x.attempt = min(poll, again), min(again, cmp.Or(x.attempt, again))
	}
	if len(claim.Within) > 0 { // finding out that it waits in a circle takes the server some time
		poll = max(poll, circlePoll)
	}
	body := claimWire{Claim: claim}
	body.Name, body.ID, body.Claim.Process, body.Wait = "", "", nil, 0
	body.Owner.Process.Liveness = "" // nothing for who cannot look
	x.again = func() (any, time.Duration) {
		wait := poll
		if claim.Wait >= 0 {
			wait = max(min(poll, claim.Wait-time.Since(begun)), 0)
		}
		body.Wait, body.Stay = wait, wait > 0
		if wait == 0 && claim.Wait > 0 { // leave the queue
			body.Wait = time.Millisecond
		}
		return &body, wait
	}
	wanted := claim.LeaseID
	if claim.Refresh { // the owner's hold may be another
		wanted = ""
	}
	for {
		answer, err := routeAcquire.send(ctx, c, x, func(w *grantWire) error {
			return notUnless(w.Queued && w.ID == lokt.PublicID(claim.LeaseID) ||
				holds(w.Holder, claim.Name, wanted) && w.Holder.Owner.ID == claim.Owner.ID)
		})
		switch blocked := (*lokt.BlockedError)(nil); {
		case errors.As(err, &blocked) && claim.Wait > 0 && !body.Stay && len(blocked.Cycle) == 0 && blocked.Ousted == "":
			blocked.TimedOut = time.Since(begun)
			return h, x, err
		case err != nil:
			return h, x, err
		case !answer.Queued:
			c.claim(&answer.Holder.Claim)
			return *answer.Holder, x, nil
		}
	}
}

// takeBack ends a claim whose outcome is unknown, and sees to it that no copy of it that is still under way is granted.
func (c *Client) takeBack(ctx context.Context, claim lokt.Claim, operation string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	target := leaseWire{*toTarget(lokt.Target{Owner: claim.Owner}), claim.Ticket}
	x := routeRelease.to(&target, claim.Name, lokt.PublicID(claim.LeaseID)).provedBy(claim.LeaseID)
	x.header[headerCancels], x.attempt = operation, undoTimeout/2
	_, err := routeRelease.send(ctx, c, x, (*releasedWire).check)
	if errors.Is(err, lokt.ErrNotFound) || errors.Is(err, lokt.ErrNotOwner) { // it is gone already
		return nil
	}
	return err
}

// Release implements lokt.Service. With Force or Stale, the target's lease ID may be a lokt.PublicID.
func (c *Client) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	x := routeRelease.to(&leaseWire{*toTarget(t), t.Ticket}, t.Name, Shown(t.LeaseID))
	switch {
	case t.LeaseID == "":
		x = routeReleaseAll.to(toTarget(t), t.Name)
	case !isPublicID(t.LeaseID) || !t.Force && !t.Stale:
		x.provedBy(t.LeaseID)
	}
	x.lease = t.LeaseID
	was, lasting := c.lasting(t.LeaseID)
	if was.operation != "" && x.header != nil { // a copy of the claim that is still under way is not to be granted when the lease is over
		x.header[headerCancels] = was.operation
	}
	answer, err := routeRelease.send(ctx, c, x, (*releasedWire).check)
	gone := (*lokt.GoneError)(nil)
	switch {
	case err == nil:
		c.claims(answer.Released, nil)
		for _, h := range answer.Released {
			c.forget(h.LeaseID)
		}
		return answer.Released, nil
	case errors.As(err, &gone) && x.doubtful && x.header != nil:
		if _, still := c.lasting(t.LeaseID); lasting && still && !t.Stale { // only the lost attempt can have ended it
			c.forget(t.LeaseID)
			return []lokt.Holder{was.holder}, nil
		}
		return nil, c.unreachable(c.current.Load(), errOutcomeUnknown)
	case errors.As(err, &gone):
		c.forget(t.LeaseID)
	}
	return nil, c.certain(x, err)
}

// check refuses an answer that does not say what was ended: a claim that waited is no hold.
func (w *releasedWire) check() error { return notUnless(w.Released != nil) }

// certain returns the error, unless an attempt whose answer was lost may be why there was nothing to end.
func (c *Client) certain(x *exchange, err error) error {
	if x.doubtful && (errors.Is(err, lokt.ErrNotFound) || errors.Is(err, lokt.ErrNotOwner)) {
		return c.unreachable(c.current.Load(), errOutcomeUnknown)
	}
	return err
}

// Tell implements lokt.Service.
func (c *Client) Tell(ctx context.Context, t lokt.Target, m lokt.Message) (lokt.Holder, error) {
	m.ID = cmp.Or(m.ID, lokt.NewLeaseID())
	x := routeTell.to(&m, t.Name)
	x.query, x.header, x.lease = parameters(toTarget(t)), map[string]string{headerLease: t.LeaseID}, t.LeaseID
	answer, err := routeTell.send(ctx, c, x, func(w *grantWire) error { return notUnless(holds(w.Holder, t.Name, "")) })
	if err != nil {
		return lokt.Holder{}, c.certain(x, err)
	}
	c.claim(&answer.Holder.Claim)
	return *answer.Holder, nil
}

// Freeze implements lokt.Service.
func (c *Client) Freeze(ctx context.Context, name string, f lokt.Freeze) (lokt.Freeze, error) {
	return c.freeze(ctx, routeFreeze.to(&f, name))
}

// freeze sends a request that is answered with a freeze.
func (c *Client) freeze(ctx context.Context, x *exchange) (lokt.Freeze, error) {
	answer, err := routeUnfreeze.send(ctx, c, x, func(w *freezeWire) error { return notUnless(w.Freeze != nil && w.Freeze.ID != "") })
	if err != nil {
		return lokt.Freeze{}, err
	}
	return *answer.Freeze, nil
}

// Unfreeze implements lokt.Service.
func (c *Client) Unfreeze(ctx context.Context, t lokt.Target) (lokt.Freeze, error) {
	x := routeUnfreeze.to(toTarget(t), t.Name)
	x.header = map[string]string{headerLease: t.LeaseID}
	f, err := c.freeze(ctx, x)
	return f, c.certain(x, err)
}

// Prune implements lokt.Service.
func (c *Client) Prune(ctx context.Context, name string) ([]lokt.Removed, error) {
	answer, err := routePrune.send(ctx, c, routePrune.to(nil, name), func(w *prunedWire) error { return notUnless(w.Removed != nil) })
	for i := range answer.Removed {
		c.claim(&answer.Removed[i].Holder.Claim)
	}
	return answer.Removed, err
}

// Get implements lokt.Service.
func (c *Client) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	return c.get(ctx, name, routeLock.to(nil, name))
}

func (c *Client) get(ctx context.Context, name string, x *exchange) (lokt.Snapshot, error) {
	answer, err := routeLock.send(ctx, c, x, func(w *lockWire) error { return notUnless(w.Name == name) })
	if err != nil {
		return lokt.Snapshot{}, err
	}
	return c.snapshot(&answer), nil
}

// snapshot returns what an answer tells of a lock.
func (c *Client) snapshot(w *lockWire) lokt.Snapshot {
	s := lokt.Snapshot{Lock: w.Lock, Now: w.Now}
	c.claims(s.Lock.Holders, s.Lock.Queue)
	for id, why := range w.Stale {
		if why == lokt.ReasonDead {
			if s.Dead == nil {
				s.Dead = map[string]bool{}
			}
			s.Dead[c.restore(id)] = true
		}
	}
	return s
}

// List implements lokt.Service. It reads all locks before it yields the first.
func (c *Client) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		x := routeLocks.to(&listWire{f.Prefix, f.Queued})
		answer, err := routeLocks.send(ctx, c, x, func(w *locksWire) error { return notUnless(w.Locks != nil) })
		if err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		for i := range answer.Locks {
			w, err := &answer.Locks[i], error(nil)
			if w.Error != nil {
				err = w.Error.err("")
			}
			if !yield(c.snapshot(w), err) {
				return
			}
		}
	}
}

// Wait implements lokt.Service. It does not look at the watch's lease ID.
func (c *Client) Wait(ctx context.Context, w lokt.Watch) error {
	for {
		s, err := c.get(ctx, w.Name, routeLock.to(&seenWire{&w.Seen, longPoll}, w.Name).longPolls())
		if err != nil || s.Lock.Revision != w.Seen {
			return err
		}
	}
}

// ReadEvents implements lokt.EventLog. A server whose store keeps no events answers with ErrNoEvents.
func (c *Client) ReadEvents(ctx context.Context, q lokt.EventQuery) (lokt.EventPage, error) {
	q.Limit = max(q.Limit, 0)
	return c.readEvents(ctx, routeAudit.to(&eventsWire{EventQuery: q}))
}

func (c *Client) readEvents(ctx context.Context, x *exchange) (lokt.EventPage, error) {
	page, err := routeAudit.send(ctx, c, x, func(p *lokt.EventPage) error { return notUnless(p.Events != nil) })
	for i := range page.Events {
		c.event(&page.Events[i])
	}
	return page, err
}

// WaitEvents implements lokt.EventLog.
func (c *Client) WaitEvents(ctx context.Context, after uint64) error {
	for {
		q := eventsWire{EventQuery: lokt.EventQuery{Limit: 1}, After: &after, Wait: longPoll}
		page, err := c.readEvents(ctx, routeAudit.to(&q).longPolls())
		if err != nil || page.Newest > after {
			return err
		}
	}
}
