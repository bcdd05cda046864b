//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
	"time"
)

// on returns a side that loads a server with what each worker does again and again.
func on(s *server, workers int, d time.Duration, work func(w *worker, i, n int) error) func() (float64, error) {
	return func() (float64, error) {
		return load(workers, d, func(dial dialer, i int) (func() error, func(), error) {
			w, err := newWorker(dial, s.addr, fmt.Sprint("bench-", i))
			if err != nil {
				return nil, nil, err
			}
			n := 0
			return func() error { n++; return work(w, i, n) }, func() { _ = w.Close() }, nil
		})
	}
}

// beating returns a side that sends heartbeats of the leases, which are the worker bench's, on 16 connections.
func beating(s *server, leases []string, d time.Duration) func() (float64, error) {
	return on(s, 16, d, func(w *worker, i, n int) error {
		w.id = "bench"
		return w.beat(leases[(i+16*n)%len(leases)])
	})
}

func heartbeats(e *env) ([]row, error) {
	bare, err := e.bare()
	if err != nil {
		return nil, err
	}
	defer bare.stop()
	var servers [2]*server
	var leases [2][]string
	for i, n := range []int{64, e.n(100_000)} {
		if servers[i], err = e.loktd(fmt.Sprint("beats-", n)); err != nil {
			return nil, err
		}
		defer servers[i].stop()
		if err := submitMany(servers[i].addr, n); err != nil {
			return nil, err
		}
		if leases[i], err = lease(servers[i].addr, n); err != nil {
			return nil, err
		}
	}
	d := e.span(2 * time.Second)
	few, lots := servers[0], servers[1]
	r, err := inTurn(3, beating(bare, leases[0], d), beating(few, leases[0], d), beating(lots, leases[1], d),
		on(lots, 16, d, func(w *worker, _, _ int) error {
			w.id = "bench"
			return w.beatAll(leases[1][:min(100, len(leases[1]))])
		}))
	if err != nil {
		return nil, err
	}
	batches := faster("batches of 100 heartbeats", r[3], r[0], "the bare handler's requests", 0.4)
	batches.note = fmt.Sprintf("%.2f million renewals/s", r[3]*100/1e6)
	return []row{
		faster("heartbeats, 64 live leases, 16 connections", r[1], r[0], "bare net/http handler with the same JSON", 0.75),
		faster(fmt.Sprintf("heartbeats, %d live leases", len(leases[1])), r[2], r[1], "with 64", 0.9),
		batches,
	}, nil
}

// durable compares whole lives of jobs with beanstalkd's, in many short turns: disks that are shared flush twice as
// fast in one second as in another.
func durable(e *env) ([]row, error) {
	const what = "submit + request + heartbeat + complete, 32 connections, durable"
	peer, err := e.peer("beanstalkd", "-l", "127.0.0.1", "-p", "PORT", "-b", e.dir, "-f", "0")
	if peer == nil || err != nil {
		return missing(what, "beanstalkd"), err
	}
	defer peer.stop()
	d, err := e.loktd("cycles")
	if err != nil {
		return nil, err
	}
	defer d.stop()
	turn := e.span(600 * time.Millisecond)
	r, err := inTurn(e.n(31),
		on(d, 32, turn, func(w *worker, _, _ int) error {
			if err := w.submit(); err != nil {
				return err
			}
			return w.work(1)
		}),
		func() (float64, error) {
			return load(32, turn, func(dial dialer, _ int) (func() error, func(), error) {
				c, err := dial(peer.addr)
				if err != nil {
					return nil, nil, err
				}
				b := &beanstalk{c, bufio.NewReader(c)}
				return func() error { return b.cycle(`{"n":1}`) }, func() { _ = c.Close() }, nil
			})
		})
	if err != nil {
		return nil, err
	}
	return []row{faster(what, r[0], r[1], "beanstalkd, fsync per write: put + reserve + touch + delete", 1.5)}, nil
}

// workers measures the workers' side alone: the jobs are there already, as in a queue that never runs dry.
func workers(e *env) ([]row, error) {
	bare, err := e.bare()
	if err != nil {
		return nil, err
	}
	defer bare.stop()
	d, err := e.loktd("workers")
	if err != nil {
		return nil, err
	}
	defer d.stop()
	span := e.span(3 * time.Second)
	r, err := inTurn(3, on(bare, 64, span, func(w *worker, _, _ int) error { return w.beat("lease") }),
		func() (float64, error) {
			if err := submitMany(d.addr, int(20_000*span.Seconds())); err != nil {
				return 0, err
			}
			r, err := on(d, 64, span, func(w *worker, _, _ int) error { return w.work(3) })()
			return 5 * r, err
		})
	if err != nil {
		return nil, err
	}
	const what = "request + 3 heartbeats + complete, 64 connections, durable: requests"
	return []row{faster(what, r[1], r[0], "the bare handler", 0.65)}, nil
}

