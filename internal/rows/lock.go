package rows

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// States of a lock that is on record.
const (
	Unreadable = "unreadable" // what is stored cannot be read, and keeps everybody out
	Overdue    = "overdue"    // a holder should have renewed by now: it may be dead, or cut off
	Frozen     = "frozen"
	Stale      = "stale" // held by nobody alive, and taken over by the next claim
	Waiting    = "waited for"
	Held       = "held"
)

// States returns all states. Those that come first need somebody's attention first.
func States() []string { return []string{Unreadable, Overdue, Frozen, Stale, Waiting, Held} }

// Lock sums a lock up.
type Lock struct {
	Name    string    `json:"name"`
	State   string    `json:"state"`
	Holder  string    `json:"holder,omitzero"` // the first
	Holders int       `json:"holders"`
	Limit   string    `json:"limit,omitzero"` // the most that there may be
	Since   time.Time `json:"since,omitzero"` // of the first hold
	Waiting int       `json:"waiting"`
	Oldest  time.Time `json:"oldest,omitzero"` // since when the one waits who has waited longest
	Token   uint64    `json:"token"`
	Why     string    `json:"why,omitzero"` // of a freeze, or of a record that cannot be read
	Freeze  string    `json:"-"`            // its ID, to end no other
}

// OfLock sums a lock up that is on record.
func OfLock(s lokt.Snapshot) Lock {
	r := Lock{Name: s.Lock.Name, State: Held, Waiting: len(s.Lock.Queue), Token: s.Lock.Token, Holders: len(s.Lock.Holders)}
	live := s.Live()
	if len(s.Lock.Queue) > 0 {
		r.State = Waiting
	}
	if len(s.Lock.Holders) > 0 {
		h := s.Lock.Holders[0]
		if len(live) > 0 {
			h = live[0]
		}
		r.Holder, r.Since, r.Limit = h.Owner.String(), h.HeldSince, limitText(h.Limit)
		if len(live) == 0 {
			r.State = Stale
		}
	}
	for _, w := range s.Lock.Queue {
		if r.Oldest.IsZero() || w.Since.Before(r.Oldest) {
			r.Oldest = w.Since
		}
	}
	if f := s.Frozen(); f != nil {
		r.State, r.Why, r.Freeze = Frozen, f.Reason, f.ID
		if f.Damaged != "" {
			r.State, r.Why = Unreadable, f.Damaged
		}
	}
	for i := range live {
		if Late(s.Now, &live[i]) {
			r.State = Overdue
		}
	}
	if s.Lock.Corrupt != "" {
		r.State, r.Why = Unreadable, s.Lock.Corrupt
	}
	return r
}

// lateAfter is the part of its TTL after which a hold that was not renewed is overdue: holders renew after a third.
const lateAfter = 2.0 / 3

// Late reports whether the holder should have renewed by now.
func Late(now time.Time, h *lokt.Holder) bool {
	return h.TTL > 0 && h.Pending.IsZero() && now.Sub(h.AcquiredAt) > time.Duration(float64(h.TTL)*lateAfter)
}

func limitText(limit int) string {
	switch {
	case limit <= lokt.Exclusive:
		return "1"
	case limit == lokt.Shared:
		return "any"
	}
	return strconv.Itoa(limit)
}

// Board is all locks that are on record, at one moment.
type Board struct {
	Locks  []Lock    // those first that need attention first
	Now    time.Time // on the clock that their times go by
	Circle []string  // of claims that wait for each other, if there is one: see lokt.FindDeadlock
}

// Locks sums up all locks. The error is the last of reading any that has no name.
func Locks(ctx context.Context, locks lokt.Service) (b Board, failed error) {
	b.Now = time.Now()
	var queued []lokt.Snapshot
	for s, err := range locks.List(ctx, lokt.Filter{}) {
		switch {
		case err == nil && !s.Over():
			b.Locks, b.Now = append(b.Locks, OfLock(s)), s.Now
			if len(s.Lock.Queue) > 0 {
				queued = append(queued, s)
			}
		case err == nil:
		case s.Lock.Name != "":
			b.Locks = append(b.Locks, Lock{Name: s.Lock.Name, State: Unreadable, Why: err.Error()})
		default:
			failed = err
		}
	}
	slices.SortStableFunc(b.Locks, func(x, y Lock) int {
		return cmp.Or(cmp.Compare(slices.Index(States(), x.State), slices.Index(States(), y.State)), cmp.Compare(y.Waiting, x.Waiting))
	})
	_, b.Circle, _ = lokt.FindDeadlock(queued)
	return b, failed
}

// CircleText tells who waits for what in a circle of claims.
func CircleText(circle []string) string {
	text := ""
	for i, name := range circle {
		switch {
		case i == 0:
			text = name
		case i%2 == 1:
			text += " waits for " + name
		default:
			text += ", kept by " + name
			if i < len(circle)-1 {
				text += ", who"
			}
		}
	}
	return text
}
