package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
)

// usage is what processes have used up to a moment.
type usage struct {
	daemon, database time.Duration // of CPU
	written          float64       // bytes that the store's processes gave the system to write; of PostgreSQL, of its log
	flushes          float64       // calls that wait for the disk
	commits          float64       // changes of the store, each of which may be many requests
}

func (u usage) since(v usage, n float64) usage {
	return usage{
		time.Duration(float64(u.daemon-v.daemon) / n), time.Duration(float64(u.database-v.database) / n),
		(u.written - v.written) / n, (u.flushes - v.flushes) / n, (u.commits - v.commits) / n,
	}
}

// ticks is how many parts of a second Linux counts CPU time in.
const ticks = 100

// spent returns what a process has used of the CPU, and what it wrote.
func spent(pid int) (time.Duration, float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // from the third on
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	cpu := time.Duration(user+system) * time.Second / ticks
	b, err3 := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, rest, _ := strings.Cut(string(b), "\nwrite_bytes: ")
	text, _, _ := strings.Cut(rest, "\n")
	written, err4 := strconv.ParseFloat(text, 64)
	return cpu, written, errors.Join(err1, err2, err3, err4)
}

// sample adds up the values of a metric in Prometheus text whose line begins so.
func sample(ctx context.Context, url, begins string) (sum float64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), begins); ok {
			v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			if err != nil {
				return 0, err
			}
			sum += v
		}
	}
	return sum, nil
}

// subject is a daemon on a store, with what says how much both have used.
type subject struct {
	name  string
	addr  string
	usage func() (usage, error)
	jobs  bool
}

// daemonUsage is what the daemon has used, and how often it committed.
func (e *env) daemonUsage(pid int, addr string) (usage, error) {
	cpu, written, err := spent(pid)
	if err != nil {
		return usage{}, err
	}
	commits, err := sample(e.ctx, "http://"+addr+"/metrics", `lokt_store_seconds_count{`)
	return usage{daemon: cpu, written: written, commits: commits}, err
}

