//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

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
			_, err := db.Jobs().ListEnded(ctx, jobs.Filter{}, 1<<63, 10)
			return err
		},
		func(ctx context.Context) error { _, _, err := db.Jobs().History(ctx, time.Time{}); return err },
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

// sessions returns the connections that readers are lent, all of which are open.
func sessions(t *testing.T, db *DB) map[*pgConn]bool {
	t.Helper()
	d := db.backend.(*serverDB)
	all := map[*pgConn]bool{}
	for range pgReaders { // each in its turn
		if err := db.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range pgReaders {
		c := <-d.idle
		defer func() { d.idle <- c }()
		all[c] = true
	}
	return all
}

// Promise S-163.
func TestWhoLeavesCostsNoConnection(t *testing.T) {
	t.Parallel()
	db := openPG(t, schemaURL(t), Options{})
	before := sessions(t, db)
	if left := leaving(t, db); left < 100 {
		t.Errorf("only %d have left", left)
	}
	if after := sessions(t, db); !maps.Equal(before, after) {
		t.Errorf("the connections are %v, and were %v", after, before)
	}
}

// Promise S-163.
func TestAPoolerOutlivesThoseWhoLeave(t *testing.T) {
	t.Parallel()
	db := openPG(t, pooler(t)(t), Options{})
	for range 5 {
		leaving(t, db)
	}
}

// Promise S-163.
func TestWaitingEndsAtOnceForWhoLeaves(t *testing.T) {
	t.Parallel()
	db := openPG(t, schemaURL(t), Options{})
	d := db.backend.(*serverDB)
	d.locks.numbering.busy <- struct{}{}
	for range pgReaders {
		c := <-d.idle
		defer func() { d.idle <- c }()
	}
	for what, ask := range map[string]func(ctx context.Context) error{
		"read":   func(ctx context.Context) error { _, err := db.Locks().View(ctx, "x"); return err },
		"number": d.locks.number,
	} {
		ctx, leave := context.WithTimeout(t.Context(), 20*time.Millisecond)
		begun := time.Now()
		if err := ask(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > pgLonger {
			t.Errorf("%s: who left was told %v after %v", what, err, time.Since(begun))
		}
		leave()
	}
	<-d.locks.numbering.busy
}

// Promise S-163.
func TestWhatTakesLongIsCalledBackWhenNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{})
	before := sessions(t, db)
	tx, err := session(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE ended"); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer leave()
	begun := time.Now()
	_, err = db.Jobs().ListEnded(ctx, jobs.Filter{}, 1<<63, 10)
	if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took > pgTimeout/2 {
		t.Errorf("who left was told %v after %v", err, took)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for c := range sessions(t, db) {
		if !before[c] {
			lost++
		}
	}
	if lost != 1 {
		t.Errorf("it has cost %d connections", lost)
	}
}
