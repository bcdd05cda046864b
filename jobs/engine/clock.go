package engine

// Clocks: deadlines are on one that nobody sets, the wall's is for people, for jobs that are not to run before a
// time, and for the order of jobs.

import (
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// setNow moves to a moment; the clock of deadlines never goes back.
func (e *Engine) setNow(now Instant) {
	e.Now = Instant{Wall: now.Wall.UTC().Truncate(time.Millisecond), Mono: max(now.Mono, e.Now.Mono)}
}

// offsetOf returns by how much the wall clock is ahead of the other one.
func offsetOf(now Instant) time.Duration { return time.Duration(now.Wall.UnixNano()) - now.Mono }

// A wall clock that went this much faster or slower than the other one was set.
const (
	clockJump = time.Second
	clockSlew = 1000 // and one part in so many of the time that has passed since it was last looked at
)

// watchClock notes that the wall clock was set. Deadlines are on the other one, so that it does not matter,
// unless others share the store: then they tell each other deadlines by the store's clock, and every lease gets
// a full life.
func (e *Engine) watchClock(before time.Duration) {
	offset := offsetOf(e.Now)
	moved, first := offset-e.offset, e.offset == 0
	e.offset = offset
	if first || moved.Abs() <= clockJump+(e.Now.Mono-before)/clockSlew {
		return
	}
	e.must = true
	e.note(nil, jobs.Event{
		Type: jobs.EventClock, Reason: "the wall clock was set by " + moved.Round(time.Millisecond).String(),
	})
	if e.cfg.Shared {
		for _, en := range e.leases {
			en.expires = max(en.expires, plus(e.Now.Mono, e.life(en.Lease)))
			en.Lease.ExpiresAt = e.Now.Wall.Add(e.life(en.Lease))
			if en.runUntil != Never { // for whoever is started later
				en.Lease.RunUntil = e.Now.Wall.Add(en.runUntil - e.Now.Mono)
			}
			e.store(en)
		}
	}
}

// tick brings the clock that jobs are ordered by up to date: the wall clock, or if that was set back, one that
// goes on from where it was, so that waiting goes on to count.
func (e *Engine) tick() {
	passed := (e.Now.Mono - e.ordered) / time.Millisecond
	e.Clock += int64(passed)
	e.ordered += passed * time.Millisecond
	if wall := e.Now.Wall.UnixMilli(); wall >= e.Clock {
		e.Clock, e.ordered = wall, e.Now.Mono
	}
}
