package lokt

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Promise S-28.
func TestTimesOfOneProcessAreMonotonic(t *testing.T) {
	k := &Keeper{}
	k.now()
	if k.base == k.base.Round(0) {
		t.Error("the keeper measures time by the wall clock")
	}
}

func TestKeeperWhoseClockCountsTheMachinesSleepIsRousedForWhatComesAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := time.Now()
		var slept atomic.Int64
		k := &Keeper{Elapsed: func() time.Duration { return time.Since(base) + time.Duration(slept.Load()) }}
		var renewals atomic.Int64
		beat := func(every, life time.Duration, n *atomic.Int64) *Heartbeat {
			b := &Heartbeat{
				Interval: every,
				Renew:    func(context.Context) (time.Duration, error) { n.Add(1); return life, nil },
				Lost:     func(error) { t.Errorf("the lease renewed every %v was lost after %v", every, time.Since(base)) },
			}
			k.Keep(b, k.now(), life)
			return b
		}
		var other atomic.Int64
		a := beat(50*time.Second, time.Hour, &other)
		time.Sleep(time.Second)
		slept.Store(int64(100 * time.Second))
		a.Extend(k.now(), time.Hour) // the program renewed it by itself
		b := beat(time.Second, 3*time.Second, &renewals)
		time.Sleep(20 * time.Second)
		if n := renewals.Load(); n < 15 {
			t.Errorf("it was renewed %d times in 20 s", n)
		}
		a.Stop()
		b.Stop()
	})
}
