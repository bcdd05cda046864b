package lokt_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
)

// stalled is a store that answers no change.
type stalled struct{ lokt.Store }

func (stalled) Update(ctx context.Context, _ string, _ func(lokt.Snapshot) lokt.Change) error {
	<-ctx.Done()
	return ctx.Err()
}

// Promise S-173.
func TestAClaimThatNoStorePutsOnRecordIsNotQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(stalled{memstore.New()})
		over := errors.New("the wait is over")
		for limit, most := range map[time.Duration]time.Duration{time.Second: time.Second, 30 * time.Second: 10 * time.Second} {
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, over)
			begun := time.Now()
			_, err := m.Poll(ctx, &lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, Wait: -1})
			cancel()
			if !errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, over) {
				t.Errorf("with %v it ends with %v", limit, err)
			}
			if took := time.Since(begun); took != most {
				t.Errorf("with %v it took %v", limit, took)
			}
		}
	})
}

// Promise S-173.
func TestAClaimDoesNotWaitLongForAStoreThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		_, err := lokt.NewManager(stalled{memstore.New()}).Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}})
		if took := time.Since(begun); !errors.Is(err, lokt.ErrUnavailable) || took > 10*time.Second {
			t.Errorf("after %v it ends with %v", took, err)
		}
	})
}

// failing is a store that can be read, and fails to change what it keeps from some time on.
type failing struct {
	lokt.Store
	from time.Time
}

func (s failing) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if time.Now().After(s.from) {
		return errCut
	}
	return s.Store.Update(ctx, name, change)
}

// Promise S-245.
func TestAWaitThatTheStoreDoesNotEndMayBeGrantedYetAndTheErrorSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		acquire(t, newLocker(t, lokt.NewManager(s), "a", lokt.Options{TTL: time.Hour}), "x", lokt.Options{})
		b := newLocker(t, lokt.NewManager(failing{s, time.Now().Add(time.Second)}), "b", lokt.Options{})
		_, err := b.Acquire(t.Context(), "x", lokt.Options{Wait: 2 * time.Second})
		var blocked *lokt.BlockedError
		if !errors.As(err, &blocked) || !blocked.Unsure || blocked.TimedOut < 2*time.Second || !errors.Is(err, lokt.ErrUnavailable) {
			t.Fatalf("the wait ended with %v", err)
		}
		if text := err.Error(); !strings.HasPrefix(text, "gave up after 2s: ") || !strings.Contains(text, "may be granted yet, for the store did not answer") {
			t.Error(text)
		}
	})
}

// fatal is a store in which a test ends, as t.FailNow does.
type fatal struct{ lokt.Store }

func (fatal) Update(context.Context, string, func(lokt.Snapshot) lokt.Change) error {
	runtime.Goexit()
	return nil
}

func TestAStoreThatEndsItsGoroutineEndsTheCallers(t *testing.T) {
	ended := make(chan bool)
	go func() {
		returned := false
		defer func() { ended <- !returned && recover() == nil }()
		_, _ = lokt.NewManager(fatal{memstore.New()}).Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}})
		returned = true
	}()
	if !<-ended {
		t.Error("the caller went on, or panicked")
	}
}
