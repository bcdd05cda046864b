package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/etcdstore"
	"github.com/lokt-dev/lokt/store/filestore"
	"github.com/lokt-dev/lokt/store/memstore"
	"github.com/lokt-dev/lokt/store/docstore"
)

// postgres is a server of PostgreSQL that flushes what it commits, with data of its own.
type postgres struct {
	url  func(schema string) string
	exec func(sql string) error
	pids func() ([]int, error) // of its processes
	stop func()
}

// schema makes a schema and returns its URL.
func (p *postgres) schema(name string) (string, error) {
	return p.url(name), p.exec("CREATE SCHEMA " + name)
}

// contestant is one of those that acquire and release in turn.
type contestant struct {
	name    string
	measure func(workers int, d time.Duration) (rate float64, p99 time.Duration, err error) // nil if it is not installed
	missing string
}

// inProcess returns what measures a worker function.
func inProcess(start func(int) (func() error, func(), error)) func(int, time.Duration) (float64, time.Duration, error) {
	return func(workers int, d time.Duration) (float64, time.Duration, error) {
		var t timed
		r, err := rate(workers, d, t.of(start))
		if err != nil {
			return 0, 0, err
		}
		return r, t.percentile(0.99), nil
	}
}

// byAdvisoryLocks does it with session-level advisory locks, each goroutine on a connection of its own.
func byAdvisoryLocks(url string) func(worker int) (func() error, func(), error) {
	ctx := context.Background()
	return func(worker int) (func() error, func(), error) {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return nil, nil, err
		}
		return func() error {
			if _, err := c.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(worker)); err != nil {
				return err
			}
			_, err := c.Exec(ctx, "SELECT pg_advisory_unlock($1)", int64(worker))
			return err
		}, func() { _ = c.Close(ctx) }, nil
	}
}

// peers builds the program that measures redsync and River, which is a module of its own.
func (e *env) peers() (string, error) {
	path := filepath.Join(e.dir, "peers")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	build := exec.CommandContext(e.ctx, "go", "build", "-o", path, ".")
	build.Dir = filepath.Join("bench", "peers")
	if b, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("bench/peers cannot be built: %w: %s", err, b)
	}
	return path, nil
}

// byPeer runs that program.
func (e *env) byPeer(args ...string) func(int, time.Duration) (float64, time.Duration, error) {
	return func(workers int, d time.Duration) (float64, time.Duration, error) {
		path, err := e.peers()
		if err != nil {
			return 0, 0, err
		}
		var complaint bytes.Buffer
		cmd := exec.CommandContext(e.ctx, path, append([]string{"-workers", strconv.Itoa(workers), "-for", d.String()}, args...)...)
		cmd.Stderr = &complaint
		out, err := cmd.Output()
		if err != nil {
			return 0, 0, fmt.Errorf("peers: %w: %s", err, &complaint)
		}
		var r float64
		var p99 time.Duration
		_, err = fmt.Sscan(string(out), &r, &p99)
		return r, p99, err
	}
}

// etcd starts one node with data of its own, and a client of it; nil if it is not installed.
func (e *env) etcd(name string) (*server, *clientv3.Client, error) {
	s, err := e.startPeer("etcd", "--data-dir", filepath.Join(e.dir, name), "--listen-client-urls", "http://127.0.0.1:PORT",
		"--advertise-client-urls", "http://127.0.0.1:PORT", "--listen-peer-urls", "http://127.0.0.1:0")
	if s == nil || err != nil {
		return nil, nil, err
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, DialTimeout: 10 * time.Second})
	if err != nil {
		s.stop()
		return nil, nil, err
	}
	return s, c, nil
}

// The contestants by name.
const (
	onPostgres = "PostgreSQL"
	onEtcd     = "etcd"
	onRedis    = "redsync on one Redis"
	advisory   = "PostgreSQL's advisory locks"
	mutex      = "etcd's own concurrency.Mutex"
)

