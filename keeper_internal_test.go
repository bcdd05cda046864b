package lokt

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// In a bubble the wall clock cannot be set, so this calls what the loop calls when it sees that it was.
//
// Promise S-28.
func TestStepOfTheWallClockMovesNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Keeper{}
		sent := make(chan struct{}, 1)
		beats := []*Beat{
			{Interval: time.Minute, Renew: func(context.Context) (time.Duration, error) {
				sent <- struct{}{}
				return time.Hour, nil
			}, Lost: func(cause error) { t.Error(cause) }},
			{Lost: func(cause error) { t.Error(cause) }}, // only watched
		}
		for _, b := range beats {
			k.Keep(b, k.now(), time.Hour)
		}
		synctest.Wait()
		k.mu.Lock()
		k.hurry(0)
		k.rouse()
		k.mu.Unlock()
		<-sent // at once, and not after a minute
		synctest.Wait()
		if now := k.now(); now != 0 {
			t.Errorf("the renewal came after %v", now)
		}
		for i, b := range beats {
			if want := Usable(time.Hour, 0); b.deadline != want {
				t.Errorf("beat %d ends after %v, not %v", i, b.deadline, want)
			}
			b.Stop()
		}
	})
}

func TestTimesOfOneProcessAreMonotonic(t *testing.T) {
	k := &Keeper{}
	k.now()
	if k.base == k.base.Round(0) {
		t.Error("the keeper measures time by the wall clock")
	}
}
