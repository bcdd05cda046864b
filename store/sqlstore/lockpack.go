package sqlstore

// What transactions changed about locks, as bytes: what the journal has of it. As with jobs, one description serves for both directions.

import (
	"time"

	"github.com/lokt-dev/lokt"
)

// lockJournalVersion begins every entry of the journal of locks. A program reads what those before it wrote.
const lockJournalVersion = 1

// lockEntry is what one transaction changed about locks.
type lockEntry struct {
	at     time.Time
	locks  []lockChange
	first  uint64 // number of the first event
	events []lokt.Event
}

// lockChange is what became of one lock: what differs from what was stored before.
type lockChange struct {
	name            string
	revision, token uint64
	frozen          bool // the freeze is another one, or there is none any more
	freeze          *lokt.Freeze
	holders         []placed[lokt.Holder] // new, or replaced
	released        []string              // leases of holders that are gone
	waiters         []placed[*lokt.Waiter]
	left            []string // leases of waiters that are gone
}

// placed is a holder or a waiter, and what orders it among the others.
type placed[T any] struct {
	place int64
	one   T
}

// packLocks appends what a transaction changed.
func packLocks(b []byte, e *lockEntry) []byte {
	p := &packer{b: append(b, lockJournalVersion|summed)}
	p.lockEntry(e)
	return seal(p.b, len(b))
}

// unpackLocks reads what packLocks wrote.
func unpackLocks(b []byte) (*lockEntry, error) {
	_, content, err := unseal(b, lockJournalVersion)
	if err != nil {
		return nil, err
	}
	p := &packer{b: content, reads: true}
	e := &lockEntry{}
	if p.lockEntry(e); p.failed || len(p.b) != 0 {
		return nil, errJournal
	}
	return e, nil
}

// nanos keeps nanoseconds, as the tables do.
func (p *packer) nanos(t *time.Time) {
	n := int64(0)
	if !p.reads && !t.IsZero() {
		n = unixNano(*t)
	}
	if p.number(&n); p.reads && n != 0 {
		*t = time.Unix(0, n).UTC()
	}
}

// packPointed packs what may be missing.
func packPointed[T any](p *packer, at **T, each func(*packer, *T)) {
	there := *at != nil
	if p.yes(&there); !there {
		return
	}
	if p.reads {
		*at = new(T)
	}
	each(p, *at)
}

func (p *packer) lockEntry(e *lockEntry) {
	p.nanos(&e.at)
	packList(p, &e.locks, (*packer).lockChange)
	packNumber(p, &e.first)
	packList(p, &e.events, (*packer).lockEvent)
}

func (p *packer) lockChange(c *lockChange) {
	packText(p, &c.name)
	packNumber(p, &c.revision)
	packNumber(p, &c.token)
	p.yes(&c.frozen)
	packPointed(p, &c.freeze, (*packer).freeze)
	packList(p, &c.holders, func(p *packer, h *placed[lokt.Holder]) {
		packNumber(p, &h.place)
		p.holder(&h.one)
	})
	packList(p, &c.released, packText)
	packList(p, &c.waiters, func(p *packer, w *placed[*lokt.Waiter]) {
		if w.one == nil {
			w.one = &lokt.Waiter{}
		}
		packNumber(p, &w.place)
		p.claim(&w.one.Claim)
		p.nanos(&w.one.Since)
		p.nanos(&w.one.Until)
	})
	packList(p, &c.left, packText)
	if p.reads {
		for i := range c.holders {
			c.holders[i].one.Name = c.name
		}
		for i := range c.waiters {
			c.waiters[i].one.Name = c.name
		}
	}
}

func (p *packer) freeze(f *lokt.Freeze) {
	packText(p, &f.ID)
	p.owner(&f.Owner)
	packText(p, &f.Reason)
	p.nanos(&f.At)
	packNumber(p, &f.TTL)
	p.nanos(&f.ExpiresAt)
	packText(p, &f.Damaged)
}

func (p *packer) holder(h *lokt.Holder) {
	p.claim(&h.Claim)
	packNumber(p, &h.Token)
	p.nanos(&h.HeldSince)
	p.nanos(&h.AcquiredAt)
	p.nanos(&h.ExpiresAt)
	packNumber(p, &h.Renewals)
	p.nanos(&h.Pending)
	packPointed(p, &h.Yield, func(p *packer, y *lokt.Yield) {
		p.owner(&y.To)
		p.nanos(&y.AskedAt)
		packNumber(p, &y.Grace)
		p.nanos(&y.Deadline)
	})
}

// claim packs a claim, but for the lock's name.
func (p *packer) claim(c *lokt.Claim) {
	packText(p, &c.LeaseID)
	p.owner(&c.Owner)
	packPointed(p, &c.Process, (*packer).process)
	p.yes(&c.Attended)
	packNumber(p, &c.Limit)
	p.yes(&c.Strict)
	p.yes(&c.Refresh)
	packNumber(p, &c.TTL)
	packNumber(p, &c.MaxHold)
	packNumber(p, &c.Priority)
	packNumber(p, &c.Preempt)
	packNumber(p, &c.Wait)
	packMap(p, &c.Metadata, packText)
	packList(p, &c.Within, packText)
}

func (p *packer) owner(o *lokt.Owner) {
	packText(p, &o.ID)
	packText(p, &o.Session)
	p.yes(&o.AnySession)
	packText(p, &o.Host)
	known := o.Process != lokt.Process{}
	if p.yes(&known); known {
		p.process(&o.Process)
	}
}

func (p *packer) process(w *lokt.Process) {
	packNumber(p, &w.PID)
	packNumber(p, &w.Start)
	packText(p, &w.Boot)
	packText(p, &w.Namespace)
	packText(p, &w.Liveness)
	packNumber(p, &w.Child)
	packNumber(p, &w.ChildStart)
}

// lockEvent packs an event of a lock.
func (p *packer) lockEvent(e *lokt.Event) {
	p.nanos(&e.Time)
	packText(p, &e.Type)
	packText(p, &e.Name)
	packText(p, &e.LeaseID)
	p.owner(&e.Owner)
	packNumber(p, &e.Token)
	packNumber(p, &e.TTL)
	p.nanos(&e.Expires)
	packMap(p, &e.Extra, packText)
}
