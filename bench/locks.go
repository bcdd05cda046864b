//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// lockUnlock acquires a lock and releases it.
func lockUnlock(client *httpapi.Client, name string, wait time.Duration) error {
	ctx, owner := context.Background(), lokt.Owner{ID: "bench", Host: "bench"}
	h, err := client.Acquire(ctx, lokt.Claim{
		Name: name, LeaseID: lokt.NewLeaseID(), Owner: owner, Strict: true, Attended: true, TTL: time.Minute, Wait: wait,
	})
	if err == nil {
		_, err = client.Release(ctx, lokt.Target{Name: name, LeaseID: h.LeaseID, Owner: owner})
	}
	return err
}

// taking returns workers that also keep how long each turn took.
func taking(times *[]float64, start start) start {
	var mu sync.Mutex
	return func(i int) (func() error, func(), error) {
		work, stop, err := start(i)
		var mine []float64
		return func() error {
				begun := time.Now()
				err := work()
				mine = append(mine, time.Since(begun).Seconds())
				return err
			}, func() {
				mu.Lock()
				defer mu.Unlock()
				*times = append(*times, mine...)
				stop()
			}, err
	}
}

// against returns the rows of a lock's rate and its 99th percentile, by so many at a time, against a peer. The ratios
// should be at least, and at most, the limit.
func (e *env) against(d *server, workers int, store, peer string, limit float64, theirs start) ([]row, error) {
	client, err := httpapi.New("http://"+d.addr, httpapi.ClientOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	var mine, other []float64
	span := e.span(2 * time.Second)
	ours := taking(&mine, func(i int) (func() error, func(), error) {
		return func() error { return lockUnlock(client, fmt.Sprint("bench-", i), 0) }, func() {}, nil
	})
	r, err := inTurn(3, func() (float64, error) { return crowd(workers, span, ours) },
		func() (float64, error) { return crowd(workers, span, taking(&other, theirs)) })
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("acquire + release of %d locks at a time over HTTP, %s", workers, store)
	return []row{
		faster(what, r[0], r[1], peer, limit),
		shorter("the same, 99th percentile", percentile(mine, 0.99), percentile(other, 0.99), peer, limit),
	}, nil
}

// etcd starts a node of it, and returns a client. It is nil where there is no etcd.
func (e *env) etcd(name string) (client *clientv3.Client, stop func(), err error) {
	peer, err := e.peer("etcd", "--data-dir", name, "--listen-client-urls", "http://127.0.0.1:PORT",
		"--advertise-client-urls", "http://127.0.0.1:PORT", "--listen-peer-urls", "http://127.0.0.1:0")
	if peer == nil || err != nil {
		return nil, func() {}, err
	}
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{peer.addr}, DialTimeout: 10 * time.Second})
	if err != nil {
		peer.stop()
		return nil, func() {}, err
	}
	return client, func() { _ = client.Close(); peer.stop() }, nil
}

// mutex acquires and releases etcd's own lock of that name.
func mutex(client *clientv3.Client, name string) (func() error, func(), error) {
	s, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	if err != nil {
		return nil, nil, err
	}
	m, ctx := concurrency.NewMutex(s, name), context.Background()
	return func() error { return errors.Join(m.Lock(ctx), m.Unlock(ctx)) }, func() { _ = s.Close() }, nil
}

