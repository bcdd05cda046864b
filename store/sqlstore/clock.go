package sqlstore

import (
	"sync"
	"time"
)

// clock is the time of a store. It goes on from where it was when the store was last changed, or from the wall clock if that
// is later, and then by the monotonic clock alone: no step of the wall clock moves it, and it never goes back.
type clock struct {
	mu    sync.Mutex
	start time.Time // with its monotonic reading
	base  time.Time // what the clock showed then
	last  time.Time
}

// newClock returns a clock that is not behind the given time.
func newClock(notBefore time.Time) *clock {
	start := time.Now()
	base := start.Round(0).UTC()
	if notBefore.After(base) {
		base = notBefore
	}
	return &clock{start: start, base: base, last: base}
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.base.Add(time.Since(c.start)); now.After(c.last) {
		c.last = now
	}
	return c.last
}
