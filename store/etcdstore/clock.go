package etcdstore

import (
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt"
)

// state is what etcd had about one name at one revision.
type state struct {
	lock    lokt.Lock // as it is on record; nobody writes to what it refers to
	at      time.Time // what the lock's clock showed when that was decided
	timers  leases
	alive   map[string]clientv3.LeaseID // of the timers' keys, those that are there
	changes []string
	mod     int64     // revision of the key under lock/, 0 if there is none
	free    int64     // the same under free/
	header  int64     // etcd's revision when this was read
	known   time.Time // since when this process knows that this is on record, by its monotonic clock
}

// latest is the revision of the last change.
func (st *state) latest() int64 { return max(st.mod, st.free) }

// lapsed is how many timers have run out since the last change.
func (st *state) lapsed() int {
	n := 0
	for id := range st.timers {
		if !st.running(id) {
			n++
		}
	}
	return n
}

// running reports whether the timer's etcd lease lives.
func (st *state) running(id string) bool {
	on, ok := st.alive[id]
	return ok && on == st.timers[id].ID
}

// revision makes a lock's revision of what can change it: a change, and a timer that runs out.
func revision(latest int64, lapsed int) uint64 {
	return uint64(latest)<<10 | uint64(min(lapsed, 1<<10-1))
}

// resync is how far a lock's clock may lag behind the wall clock before the next change puts it right.
const resync = time.Minute

// early is for how long after its end by the lock's clock, which may lag, a hold is thought to live whose etcd lease has ended: by
// the wall clock, which may be wrong. It is as far as both may be off together.
const early = 2 * resync

// overdue is how soon to look again after a hold that is due, but whose etcd lease still lives.
const overdue = 250 * time.Millisecond

// now is what the lock's own clock shows.
//
// That clock is kept with the lock. Each change stores what it showed then, and whoever looks later adds the time that
// he can prove has passed since that change, by his own monotonic clock: the time since he first knew of the change. So
// between two moments it never advances by more than the time that really passed, whatever the readings of the clocks
// involved, if they run at the right rate; and a deadline on it is never over too early. It falls behind by the time
// during which nobody knew of the last change, usually the time that an answer of etcd takes.
//
// While nothing is on record that could end, there is nothing to measure, and the wall clock will do.
func (st *state) now(wall time.Time) time.Time {
	if st.lock.Free() {
		return wall
	}
	return st.at.Add(time.Since(st.known))
}

// view is a state as rules see it.
type view struct {
	lokt.Snapshot
	adjusted map[string]time.Time // recorded ends of holds, and of the freeze, where Snapshot has others
}

// copy returns the lock with holders and a freeze that adjust and shift may change.
func (st *state) copy() lokt.Lock {
	l := st.lock
	l.Holders = slices.Clone(l.Holders)
	if l.Freeze != nil {
		f := *l.Freeze
		l.Freeze = &f
	}
	return l
}

// look makes a snapshot.
//
// Ends for which there is a timer are still to come if it has not run out. If it has they are what is on record: etcd now and
// then ends a lease too early (see the package's comment).
func (st *state) look(wall time.Time) view {
	v := view{Snapshot: lokt.Snapshot{Lock: st.copy(), Now: st.now(wall)}}
	v.Lock.Revision = revision(st.latest(), st.lapsed())
	st.adjust(&v, wall)
	return v
}

// lookToChange is look for a change: it may first put the lock's clock right, and let the token rise above what may have
// been issued that is not on record any more. floor is what tokens have to be above in any case.
func (st *state) lookToChange(wall time.Time, floor uint64) view {
	v := view{Snapshot: lokt.Snapshot{Lock: st.copy(), Now: st.now(wall)}}
	v.Lock.Revision = revision(st.latest(), st.lapsed())
	v.Lock.Token = max(v.Lock.Token, floor)
	lag := wall.Sub(v.Now)
	if st.lock.Free() {
		lag = wall.Sub(st.at)
	} else if lag > resync {
		st.shift(&v.Lock, lag)
		v.Now = wall
	}
	if lag > resync || st.latest() == 0 {
		v.Lock.Token = max(v.Lock.Token, uint64(max(st.header, 0)), epoch(wall))
	}
	st.adjust(&v, wall)
	return v
}

// epoch is a number that tokens of a name have not reached unless there were a million grants per second.
func epoch(wall time.Time) uint64 { return uint64(max(wall.Unix(), 0)) << 20 }

// adjust sets ends to what their timers and the clocks say.
func (st *state) adjust(v *view, wall time.Time) {
	end := func(id string, at *time.Time) {
		if _, timed := st.timers[id]; !timed {
			return
		}
		says := *at
		switch {
		case !st.running(id):
			if over := v.Now.Add(-1); !says.After(v.Now) || !wall.Before(says.Add(early)) {
				says = earlier(says, over)
			}
		case !says.After(v.Now):
			says = v.Now.Add(overdue)
		}
		if !says.Equal(*at) {
			if v.adjusted == nil {
				v.adjusted = map[string]time.Time{}
			}
			v.adjusted[id] = *at
			*at = says
		}
	}
	for i := range v.Lock.Holders {
		end(v.Lock.Holders[i].LeaseID, &v.Lock.Holders[i].ExpiresAt)
	}
	if f := v.Lock.Freeze; f != nil {
		end(freezeID, &f.ExpiresAt)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// shift moves the lock's clock forward: what is still to come moves with it. So does the beginning of holds whose age is
// bounded; what else is past stays where it is. Ends whose timers have run out move no further than they may be off.
func (st *state) shift(l *lokt.Lock, by time.Duration) {
	end := func(id string, at *time.Time) {
		switch _, timed := st.timers[id]; {
		case at.IsZero():
		case timed && !st.running(id):
			*at = at.Add(min(by, early))
		default:
			*at = at.Add(by)
		}
	}
	move := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
	for i := range l.Holders {
		h := &l.Holders[i]
		end(h.LeaseID, &h.ExpiresAt)
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
	l.Queue = slices.Clone(l.Queue)
	for i := range l.Queue {
		w := *l.Queue[i]
		move(&w.Until)
		l.Queue[i] = &w
	}
	if l.Freeze != nil {
		end(freezeID, &l.Freeze.ExpiresAt)
	}
}

// remember appends the ID of a change to those on record.
func remember(changes []string, id string) []string {
	changes = append(slices.Clone(changes), id)
	return changes[max(len(changes)-keepChanges, 0):]
}
