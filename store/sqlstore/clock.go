package sqlstore

import "time"

// clock is the time of a store. It goes on from where it was when the store was last changed, or from the wall clock
// if that is later, and then by the monotonic clock alone: no step of the wall clock moves it, and it never goes
// back.
type clock struct{ start, base time.Time }

// newClock returns a clock that is not behind the given time.
func newClock(notBefore time.Time) *clock {
	start := time.Now()
	return &clock{start, later(start.Round(0).UTC(), notBefore)}
}

func (c *clock) now() time.Time { return c.base.Add(time.Since(c.start)) }
