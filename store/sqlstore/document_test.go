package sqlstore

import (
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// Whoever is told of a hold counts from its last renewal to its end.
//
// Promise S-12.
func TestAHoldThatGetsItsFullTimeAgainLastsNoLonger(t *testing.T) {
	last := time.Now().UTC()
	now := last.Add(time.Hour)
	l := lokt.Lock{Name: "x", Token: 1, Holders: []lokt.Holder{{
		Claim: lokt.Claim{Name: "x", LeaseID: "a", TTL: time.Minute}, Token: 1, AcquiredAt: last, HeldSince: last, ExpiresAt: last.Add(time.Minute),
	}}}
	restart(&l, now, last)
	if h := l.Holders[0]; !h.ExpiresAt.Equal(now.Add(time.Minute)) || h.ExpiresAt.Sub(h.AcquiredAt) > time.Minute {
		t.Errorf("it ends %v after the restart, and %v after its last renewal", h.ExpiresAt.Sub(now), h.ExpiresAt.Sub(h.AcquiredAt))
	}
}

// A step back of the clock leaves nobody at the head of a queue for as long as it was.
//
// Promise S-295.
func TestWhoIsGoneIsPassedSoonThoughTheClockWasSetBack(t *testing.T) {
	last := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := last.Add(-time.Hour)
	waiter := func(keep time.Duration) *lokt.Waiter {
		return &lokt.Waiter{Claim: lokt.Claim{Name: "x", LeaseID: "w", Owner: lokt.Owner{ID: "w"}, Limit: lokt.Exclusive, Wait: -1}, Until: last.Add(keep)}
	}
	there, left, ousted := waiter(lokt.PresenceTTL+lokt.QueueTTL), waiter(lokt.AwayTTL), waiter(lokt.QueueTTL+time.Second)
	ousted.Ousted = "somebody newer"
	for what, w := range map[string]*lokt.Waiter{"there": there, "left": left, "ousted": ousted} {
		l := lokt.Lock{Name: "x", Token: 1, Queue: []*lokt.Waiter{w}, Holders: []lokt.Holder{{
			Claim: lokt.Claim{Name: "x", LeaseID: "h", Owner: lokt.Owner{ID: "h"}, Limit: lokt.Shared, TTL: 2 * time.Hour}, Token: 1, ExpiresAt: last.Add(time.Hour),
		}}}
		restart(&l, now, last)
		reader := lokt.Claim{Name: "x", LeaseID: "r", Owner: lokt.Owner{ID: "r"}, Limit: lokt.Shared, TTL: time.Minute}
		for after, enters := range map[time.Duration]bool{lokt.WaitRefresh: what != "there", lokt.PresenceTTL: true} {
			if err := (lokt.Snapshot{Lock: l, Now: now.Add(after)}).WouldGrant(reader); (err == nil) != enters {
				t.Errorf("%v after the step, behind one who was %s: %v", after, what, err)
			}
		}
	}
}
