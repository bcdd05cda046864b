package etcdstore

import (
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/lokt-dev/lokt"
)

// journal is the store's part of the events in etcd.
type journal struct {
	mu sync.Mutex
}

func (j *journal) wakeAll()                           {}
func (j *journal) heard(*Store, *mvccpb.KeyValue)     {}
func (j *journal) stored(*Store, int64, []lokt.Event) {}
func (s *Store) logged(string, []lokt.Event) (clientv3.Op, string, bool) {
	return clientv3.Op{}, "", false
}
