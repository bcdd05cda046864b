package lokt_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/ahead"
	"github.com/lokt-dev/lokt/store/memstore"
)

// marking notes which changes go ahead of others.
type marking struct {
	lokt.Store
	mu    sync.Mutex
	ahead []bool
}

func (m *marking) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	m.mu.Lock()
	m.ahead = append(m.ahead, ahead.Is(ctx))
	m.mu.Unlock()
	return m.Store.Update(ctx, name, change)
}

// Promise S-412.
func TestChangesOfHoldersGoAheadOfClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &marking{Store: memstore.New()}
		a, b := newLocker(t, lokt.NewManager(s), "a", lokt.Options{ManualHeartbeat: true}), newLocker(t, lokt.NewManager(s), "b", lokt.Options{})
		x := acquire(t, a, "x", lokt.Options{})
		if err := x.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		waits := make(chan *lokt.Lease)
		go func() {
			l, _ := b.Acquire(t.Context(), "x", lokt.Options{Wait: time.Minute})
			waits <- l
		}()
		synctest.Wait()
		release(t, x)
		release(t, <-waits)
		if want := []bool{false, true, false, true, true, true}; !slices.Equal(s.ahead, want) { // the last but one takes up the grant
			t.Errorf("of a claim, a renewal, a claim that waits, a release, its grant and its release, ahead go %v", s.ahead)
		}
	})
}
