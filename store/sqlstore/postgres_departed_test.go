//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// leaving asks for everything that is read, many times, and gives up a moment later. It returns how often that was before there was an answer.
func leaving(t *testing.T, db *DB) (left int) {
	t.Helper()
	asks := []func(ctx context.Context) error{
		func(ctx context.Context) error { _, err := db.Locks().View(ctx, "x"); return err },
		func(ctx context.Context) error {
			for _, err := range db.Locks().List(ctx, lokt.Filter{}) {
				return err
			}
			return nil
		},
		func(ctx context.Context) error { _, err := db.Locks().ReadEvents(ctx, lokt.EventQuery{}); return err },
		func(ctx context.Context) error { return db.Locks().WaitEvents(ctx, 0) },
		func(ctx context.Context) error { return db.Locks().Wait(ctx, lokt.Watch{Name: "x"}) },
		func(ctx context.Context) error { return db.Ping(ctx) },
		func(ctx context.Context) error {
			_, err := db.Jobs().ListEnded(ctx, jobs.Filter{}, 0, 1<<63, 10)
			return err
		},
		func(ctx context.Context) error { _, err := db.Jobs().History(ctx, time.Time{}); return err },
		func(ctx context.Context) error { _, err := db.Jobs().Trim(ctx, time.Time{}, -1, 10); return err },
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 10 {
		wg.Go(func() {
			for range 200 {
				ctx, leave := context.WithCancel(t.Context())
				timer := time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, leave)
				err := asks[rand.IntN(len(asks))](ctx)
				timer.Stop()
				leave()
				mu.Lock()
				switch {
				case errors.Is(err, context.Canceled):
					left++
				case err != nil:
					t.Errorf("who had not left was told %v", err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return left
}

// opened returns how many connections have been opened.
func opened(db *DB) int64 { return db.backend.(*serverDB).readers.Stat().NewConnsCount() }

// fill opens as many connections as readers may have, and returns what gives them back.
func fill(t *testing.T, db *DB) (release func()) {
	t.Helper()
	d := db.backend.(*serverDB)
	var all []*pgxpool.Conn
	for range pgReaders {
		c, err := d.readers.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return func() {
		for _, c := range all {
			c.Release()
		}
	}
}

// Promise S-163.
func TestWhoLeavesCostsNoConnection(t *testing.T) {
	t.Parallel()
	db := openPG(t, schemaURL(t), Options{})
	fill(t, db)()
	if left := leaving(t, db); left < 100 {
		t.Errorf("only %d have left", left)
	}
	if n := opened(db); n > pgReaders { // none is opened in the place of another
		t.Errorf("%d connections were opened", n)
	}
}

// Promise S-163.
func TestAPoolerOutlivesThoseWhoLeave(t *testing.T) {
	t.Parallel()
	db := openPG(t, pooler(t)(t), Options{})
	rounds := 2
	if os.Getenv("LOKT_SOAK") != "" {
		rounds = 5
	}
	for range rounds {
		leaving(t, db)
	}
}

// Promise S-163.
func TestWaitingEndsAtOnceForWhoLeaves(t *testing.T) {
	t.Parallel()
	db := openPG(t, schemaURL(t), Options{})
	defer fill(t, db)()
	ctx, leave := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer leave()
	begun := time.Now()
	if _, err := db.Locks().View(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > pgTimeout*3/4 {
		t.Errorf("who left was told %v after %v", err, time.Since(begun))
	}
}

// Promise S-163.
func TestWhatTakesLongIsCalledBackWhenNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{})
	fill(t, db)()
	before := opened(db)
	tx, err := session(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE jobs"); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer leave()
	begun := time.Now()
	_, err = db.Jobs().ListEnded(ctx, jobs.Filter{}, 0, 1<<63, 10)
	if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took > pgTimeout*3/4 {
		t.Errorf("who left was told %v after %v", err, took)
	}
	if _, err := db.Jobs().ListEnded(t.Context(), jobs.Filter{}, 0, 1<<63, 10); !errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("who has not left was told %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	fill(t, db)()
	if lost := opened(db) - before; lost != 2 {
		t.Errorf("it has cost %d connections", lost)
	}
}
