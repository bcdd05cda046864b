package httpapi

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
)

// together is how long a renewal waits for others to be sent with.
const together = 2 * time.Millisecond

// renewal is a renewal that is to be sent.
type renewal struct {
	lokt.Renewal
	ctx    context.Context
	leaves chan struct{} // closed when it is sent
	answer chan renewed  // the first counts
}

type renewed struct {
	holder lokt.Holder
	err    error
}

// Renew implements lokt.Service. Renewals that are asked for within two milliseconds are one request, but for one of a lease that
// has less than a quarter of its life left: that is not to depend on others. None is sent again after its ctx has ended.
func (c *Client) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	if err := cmp.Or(lokt.ValidateName(r.Name), checkLeaseID(r.LeaseID), ctx.Err()); err != nil {
		return lokt.Holder{}, err
	}
	me := &renewal{r, ctx, make(chan struct{}), make(chan renewed, 2)}
	c.mu.Lock()
	own := c.own[lokt.PublicID(r.LeaseID)]
	if late := !own.ends.IsZero() && time.Until(own.ends) < own.holder.TTL/4; late {
		go c.renewAll([]*renewal{me})
	} else if c.due = append(c.due, me); len(c.due) == 1 {
		time.AfterFunc(together, c.depart)
	}
	c.mu.Unlock()
	select {
	case <-me.leaves:
	case <-ctx.Done():
		return lokt.Holder{}, context.Cause(ctx)
	}
	answer := <-me.answer
	return answer.holder, answer.err
}

// depart sends the renewals that have been collected.
func (c *Client) depart() {
	c.mu.Lock()
	due := slices.DeleteFunc(c.due, func(m *renewal) bool { return m.ctx.Err() != nil })
	c.due = nil
	c.mu.Unlock()
	for some := range slices.Chunk(due, MaxRenewals) {
		go c.renewAll(some)
	}
}

// renewAll sends renewals as one request, and has each answered, at the latest when its own context ends.
func (c *Client) renewAll(all []*renewal) {
	for _, m := range all {
		close(m.leaves)
	}
	sent := all
	body := func() (any, time.Duration) {
		var q batchOfLeases
		for _, m := range sent {
			q.Leases = append(q.Leases, renewWire{m.Name, m.LeaseID, m.Owner, m.Heard})
		}
		return &q, 0
	}
	q, _ := body()
	x, ctx := routeRenew.to(q.(*batchOfLeases)), all[0].ctx
	if len(all) == 1 {
		x.lease = all[0].LeaseID
	} else {
		var cancel context.CancelFunc
		var left atomic.Int64
		ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		left.Add(int64(len(all)))
		for _, m := range all {
			defer context.AfterFunc(m.ctx, func() {
				m.answer <- renewed{err: ended(m.ctx, *cmp.Or(x.last.Load(), new(error)))}
				if left.Add(-1) == 0 {
					cancel()
				}
			})()
		}
		x.again = func() (any, time.Duration) {
			sent = slices.DeleteFunc(slices.Clone(all), func(m *renewal) bool { return m.ctx.Err() != nil })
			return body()
		}
	}
	answer, err := routeRenew.send(ctx, c, x, func(w *renewedWire) error {
		if len(w.Leases) != len(sent) {
			return errGarbage
		}
		for i, l := range w.Leases {
			if !holds(l.Holder, sent[i].Name, sent[i].LeaseID) && (l.Error == nil || !l.Error.own(l.Error.Status)) {
				return errGarbage
			}
		}
		return nil
	})
	if err != nil {
		for _, m := range all {
			c.renewed(m, renewed{err: err}, x)
		}
		return
	}
	for i, m := range sent {
		if l := answer.Leases[i]; l.Error != nil {
			c.claims(l.Error.Holders, nil)
			c.renewed(m, renewed{err: l.Error.err(m.LeaseID)}, x)
		} else {
			c.renewed(m, renewed{holder: *l.Holder}, x)
		}
	}
}

// renewed takes in the answer to one renewal, and passes it on.
func (c *Client) renewed(m *renewal, a renewed, x *exchange) {
	if gone := (*lokt.GoneError)(nil); errors.As(a.err, &gone) {
		c.forget(m.LeaseID)
	}
	if a.err == nil && m.ctx.Err() == nil {
		a.holder.ID, a.holder.LeaseID = "", m.LeaseID
		c.granted(a.holder, x.sent, "")
	}
	select {
	case m.answer <- a:
	default:
	}
}
