package jobs

// Clocks: deadlines are on one that nobody sets, the wall's is for people, for jobs that are not to run before a time, and
// for the order of jobs.

import "time"

// setNow moves to a moment; the clock of deadlines never goes back.
func (e *engine) setNow(now instant) {
	e.now = instant{wall: now.wall.UTC().Truncate(time.Millisecond), mono: max(now.mono, e.now.mono)}
}

// offsetOf returns by how much the wall clock is ahead of the other one.
func offsetOf(now instant) time.Duration { return time.Duration(now.wall.UnixNano()) - now.mono }

// A wall clock that went this much faster or slower than the other one was set.
const (
	clockJump = time.Second
	clockSlew = 1000 // and one part in so many of the time that has passed since it was last looked at
)

// watchClock notes that the wall clock was set. Deadlines are on the other one, so that it does not matter, unless others
// share the store: then they tell each other deadlines by the store's clock, and every lease gets a full life.
func (e *engine) watchClock(before time.Duration) {
	offset := offsetOf(e.now)
	moved, first := offset-e.offset, e.offset == 0
	e.offset = offset
	if first || moved.Abs() <= clockJump+(e.now.mono-before)/clockSlew {
		return
	}
	e.note(EventClock, nil, "", "", "", "the wall clock was set by "+moved.Round(time.Millisecond).String())
	if e.cfg.Shared {
		for _, h := range e.leases {
			h.expires = max(h.expires, plus(e.now.mono, e.cfg.life()))
			h.lease.ExpiresAt = e.now.wall.Add(e.cfg.life())
			e.save(h)
		}
	}
}

// tick brings the clock that jobs are ordered by up to date: the wall clock, or if that was set back, one that goes on from
// where it was, so that waiting goes on to count.
func (e *engine) tick() {
	passed := (e.now.mono - e.ordered) / time.Millisecond
	e.Clock += int64(passed)
	e.ordered += passed * time.Millisecond
	if wall := e.now.wall.UnixMilli(); wall >= e.Clock {
		e.Clock, e.ordered = wall, e.now.mono
	}
}
