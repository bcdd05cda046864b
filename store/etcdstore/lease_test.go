package etcdstore

import (
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestSpareLeasesAreBoundedWhateverTTLsClientsChoose(t *testing.T) {
	t.Parallel()
	var p pool
	for i := range int64(10_000) {
		p.put(etcdLease{clientv3.LeaseID(i), 60 + i})
	}
	kept := 0
	for i := range int64(10_000) {
		if _, ok := p.get(60 + i); ok {
			kept++
		}
	}
	if kept != maxSpare {
		t.Errorf("of leases with 10000 TTLs %d are kept, not %d", kept, maxSpare)
	}
}

func TestASpareLeaseIsTheLastOfItsTTLThatMayBeAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p pool
		want := func(seconds int64, id clientv3.LeaseID) {
			t.Helper()
			if l, ok := p.get(seconds); ok != (id != 0) || l.ID != id {
				t.Errorf("of %d s is %d, %v; not %d", seconds, l.ID, ok, id)
			}
		}
		p.put(etcdLease{1, 5})
		time.Sleep(2 * time.Second)
		p.put(etcdLease{2, 5})
		p.put(etcdLease{3, 5})
		p.put(etcdLease{4, 60})
		want(5, 3)
		want(7, 0)
		time.Sleep(4 * time.Second)
		want(5, 2)
		want(5, 0) // the other may be dead
		want(60, 4)
		want(60, 0)
		if len(p.spare) != 0 {
			t.Errorf("there are still %v", p.spare)
		}
	})
}
