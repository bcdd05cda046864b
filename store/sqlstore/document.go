package sqlstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// document is what a row has beside its columns: text in the one JSON form, and a checksum.
type document struct {
	text    string
	payload string // of a job, byte for byte as it was submitted: written once, where the text changes often
	sum     int64  // over the row's key, the text and the payload
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the CRC-32C of parts that cannot be mistaken for others.
func checksum(parts ...string) int64 {
	sum := uint32(0)
	var length [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(length[:], uint64(len(p)))
		sum = crc32.Update(sum, castagnoli, length[:])
		sum = crc32.Update(sum, castagnoli, []byte(p))
	}
	return int64(sum)
}

// seal returns the document of a value in the row with the key.
func seal(key string, v any) (document, error) {
	text, err := lokt.Marshal(v, json.OmitZeroStructFields(true))
	if err != nil {
		return document{}, fmt.Errorf("%w: %w", lokt.ErrInvalid, err)
	}
	return document{text: string(text), sum: checksum(key, string(text), "")}, nil
}

var errChecksum = errors.New("its checksum is another: it is not what was written")

// open reads the document of the row with the key into v. The error wraps lokt.ErrDamaged, and says what it is that
// is damaged.
func (d *document) open(what, key string, v any) error {
	err := errChecksum
	if d.sum == checksum(key, d.text, d.payload) {
		err = lokt.Unmarshal([]byte(d.text), v)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", lokt.ErrDamaged, what, err)
	}
	return nil
}

// sealLock returns the document of a lock without its queue.
func sealLock(l *lokt.Lock) (document, error) {
	alone := *l
	alone.Queue = nil
	return seal(lockKey(l.Name, len(l.Queue), l.Free()), &alone)
}

// lockKey is the key of a lock's row with its columns: the checksum guards these as well.
func lockKey(name string, waiting int, free bool) string {
	return fmt.Sprintf("%s %d %t", name, waiting, free)
}

// openLock reads a lock without its queue.
func (d *document) openLock(name string, waiting int, free bool) (lokt.Lock, error) {
	var l lokt.Lock
	err := d.open("lock "+name, lockKey(name, waiting, free), &l)
	l.Queue = nil
	return l, err
}

func waiterKey(lock, leaseID string) string { return lock + " " + leaseID }

func sealWaiter(lock string, w *lokt.Waiter) (document, error) {
	return seal(waiterKey(lock, w.LeaseID), w)
}

func (d *document) openWaiter(lock, leaseID string) (*lokt.Waiter, error) {
	w := &lokt.Waiter{}
	return w, d.open("who waits for lock "+lock, waiterKey(lock, leaseID), w)
}

// sealJob returns the document of a job.
func sealJob(r *jobs.Record) (document, error) {
	bare := *r
	bare.Payload = nil
	d, err := seal(r.ID, &bare)
	d.payload = string(r.Payload)
	d.sum = checksum(r.ID, d.text, d.payload)
	return d, err
}

func (d *document) openJob(id string) (jobs.Record, error) {
	var r jobs.Record
	err := d.open("job "+id, id, &r)
	r.Payload = jsontext.Value(d.payload)
	return r, err
}

// queueChange tells which rows of a queue a change of its lock touches. Waiters are never changed in place, so equal
// pointers are equal waiters.
func queueChange(was, is []*lokt.Waiter) (gone []string, put []*lokt.Waiter) {
	for len(was) > 0 && len(is) > 0 && was[0] == is[0] {
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	old := make(map[string]*lokt.Waiter, len(was))
	for _, w := range was {
		old[w.LeaseID] = w
	}
	for _, w := range is {
		if old[w.LeaseID] != w {
			put = append(put, w)
		}
		delete(old, w.LeaseID)
	}
	for _, w := range was {
		if old[w.LeaseID] != nil {
			gone = append(gone, w.LeaseID)
		}
	}
	return gone, put
}

// sortQueue puts waiters that were read in any order next first.
func sortQueue(queue []*lokt.Waiter) {
	slices.SortStableFunc(queue, func(a, b *lokt.Waiter) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Place, b.Place))
	})
}

// restart gives everybody who lives by time, and had not ended when something was stored last, a full time from now,
// and reports whether that changed the lock. Nobody could renew anything while the store was out of use, and renewals
// that were not flushed to the disk may be missing. A maximum hold still ends when it ends. The revision jumps beyond
// any that was not flushed and that somebody may have seen.
func restart(l *lokt.Lock, now, last time.Time) bool {
	if l.Free() {
		return false
	}
	l.Revision += revisionJump
	l.Holders = slices.Clone(l.Holders)
	for i := range l.Holders {
		restartHolder(&l.Holders[i], now, last)
	}
	l.Queue = slices.Clone(l.Queue)
	for i, w := range l.Queue {
		until := w.Until
		switch {
		case until.After(last.Add(lokt.QueueTTL)): // was there
			until = now.Add(lokt.ReturnTimeout + lokt.QueueTTL)
		case !until.Before(last): // was away
			until = now.Add(lokt.AwayTTL)
		}
		if until.After(w.Until) {
			moved := *w
			moved.Until, l.Queue[i] = until, &moved
		}
	}
	if f := l.Freeze; f != nil && f.TTL > 0 && !ended(f.ExpiresAt, last) {
		moved := *f
		moved.ExpiresAt, l.Freeze = later(f.ExpiresAt, now.Add(f.TTL)), &moved
	}
	return true
}

// revisionJump is by how much the revision of a lock jumps when the store is opened.
const revisionJump = 1 << 20

func restartHolder(h *lokt.Holder, now, last time.Time) {
	if !h.Pending.IsZero() && !ended(h.Pending, last) {
		h.Pending = later(h.Pending, now.Add(lokt.OfferTTL))
	}
	if ended(h.ExpiresAt, last) || h.Yield != nil && ended(h.Yield.Deadline, last) {
		return
	}
	end := now.Add(h.TTL)
	if h.MaxHold > 0 && h.HeldSince.Add(h.MaxHold).Before(end) {
		end = h.HeldSince.Add(h.MaxHold)
	}
	if h.Yield != nil && !h.Yield.Deadline.IsZero() { // the grace of who was told to leave begins again, too
		yield := *h.Yield
		yield.Deadline = later(yield.Deadline, now.Add(yield.Grace))
		if h.Yield = &yield; yield.Deadline.Before(end) {
			end = yield.Deadline
		}
	}
	if h.TTL > 0 && !h.ExpiresAt.IsZero() {
		h.ExpiresAt = later(h.ExpiresAt, end)
	}
}

// ended reports whether a time, if there is one, had passed.
func ended(t, at time.Time) bool { return !t.IsZero() && t.Before(at) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// nanos is a time as columns have it: nanoseconds since 1970, or nothing.
func nanos(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixNano()
}

// number is a number as part of a key.
func number(n uint64) string { return strconv.FormatUint(n, 10) }
