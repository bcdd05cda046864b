package filestore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
)

// Promise S-38.
func TestWhoWaitsSeesTheExpiryOfAHoldThatBeganMeanwhile(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(root, Options{noWatch: true, clock: bubbleClock()})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		m, ctx := lokt.NewManager(s), context.Background()
		claim := func(id string, ttl, wait time.Duration) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: id, Owner: lokt.Owner{ID: id, AnySession: true, Host: "h"}, TTL: ttl, Wait: wait}
		}
		if _, err := m.Acquire(ctx, claim("first", 0, 0)); err != nil {
			t.Fatal(err)
		}
		took := make(chan time.Time, 2)
		for _, id := range []string{"second", "third"} {
			go func() {
				_, err := m.Acquire(ctx, claim(id, time.Second, time.Minute))
				if err != nil {
					t.Error(err)
				}
				took <- time.Now()
			}()
			time.Sleep(time.Second)
		}
		if _, err := m.Release(ctx, lokt.Target{Name: "x", LeaseID: "first", Owner: claim("first", 0, 0).Owner}); err != nil {
			t.Fatal(err)
		}
		if second, third := <-took, <-took; third.Sub(second) > 3*time.Second {
			t.Errorf("a hold of one second was followed by the next after %v", third.Sub(second))
		}
	})
}
