package sqlstore

// Locks as rows of tables.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt"
)

// entry is a lock as it is stored, and the places that order its holders and waiters there. Entries are never changed.
type entry struct {
	lock    lokt.Lock
	holders []int64
	waiters []int64
	stored  bool      // the lock has a row
	changed time.Time // when it was changed last
}

const (
	lockColumns   = "name, revision, token, changed"
	holderColumns = "lock, lease_id, place, owner, session, host, token, held_since, acquired_at, expires_at, ttl, max_hold, renewals, pending, yield, claim"
	waiterColumns = "lock, lease_id, place, owner, session, host, priority, since, until, ttl, max_hold, claim"
	freezeColumns = "lock, id, owner, session, host, reason, frozen_at, ttl, expires_at, detail"
)

// selection says which locks to read: the conditions for the table of locks and for those of what belongs to them.
type selection struct {
	locks, rest string
	args        []any
}

// notFree selects all locks that are not free.
func notFree() selection {
	return selection{locks: " WHERE name IN (SELECT lock FROM holders UNION SELECT lock FROM waiters UNION SELECT lock FROM freezes)"}
}

// named selects one lock.
func named(name string) selection {
	return selection{" WHERE name = ?", " WHERE lock = ?", []any{name}}
}

// readLocks reads locks from their tables, in the same round trip as more that is asked. Nothing of theirs is lower than of a lock
// that nobody ever had.
func readLocks(ctx context.Context, q querier, which selection, unknown func(name string) *entry, more ...question) (map[string]*entry, error) {
	all := map[string]*entry{}
	// What cannot be understood keeps everybody out until somebody removes it by force.
	of := func(name string, r *row) *entry {
		e := all[name]
		if e == nil {
			e = unknown(name)
			all[name] = e
			r.err = errors.New("there is no such lock")
		}
		if r.err != nil {
			e.lock.Freeze = &lokt.Freeze{ID: "damaged", Damaged: fmt.Sprintf("a row of the database cannot be read: %v", r.err)}
			r.err = nil
		}
		return e
	}
	questions := []question{
		{"SELECT " + lockColumns + " FROM locks" + which.locks, which.args, func(r *row) error {
			e := unknown(r.text())
			e.stored, e.lock.Revision, e.lock.Token, e.changed = true, max(e.lock.Revision, r.count()), max(e.lock.Token, r.count()), r.nanos()
			all[e.lock.Name] = e
			return nil
		}},
		{"SELECT " + freezeColumns + " FROM freezes" + which.rest, which.args, func(r *row) error {
			lock, f := readFreeze(r)
			if e := of(lock, r); e.lock.Freeze == nil {
				e.lock.Freeze = f
			}
			return nil
		}},
		{"SELECT " + holderColumns + " FROM holders" + which.rest + " ORDER BY lock, place", which.args, func(r *row) error {
			lock, h, place := readHolder(r)
			e := of(lock, r)
			e.lock.Holders, e.holders = append(e.lock.Holders, h), append(e.holders, place)
			return nil
		}},
		{"SELECT " + waiterColumns + " FROM waiters" + which.rest + " ORDER BY lock, place", which.args, func(r *row) error {
			lock, w, place := readWaiter(r)
			e := of(lock, r)
			e.lock.Queue, e.waiters = append(e.lock.Queue, &w), append(e.waiters, place)
			return nil
		}},
	}
	return all, q.ask(ctx, append(questions, more...)...)
}

func readFreeze(r *row) (lock string, f *lokt.Freeze) {
	lock = r.text()
	f = &lokt.Freeze{
		ID: r.text(), Owner: lokt.Owner{ID: r.text(), Session: r.text(), Host: r.text()}, Reason: r.text(), At: r.nanos(), TTL: r.span(),
		ExpiresAt: r.nanos(),
	}
	var rest freezeDocument
	r.decode(&rest)
	f.Owner.AnySession, f.Owner.Process, f.Damaged = rest.AnySession, rest.Asks.process(), rest.Damaged
	return lock, f
}

func readHolder(r *row) (lock string, h lokt.Holder, place int64) {
	h.Name, h.LeaseID, place = r.text(), r.text(), r.number()
	h.Owner.ID, h.Owner.Session, h.Owner.Host, h.Token = r.text(), r.text(), r.text(), r.count()
	h.HeldSince, h.AcquiredAt, h.ExpiresAt, h.TTL, h.MaxHold = r.nanos(), r.nanos(), r.nanos(), r.span(), r.span()
	h.Renewals, h.Pending = int(r.number()), r.nanos()
	var yield *yieldDocument
	r.decode(&yield)
	h.Yield = yield.yield()
	var rest claimDocument
	r.decode(&rest)
	rest.into(&h.Claim)
	return h.Name, h, place
}

