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
