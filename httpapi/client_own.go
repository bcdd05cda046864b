package httpapi

import (
	"cmp"
	"maps"
	"time"

	"github.com/lokt-dev/lokt"
)

// restore returns the client's own lease ID for a public one, or the public one if it is another's.
func (c *Client) restore(publicID string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.own[publicID].id, publicID)
}

// claim puts the client's own lease ID into a claim that was read, and the public one where it is another's.
func (c *Client) claim(cl *lokt.Claim) {
	if cl.LeaseID == "" {
		cl.LeaseID = c.restore(cl.ID)
	}
	cl.ID = ""
	for i, id := range cl.Within {
		cl.Within[i] = c.restore(id)
	}
}

// claims does so for holders and waiters.
func (c *Client) claims(holders []lokt.Holder, queue []*lokt.Waiter) {
	for i := range holders {
		c.claim(&holders[i].Claim)
	}
	for _, w := range queue {
		c.claim(&w.Claim)
	}
}

// event does so for an event.
func (c *Client) event(e *lokt.LoggedEvent) {
	e.LeaseID, e.ID = c.restore(e.ID), ""
	if was, ok := e.Extra[lokt.ExtraLeaseWas]; ok {
		e.Extra[lokt.ExtraLeaseWas] = c.restore(was)
	}
}

// know remembers a lease ID that the client chose.
func (c *Client) know(leaseID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	public := lokt.PublicID(leaseID)
	if _, known := c.own[public]; !known {
		c.own[public] = ownLease{id: leaseID}
		c.tidy()
	}
}

// granted remembers a hold that was granted, by a claim of that operation, or renewed, by a request that was sent when asked.
func (c *Client) granted(h lokt.Holder, asked time.Time, operation string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	public := lokt.PublicID(h.LeaseID)
	l := ownLease{id: h.LeaseID, holder: h, operation: cmp.Or(operation, c.own[public].operation)}
	if !h.ExpiresAt.IsZero() {
		l.ends = asked.Add(max(h.ExpiresAt.Sub(h.AcquiredAt), 1))
	}
	c.own[public] = l
	c.tidy()
}

// forget forgets a lease that is over.
func (c *Client) forget(leaseID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.own, lokt.PublicID(leaseID))
}

// lasting returns what is known of the lease, and whether it is known to have its hold if nobody has ended that.
func (c *Client) lasting(leaseID string) (ownLease, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.own[lokt.PublicID(leaseID)]
	return l, ok && l.holder.Token != 0 && (l.ends.IsZero() || time.Now().Before(l.ends))
}

// tidy forgets leases that ended long ago without a word, once a minute at most. The client is locked.
func (c *Client) tidy() {
	if time.Since(c.tidied) > time.Minute {
		c.tidied = time.Now()
		maps.DeleteFunc(c.own, func(_ string, l ownLease) bool { return !l.ends.IsZero() && time.Since(l.ends) > time.Minute })
	}
}