func readWaiter(r *row) (lock string, w lokt.Waiter, place int64) {
	w.Name, w.LeaseID, place = r.text(), r.text(), r.number()
	w.Owner.ID, w.Owner.Session, w.Owner.Host = r.text(), r.text(), r.text()
	priority := int(r.number())
	w.Since, w.Until, w.TTL, w.MaxHold = r.nanos(), r.nanos(), r.span(), r.span()
	var rest claimDocument
	r.decode(&rest)
	rest.into(&w.Claim)
	w.Priority = priority
	return w.Name, w, place
}

// writeLock writes what became of a lock whose parts have their places: only rows that differ.
func writeLock(ctx context.Context, q querier, was, is *entry, now time.Time) error {
	l := &is.lock
	if err := q.exec(ctx, `INSERT INTO locks (name, revision, token, changed) VALUES (?, ?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET revision = excluded.revision, token = excluded.token, changed = excluded.changed`,
		l.Name, l.Revision, l.Token, now.UnixNano()); err != nil {
		return err
	}
	if err := writeHolders(ctx, q, was, is); err != nil {
		return err
	}
	if err := writeWaiters(ctx, q, was, is); err != nil {
		return err
	}
	if sameFreeze(was.lock.Freeze, l.Freeze) {
		return nil
	}
	if f := was.lock.Freeze; f != nil && f.Damaged != "" { // it may stand for rows of any kind: all are written anew
		return rewrite(ctx, q, is)
	}
	return writeFreeze(ctx, q, l)
}

func writeHolders(ctx context.Context, q querier, was, is *entry) error {
	l := &is.lock
	old := byLease(was.lock.Holders, leaseOfHolder)
	for i := range l.Holders {
		j, had := old[l.Holders[i].LeaseID]
		if had {
			delete(old, l.Holders[i].LeaseID)
			if is.holders[i] == was.holders[j] && sameHold(&l.Holders[i], &was.lock.Holders[j]) {
				if sameHolder(l.Holders[i], was.lock.Holders[j]) {
					continue
				}
				h := &l.Holders[i]
				if err := q.exec(ctx, "UPDATE holders SET acquired_at = ?, expires_at = ?, renewals = ? WHERE lock = ? AND lease_id = ?",
					nanos(h.AcquiredAt), nanos(h.ExpiresAt), h.Renewals, l.Name, h.LeaseID); err != nil {
					return err
				}
				continue
			}
		}
		if err := writeHolder(ctx, q, l.Name, &l.Holders[i], is.holders[i], had); err != nil {
			return err
		}
	}
	for lease := range old {
		if err := q.exec(ctx, "DELETE FROM holders WHERE lock = ? AND lease_id = ?", l.Name, lease); err != nil {
			return err
		}
	}
	return nil
}

