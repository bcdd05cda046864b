// Command river measures River, which lokt is compared with and must not depend on: so it is a module of its own. It
// prints how many jobs per second were inserted and worked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

func main() {
	span := flag.Duration("for", 2*time.Second, "for so long")
	flag.Parse()
	rate, err := measure(context.Background(), flag.Arg(0), *span)
	if err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
	fmt.Println(rate)
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

// How many insert, and how many work at a time. As many jobs may wait as let River always fetch a full batch. How fast
// a client fetches is set for speed.
const (
	inserting = 128
	working   = 200
	waiting   = 2000
)

func measure(ctx context.Context, url string, span time.Duration) (rate float64, err error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return 0, err
	}
	config.MaxConns = inserting + 20
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return 0, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return 0, err
	}
	c := &counter{places: make(chan struct{}, waiting)}
	all := river.NewWorkers()
	river.AddWorker(all, c)
	client, err := river.NewClient(driver, &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: working}}, Workers: all,
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return 0, err
	}
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
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
				if _, err := client.Insert(ctx, nothing{1}, nil); err != nil {
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
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return rate, errors.Join(err, client.Stop(limited))
}
