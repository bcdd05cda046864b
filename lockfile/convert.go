package lockfile

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
)

// FromHolder returns the record of a holder whose times are on now's wall clock.
func FromHolder(h lokt.Holder, now Now) *Record {
	r := fromClaim(h.Claim)
	r.AcquiredTS, r.ExpiresAt, r.HeldSince, r.Pending = h.AcquiredAt.UTC(), h.ExpiresAt.UTC(), h.HeldSince.UTC(), h.Pending.UTC()
	r.Renewals, r.Token, r.Slot, r.Messages = h.Renewals, h.Token, h.Slot, slices.Clone(h.Messages)
	if y := h.Yield; y != nil {
		r.Yield = &Yield{
			To: y.To.ID, Host: y.To.Host, AgentID: y.To.Session, AnySession: y.To.AnySession,
			AskedAt: y.AskedAt.UTC(), Grace: y.Grace, Deadline: y.Deadline.UTC(), Heard: y.Heard, Asker: Asker(y.To.Process),
		}
	}
	r.Clock = NewClock(now, r.AcquiredTS, r.ExpiresAt)
	return r
}

func fromClaim(c lokt.Claim) *Record {
	p := c.Owner.Process
	if c.Process != nil {
		p = *c.Process
	}
	r := &Record{
		Name: c.Name, LockID: c.LeaseID, Owner: c.Owner.ID, Host: c.Owner.Host, AgentID: c.Owner.Session,
		AnySession: c.Owner.AnySession, Kind: c.Kind(), Priority: c.Priority, Weight: c.Weight, MaxHold: c.MaxHold,
		Attended: c.Attended, Ticket: c.Ticket, Metadata: maps.Clone(c.Metadata), Paths: slices.Clone(c.Paths), Within: slices.Clone(c.Within), Wait: c.Wait, Preempt: c.Preempt, Newest: c.Newest, Refresh: c.Refresh,
		PID: p.PID, PIDStart: p.Start, BootID: p.Boot, PIDNS: p.Namespace, Liveness: p.Liveness, ChildPID: p.Child, ChildStart: p.ChildStart,
		Bound: c.Process != nil, TTLSec: int64(c.TTL / time.Second),
	}
	if c.TTL%time.Second != 0 {
		r.TTL = c.TTL
		r.TTLSec++
	}
	if c.Limit > lokt.Exclusive {
		r.Limit = c.Limit
	}
	if c.Owner.Process != p {
		r.Asker = (*Asker)(&c.Owner.Process)
	}
	return r
}

// Holder returns the holder that the record describes, its times moved to the reader's wall clock. It shares nothing
// with the record.
func (r *Record) Holder(now Now) lokt.Holder {
	shift := r.Shift(now)
	h := lokt.Holder{
		Claim: r.claim(), Token: r.Token, Slot: r.Slot, Renewals: r.Renewals,
		AcquiredAt: move(r.AcquiredTS, shift), ExpiresAt: move(r.Expiry(), shift),
		HeldSince: move(cmp.Or(r.HeldSince, r.AcquiredTS), shift), Pending: move(r.Pending, shift), Messages: slices.Clone(r.Messages),
	}
	if y := r.Yield; y != nil {
		to := lokt.Owner{ID: y.To, Session: y.AgentID, AnySession: y.AnySession, Host: y.Host, Process: lokt.Process(y.Asker)}
		h.Yield = &lokt.Yield{To: to, AskedAt: move(y.AskedAt, shift), Grace: y.Grace, Deadline: move(y.Deadline, shift), Heard: y.Heard}
	}
	return h
}

func (r *Record) claim() lokt.Claim {
	p := lokt.Process{
		PID: r.PID, Start: r.PIDStart, Boot: r.BootID, Namespace: r.PIDNS, Liveness: r.Liveness, Child: r.ChildPID, ChildStart: r.ChildStart,
	}
	c := lokt.Claim{
		Name: r.Name, LeaseID: r.LockID, Limit: r.Limit, TTL: r.ttl(), MaxHold: r.MaxHold, Priority: r.Priority, Weight: r.Weight,
		Attended: r.Attended, Ticket: r.Ticket, Strict: r.Kind == KindGuard, Metadata: maps.Clone(r.Metadata), Paths: slices.Clone(r.Paths), Within: slices.Clone(r.Within),
		Wait: r.Wait, Preempt: r.Preempt, Newest: r.Newest, Refresh: r.Refresh,
		Owner: lokt.Owner{ID: r.Owner, Session: r.AgentID, AnySession: r.AnySession, Host: r.Host, Process: p},
	}
	if r.Asker != nil {
		c.Owner.Process = lokt.Process(*r.Asker)
	}
	if r.Bound || r.PID > 0 && (r.Kind == "" || r.Kind == KindGuard) { // a guard ends with its process, as older programs' holds do
		c.Process = &p
	}
	return c
}

// FromFreeze returns the record of a freeze whose times are on now's wall clock.
func FromFreeze(name string, f lokt.Freeze, now Now) *Record {
	r := fromClaim(lokt.Claim{Name: name, LeaseID: f.ID, Owner: f.Owner, TTL: f.TTL})
	r.Kind, r.Reason, r.AcquiredTS, r.ExpiresAt = KindFreeze, f.Reason, f.At.UTC(), f.ExpiresAt.UTC()
	r.Clock = NewClock(now, r.AcquiredTS, r.ExpiresAt)
	return r
}

// Freeze returns the freeze that the record describes, its times moved to the reader's wall clock.
func (r *Record) Freeze(now Now) lokt.Freeze {
	shift := r.Shift(now)
	return lokt.Freeze{
		ID: r.LockID, Owner: r.claim().Owner, Reason: r.Reason, TTL: r.ttl(),
		At: move(r.AcquiredTS, shift), ExpiresAt: move(r.Expiry(), shift),
	}
}
