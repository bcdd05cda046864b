package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
)

// turns returns, for each of many goroutines, what acquires and releases a lock of its own through the service.
func turns(c lokt.Service) func(worker int) (func() error, func(), error) {
	ctx := context.Background()
	return func(worker int) (func() error, func(), error) {
		name := fmt.Sprint("bench-", worker)
		owner := lokt.Owner{ID: name, Host: "bench"}
		return func() error {
			h, err := c.Acquire(ctx, lokt.Claim{Name: name, LeaseID: lokt.NewLeaseID(), Owner: owner, Strict: true, Attended: true, TTL: time.Minute})
			if err != nil {
				return err
			}
			_, err = c.Release(ctx, lokt.Target{Name: name, LeaseID: h.LeaseID, Owner: owner})
			return err
		}, func() {}, nil
	}
}

// byEtcd does the same with etcd's own mutex.
func byEtcd(c *clientv3.Client) func(worker int) (func() error, func(), error) {
	ctx := context.Background()
	return func(worker int) (func() error, func(), error) {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(60))
		if err != nil {
			return nil, nil, err
		}
		m := concurrency.NewMutex(s, fmt.Sprint("/bench/", worker))
		return func() error {
			if err := m.Lock(ctx); err != nil {
				return err
			}
			return m.Unlock(ctx)
		}, func() { _ = s.Close() }, nil
	}
}

// timed is a worker's start function that also keeps how long each turn took.
type timed struct {
	mu    sync.Mutex
	times []time.Duration
}

func (t *timed) of(start func(int) (func() error, func(), error)) func(int) (func() error, func(), error) {
	return func(worker int) (func() error, func(), error) {
		work, stop, err := start(worker)
		if err != nil {
			return nil, nil, err
		}
		var mine []time.Duration
		return func() error {
				begun := time.Now()
				err := work()
				mine = append(mine, time.Since(begun))
				return err
			}, func() {
				t.mu.Lock()
				t.times = append(t.times, mine...)
				t.mu.Unlock()
				stop()
			}, nil
	}
}

// percentile returns the time that the given share of turns did not exceed.
func (t *timed) percentile(share float64) time.Duration {
	slices.Sort(t.times)
	return t.times[int(share*float64(len(t.times)-1))]
}

func remoteLocks(e *env) ([]result, error) {
	d, _, err := e.loktd("locks.db")
	if err != nil {
		return nil, err
	}
	defer d.stop()
	client, err := httpapi.New("http://"+d.addr, httpapi.ClientOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	peer, etcd, err := e.etcd("etcd")
	if err != nil {
		return nil, err
	}
	if peer == nil {
		return []result{{what: "acquire + release over HTTP against etcd's lock and unlock", ours: "-", theirs: "etcd is not installed", note: "not measured"}}, nil
	}
	defer peer.stop()
	defer func() { _ = etcd.Close() }()
	var results []result
	for _, workers := range []int{1, 16, 64} {
		var ours, theirs timed
		r, err := rounds(fewRounds,
			func() (float64, error) { return rate(workers, e.span(2*time.Second), ours.of(turns(client))) },
			func() (float64, error) { return rate(workers, e.span(2*time.Second), theirs.of(byEtcd(etcd))) },
		)
		if err != nil {
			return nil, err
		}
		results = append(results,
			faster(fmt.Sprintf("acquire + release of %d locks at a time, durable", workers), r[0], r[1], "etcd, one node, its own client's mutex", 1),
			compare("the same, 99th percentile", ours.percentile(0.99), theirs.percentile(0.99), "etcd", 1),
		)
	}
	return results, nil
}
