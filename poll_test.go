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
		time.Sleep(lokt.ReturnTime + lokt.WaitLease + time.Second) // nobody asks for c any more
		if _, err := m.Prune(t.Context(), "x"); err != nil || queue() != "" {
			t.Errorf("in the queue are %s, %v", queue(), err)
		}
	})
}

// Promise S-39.
func TestWaitersThatHungUpHoldUpNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, TTL: time.Hour, Wait: -1}
		}
		if _, err := m.Poll(t.Context(), lokt.Claim{Name: "x", LeaseID: "short", Owner: lokt.Owner{ID: "a"}, TTL: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
		ctx, hangUp := context.WithCancel(t.Context())
		ended := make(chan error)
		for _, who := range []string{"b", "c", "d"} {
			go func() {
				_, err := m.Poll(ctx, claim(who))
				ended <- err
			}()
			synctest.Wait()
		}
		hangUp()
		for range 3 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		again := make(chan error)
		go func() { // one of them asks again, and keeps its place
			time.Sleep(time.Second)
			h, err := m.Poll(t.Context(), claim("c"))
			if took := time.Since(begun); err == nil && (took > 4*time.Second || h.Token != 2) {
				t.Errorf("c was granted after %v, with token %d", took, h.Token)
			}
			_, left := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID})
			again <- errors.Join(err, left)
		}()
		h, err := m.Poll(t.Context(), claim("e"))
		if took := time.Since(begun); err != nil || took > 4*time.Second || h.Token != 3 {
			t.Errorf("e was granted after %v, with token %d: %v", took, h.Token, err)
		}
		if err := <-again; err != nil {
			t.Error(err)
		}
	})
}

// Promise S-125.
func TestAClientThatPollsInTimeIsNotPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, Wait: -1}
		}
		if _, err := m.Poll(t.Context(), claim("a")); err != nil {
			t.Fatal(err)
		}
		for range 50 { // of short requests, with pauses between
			for _, who := range []string{"b", "c"} {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				_, err := m.Poll(ctx, claim(who))
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
			}
		}
		_, _ = m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"})
		if s, err := m.Get(t.Context(), "x"); err != nil || len(s.Lock.Holders) != 1 || s.Lock.Holders[0].Owner.ID != "b" {
			t.Errorf("held by %+v, %v", s.Lock.Holders, err)
		}
		time.Sleep(lokt.OfferLease)
		if h, err := m.Poll(t.Context(), claim("b")); err != nil || h.Token != 2 || !h.Pending.IsZero() {
			t.Errorf("b comes in time, and is answered %+v, %v", h, err)
		}
		_, _ = m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of b"})
		if s, err := m.Get(t.Context(), "x"); err != nil || len(s.Lock.Holders) != 0 || len(s.Lock.Queue) != 1 {
			t.Errorf("who did not ask for so long was granted the lock: %+v, %v", s.Lock.Holders, err)
		}
		if h, err := m.Poll(t.Context(), claim("c")); err != nil || h.Token != 3 {
			t.Errorf("c comes back, and is answered %+v, %v", h, err)
		}
	})
}

// Promises S-39, S-125.
func TestTheTimeOfAGrantBeginsThoughItsWaiterIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, TTL: 2 * time.Second, Wait: -1}
		}
		begun := time.Now()
		if _, err := m.Poll(t.Context(), claim("a")); err != nil {
			t.Fatal(err)
		}
		for _, who := range []string{"b", "c"} { // whose connections are cut without a word
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := m.Poll(ctx, claim(who))
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if _, err := m.Poll(t.Context(), claim("d")); err != nil || time.Since(begun) > 5*time.Second {
			t.Errorf("the lock passed on after %v: %v", time.Since(begun), err)
		}
	})
}
