package etcdstore

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// version is that of the records.
const version = 1

// keepChanges is how many IDs of changes a record remembers, for those who were not told whether theirs was stored.
const keepChanges = 16

// maxRecordBytes is how large a record may become by what is added to it: etcd takes 1.5 MiB at a time, and what
// renewals and events add must fit, too.
const maxRecordBytes = 1_350_000

// record is a lock as it stands under lock/ or free/: its document, and what belongs to etcd.
type record struct {
	Version int `json:"version"`
	lokt.Lock
	At      time.Time `json:"at"`                // what the lock's clock showed when this was decided
	Changes []string  `json:"changes,omitempty"` // IDs of the last changes, oldest first
}

// encode makes the value of a key.
func encode(l lokt.Lock, at time.Time, changes []string) ([]byte, error) {
	r := record{Version: version, Lock: l, At: at, Changes: changes}
	r.Revision = 0
	text, err := lokt.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", l.Name, err)
	}
	return text, nil
}

// decode reads the value of a key. Its errors wrap lokt.ErrDamaged.
func decode(name string, text []byte) (r record, err error) {
	switch err := lokt.Unmarshal(text, &r); {
	case err != nil:
		return r, damaged(name, err.Error())
	case r.Version != version:
		return r, damaged(name, "version "+strconv.Itoa(r.Version)+" is not known")
	case r.Name != name:
		return r, damaged(name, "it is that of "+strconv.Quote(r.Name))
	}
	return r, nil
}

func damaged(name, why string) error {
	return fmt.Errorf("%w: record of %q in etcd: %s", lokt.ErrDamaged, name, why)
}

// state is what etcd had about one name at one revision. Nobody writes to what it refers to.
type state struct {
	lock    lokt.Lock
	at      time.Time // what the lock's clock showed when that was decided
	changes []string
	mod     int64     // revision of the key under lock/, 0 if there is none
	free    int64     // the same under free/
	header  int64     // etcd's revision when this was read
	known   time.Time // since when this process knows that this is on record, by its monotonic clock
}

// latest is the revision of the last change.
func (st *state) latest() int64 { return max(st.mod, st.free) }

// take makes the state that of the record.
func (st *state) take(r record) {
	st.lock, st.at, st.changes = r.Lock, r.At, r.Changes
}

// resync is how far a lock's clock may lag behind the wall clock before the next change puts it right, and how much of
// what it shows may be known to running processes only.
const resync = time.Minute

// now is what the lock's own clock shows.
//
// Each change stores what that clock showed. A process adds the time for which it has known of the change, by its own
// monotonic clock. So the clock never advances by more than the time that really passed, and no deadline on it is over
// too early. It falls behind while no running process knows of the last change.
//
// While nothing is on record that could end, the wall clock will do.
//
// The alternative, an etcd lease for each hold, was rejected: etcd ends leases early when a leader that stood still
// goes on (its issue 15247).
func (st *state) now(wall time.Time) time.Time {
	if st.lock.Free() {
		return wall
	}
	return st.at.Add(time.Since(st.known))
}

// look makes a snapshot.
func (st *state) look(wall time.Time) lokt.Snapshot {
	s := lokt.Snapshot{Lock: st.lock, Now: st.now(wall)}
	s.Lock.Revision = uint64(st.latest())
	return s
}

// lookToChange is look for a change: it may put the lock's clock right, and raises the token above those that may have
// been issued and are not on record any more, and above floor.
func (st *state) lookToChange(wall time.Time, floor uint64) lokt.Snapshot {
	s := st.look(wall)
	s.Lock.Token = max(s.Lock.Token, floor)
	lag := wall.Sub(s.Now)
	if st.lock.Free() {
		lag = wall.Sub(st.at)
	} else if lag > resync {
		shift(&s.Lock, lag)
		s.Now = wall
	}
	if lag > resync || st.latest() == 0 {
		s.Lock.Token = max(s.Lock.Token, uint64(max(st.header, 0)), epoch(wall))
	}
	return s
}

// stale reports whether much of the time that the lock's clock shows is not stored yet.
func (st *state) stale(s lokt.Snapshot) bool {
	return !s.NextChange().IsZero() && s.Now.Sub(st.at) > resync
}

// epoch is a number that tokens of a name have not reached unless there were a million grants per second.
func epoch(wall time.Time) uint64 {
	return uint64(max(wall.Unix(), 0))<<20 + uint64(wall.Nanosecond()/1000) // in one second there may be two of a name
}

// shift moves the lock's clock forward: what is still to come moves with it, and the last renewals of holds, and the beginning of those whose age is
// bounded. What else is past stays where it is.
func shift(l *lokt.Lock, by time.Duration) {
	move := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
	l.Holders, l.Queue = slices.Clone(l.Holders), slices.Clone(l.Queue)
	for i := range l.Holders {
		h := &l.Holders[i]
		move(&h.AcquiredAt) // from which holders count
		move(&h.ExpiresAt)
		move(&h.Pending)
		if h.MaxHold > 0 {
			move(&h.HeldSince)
		}
		if h.Yield != nil {
			y := *h.Yield
			move(&y.Deadline)
			h.Yield = &y
		}
	}
	for i := range l.Queue {
		w := *l.Queue[i]
		move(&w.Until)
		l.Queue[i] = &w
	}
	if l.Freeze != nil {
		f := *l.Freeze
		move(&f.ExpiresAt)
		l.Freeze = &f
	}
}

// remember appends the ID of a change to those on record.
func remember(changes []string, id string) []string {
	changes = append(slices.Clone(changes), id)
	return changes[max(len(changes)-keepChanges, 0):]
}
