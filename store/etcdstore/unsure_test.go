package etcdstore

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lokt-dev/lokt"
)

// slowPost takes so long with the first transaction that stores something that nobody waits for its answer: it arrives just before
// the next one.
type slowPost struct {
	clientv3.KV
	takes time.Duration

	mu    sync.Mutex
	under clientv3.Txn // way
	taken int
}

type posted struct {
	clientv3.Txn
	late  clientv3.Txn // the same, however late
	post  *slowPost
	write bool
}

func (p *slowPost) Txn(ctx context.Context) clientv3.Txn {
	return &posted{p.KV.Txn(ctx), p.KV.Txn(context.Background()), p, false}
}

func (t *posted) If(c ...clientv3.Cmp) clientv3.Txn {
	t.Txn, t.late, t.write = t.Txn.If(c...), t.late.If(c...), true
	return t
}

func (t *posted) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.late = t.Txn.Then(ops...), t.late.Then(ops...)
	return t
}

func (t *posted) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.late = t.Txn.Else(ops...), t.late.Else(ops...)
	return t
}

func (t *posted) Commit() (*clientv3.TxnResponse, error) {
	if !t.write {
		return t.Txn.Commit()
	}
	p := t.post
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.taken++; p.taken {
	case 1:
		p.under = t.late
		time.Sleep(p.takes)
		return nil, context.DeadlineExceeded
	case 2:
		if _, err := p.under.Commit(); err != nil {
			return nil, err
		}
	}
	return t.Txn.Commit()
}

// Promises S-1, S-111, S-283.
func TestAChangeThatIsDecidedAgainIsAnsweredAsItIsStored(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	url := c.url()
	m := lokt.NewManager(c.open(t, url, Options{Timeout: longTimeout}))
	mine := c.open(t, url, Options{Timeout: longTimeout})
	acquire(t, m, claimOf("x", "a", time.Second))
	acquired := make(chan lokt.Holder)
	post := &slowPost{KV: mine.client.KV, takes: 2 * time.Second} // when it is given up, the hold is over
	mine.client.KV = post
	go func() {
		claim := claimOf("x", "b", time.Hour)
		claim.Wait = patience
		h, err := lokt.NewManager(mine).Acquire(t.Context(), claim)
		if err != nil {
			t.Error(err)
		}
		acquired <- h
	}()
	h := <-acquired
	snap, err := m.Get(t.Context(), "x")
	if err != nil || post.taken < 2 {
		t.Fatal(post.taken, err)
	}
	if have, in := snap.Lock.Holder(h.LeaseID); !in || have.Token != h.Token {
		t.Errorf("it was told that it holds the lock by token %d, and on record is %+v, with %d who wait", h.Token, snap.Lock.Holders, len(snap.Lock.Queue))
	}
}

// learner gives every other answer as a member does that does not vote yet, of etcd 3.4.
type learner struct {
	clientv3.KV
	asked atomic.Int64
}

type refusal struct{ clientv3.Txn }

func (l *learner) Txn(ctx context.Context) clientv3.Txn {
	if t := l.KV.Txn(ctx); l.asked.Add(1)%2 == 0 {
		return t
	}
	return refusal{}
}

func (r refusal) If(...clientv3.Cmp) clientv3.Txn  { return r }
func (r refusal) Then(...clientv3.Op) clientv3.Txn { return r }
func (r refusal) Else(...clientv3.Op) clientv3.Txn { return r }
func (refusal) Commit() (*clientv3.TxnResponse, error) {
	return nil, rpctypes.Error(status.Error(codes.Unavailable, "etcdserver: rpc not supported for learner"))
}

// Promise S-114.
func TestWhatALearnerRefusesIsAskedOfAnotherMember(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.open(t, c.url(), Options{Timeout: longTimeout})
	s.client.KV = &learner{KV: s.client.KV}
	m := lokt.NewManager(s)
	for range 5 {
		release(t, m, acquire(t, m, claimOf("x", "a", time.Hour)))
		if _, err := m.Get(t.Context(), "x"); err != nil {
			t.Error(err)
		}
	}
}
