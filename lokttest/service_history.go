package lokttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
)

// checkHistories lets many clients use two locks at once, in every way that a Recorder understands, and checks what
// they were answered.
func checkHistories(t *testing.T, open func(t *testing.T) lokt.Service, bubble bool) {
	var r *Recorder
	const limit = 2 * time.Minute
	if !bubble {
		var err error
		for range 5 { // until there is a history short enough to be explained
			r = NewRecorder(open(t))
			r.Slack = 5 * time.Millisecond
			Exercise(t, r, 6, 20, 40*time.Millisecond, rand.Uint64())
			if err = r.Check(limit / 4); !errors.Is(err, ErrTooLong) {
				break
			}
			t.Log(err)
		}
		if err != nil {
			t.Error(err)
		}
		return
	}
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			r = NewRecorder(open(t))
			Exercise(t, r, 8, 30, 10*time.Second, seed)
		})
		if err := r.Check(limit); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// Exercise makes a history for Check: clients that claim one of two locks a number of rounds each, with and without
// waiting, and then renew in time or too late, let the lease expire, release it, or release it when it is lost. Some
// waits are cancelled. Leases live about as long as ttl. It fails the test if nobody was ever granted anything.
func Exercise(t *testing.T, s lokt.Service, clients, rounds int, ttl time.Duration, seed uint64) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	grants := 0
	for i := range clients {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for round := range rounds {
				if client(t.Context(), s, fmt.Sprintf("client %d, round %d", i, round), ttl, random) {
					mu.Lock()
					grants++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if grants == 0 {
		t.Errorf("in %d rounds of %d clients nothing was granted", rounds, clients)
	}
}

// client claims a lock once and does something with it; it reports whether it was granted.
func client(ctx context.Context, s lokt.Service, who string, ttl time.Duration, random *rand.Rand) bool {
	some := func(most time.Duration) time.Duration { return time.Duration(random.Int64N(int64(most))) }
	c := lokt.Claim{
		Name: [...]string{"x", "y"}[random.IntN(2)], LeaseID: lokt.NewLeaseID(), TTL: ttl/2 + some(ttl),
		Owner: lokt.Owner{ID: who, Host: "suite.example"},
	}
	acquiring := ctx
	if random.IntN(3) > 0 {
		c.Wait = ttl/4 + some(2*ttl)
		if random.IntN(4) == 0 {
			cancelled, cancel := context.WithTimeout(ctx, some(ttl))
			defer cancel()
			acquiring = cancelled
		}
	}
	if _, err := s.Acquire(acquiring, c); err != nil {
		time.Sleep(some(ttl / 2))
		return false
	}
	switch random.IntN(5) {
	case 0: // it is forgotten
		return true
	case 1: // it is kept too long, and renewed too late, or just in time
		time.Sleep(c.TTL - ttl/20 + some(ttl/5))
		_, _ = s.Renew(ctx, lokt.Renewal{Name: c.Name, LeaseID: c.LeaseID})
	case 2: // it is renewed a few times
		for range random.IntN(4) {
			time.Sleep(some(c.TTL / 2))
			_, _ = s.Renew(ctx, lokt.Renewal{Name: c.Name, LeaseID: c.LeaseID})
		}
	case 3: // it is given back late, perhaps
		time.Sleep(c.TTL - ttl/20 + some(ttl/5))
	default:
		time.Sleep(some(ttl / 4))
	}
	_, _ = s.Release(ctx, lokt.Target{Name: c.Name, LeaseID: c.LeaseID, Owner: c.Owner})
	if random.IntN(4) == 0 { // and once more, in vain
		_, _ = s.Renew(ctx, lokt.Renewal{Name: c.Name, LeaseID: c.LeaseID})
	}
	return true
}