// costs measures what operations cost the daemon and the database. docs/scale.md counts on from there.
func costs(e *env) ([]result, error) {
	if runtime.GOOS != "linux" {
		return []result{{what: "costs", ours: "-", theirs: "only Linux tells", note: "not measured"}}, nil
	}
	var results []result
	for _, on := range []func(func(subject) error) error{e.onSQLite, e.onPostgres, e.onEtcd} {
		err := on(func(s subject) error {
			rows, err := e.cost(s)
			results = append(results, rows...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}

// onSQLite runs the daemon under strace, which counts its flushes, if that is installed.
func (e *env) onSQLite(use func(subject) error) error {
	daemon := []string{filepath.Join(e.dir, "loktd"), "serve", "--listen", "127.0.0.1:0", "--capacity", "100000", "--store", "sqlite:" + filepath.Join(e.dir, "costs.db")}
	trace := filepath.Join(e.dir, "flushes")
	path, missing := exec.LookPath("strace")
	if missing == nil {
		daemon = append([]string{path, "-f", "--seccomp-bpf", "-qq", "-e", "trace=fsync,fdatasync", "-e", "signal=none", "-o", trace}, daemon...)
	}
	s, _, err := startServer(e.dir, daemon[0], daemon[1:]...)
	if err != nil {
		return err
	}
	defer s.stop()
	pid := s.cmd.Process.Pid
	if missing == nil {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			return err
		}
		if pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
			return err
		}
	}
	return use(subject{"SQLite", s.addr, func() (usage, error) {
		u, err := e.daemonUsage(pid, s.addr)
		if err != nil || missing != nil {
			return u, err
		}
		b, err := os.ReadFile(trace)
		u.flushes = float64(bytes.Count(b, []byte("sync(")))
		return u, err
	}, true})
}

func (e *env) onPostgres(use func(subject) error) error {
	pg, err := startPostgres()
	if pg == nil || err != nil {
		return err
	}
	defer pg.stop()
	url, err := pg.schema("costs")
	if err != nil {
		return err
	}
	s, err := e.replica("--store", url)
	if err != nil {
		return err
	}
	defer s.stop()
	c, err := pgx.Connect(e.ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(e.ctx) }()
	return use(subject{onPostgres, s.addr, func() (u usage, err error) {
		time.Sleep(1500 * time.Millisecond) // its processes count for themselves and add up later
		if u, err = e.daemonUsage(s.cmd.Process.Pid, s.addr); err != nil {
			return u, err
		}
		pids, err := pg.pids()
		if err != nil {
			return u, err
		}
		for _, pid := range pids {
			cpu, _, err := spent(pid)
			if err != nil {
				return u, err
			}
			u.database += cpu
		}
		return u, c.QueryRow(e.ctx, "SELECT wal_bytes::float8, wal_sync::float8 FROM pg_stat_wal").Scan(&u.written, &u.flushes)
	}, true})
}

func (e *env) onEtcd(use func(subject) error) error {
	node, client, err := e.etcd("costs-etcd")
	if node == nil || err != nil {
		return err
	}
	defer node.stop()
	defer func() { _ = client.Close() }()
	s, err := e.replica("--store", "etcd://"+node.addr+"/costs", "--jobs-store", "none")
	if err != nil {
		return err
	}
	defer s.stop()
	return use(subject{onEtcd, s.addr, func() (u usage, err error) {
		if u, err = e.daemonUsage(s.cmd.Process.Pid, s.addr); err != nil {
			return u, err
		}
		if u.database, u.written, err = spent(node.cmd.Process.Pid); err != nil {
			return u, err
		}
		for _, name := range []string{"etcd_disk_wal_fsync_duration_seconds_count", "etcd_disk_backend_commit_duration_seconds_count"} {
			n, err := sample(e.ctx, "http://"+node.addr+"/metrics", name)
			if err != nil {
				return u, err
			}
			u.flushes += n
		}
		return u, nil
	}, false})
}

// cost measures operations by one client at a time and by 64.
func (e *env) cost(s subject) ([]result, error) {
	client, err := httpapi.New("http://"+s.addr, httpapi.ClientOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	type operation struct {
		name  string
		each  float64 // how many operations one turn is
		start func(int) (func() error, func(), error)
	}
	operations := []operation{{"renewal", 1, renewing(client)}, {"acquire + release", 1, turns(client)}}
	if s.jobs {
		if err := submitMany(s.addr, 6400); err != nil {
			return nil, err
		}
		operations = append(operations,
			operation{"submit + grant + completion of a job", 1, func(i int) (func() error, func(), error) {
				w, err := newWorker(dial, s.addr, fmt.Sprint("bench-", i))
				if err != nil {
					return nil, nil, err
				}
				return func() error { return w.cycle(0) }, w.close, nil
			}},
			operation{"heartbeat of a job, 100 in a request", 100, beating(s.addr)},
		)
	}
	var results []result
	for _, o := range operations {
		for _, workers := range []int{1, 64} {
			if o.each > 1 && workers > 1 {
				continue
			}
			if _, err := rate(workers, e.span(500*time.Millisecond), o.start); err != nil { // warm up
				return nil, err
			}
			from, err := s.usage()
			if err != nil {
				return nil, err
			}
			begun := time.Now()
			r, err := rate(workers, e.span(3*time.Second), o.start)
			if err != nil {
				return nil, err
			}
			n := r * time.Since(begun).Seconds() * o.each
			to, err := s.usage()
			if err != nil {
				return nil, err
			}
			u := to.since(from, n)
			results = append(results, result{
				what: fmt.Sprintf("%s: %s, %d at a time", s.name, o.name, workers), ours: fmt.Sprintf("daemon %s, database %s of CPU", micro(u.daemon), micro(u.database)),
				theirs: fmt.Sprintf("%.3f flushes, %.3f calls of the store, %.0f bytes written", u.flushes, u.commits, u.written), ratio: r * o.each, unit: "/s",
			})
		}
	}
	return results, nil
}

func micro(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d)/1e3) }

// renewing renews a lock of its own.
func renewing(c *httpapi.Client) func(int) (func() error, func(), error) {
	ctx := context.Background()
	return func(int) (func() error, func(), error) {
		owner := lokt.Owner{ID: lokt.NewLeaseID(), Host: "bench"}
		h, err := c.Acquire(ctx, lokt.Claim{
			Name: "renewed-" + owner.ID, LeaseID: lokt.NewLeaseID(), Owner: owner, Strict: true, Attended: true, TTL: 30 * time.Second,
		})
		if err != nil {
			return nil, nil, err
		}
		return func() error {
				_, err := c.Renew(ctx, lokt.Renewal{Name: h.Name, LeaseID: h.LeaseID})
				return err
			}, func() {
				_, _ = c.Release(ctx, lokt.Target{Name: h.Name, LeaseID: h.LeaseID, Owner: owner})
			}, nil
	}
}

// beating sends heartbeats of 100 leases at a time.
func beating(addr string) func(int) (func() error, func(), error) {
	return func(int) (func() error, func(), error) {
		ids, err := lease(addr, 100)
		if err != nil {
			return nil, nil, err
		}
		w, err := newWorker(dial, addr, "bench")
		if err != nil {
			return nil, nil, err
		}
		body := `{"worker_id":"bench","lease_ids":["` + strings.Join(ids, `","`) + `"]}`
		return func() error { _, err := w.post(base+"/leases/heartbeat", body); return err }, w.close, nil
	}
}
