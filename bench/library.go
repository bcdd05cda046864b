package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/gofrs/flock"
	"github.com/rogpeppe/go-internal/lockedfile"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/filestore"
	"github.com/lokt-dev/lokt/store/memstore"
)

// locker returns a Locker over files in the directory.
func locker(dir string, o lokt.Options) (*lokt.Locker, *filestore.Store, error) {
	s, err := filestore.Open(dir, filestore.Options{})
	if err != nil {
		return nil, nil, err
	}
	self, err := s.Self()
	if err != nil {
		return nil, nil, err
	}
	k, err := lokt.NewLocker(lokt.NewManager(s), lokt.Owner{Host: s.Host(), Process: self}, lokt.LockerOptions{Defaults: o})
	return k, s, err
}

// cycle acquires and releases.
func cycle(k *lokt.Locker) func() error {
	ctx := context.Background()
	return func() error {
		l, err := k.Acquire(ctx, "x", lokt.Options{ManualHeartbeat: true})
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
}

func library(e *env) ([]result, error) {
	k, s, err := locker(filepath.Join(e.dir, "library"), lokt.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	mem, err := lokt.NewLocker(lokt.NewManager(memstore.New()), lokt.Owner{}, lokt.LockerOptions{})
	if err != nil {
		return nil, err
	}
	counter := filepath.Join(e.dir, "counter")
	if err := os.WriteFile(counter, []byte("0"), 0o600); err != nil {
		return nil, err
	}
	fl := flock.New(filepath.Join(e.dir, "gofrs"))
	t, err := inTurn(e.n(2000),
		cycle(k), bare(e.dir), cycle(mem),
		func() error {
			return k.Do(context.Background(), "g", lokt.Options{ManualHeartbeat: true}, increment(counter))
		},
		func() error {
			if err := fl.Lock(); err != nil {
				return err
			}
			defer fl.Unlock() //nolint:errcheck // a benchmark that goes on says so
			return increment(counter)(context.Background(), 0)
		},
		func() error {
			return lockedfile.Transform(counter, func(b []byte) ([]byte, error) {
				n, err := strconv.Atoi(string(b))
				return strconv.AppendInt(nil, int64(n)+1, 10), err
			})
		},
	)
	if err != nil {
		return nil, err
	}
	perSecond := func(d time.Duration) string {
		return fmt.Sprintf("%s, %.0f per second", ms(d), float64(time.Second)/float64(d))
	}
	rows := []result{
		compare("acquire + release on files against the file operations that durability needs", t[0], t[1], "temporary file, fsync, rename, unlink", 1.5),
		compare("a guarded update of a file: lokt against gofrs/flock, which remembers nothing", t[3], t[4], "gofrs/flock", 0),
		compare("the same against Go's lockedfile.Transform", t[3], t[5], "lockedfile", 0),
		{what: "acquire + release in memory", ours: perSecond(t[2]), ratio: float64(t[2]) / 1e3, unit: "µs"},
	}
	rows[0].ours = perSecond(t[0])
	return rows, nil
}

// bare does what any lock on files must do to survive the loss of power, and nothing else.
func bare(dir string) func() error {
	tmp, path := filepath.Join(dir, "bare.tmp"), filepath.Join(dir, "bare.json")
	record := make([]byte, 600)
	return func() error {
		f, err := os.Create(tmp)
		if err != nil {
			return err
		}
		if _, err := f.Write(record); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		if err := os.Rename(tmp, path); err != nil {
			return err
		}
		return os.Remove(path)
	}
}

// increment adds one to the number in the file.
func increment(path string) func(context.Context, uint64) error {
	return func(context.Context, uint64) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(b))
		if err != nil {
			return err
		}
		return os.WriteFile(path, strconv.AppendInt(nil, int64(n)+1, 10), 0o600)
	}
}

func heartbeats(e *env) ([]result, error) {
	rows := make([]result, 0, 3)
	for _, c := range []struct {
		locks    int
		interval time.Duration
		times    int
		aim      float64
	}{{100, 5 * time.Second, 4, 1}, {50, time.Second, 20, 0.5}} {
		percent, err := e.beating(c.locks, c.interval, c.times)
		if err != nil {
			return nil, err
		}
		rows = append(rows, result{
			what: fmt.Sprintf("%d locks on files, renewed every %v", c.locks, c.interval), ours: fmt.Sprintf("%.2f %%", percent),
			ratio: percent, aim: c.aim, unit: "% of one core", note: "most of it looks for, reads, fills and exchanges small files for each renewal",
		})
	}
	crowd, err := crowd()
	return append(rows, crowd), err
}

// beating returns the share of one core, in percent, that renewals take once each lock has been renewed twice: by then the
// files are there that they use again and again.
func (e *env) beating(locks int, interval time.Duration, times int) (float64, error) {
	k, s, err := locker(filepath.Join(e.dir, "beat-"+strconv.Itoa(locks)), lokt.Options{TTL: 5 * interval, Interval: interval})
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	for i := range locks {
		if _, err := k.Acquire(ctx, "beat-"+strconv.Itoa(i), lokt.Options{}); err != nil {
			return 0, err
		}
	}
	time.Sleep(2*interval + interval/2)
	from, begun := cpuTime(), time.Now()
	time.Sleep(time.Duration(e.n(times)) * interval)
	used, passed := cpuTime()-from, time.Since(begun)
	if n, err := k.ReleaseAll(ctx); err != nil || n != locks {
		return 0, fmt.Errorf("released %d of %d: %w", n, locks, err)
	}
	return 100 * used.Seconds() / passed.Seconds(), nil
}

// crowd measures what 10,000 leases in one process take.
func crowd() (result, error) {
	const leases = 10_000
	k, err := lokt.NewLocker(lokt.NewManager(memstore.New()), lokt.Owner{}, lokt.LockerOptions{
		Defaults: lokt.Options{TTL: 5 * time.Second, Interval: time.Second},
	})
	if err != nil {
		return result{}, err
	}
	ctx := context.Background()
	before := heap()
	goroutines := runtime.NumGoroutine()
	for i := range leases {
		if _, err := k.Acquire(ctx, "crowd-"+strconv.Itoa(i), lokt.Options{}); err != nil {
			return result{}, err
		}
	}
	most := 0
	for range 300 {
		most = max(most, runtime.NumGoroutine()-goroutines)
		time.Sleep(10 * time.Millisecond)
	}
	each := float64(heap()-before) / leases / 1024
	if n, err := k.ReleaseAll(ctx); err != nil || n != leases {
		return result{}, fmt.Errorf("released %d of %d: %w", n, leases, err)
	}
	return result{
		what: "10,000 leases in one process, renewed every second, store in memory", ours: fmt.Sprintf("at most %d goroutines more", most),
		ratio: each, unit: "KiB per lease, the store's record included",
	}, nil
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
