package lokt_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
)

// Promise S-170.
func TestDoExcludesTheGoroutinesOfOneProgram(t *testing.T) {
	for _, c := range []struct {
		reentrant, strict bool // by default
		most              int32
	}{{false, false, 1}, {true, false, 4}, {true, true, 4}} {
		synctest.Test(t, func(t *testing.T) {
			k := newLocker(t, newService(), "a", lokt.Options{Wait: -1, Reentrant: c.reentrant && !c.strict, Strict: c.strict})
			var inside, most atomic.Int32
			done := make(chan error, 4)
			for range 4 {
				go func() {
					done <- k.Do(t.Context(), "x", lokt.Options{Reentrant: c.reentrant && c.strict}, func(context.Context, uint64) error {
						most.Store(max(most.Load(), inside.Add(1)))
						time.Sleep(time.Second)
						inside.Add(-1)
						return nil
					})
				}()
			}
			for range 4 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			if n := most.Load(); n != c.most {
				t.Errorf("with Reentrant %v, %d were inside", c.reentrant, n)
			}
		})
	}
}

// Promise S-171.
func TestOnlyNoTTLAsksForAHoldWithoutEnd(t *testing.T) {
	s := newService()
	if _, err := lokt.NewLocker(s, lokt.Owner{ID: "a"}, lokt.LockerOptions{Defaults: lokt.Options{TTL: -time.Second}}); !errors.Is(err, lokt.ErrInvalid) {
		t.Errorf("a negative default is answered %v", err)
	}
	k := newLocker(t, s, "a", lokt.Options{})
	for _, ttl := range []time.Duration{-2, -time.Second, -time.Hour} {
		if _, err := k.Acquire(t.Context(), "x", lokt.Options{TTL: ttl}); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("a TTL of %v is answered %v", ttl, err)
		}
		if _, err := s.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: ttl}); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("a claim with a TTL of %v is answered %v", ttl, err)
		}
	}
	if held, err := k.Held(t.Context(), "x"); held || err != nil {
		t.Errorf("held: %v, %v", held, err)
	}
}
