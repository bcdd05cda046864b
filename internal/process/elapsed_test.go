package process

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestElapsedCountsSleepAndNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slept := 90 * time.Minute // before
		clock := elapsed(func() time.Duration { return slept })
		want := func(want time.Duration) {
			t.Helper()
			if got := clock(); got != want {
				t.Errorf("the clock says %v, not %v", got, want)
			}
		}
		want(0)
		time.Sleep(time.Second)
		want(time.Second)
		slept += leastSleep // two clocks were not read at the same moment
		want(time.Second)
		slept += time.Hour
		want(time.Hour + time.Second + leastSleep)
		slept -= time.Minute
		want(time.Hour + time.Second + leastSleep)
	})
}

func TestElapsedGoesByTheSystemsClocks(t *testing.T) {
	a, begun := asleep(), time.Now()
	clock := Elapsed()
	time.Sleep(10 * time.Millisecond)
	got, most := clock(), time.Since(begun)
	if got < 10*time.Millisecond || got > most+leastSleep {
		t.Errorf("after between 10 ms and %v the clock says %v", most, got)
	}
	if b := asleep(); a < -leastSleep || b-a > time.Minute {
		t.Errorf("the machine has slept for %v, and then for %v", a, b)
	}
}
