// Command river measures River, which lokt is compared with and must not depend on: so it is a module of its own. It
// prints how many jobs per second were inserted and worked; with -pace, again and again how many were to be, and were.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

func main() {
	span := flag.Duration("for", 2*time.Second, "for so long")
	pace := flag.Int("pace", 0, "let so many jobs live in a second, until standard input ends; a number read from it is how many more to insert")
	flag.Parse()
	do := func(ctx context.Context, r *running) error {
		rate, err := r.measure(ctx, *span)
		fmt.Println(rate)
		return err
	}
	if *pace > 0 {
		do = func(ctx context.Context, r *running) error { return r.live(ctx, *pace) }
	}
	if err := run(context.Background(), flag.Arg(0), do); err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
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
	done   sync.Map // by N, with a pace
}

func (c *counter) Work(_ context.Context, j *river.Job[nothing]) error {
	c.worked.Add(1)
	if j.Args.N > 0 {
		c.done.Store(j.Args.N, nil)
		return nil
	}
	<-c.places
	return nil
}

// How many insert, and how many work at a time. As many jobs may wait as let River always fetch a full batch. How fast
// a client fetches is set for speed.
const (
	inserting = 128
	working   = 200
	waiting   = 2000
)

// running is a client with its workers.
type running struct {
	*river.Client[pgx.Tx]
	c *counter
}

// run has something done with a client that works jobs in the database.
func run(ctx context.Context, url string, do func(context.Context, *running) error) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = inserting + 20
	config.ConnConfig.RuntimeParams["application_name"] = "river"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	c := &counter{places: make(chan struct{}, waiting)}
	all := river.NewWorkers()
	river.AddWorker(all, c)
	client, err := river.NewClient(driver, &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: working}}, Workers: all,
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	err = do(ctx, &running{client, c})
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return errors.Join(err, client.Stop(limited))
}

// measure returns how many jobs are inserted and worked in a second.
func (r *running) measure(ctx context.Context, span time.Duration) (rate float64, err error) {
	c := r.c
	insert, stop := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	for range inserting {
		wg.Go(func() {
			for {
				select {
				case c.places <- struct{}{}:
				case <-insert.Done():
					return
				}
				if _, err := r.Insert(ctx, nothing{}, nil); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	time.Sleep(time.Second) // until both sides run
	from, begun := c.worked.Load(), time.Now()
	select {
	case <-time.After(span):
	case <-insert.Done():
		err = context.Cause(insert)
	}
	rate = float64(c.worked.Load()-from) / time.Since(begun).Seconds()
	stop(nil)
	wg.Wait()
	for err == nil && len(c.places) > 0 { // the next run is to find nothing to work
		time.Sleep(10 * time.Millisecond)
	}
	return rate, err
}

// live lets so many jobs live in a second. What nobody is free to insert is dropped. In the end it says how many were lost of those whose
// insertion was answered.
func (r *running) live(ctx context.Context, pace int) error {
	var offered, named atomic.Int64
	var inserted sync.Map // by N
	insert := func() {
		n := int(named.Add(1))
		if _, err := r.Insert(ctx, nothing{n}, nil); err == nil {
			inserted.Store(n, nil)
		}
	}
	ended, end := context.WithCancel(ctx)
	defer end()
	due := make(chan struct{}, inserting)
	var all sync.WaitGroup
	for range inserting {
		all.Go(func() {
			for range due {
				insert()
			}
		})
	}
	all.Go(func() {
		defer close(due)
		for begun, told := time.Now(), time.Now(); ended.Err() == nil; time.Sleep(time.Millisecond) {
			for offered.Load() < int64(time.Since(begun).Seconds()*float64(pace)) {
				offered.Add(1)
				select {
				case due <- struct{}{}:
				default:
				}
			}
			if time.Since(told) > 20*time.Millisecond {
				told = time.Now()
				fmt.Println(offered.Load(), r.c.worked.Load())
			}
		}
	})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		for range n {
			insert()
		}
	}
	end()
	all.Wait()
	lost := 0
	for patience := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		lost = 0
		inserted.Range(func(n, _ any) bool {
			if _, done := r.c.done.Load(n); !done {
				lost++
			}
			return true
		})
		if lost == 0 || time.Now().After(patience) {
			break
		}
	}
	fmt.Println("lost", lost)
	return nil
}
