package lokt_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Promises S-71.
func TestPolledClaimStaysWhereItIsWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, TTL: time.Hour, Wait: -1}
		}
		h, err := m.Poll(t.Context(), claim("a"))
		if err != nil {
			t.Fatal(err)
		}
		poll := func(who string) (lokt.Holder, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			return m.Poll(ctx, claim(who))
		}
		queue := func() (all string) {
			s, err := m.Get(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range s.Lock.Queue {
				all += w.Owner.ID
			}
			return all
		}
		for range 3 {
			for _, who := range []string{"b", "c"} {
				if _, err := poll(who); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("%s: %v", who, err)
				}
			}
			if got := queue(); got != "bc" {
				t.Errorf("in the queue are %s", got)
			}
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		if h, err = poll("b"); err != nil || !h.Pending.IsZero() {
			t.Errorf("b was granted %+v, %v", h, err)
		}
		time.Sleep(lokt.WaitLease + time.Second) // nobody asks for c any more
		if _, err := m.Prune(t.Context(), "x"); err != nil || queue() != "" {
			t.Errorf("in the queue are %s, %v", queue(), err)
		}
	})
}
