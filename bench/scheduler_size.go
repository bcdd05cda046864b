package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// schedulerSize measures what a million queued jobs do to the daemon.
func schedulerSize(e *env) ([]result, error) {
	times := map[string][]time.Duration{}
	small, large := e.n(1000), e.n(1_000_000)
	var perJob, perLease float64
	for _, queued := range []int{small, large} {
		d, _, err := e.loktd(fmt.Sprintf("size-%d.db", queued), "--capacity", "1000000", "--lease-ttl", "1h")
		if err != nil {
			return nil, err
		}
		err = func() error {
			defer d.stop()
			before, err := d.resident()
			if err != nil {
				return err
			}
			if err := submitMany(d.addr, queued); err != nil {
				return err
			}
			after, err := d.resident()
			if err != nil {
				return err
			}
			perJob = (after - before) / float64(queued)
			w, err := newWorker(dial, d.addr, "bench")
			if err != nil {
				return err
			}
			defer w.close()
			ops := []struct {
				name string
				do   func() error
			}{
				{"submit", w.submit},
				{"grant", func() error { _, err := w.request(); return err }},
				{"status", func() error {
					status, b, err := w.do("GET", base+"/status", "")
					if err == nil && status != 200 {
						err = fmt.Errorf("status: %d %s", status, b)
					}
					return err
				}},
			}
			for _, op := range ops {
				var t []time.Duration
				for range e.n(300) {
					begun := time.Now()
					if err := op.do(); err != nil {
						return err
					}
					t = append(t, time.Since(begun))
				}
				times[op.name] = append(times[op.name], median(t))
			}
			if queued == large {
				leases := min(large/2, 100_000)
				before, err := d.resident()
				if err != nil {
					return err
				}
				if _, err := lease(d.addr, leases); err != nil {
					return err
				}
				after, err := d.resident()
				if err != nil {
					return err
				}
				perLease = (after - before) / float64(leases)
			}
			return nil
		}()
		if err != nil {
			return nil, err
		}
	}
	var results []result
	for _, op := range []string{"submit", "grant", "status"} {
		t := times[op]
		results = append(results, compare(fmt.Sprintf("%s with %d queued jobs", op, large), t[1], t[0], fmt.Sprintf("with %d", small), 2))
	}
	return append(results,
		result{what: "memory per queued job (resident, with the database's cache)", ours: kib(perJob), theirs: "-", ratio: perJob / 1024, unit: "KiB"},
		result{what: "memory per live lease, beside its job's", ours: kib(perLease), theirs: "-", ratio: perLease / 1024, unit: "KiB"},
	), nil
}

func kib(b float64) string { return fmt.Sprintf("%.2f KiB", b/1024) }

// schedulerRestart measures how long a daemon takes until it is ready with many jobs and leases.
func schedulerRestart(e *env) ([]result, error) {
	queued, leases := e.n(100_000), e.n(10_000)
	d, _, err := e.loktd("restart.db", "--capacity", "1000000", "--lease-ttl", "1h")
	if err != nil {
		return nil, err
	}
	if err = submitMany(d.addr, queued+leases); err == nil {
		_, err = lease(d.addr, leases)
	}
	_ = d.cmd.Process.Kill() // not told to stop: what was acknowledged must be there all the same
	_ = d.cmd.Wait()
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for range 5 {
		d, t, err := e.loktd("restart.db", "--capacity", "1000000", "--lease-ttl", "1h")
		if err != nil {
			return nil, err
		}
		w, err := newWorker(dial, d.addr, "bench")
		if err != nil {
			d.stop()
			return nil, err
		}
		begun := time.Now()
		status, b, err := w.do("GET", base+"/status", "")
		took = append(took, t+time.Since(begun))
		w.close()
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
		if err == nil && (status != 200 || !strings.Contains(string(b), fmt.Sprintf(`"active_leases":%d`, leases))) {
			err = fmt.Errorf("after the restart: %d %s", status, b)
		}
		if err != nil {
			return nil, err
		}
	}
	t := median(took)
	return []result{{
		what: fmt.Sprintf("start after kill -9 with %d queued jobs and %d leases → first answer", queued, leases),
		ours: ms(t), theirs: "-", ratio: t.Seconds(), unit: "s", aim: 0.5,
	}}, nil
}

// schedulerParked measures the memory of workers that wait.
func schedulerParked(e *env) ([]result, error) {
	if runtime.GOOS != "linux" {
		return nil, errors.ErrUnsupported
	}
	d, _, err := e.loktd("parked.db", "--max-parked", "20000", "--max-connections", "20000")
	if err != nil {
		return nil, err
	}
	defer d.stop()
	n := e.n(10_000)
	before, err := d.resident()
	if err != nil {
		return nil, err
	}
	conns := make([]link, 0, n)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	body := `{"worker_id":"parked","wait_ms":30000}`
	for range n {
		c, err := dial(d.addr)
		if err != nil {
			return nil, fmt.Errorf("connection %d: %w (ulimit -n?)", len(conns), err)
		}
		conns = append(conns, c)
		if _, err := fmt.Fprintf(c, "POST %s/leases/request HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s", base, len(body), body); err != nil {
			return nil, err
		}
	}
	time.Sleep(2 * time.Second) // until the last one is parked
	after, err := d.resident()
	if err != nil {
		return nil, err
	}
	w, err := newWorker(dial, d.addr, "other")
	if err != nil {
		return nil, err
	}
	defer w.close()
	if status, b, err := w.do("GET", base+"/status", ""); err != nil || status != 200 {
		return nil, fmt.Errorf("status beside parked requests: %d %s %w", status, b, err)
	}
	return []result{{
		what: fmt.Sprintf("memory of %d parked requests", n), ours: fmt.Sprintf("%.0f MB", (after-before)/1e6), theirs: "-",
		ratio: (after - before) / 1e6, unit: "MB", aim: 250 * e.scale,
	}}, nil
}