func againstEtcd(e *env) (rows []row, err error) {
	client, stop, err := e.etcd("etcd")
	if client == nil || err != nil {
		return missing("acquire + release over HTTP against etcd's lock and unlock", "etcd"), err
	}
	defer stop()
	d, err := e.loktd("locks")
	if err != nil {
		return nil, err
	}
	defer d.stop()
	for _, n := range []int{1, 16, 64} {
		some, err := e.against(d, n, "SQLite", "etcd's own mutex, one node", 1, func(i int) (func() error, func(), error) {
			return mutex(client, fmt.Sprint("/bench/", i))
		})
		if err != nil {
			return nil, err
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

// resting returns how much memory the daemon has while so many wait for a lock that is held for so long.
func resting(d *server, client *httpapi.Client, n int, long time.Duration) (bytes float64, err error) {
	var all sync.WaitGroup
	defer all.Wait()
	_, err = client.Acquire(context.Background(), lokt.Claim{Name: "held", Owner: lokt.Owner{ID: "first", Host: "bench"}, TTL: long})
	if err != nil {
		return 0, err
	}
	for range n {
		all.Go(func() { _ = lockUnlock(client, "held", time.Minute) }) // who fails takes no memory, and that shows
	}
	var seen []float64
	for range 20 {
		time.Sleep(long / 20)
		if bytes, err = d.resident(); err != nil {
			return 0, err
		}
		seen = append(seen, bytes)
	}
	slices.Sort(seen)
	return seen[len(seen)/2], nil
}

// waiters passes one lock on from waiter to waiter. Each that was served asks again, so that as many wait all the time.
func waiters(e *env) (rows []row, err error) {
	peer, stop, err := e.etcd("etcd-waiters")
	if err != nil {
		return nil, err
	}
	defer stop()
	calm, alone := 0.0, 0.0 // memory with one waiting
	for _, n := range []int{1, 100, e.n(2000)} {
		d, err := e.loktd(fmt.Sprint("waiters-", n))
		if err != nil {
			return nil, err
		}
		defer d.stop()
		client, err := httpapi.New("http://"+d.addr, httpapi.ClientOptions{})
		if err != nil {
			return nil, err
		}
		defer func() { _ = client.Close() }()
		quiet, err := resting(d, client, n, e.span(20*time.Second))
		if err != nil {
			return nil, err
		}
		sides := []func() (float64, error){func() (float64, error) {
			return crowd(n+1, e.span(5*time.Second), func(int) (func() error, func(), error) {
				return func() error { return lockUnlock(client, "x", time.Minute) }, func() {}, nil
			})
		}}
		if peer != nil {
			sides = append(sides, func() (float64, error) {
				return crowd(n+1, e.span(5*time.Second), func(int) (func() error, func(), error) { return mutex(peer, fmt.Sprint("/waiters/", n)) })
			})
		}
		r, err := inTurn(3, sides...)
		if err != nil {
			return nil, err
		}
		after, err := d.resident()
		if err != nil {
			return nil, err
		}
		what := fmt.Sprintf("one lock over HTTP, %d waiting: hand-overs", n)
		rows = append(rows, row{what: what, ours: perSecond(r[0]), figure: r[0], unit: "/s", least: 1000})
		if peer != nil {
			rows = append(rows, faster("the same", r[0], r[1], "etcd's own mutex, one node", 1))
		}
		if calm, alone = cmp.Or(calm, quiet), cmp.Or(alone, after); n > 1 {
			each, churn := (quiet-calm)/1024/float64(n), (after-alone)/1024/float64(n)
			rows = append(rows, row{what: "so many wait: memory per waiter", ours: fmt.Sprintf("%.0f KiB", each), figure: each, unit: "KiB"},
				row{what: "the same while they take turns", ours: fmt.Sprintf("%.0f KiB", churn), figure: churn, unit: "KiB"})
		}
	}
	return rows, nil
}

// postgres starts a server of its own, and a daemon on it.
func (e *env) postgres(schema string) (pg *servers.Postgres, d *server, url string, err error) {
	if pg, err = servers.StartPostgres(); err != nil {
		return nil, nil, "", err
	}
	url = pg.URL(pg.Addr, schema)
	if err = pg.Exec("CREATE SCHEMA " + schema); err == nil {
		d, err = e.loktd(url)
	}
	if err != nil {
		pg.Stop()
	}
	return pg, d, url, err
}

func againstAdvisoryLocks(e *env) ([]row, error) {
	pg, d, url, err := e.postgres("locks")
	if errors.Is(err, servers.ErrNoPostgres) {
		return missing("acquire + release over HTTP against advisory locks", "PostgreSQL"), nil
	}
	if err != nil {
		return nil, err
	}
	defer pg.Stop()
	defer d.stop()
	rows, err := e.against(d, 16, "PostgreSQL", "its advisory locks", 0, func(i int) (func() error, func(), error) {
		ctx := context.Background()
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return nil, nil, err
		}
		return func() error {
			_, err := c.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(i))
			if err == nil {
				_, err = c.Exec(ctx, "SELECT pg_advisory_unlock($1)", int64(i))
			}
			return err
		}, func() { _ = c.Close(ctx) }, nil
	})
	if err == nil {
		rows[0].note = "an advisory lock is not stored: it has no TTL, no token, and ends with its connection"
	}
	return rows, err
}

// againstRiver compares lives of jobs on PostgreSQL with River's, which bench/river measures.
func againstRiver(e *env) ([]row, error) {
	const what = "submit + request + complete over HTTP, PostgreSQL, 128 connections"
	pg, d, url, err := e.postgres("jobs")
	if errors.Is(err, servers.ErrNoPostgres) {
		return missing(what, "PostgreSQL"), nil
	}
	if err != nil {
		return nil, err
	}
	defer pg.Stop()
	defer d.stop()
	river := filepath.Join(e.dir, "river")
	if err := build(river, "bench/river", "."); err != nil {
		return nil, err
	}
	span := e.span(5 * time.Second)
	r, err := inTurn(3,
		on(d, 128, span, func(w *worker, _, _ int) error {
			if err := w.submit(); err != nil {
				return err
			}
			return w.work(0)
		}),
		func() (float64, error) {
			b, err := exec.Command(river, "-for", span.String(), url).Output() //nolint:noctx // ends by itself
			if err != nil {
				return 0, err
			}
			var r float64
			_, err = fmt.Sscan(string(b), &r)
			return r, err
		})
	if err != nil {
		return nil, err
	}
	return []row{faster(what, r[0], r[1], "River: 128 goroutines insert, 200 work, in one process", 0)}, nil
}