// grants measures how long a parked worker waits from the moment that a job is submitted.
func grants(e *env) ([]row, error) {
	d, err := e.loktd("grants")
	if err != nil {
		return nil, err
	}
	defer d.stop()
	parked, err1 := newWorker(dial, d.addr, "parked")
	other, err2 := newWorker(dial, d.addr, "parked")
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	defer func() { _, _ = parked.Close(), other.Close() }()
	var waits []float64
	for range e.n(1000) {
		var lease string
		var at time.Time
		done := make(chan error, 1)
		go func() {
			id, err := parked.request(20 * time.Second)
			lease, at = id, time.Now()
			done <- err
		}()
		time.Sleep(2 * time.Millisecond) // until it is parked
		begun := time.Now()
		if err := other.submit(); err != nil {
			return nil, err
		}
		if err := <-done; err != nil {
			return nil, err
		}
		waits = append(waits, at.Sub(begun).Seconds())
		if err := other.complete(lease); err != nil {
			return nil, err
		}
	}
	p50, p99 := percentile(waits, 0.5), percentile(waits, 0.99)
	return []row{
		{what: "submit → a parked worker has the lease, median", ours: seconds(p50), figure: p50 * 1e3, unit: "ms", most: 1.5},
		{what: "the same, 99th percentile", ours: seconds(p99), figure: p99 * 1e3, unit: "ms", most: 10},
	}, nil
}

// size measures what a million queued jobs do to the daemon.
func size(e *env) ([]row, error) {
	few, many := e.n(1000), e.n(1_000_000)
	var sides []func() (float64, error)
	var perJob float64
	var daemons []*server
	for _, queued := range []int{few, many} {
		d, err := e.loktd(fmt.Sprint("size-", queued))
		if err != nil {
			return nil, err
		}
		defer d.stop()
		before, err := d.resident()
		if err != nil {
			return nil, err
		}
		if err := submitMany(d.addr, queued); err != nil {
			return nil, err
		}
		after, err := d.resident()
		if err != nil {
			return nil, err
		}
		perJob = (after - before) / float64(queued)
		daemons = append(daemons, d)
	}
	for _, d := range daemons { // only now: a daemon closes a connection that is silent for long
		w, err := newWorker(dial, d.addr, "bench")
		if err != nil {
			return nil, err
		}
		defer func() { _ = w.Close() }()
		sides = append(sides, timed(w.submit),
			timed(func() error { _, err := w.request(0); return err }),
			timed(func() error { _, err := w.do("GET", base+"/status", ""); return err }))
	}
	t, err := inTurn(e.n(300), sides...)
	if err != nil {
		return nil, err
	}
	var rows []row
	for i, op := range []string{"submit", "grant", "status"} {
		what := fmt.Sprintf("%s with %d queued jobs", op, many)
		rows = append(rows, shorter(what, t[i+3], t[i], fmt.Sprint("with ", few), 2))
	}
	return append(rows, row{what: "memory per queued job (resident)", ours: fmt.Sprintf("%.0f B", perJob),
		figure: perJob / 1024, unit: "KiB", most: 1.6}), nil
}

// restart measures how long a killed daemon takes until it answers, with many jobs and leases.
func restart(e *env) ([]row, error) {
	queued, leased := e.n(100_000), e.n(10_000)
	d, err := e.loktd("restart")
	if err != nil {
		return nil, err
	}
	if err = submitMany(d.addr, queued+leased); err == nil {
		_, err = lease(d.addr, leased)
	}
	d.kill() // without a word: what was acknowledged must be there all the same
	if err != nil {
		return nil, err
	}
	t, err := inTurn(5, func() (float64, error) {
		d, err := e.loktd("restart")
		if err != nil {
			return 0, err
		}
		defer d.kill()
		w, err := newWorker(dial, d.addr, "bench")
		if err != nil {
			return 0, err
		}
		defer func() { _ = w.Close() }()
		status, err := w.do("GET", base+"/status", "")
		took := time.Since(d.begun).Seconds()
		if err == nil && !strings.Contains(string(status), fmt.Sprintf(`"active_leases":%d`, leased)) {
			err = fmt.Errorf("after the restart: %s", status)
		}
		return took, err
	})
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("start after kill -9 with %d queued jobs and %d leases → first answer", queued, leased)
	return []row{{what: what, ours: seconds(t[0]), figure: t[0], unit: "s", most: 0.5}}, nil
}