// writeHolder stores a holder; had says that there is a row to be replaced.
func writeHolder(ctx context.Context, q querier, lock string, h *lokt.Holder, place int64, had bool) error {
	claim, err := encodeClaim(&h.Claim)
	if err != nil {
		return err
	}
	yield, err := encodeYield(h.Yield)
	if err != nil {
		return err
	}
	statement := "INSERT INTO holders (" + holderColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
	if had {
		statement = `INSERT INTO holders (` + holderColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (lock, lease_id) DO UPDATE SET place = excluded.place, owner = excluded.owner, session = excluded.session,
			host = excluded.host, token = excluded.token, held_since = excluded.held_since, acquired_at = excluded.acquired_at,
			expires_at = excluded.expires_at, ttl = excluded.ttl, max_hold = excluded.max_hold, renewals = excluded.renewals,
			pending = excluded.pending, yield = excluded.yield, claim = excluded.claim`
	}
	return q.exec(ctx, statement, lock, h.LeaseID, place, h.Owner.ID, text(h.Owner.Session), text(h.Owner.Host), h.Token, nanos(h.HeldSince), nanos(h.AcquiredAt),
		nanos(h.ExpiresAt), number(h.TTL), number(h.MaxHold), h.Renewals, nanos(h.Pending), yield, claim)
}

func writeWaiters(ctx context.Context, q querier, was, is *entry) error {
	l := &is.lock
	old := byLease(was.lock.Queue, leaseOfWaiter)
	for i := range l.Queue {
		w := l.Queue[i]
		j, had := old[w.LeaseID]
		if had {
			delete(old, w.LeaseID)
			if is.waiters[i] == was.waiters[j] && samePlace(w, was.lock.Queue[j]) {
				if w.Until.Equal(was.lock.Queue[j].Until) {
					continue
				}
				if err := q.exec(ctx, "UPDATE waiters SET until = ? WHERE lock = ? AND lease_id = ?", nanos(w.Until), l.Name, w.LeaseID); err != nil {
					return err
				}
				continue
			}
		}
		if err := writeWaiter(ctx, q, l.Name, w, is.waiters[i], had); err != nil {
			return err
		}
	}
	for lease := range old {
		if err := q.exec(ctx, "DELETE FROM waiters WHERE lock = ? AND lease_id = ?", l.Name, lease); err != nil {
			return err
		}
	}
	return nil
}

// writeWaiter stores a waiter; had says that there is a row to be replaced.
func writeWaiter(ctx context.Context, q querier, lock string, w *lokt.Waiter, place int64, had bool) error {
	claim, err := encodeClaim(&w.Claim)
	if err != nil {
		return err
	}
	statement := "INSERT INTO waiters (" + waiterColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
	if had {
		statement = `INSERT INTO waiters (` + waiterColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (lock, lease_id) DO UPDATE SET place = excluded.place, owner = excluded.owner, session = excluded.session,
			host = excluded.host, priority = excluded.priority, since = excluded.since, until = excluded.until, ttl = excluded.ttl,
			max_hold = excluded.max_hold, claim = excluded.claim`
	}
	return q.exec(ctx, statement, lock, w.LeaseID, place, w.Owner.ID, text(w.Owner.Session), text(w.Owner.Host), w.Priority, nanos(w.Since), nanos(w.Until),
		number(w.TTL), number(w.MaxHold), claim)
}

func writeFreeze(ctx context.Context, q querier, l *lokt.Lock) error {
	f := l.Freeze
	if f == nil {
		return q.exec(ctx, "DELETE FROM freezes WHERE lock = ?", l.Name)
	}
	detail, err := encode(freezeDocument{f.Owner.AnySession, processOf(f.Owner.Process), f.Damaged})
	if err != nil {
		return err
	}
	return q.exec(ctx, `INSERT INTO freezes (`+freezeColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (lock) DO UPDATE SET id = excluded.id, owner = excluded.owner, session = excluded.session, host = excluded.host,
		reason = excluded.reason, frozen_at = excluded.frozen_at, ttl = excluded.ttl, expires_at = excluded.expires_at, detail = excluded.detail`,
		l.Name, f.ID, f.Owner.ID, text(f.Owner.Session), text(f.Owner.Host), text(f.Reason), nanos(f.At), number(f.TTL), nanos(f.ExpiresAt), detail)
}

// rewrite replaces all rows of a lock.
func rewrite(ctx context.Context, q querier, e *entry) error {
	l := &e.lock
	for _, table := range []string{"holders", "waiters", "freezes"} {
		if err := q.exec(ctx, "DELETE FROM "+table+" WHERE lock = ?", l.Name); err != nil {
			return err
		}
	}
	for i := range l.Holders {
		if err := writeHolder(ctx, q, l.Name, &l.Holders[i], e.holders[i], false); err != nil {
			return err
		}
	}
	for i := range l.Queue {
		if err := writeWaiter(ctx, q, l.Name, l.Queue[i], e.waiters[i], false); err != nil {
			return err
		}
	}
	return writeFreeze(ctx, q, l)
}

// spacing is the distance between places, so that something fits in between.
const spacing = 1 << 20

// arrange gives places, in rising order, to n things: that which they had, if that will do.
func arrange(n int, had func(i int) (place int64, ok bool)) []int64 {
	places := make([]int64, n)
	last := int64(0)
	for i := 0; i < n; {
		if p, ok := had(i); ok && p > last {
			places[i], last = p, p
			i++
			continue
		}
		end, next := i+1, int64(0) // things from i to end need places before the next
		for ; end < n; end++ {
			if p, ok := had(end); ok && p > last {
				next = p
				break
			}
		}
		gap := int64(spacing)
		if next > 0 {
			gap = (next - last) / int64(end-i+1)
		}
		if gap == 0 {
			for i := range places {
				places[i] = int64(i+1) * spacing
			}
			return places
		}
		for ; i < end; i++ {
			last += gap
			places[i] = last
		}
	}
	return places
}
