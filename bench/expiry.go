//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// claim asks for a lock, and waits so long for it.
func (w *worker) claim(name, owner string, ttl, wait time.Duration) error {
	_, err := w.do("POST", "/v1/locks/"+name+"/leases",
		fmt.Sprintf(`{"lease_id":"of-%s-%s","owner":{"id":%q},"ttl_ms":%d,"wait_ms":%d}`, owner, name, owner, ttl.Milliseconds(), wait.Milliseconds()))
	return err
}

// each has so many connections do something n times together.
func each(addr string, connections, n int, do func(w *worker, i int) error) error {
	var next atomic.Int64
	_, err := crowd(connections, 0, func(int) (func() error, func(), error) {
		w, err := newWorker(dial, addr, "bench")
		if err != nil {
			return nil, nil, err
		}
		for i := int(next.Add(1)); err == nil && i <= n; i = int(next.Add(1)) {
			err = do(w, i)
		}
		return func() error { return nil }, func() { _ = w.Close() }, err
	})
	return err
}

// expiry has very many leases end in one second, some of which are waited for, and measures what others who claim feel of it.
func expiry(e *env) (rows []row, err error) {
	for _, store := range []string{"memory:", "expiry"} {
		d, err := e.loktd(store)
		if err != nil {
			return nil, err
		}
		some, err := e.expire(d, e.n(1_000_000), e.n(10_000))
		d.kill()
		if err != nil {
			return nil, err
		}
		some[0].what += map[bool]string{true: ", SQLite", false: ", memory"}[store == "expiry"]
		rows = append(rows, some...)
	}
	return rows, nil
}

// expire does so on one server.
func (e *env) expire(d *server, n, waiting int) ([]row, error) {
	begun := time.Now()
	if err := each(d.addr, 64, n/20, func(w *worker, i int) error { return w.claim(fmt.Sprint("first-", i), "a", time.Hour, 0) }); err != nil {
		return nil, err
	}
	end := time.Now().Add(20*time.Second + 45*time.Since(begun)) // it may become half as fast
	if err := each(d.addr, 64, n, func(w *worker, i int) error {
		return w.claim(fmt.Sprint("held-", i), "a", time.Until(end)+time.Duration(i%1000)*time.Millisecond, 0)
	}); err != nil {
		return nil, err
	}
	quiet, err := d.resident()
	if err != nil || time.Until(end) < 20*time.Second {
		return nil, errors.Join(err, errors.New("the leases were granted too slowly to end together"))
	}
	fmt.Fprintf(os.Stderr, "%d leases after %v, %.0f MB; %v are left\n", n, time.Since(begun), quiet/1e6, time.Until(end))
	time.Sleep(time.Until(end.Add(-15 * time.Second)))
	var all sync.WaitGroup
	var failed error
	var passed atomic.Int64 // when the last one was
	all.Go(func() {
		failed = each(d.addr, waiting, waiting, func(w *worker, i int) error {
			err := w.claim(fmt.Sprint("held-", i*(n/waiting)), "b", time.Hour, time.Until(end)+60*time.Second)
			passed.Store(int64(time.Since(end)))
			return err
		})
	})
	most := quiet
	all.Go(func() {
		for time.Since(end) < 30*time.Second {
			now, _ := d.resident()
			most = max(most, now)
			time.Sleep(100 * time.Millisecond)
		}
	})
	time.Sleep(time.Until(end.Add(-time.Second)))
	var took []float64
	rate, err := crowd(8, 31*time.Second, taking(&took, func(k int) (func() error, func(), error) {
		w, err := newWorker(dial, d.addr, "bench")
		i := 0
		return func() error { i++; return w.claim(fmt.Sprintf("new-%d-%d", k, i), "c", time.Hour, 0) }, func() { _ = w.Close() }, err
	}))
	all.Wait()
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	p99 := percentile(took, 0.99)
	slowest := time.Duration(passed.Load()).Seconds()
	note := fmt.Sprintf("%.0f/s, the slowest %s", rate, seconds(percentile(took, 1)))
	return []row{
		{what: fmt.Sprintf("%d leases end in one second: 99th percentile of grants meanwhile", n), ours: seconds(p99), figure: p99 * 1e3, unit: "ms", most: 50, note: note},
		{what: fmt.Sprintf("until %d who wait for some of them are granted", waiting), ours: fmt.Sprintf("%.1f s", slowest), figure: slowest, unit: "s", most: 30},
		{what: "memory before", ours: fmt.Sprintf("%.0f MB", quiet/1e6), figure: quiet / 1024 / float64(n), unit: "KiB per lease"},
		{what: "the most memory meanwhile", ours: fmt.Sprintf("%.0f MB", most/1e6), figure: most / 1024 / float64(n), unit: "KiB per lease"},
	}, nil
}
