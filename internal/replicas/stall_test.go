//go:build unix

package replicas_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/etcdstore"
)

// manager returns a service over a store of its own in the etcd at the address.
func manager(t *testing.T, address string) *lokt.Manager {
	t.Helper()
	s, err := etcdstore.Open(t.Context(), "etcd://"+address+"/lokt", etcdstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return lokt.NewManager(s)
}

// tellHistory logs what etcd has about a lock: the times are those of the lock's clock.
func tellHistory(t *testing.T, address, name string) {
	t.Helper()
	s, err := etcdstore.Open(t.Context(), "etcd://"+address+"/lokt", etcdstore.Options{})
	if err != nil {
		t.Log(err)
		return
	}
	defer func() { _ = s.Close() }()
	page, err := s.ReadEvents(t.Context(), lokt.EventQuery{Name: name, Limit: 50, Latest: true})
	for _, e := range page.Events {
		t.Logf("%d %s %s %s token %d, until %s, %v", e.Seq, e.Time.Format(time.StampMicro), e.Type, e.Owner.ID, e.Token, e.Expires.Format(time.StampMicro), e.Extra)
	}
	t.Log(err)
}

// A leader of etcd that stood still and has been replaced ends, when it goes on, leases that were renewed meanwhile, and says
// that it renews others, which its successor does not know of. Neither must end a hold.
//
// Promises S-1, S-112.
func TestAHoldLastsThoughEtcdsLeaderStoodStill(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a quarter of a minute")
	}
	const locks = 40
	cluster := startEtcd(t)
	leader := cluster.leader(t)
	at := slices.Index(cluster.members, leader)
	mine, others := manager(t, cluster.clients[(at+2)%3]), manager(t, cluster.clients[(at+1)%3])
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	claim := func(i int, who string, wait time.Duration) lokt.Claim {
		return lokt.Claim{Name: fmt.Sprint("l", i), LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: who}, TTL: lockTTL, Wait: wait}
	}
	take := func(m *lokt.Manager, c lokt.Claim) (h lokt.Holder, err error) {
		h, err = m.Acquire(ctx, c)
		for errors.Is(err, lokt.ErrUnavailable) && ctx.Err() == nil { // this machine is too slow for etcd
			h, err = m.Acquire(ctx, c)
		}
		return h, err
	}
	var renewing, fighting sync.WaitGroup
	enough := make(chan struct{})
	for i := range locks {
		last := time.Now() // the time to live counts from before the answer, which may be late
		h, err := take(mine, claim(i, "a", 0))
		if err != nil {
			t.Fatal(err)
		}
		renewed := make(chan struct{})
		renewing.Go(func() {
			defer close(renewed)
			for over := false; !over; {
				select {
				case <-enough:
					over = true
				case <-time.After(lockTTL / 4):
				}
				asked := time.Now()
				if _, err := mine.Renew(ctx, lokt.Renewal{Name: h.Name, LeaseID: h.LeaseID}); err != nil {
					if time.Since(last) < lockTTL { // and not because this machine was too slow to renew
						t.Errorf("%s ended %v after its last renewal: %v", h.Name, time.Since(last), err)
					}
					return
				}
				last = asked
			}
		})
		fighting.Go(func() {
			_, err := take(others, claim(i, "b", 2*patience))
			got := time.Now()
			<-renewed
			if lasted := got.Sub(last); err != nil || lasted < lockTTL {
				t.Errorf("another has %s %v after its last renewal, %v", h.Name, lasted, err)
				tellHistory(t, cluster.clients[(at+1)%3], h.Name)
			}
		})
	}
	time.Sleep(time.Second)
	leader.signal(syscall.SIGSTOP)
	time.Sleep(lockTTL + 3*time.Second)
	leader.signal(syscall.SIGCONT)
	time.Sleep(time.Second)
	close(enough)
	renewing.Wait()
	fighting.Wait()
}
