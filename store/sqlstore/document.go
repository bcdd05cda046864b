package sqlstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
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
func checksum(parts ...[]byte) int64 {
	sum := uint32(0)
	var length [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(length[:], uint64(len(p)))
		sum = crc32.Update(sum, castagnoli, length[:])
		sum = crc32.Update(sum, castagnoli, p)
	}
	return int64(sum)
}

// seal returns the document of a value in the row with the key, without its payload, if it has one.
func seal(key string, v any, payload ...byte) (document, error) {
	text, err := lokt.Marshal(v, json.OmitZeroStructFields(true))
	if err != nil {
		return document{}, fmt.Errorf("%w: %w", lokt.ErrInvalid, err)
	}
	return document{string(text), string(payload), checksum([]byte(key), text, payload)}, nil
}

var errChecksum = errors.New("its checksum is another: it is not what was written")

// open reads the document of the row with the key into v. The error wraps lokt.ErrDamaged, and says what it is that
// is damaged.
func (d *document) open(what, key string, v any) error {
	err, text := errChecksum, []byte(d.text)
	if d.sum == checksum([]byte(key), text, []byte(d.payload)) {
		err = lokt.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", lokt.ErrDamaged, strings.ToValidUTF8(what, "?"), err)
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
	return name + " " + strconv.Itoa(waiting) + " " + strconv.FormatBool(free)
}

// openLock reads a lock without its queue.
func (d *document) openLock(name string, waiting int, free bool) (lokt.Lock, error) {
	var l lokt.Lock
	err := d.open("lock "+name, lockKey(name, waiting, free), &l)
	l.Queue = nil
	return l, err
}

func waiterKey(lock, leaseID string) string { return lock + " " + leaseID }

func (d *document) openWaiter(lock, leaseID string) (*lokt.Waiter, error) {
	w := &lokt.Waiter{}
	return w, d.open("who waits for lock "+lock, waiterKey(lock, leaseID), w)
}

// sealJob returns the document of a job.
func sealJob(r *jobs.Record) (document, error) {
	bare := *r
	bare.Payload = nil
	return seal(r.ID, &bare, r.Payload...)
}

func (d *document) openJob(id string, r *jobs.Record) error {
	err := d.open("job "+id, id, r)
	r.Payload = jsontext.Value(d.payload)
	return err
}

// sortQueue puts waiters that were read in any order next first.
func sortQueue(queue []*lokt.Waiter) {
	slices.SortStableFunc(queue, func(a, b *lokt.Waiter) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Place, b.Place))
	})
}

// clockBack is by how much the clock of a store may be set back without notice: what it says may be too late by that much.
const clockBack = time.Second

// restart gives everybody who lives by time, and had not ended when something was stored last, a full time from now,
// and reports whether that changed the lock. Nobody could renew anything while the store was out of use, and renewals
// that were not flushed to the disk may be missing. A maximum hold still ends when it ends. The revision jumps beyond
// any that was not flushed and that somebody may have seen.
func restart(l *lokt.Lock, now, last time.Time) bool {
	if l.Free() {
		return false
	}
	// again puts off an end to when a full time is over; most is the longest that there may be left by a clock that was set back.
	again := func(end *time.Time, full, most time.Time) {
		switch {
		case end.IsZero():
		case end.Before(last.Add(-clockBack)): // it had ended, and does not begin again where the clock was set back
			*end = earlier(*end, now.Add(-1))
		case end.Before(last): // if the clock was set back unnoticed, it had not ended, and lasts for not longer than that
			*end = earlier(full, now.Add(clockBack))
		case now.Before(last):
			*end = earlier(later(*end, full), most)
		default:
			*end = later(*end, full)
		}
	}
	l.Revision += revisionJump
	l.Holders = slices.Clone(l.Holders)
	for i := range l.Holders {
		h := &l.Holders[i]
		offered, full := now.Add(lokt.OfferTTL), now.Add(h.TTL)
		again(&h.Pending, offered, offered)
		if end := h.HeldSince.Add(h.MaxHold); h.MaxHold > 0 && end.Before(full) {
			full = end
		}
		if h.Yield != nil { // the grace of who was told to leave begins again, too
			yield, grace := *h.Yield, now.Add(h.Yield.Grace)
			again(&yield.Deadline, grace, grace)
			if h.Yield = &yield; !yield.Deadline.IsZero() && yield.Deadline.Before(full) {
				full = yield.Deadline
			}
		}
		if was := h.ExpiresAt; h.TTL > 0 {
			if again(&h.ExpiresAt, full, now.Add(h.TTL)); !h.ExpiresAt.Equal(was) {
				h.AcquiredAt = now // from which holders count
			}
		}
	}
	l.Queue = slices.Clone(l.Queue)
	for i, w := range l.Queue {
		moved, full, keeps := *w, w.Keeps(lokt.AwayTTL), w.Keeps(lokt.QueueTTL)
		most := full
		if w.Ousted == "" && w.Until.After(last.Add(keeps)) { // was there, and asks again by then if it is there still
			full, most = lokt.ReturnTimeout+keeps, lokt.PresenceTTL+keeps
		}
		if w.Passed > 0 && w.Wait == 0 { // nobody asks for what was passed on
			most = w.Until.Sub(now)
		}
		if again(&moved.Until, now.Add(full), now.Add(most)); !moved.Until.Equal(w.Until) {
			l.Queue[i] = &moved
		}
	}
	if l.Freeze != nil && l.Freeze.TTL > 0 {
		moved, full := *l.Freeze, now.Add(l.Freeze.TTL)
		again(&moved.ExpiresAt, full, full)
		l.Freeze = &moved
	}
	return true
}

// revisionJump is by how much the revision of a lock jumps when the store is opened.
const revisionJump = 1 << 20

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
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
