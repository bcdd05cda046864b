package etcdstore

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// slowRead keeps back the first transaction, and counts them.
type slowRead struct {
	clientv3.KV
	on    chan struct{} // closed when the first may go on
	taken atomic.Int64
}

func (r *slowRead) Txn(ctx context.Context) clientv3.Txn {
	if r.taken.Add(1) == 1 {
		<-r.on
	}
	return r.KV.Txn(ctx)
}

// Those who wait for a lock look at once when it changes, and the more there are, the longer is its record: read for each of them, etcd was
// so busy that nobody got it any more.
//
// Promises S-38, S-101.
func TestACrowdThatLooksAtOnceReadsOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.open(t, c.url(), Options{Timeout: longTimeout})
	if err := s.Update(t.Context(), "x", addHolder("l")); err != nil {
		t.Fatal(err)
	}
	slow := &slowRead{KV: s.client.KV, on: make(chan struct{})}
	s.client.KV = slow
	sl := s.pin("x")
	defer s.unpin(sl)
	const crowd = 200
	pins := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return sl.pins
	}
	before := pins()
	look := func(wg *sync.WaitGroup) {
		wg.Go(func() {
			if snap, err := s.View(t.Context(), "x"); err != nil || len(snap.Lock.Holders) != 1 {
				t.Errorf("a look shows %+v, %v", snap.Lock, err)
			}
		})
	}
	var wg sync.WaitGroup
	look(&wg)
	eventually(t, "the first has asked", func() bool { return slow.taken.Load() == 1 })
	for range crowd {
		look(&wg)
	}
	eventually(t, "all have come", func() bool { return pins() == before+crowd+2 }) // with what reads
	close(slow.on)
	wg.Wait()
	if n := slow.taken.Load(); n < 2 || n > crowd/2 { // some may have been about to
		t.Errorf("%d looked, and etcd was asked %d times", crowd+1, n)
	}
}
