// Command peers measures what lokt is compared with and what the product must not depend on: redsync and River. It is a module of
// its own for that. Each run prints one line: how much was done per second, and in nanoseconds the 99th percentile of how long one took.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

func main() {
	workers := flag.Int("workers", 1, "this many goroutines")
	span := flag.Duration("for", 2*time.Second, "for so long")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: peers [flags] redsync HOST:PORT\n       peers [flags] river postgres://...")
		flag.PrintDefaults()
	}
	flag.Parse()
	measure := map[string]func(context.Context, string, int, time.Duration) (float64, time.Duration, error){
		"redsync": measureRedsync, "river": measureRiver,
	}[flag.Arg(0)]
	if measure == nil || flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	rate, p99, err := measure(context.Background(), flag.Arg(1), *workers, *span)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
	fmt.Println(rate, int64(p99))
}

// measureRedsync locks and unlocks, each goroutine a mutex of its own, on one Redis.
func measureRedsync(ctx context.Context, addr string, workers int, span time.Duration) (float64, time.Duration, error) {
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: workers, MinIdleConns: workers})
	defer func() { _ = client.Close() }()
	if err := client.Ping(ctx).Err(); err != nil {
		return 0, 0, err
	}
	rs := redsync.New(goredis.NewPool(client))
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		all   []time.Duration
		first error
	)
	begun := time.Now()
	for i := range workers {
		wg.Go(func() {
			m := rs.NewMutex(fmt.Sprint("bench-", i), redsync.WithExpiry(time.Minute))
			var mine []time.Duration
			var err error
			for time.Since(begun) < span && err == nil {
				from := time.Now()
				if err = m.LockContext(ctx); err == nil {
					_, err = m.UnlockContext(ctx)
				}
				mine = append(mine, time.Since(from))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
			if first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	return float64(len(all)) / time.Since(begun).Seconds(), percentile(all, 0.99), first
}

func percentile(all []time.Duration, share float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[int(share*float64(len(all)-1))]
}

// nothing is a job that has nothing to do but to be done.
type nothing struct {
	N int `json:"n"`
}

func (nothing) Kind() string { return "nothing" }

// counter works jobs and counts them.
type counter struct {
	river.WorkerDefaults[nothing]

	worked atomic.Int64
	places chan struct{}
}

func (c *counter) Work(context.Context, *river.Job[nothing]) error {
	c.worked.Add(1)
	<-c.places
	return nil
}

// How many jobs may be waiting: enough that River can always fetch a full batch, and few enough that inserting does not run away
// from working; and how many are worked at a time. The two options of a client that decide how fast it fetches are set for speed.
const (
	queue    = 2000
	parallel = 200
)

// measureRiver inserts jobs one by one, in so many goroutines, and works them, both in this process.
func measureRiver(ctx context.Context, url string, workers int, span time.Duration) (_ float64, _ time.Duration, err error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return 0, 0, err
	}
	config.MaxConns = int32(workers) + 20
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return 0, 0, err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return 0, 0, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return 0, 0, err
	}
	c := &counter{places: make(chan struct{}, queue)}
	all := river.NewWorkers()
	river.AddWorker(all, c)
	client, err := river.NewClient(driver, &river.Config{
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: parallel}},
		Workers:       all,
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return 0, 0, err
	}
	if err := client.Start(ctx); err != nil {
		return 0, 0, err
	}
	defer func() {
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		err = errors.Join(err, client.Stop(limited))
	}()
	inserting, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case c.places <- struct{}{}: // a place in the queue
				case <-inserting.Done():
					return
				}
				if _, e := client.Insert(ctx, nothing{1}, nil); e != nil {
					stop()
					return
				}
			}
		})
	}
	time.Sleep(time.Second) // until both sides run
	from, begun := c.worked.Load(), time.Now()
	select {
	case <-time.After(span):
	case <-inserting.Done():
		err = errors.New("a job could not be inserted")
	}
	rate := float64(c.worked.Load()-from) / time.Since(begun).Seconds()
	stop()
	wg.Wait()
	for err == nil && len(c.places) > 0 { // so that the next run finds nothing to work
		time.Sleep(10 * time.Millisecond)
	}
	return rate, 0, err
}
