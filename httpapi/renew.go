package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/jitter"
)

const (
	MaxRenewals  = 100             // leases of locks that are renewed with one request
	batchTimeout = 2 * time.Second // how long a lock that cannot be changed may keep the others of its batch from their answer
	slotLength   = 100 * time.Millisecond
)

// batchOfLeases are leases to be renewed, renewedWire what became of each, in their order.
type batchOfLeases struct {
	Leases []renewWire `json:"leases"`
}

type renewWire struct {
	Name    string      `json:"name"`
	LeaseID string      `json:"lease_id"`
	Owner   *lokt.Owner `json:"owner,omitzero"`
	Heard   time.Time   `json:"heard,omitzero"`
}

type renewedWire struct {
	Leases []renewedLease `json:"leases"`
}

// renewedLease is the answer about one: either, or.
type renewedLease struct {
	Holder *lokt.Holder `json:"holder,omitzero"`
	Error  *problem     `json:"error,omitzero"`
}

// renewAll renews each lease for itself, all at a time, so that a store that commits groups has one. A batch of which nothing can
// be known, and a lease that is alone, is answered with its error.
func (c *call) renewAll(q *batchOfLeases) (answer renewedWire, err error) {
	n := len(q.Leases)
	if n < 1 || n > MaxRenewals {
		return answer, invalid("%d leases are not from 1 to %d", n, MaxRenewals)
	}
	ctx, done := c.ctx, context.CancelFunc(func() {})
	if n > 1 {
		ctx, done = context.WithTimeout(ctx, batchTimeout)
	}
	defer done()
	all, held, errs := sync.WaitGroup{}, make([]lokt.Holder, n), make([]error, n)
	for i := range q.Leases {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					errs[i] = fmt.Errorf("%w: %v", errInternal, p)
				}
			}()
			held[i], errs[i] = c.renew(ctx, &q.Leases[i])
		})
	}
	all.Wait()
	answer.Leases = make([]renewedLease, n)
	next, unknown := map[time.Duration]time.Duration{}, 0 // by time to live
	for i, w := range q.Leases {
		if c.lease = w.LeaseID; errs[i] != nil {
			p := c.problem(errs[i])
			if p.RequestID = c.id; p.Code == "unavailable" {
				unknown++
			}
			answer.Leases[i].Error, err = &p, errs[i]
			continue
		}
		h := c.view().own(&held[i], w.LeaseID)
		if next[h.TTL] == 0 {
			next[h.TTL] = c.s.pace.next(h.TTL)
		}
		h.HeartbeatIn, answer.Leases[i].Holder = next[h.TTL], h
	}
	if n > 1 && unknown < n {
		err = nil
	}
	return answer, err
}

// renew renews one lease.
func (c *call) renew(ctx context.Context, q *renewWire) (h lokt.Holder, err error) {
	if err := cmp.Or(lokt.ValidateName(q.Name), checkLeaseID(q.LeaseID)); err != nil {
		return h, err
	}
	if err := c.may(ScopeLock, q.Name); err != nil {
		return h, err
	}
	r := lokt.Renewal{Name: q.Name, LeaseID: q.LeaseID, Heard: q.Heard}
	if q.Owner != nil {
		owner, err := c.view().stored(*q.Owner)
		if err != nil {
			return h, err
		}
		r.Owner = &owner
	}
	h, err = c.s.Locks.Renew(ctx, r)
	if another := takenByAnother(q, r, err); another != nil {
		r.Owner = another
		h, err = c.s.Locks.Renew(ctx, r)
	}
	return h, err
}

// takenByAnother returns the recorded owner of the lease that a renewal is refused for, if it is the owner that the
// caller names but was put on record by another caller, or without any. The lease ID is what proves ownership: a token
// can be replaced by one of another name while its holds last.
func takenByAnother(q *renewWire, r lokt.Renewal, err error) *lokt.Owner {
	var gone *lokt.GoneError
	if q.Owner == nil || !errors.As(err, &gone) || gone.Cause != "" {
		return nil
	}
	for _, h := range gone.Holders {
		if h.LeaseID != r.LeaseID || h.Owner.ID == r.Owner.ID {
			continue
		}
		if _, id, found := strings.Cut(h.Owner.ID, "/"); h.Owner.ID == q.Owner.ID || found && id == q.Owner.ID {
			owner := *r.Owner
			owner.ID = h.Owner.ID
			return &owner
		}
	}
	return nil
}

// pace spreads the renewals of leases over time. Each answer with a lease is told when to renew it, and takes a place among the
// requests of that tenth of a second: no more than so many while a time can be found that the lease allows.
type pace struct {
	most  int // requests in a slot
	begun time.Time

	mu    sync.Mutex
	slots [1024]slot // those further away have few requests in any case: leases that live so long
}

// slot is a tenth of a second, and how many requests are expected in it.
type slot struct {
	at time.Duration // in slots
	n  int
}

func newPace(perSecond int) *pace {
	return &pace{most: max(perSecond*int(slotLength)/int(time.Second), 1), begun: time.Now()}
}

// next returns when a lease that lives so long is to be renewed: after a third of that, or up to half, so that there is time to try
// again, and then a quarter for a command to end. It is 0 for one that does not expire.
func (p *pace) next(life time.Duration) time.Duration {
	if life == 0 {
		return 0
	}
	spread := jitter.Float64()
	now := time.Since(p.begun)
	first, last := now+time.Duration(float64(life/3)*(1+spread/10)), now+life/2
	if first-now > slotLength*time.Duration(len(p.slots)) {
		return (first - now).Truncate(time.Millisecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	best := p.slot(first / slotLength)
	for at := best.at + 1; best.n >= p.most && at <= min(last/slotLength, now/slotLength+time.Duration(len(p.slots)-1)); at++ {
		// Where all are full, the later ones are best.
		if s := p.slot(at); s.n < p.most || s.n < best.n || at < (first+last)/2/slotLength {
			best = s
		}
	}
	best.n++
	return (min(max(first, best.at*slotLength+time.Duration(spread*float64(slotLength))), last) - now).Truncate(time.Millisecond)
}

// slot returns a slot. What it was is over.
func (p *pace) slot(at time.Duration) *slot {
	s := &p.slots[int(at)%len(p.slots)]
	if s.at != at {
		*s = slot{at: at}
	}
	return s
}
