package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Disks that are shared flush twice as fast in one second as in another, so what depends on them is measured in many short turns.
const (
	diskTurns = 31
	diskTurn  = 600 * time.Millisecond
)

// slowFlush is by how much flushes to the disk are made longer to see what group commit is worth on a slower one.
const slowFlush = time.Millisecond

func schedulerCycles(e *env) ([]result, error) {
	results, err := durableCycles(e)
	if err != nil {
		return nil, err
	}
	rest, err := workerCycles(e)
	return append(results, rest...), err
}

// cycles returns how many cycles per second so many workers do.
func cycles(addr string, workers int, d time.Duration, work func(w *worker) error) (float64, error) {
	return load(workers, d, func(dial dialer, i int) (func() error, func(), error) {
		w, err := newWorker(dial, addr, fmt.Sprint("bench-", i))
		if err != nil {
			return nil, nil, err
		}
		return func() error { return work(w) }, w.close, nil
	})
}

// durableCycles compares whole lives of jobs with beanstalkd's: on this machine's disk, and on one that takes longer to flush.
func durableCycles(e *env) ([]result, error) {
	const what = "submit + request + heartbeat + complete, 32 connections"
	if _, err := exec.LookPath("beanstalkd"); err != nil {
		return []result{{what: what, ours: "-", theirs: "beanstalkd is not installed", note: "not measured"}}, nil
	}
	full := e.span(diskTurn)
	peer, err := e.beanstalkd("binlog")
	if err != nil {
		return nil, err
	}
	defer peer.stop()
	d, _, err := e.loktd("cycles.db", "--capacity", "100000")
	if err != nil {
		return nil, err
	}
	defer d.stop()
	memory, _, err := e.loktdOn("memory:", "--capacity", "100000")
	if err != nil {
		return nil, err
	}
	defer memory.stop()
	ours := func(s *server) func() (float64, error) {
		return func() (float64, error) { return cycles(s.addr, 32, full, func(w *worker) error { return w.cycle(1) }) }
	}
	r, err := rounds(diskTurns, ours(d), beanstalkCycles(peer, full), ours(memory))
	if err != nil {
		return nil, err
	}
	const put = "beanstalkd, binlog fsynced per write: put + reserve + touch + delete"
	results := []result{
		faster(what+", durable", r[0], r[1], put, 2),
		faster("the same by a daemon that stores nothing", r[2], r[1], "the same durable beanstalkd", 0),
	}
	if _, err := exec.LookPath("strace"); err != nil {
		return results, nil
	}
	slow, slowPeer := *e, *e
	slow.wrap, slowPeer.wrap = flushingSlowly, flushingSlowly
	s, _, err := slow.loktd("cycles-slow.db", "--capacity", "100000")
	if err != nil {
		return nil, err
	}
	defer s.stop()
	p, err := slowPeer.beanstalkd("binlog-slow")
	if err != nil {
		return nil, err
	}
	defer p.stop()
	if r, err = rounds(diskTurns, ours(s), beanstalkCycles(p, full)); err != nil {
		return nil, err
	}
	return append(results, faster(fmt.Sprintf("durable, where each flush takes %s longer", slowFlush), r[0], r[1], put+", with the same flushes", 2)), nil
}

// flushingSlowly returns a command that runs another one, as the same process, with flushes that take longer.
func flushingSlowly(command []string) []string {
	return append([]string{"strace", "-D", "-qq", "-f", "--seccomp-bpf", "-o", os.DevNull, "-e", "trace=fsync,fdatasync",
		"-e", fmt.Sprintf("inject=fsync,fdatasync:delay_exit=%d", slowFlush.Microseconds())}, command...)
}

// beanstalkd starts it with a binlog in a new directory.
func (e *env) beanstalkd(name string) (*server, error) {
	dir := filepath.Join(e.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	return e.startPeer("beanstalkd", "-l", "127.0.0.1", "-p", "PORT", "-b", dir, "-f", "0")
}

func beanstalkCycles(peer *server, d time.Duration) func() (float64, error) {
	return func() (float64, error) {
		return load(32, d, func(dial dialer, _ int) (func() error, func(), error) {
			b, err := dialBeanstalk(dial, peer.addr)
			if err != nil {
				return nil, nil, err
			}
			return func() error { return b.cycle(`{"n":1}`) }, func() { _ = b.c.Close() }, nil
		})
	}
}

// workerCycles measures the workers' side alone: the jobs are there already, as in a queue that never runs dry.
func workerCycles(e *env) ([]result, error) {
	bare, err := e.bareServer()
	if err != nil {
		return nil, err
	}
	defer bare.stop()
	d, _, err := e.loktd("cycles-workers.db", "--capacity", "100000")
	if err != nil {
		return nil, err
	}
	defer d.stop()
	full := e.span(3 * time.Second)
	var results []result
	for _, m := range []struct {
		workers, beats int
		aim            float64
	}{{16, 3, 5500}, {64, 3, 10_000}, {64, 0, 15_000}} {
		work := func(w *worker) error {
			lease, err := w.request()
			for range m.beats {
				if err == nil {
					err = w.beat(lease)
				}
			}
			if err == nil {
				err = w.complete(lease)
			}
			return err
		}
		if err := submitMany(d.addr, 30_000); err != nil {
			return nil, err
		}
		most, err := cycles(d.addr, m.workers, 300*time.Millisecond, work) // about
		if err != nil {
			return nil, err
		}
		r, err := rounds(fewRounds,
			func() (float64, error) { return beats(bare.addr, []string{"lease"}, full) },
			func() (float64, error) {
				if err := submitMany(d.addr, int(1.5*most*full.Seconds())); err != nil {
					return 0, err
				}
				r, err := cycles(d.addr, m.workers, full, work)
				most = max(most, r)
				return r, err
			},
		)
		if err != nil {
			return nil, err
		}
		requests := float64(2 + m.beats)
		results = append(results, result{
			what: fmt.Sprintf("request + %d heartbeats + complete, %d connections, durable: requests", m.beats, m.workers),
			ours: fmt.Sprintf("%.0f/s, %.0f cycles/s", requests*r[1], r[1]), theirs: perSecond(r[0]) + " (the bare handler)", ratio: requests * r[1] / r[0],
			least: scaled(requests * m.aim), note: fmt.Sprintf("aim: %.0f cycles/s where the bare handler answers %d requests/s", m.aim, reference),
		})
	}
	return results, nil
}

// reference is how many heartbeats per second the bare handler answered, on 16 connections, on the machine that the aims in requests per
// second are from.
const reference = 61_422

// scaled returns such an aim as a ratio to the bare handler, rounded up to two digits.
func scaled(perSecond float64) float64 { return math.Ceil(100*perSecond/reference) / 100 }