// contestants opens all of them, and returns what closes them.
func contestants(e *env) (all []contestant, closeAll func(), err error) {
	var closers []func()
	closeAll = func() {
		for _, c := range slices.Backward(closers) {
			c()
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	add := func(name string, s lokt.Store) {
		all = append(all, contestant{name: name, measure: inProcess(turns(lokt.NewManager(s)))})
		closers = append(closers, func() { _ = s.Close() })
	}
	add("memory", memstore.New())
	files, err := filestore.Open(filepath.Join(e.dir, "stores"), filestore.Options{})
	if err != nil {
		return nil, nil, err
	}
	add("files", files)
	database := func(name, url string) error {
		db, err := sqlstore.Open(e.ctx, url, sqlstore.Options{})
		if err != nil {
			return err
		}
		closers = append(closers, func() { _ = db.Close() })
		add(name, db.Locks())
		return nil
	}
	if err := database("SQLite", "sqlite:"+filepath.Join(e.dir, "stores.db")); err != nil {
		return nil, nil, err
	}
	pg, err := startPostgres()
	if err != nil {
		return nil, nil, err
	}
	if pg == nil {
		all = append(all, contestant{name: onPostgres, missing: "PostgreSQL is not installed"}, contestant{name: advisory, missing: "PostgreSQL is not installed"})
	} else {
		closers = append(closers, pg.stop)
		url, err := pg.schema("stores")
		if err != nil {
			return nil, nil, err
		}
		if err := database(onPostgres, url); err != nil {
			return nil, nil, err
		}
		all = append(all, contestant{name: advisory, measure: inProcess(byAdvisoryLocks(url))})
	}
	node, client, err := e.etcd("stores-etcd")
	if err != nil {
		return nil, nil, err
	}
	if node == nil {
		all = append(all, contestant{name: onEtcd, missing: "etcd is not installed"}, contestant{name: mutex, missing: "etcd is not installed"})
	} else {
		closers = append(closers, node.stop, func() { _ = client.Close() })
		s, err := etcdstore.Open(e.ctx, "etcd://"+node.addr+"/stores", etcdstore.Options{})
		if err != nil {
			return nil, nil, err
		}
		add(onEtcd, s)
		all = append(all, contestant{name: mutex, measure: inProcess(byEtcd(client))})
	}
	redis, err := e.startPeer("redis-server", "--port", "PORT", "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec")
	if err != nil {
		return nil, nil, err
	}
	c := contestant{name: onRedis, measure: nil, missing: "redis-server is not installed"}
	if redis != nil {
		closers = append(closers, redis.stop)
		if _, err := e.peers(); err != nil {
			c.missing = "bench/peers cannot be built here"
		} else {
			c.measure = e.byPeer("redsync", redis.addr)
		}
	}
	return append(all, c), closeAll, nil
}

// stores measures every store and its peers, all in turn.
func stores(e *env) ([]result, error) {
	all, closeAll, err := contestants(e)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	var results []result
	for _, workers := range []int{1, 16} {
		rates, p99s, err := contest(all, workers, e.span(2*time.Second))
		if err != nil {
			return nil, err
		}
		for _, ours := range []struct{ name, peer, note string }{
			{"memory", "", ""}, {"files", "", ""}, {"SQLite", "", ""},
			{onPostgres, advisory, "an advisory lock is not stored: it has no time to live, no token, no queue that survives, and ends with its connection"},
			{onPostgres, onRedis, "Redis answers before anything is on the disk"},
			{onEtcd, mutex, "the mutex writes two keys of nobody's record"},
			{onEtcd, onRedis, ""},
		} {
			what := fmt.Sprintf("acquire + release on %s, %d at a time", ours.name, workers)
			r, ok := rates[ours.name]
			peer, also := rates[ours.peer]
			if !ok || ours.peer != "" && !also {
				results = append(results, result{what: what, ours: "-", theirs: missing(all, ours.name, ours.peer), note: "not measured"})
				continue
			}
			if ours.peer == "" {
				results = append(results, result{what: what, ours: perSecond(r), ratio: float64(p99s[ours.name]) / 1e6, unit: "ms, 99th percentile"})
				continue
			}
			first := faster(what, r, peer, ours.peer, 0)
			first.note = ours.note
			results = append(results, first, compare("the same, 99th percentile", p99s[ours.name], p99s[ours.peer], ours.peer, 0))
		}
	}
	return results, nil
}

// contest measures three times each, in turn, and returns the medians by name.
func contest(all []contestant, workers int, d time.Duration) (map[string]float64, map[string]time.Duration, error) {
	rates, p99s := map[string][]float64{}, map[string][]time.Duration{}
	for range 3 {
		for _, c := range all {
			if c.measure == nil {
				continue
			}
			r, p99, err := c.measure(workers, d)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", c.name, err)
			}
			rates[c.name], p99s[c.name] = append(rates[c.name], r), append(p99s[c.name], p99)
		}
	}
	rate, p99 := map[string]float64{}, map[string]time.Duration{}
	for name, r := range rates {
		slices.Sort(r)
		rate[name], p99[name] = r[len(r)/2], median(p99s[name])
	}
	return rate, p99, nil
}

// missing says why one of the names was not measured.
func missing(all []contestant, names ...string) string {
	for _, c := range all {
		if slices.Contains(names, c.name) && c.measure == nil {
			return c.missing
		}
	}
	return errors.ErrUnsupported.Error()
}
