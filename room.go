package lokt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Between two tries to enter a queue that is full: doubled from the first to the last, and spread, so that those who find it full
// together do not come back together.
const (
	firstRoomTry = 250 * time.Millisecond
	lastRoomTry  = 5 * time.Second
)

// WaitForRoom makes a claim that waits, again and again while it is refused with ErrFull, for the time that it waits for, or
// until ctx ends, with its cause. claim is told how long to wait in the queue, as Claim.Wait has it, and holds nothing when it
// returns an error. Who has not got in has no place: who comes when there is room goes first. A claim that does not wait is
// made once.
func WaitForRoom(ctx context.Context, wait time.Duration, claim func(wait time.Duration) error) error {
	begun, left := time.Now(), wait
	for pause := firstRoomTry; ; pause = min(2*pause, lastRoomTry) {
		err := claim(left)
		if wait == 0 || !errors.Is(err, ErrFull) {
			return err
		}
		nap := time.Duration(float64(pause) * (0.5 + rand.Float64()))
		if wait > 0 {
			over := time.Since(begun)
			if over >= wait {
				return fmt.Errorf("gave up after %v: %w", wait.Round(time.Millisecond), err)
			}
			nap = min(nap, wait-over)
		}
		t := time.NewTimer(nap)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
		if wait > 0 {
			left = max(wait-time.Since(begun), time.Nanosecond)
		}
	}
}
