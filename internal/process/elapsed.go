package process

import (
	"sync/atomic"
	"time"
)

// leastSleep is the shortest sleep that counts: two clocks are never read at quite the same moment.
const leastSleep = 100 * time.Millisecond

// Elapsed returns a clock that begins at 0, never goes back, and counts the time that the machine sleeps, as far as the
// system tells.
func Elapsed() func() time.Duration { return elapsed(asleep) }

func elapsed(asleep func() time.Duration) func() time.Duration {
	start, before := time.Now(), max(asleep(), asleep(), asleep())
	var slept atomic.Int64
	return func() time.Duration {
		if d, known := asleep()-before, slept.Load(); int64(d) > known+int64(leastSleep) {
			slept.CompareAndSwap(known, int64(d))
		}
		return time.Since(start) + time.Duration(slept.Load())
	}
}
