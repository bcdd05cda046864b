//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// limited uses a database while files may not grow, and afterwards.
func limited(path string) error {
	ctx := context.Background()
	signal.Ignore(syscall.SIGXFSZ)
	recovered := 0
	db, err := Open(ctx, "sqlite:"+path, Options{Observe: func(op string, _ time.Duration, err error) {
		if op == "recover" && err == nil {
			recovered++
		}
	}})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	m := lokt.NewManager(db.Locks())
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		return err
	}
	claim := func(name string) lokt.Claim {
		return lokt.Claim{Name: name, LeaseID: "lease of " + name, Owner: lokt.Owner{ID: "o"}, TTL: time.Minute}
	}
	tiny := was
	tiny.Cur = 8192
	acknowledged := map[string]bool{}
	for round := range 3 {
		before := fmt.Sprint("before-", round)
		if _, err := m.Acquire(ctx, claim(before)); err != nil {
			return fmt.Errorf("with room: %w", err)
		}
		acknowledged[before] = true
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &tiny); err != nil {
			return err
		}
		for i := range 5 {
			name := fmt.Sprint("full-", round, "-", i)
			if _, err := m.Acquire(ctx, claim(name)); err == nil {
				acknowledged[name] = true
			} else if !errors.Is(err, lokt.ErrUnavailable) {
				return fmt.Errorf("without room: %w", err)
			}
			if err := db.Jobs().Update(ctx, func(jobs.Facts) jobs.Changes { return jobs.Changes{Memos: []jobs.Memo{{ID: "m"}}} }); !errors.Is(err, lokt.ErrUnavailable) {
				return fmt.Errorf("jobs without room: %w", err)
			}
		}
		if snap, err := db.Locks().View(ctx, before); err != nil || len(snap.Lock.Holders) != 1 {
			return fmt.Errorf("view without room: %+v, %w", snap, err)
		}
		if err := db.Ping(ctx); !errors.Is(err, lokt.ErrUnavailable) {
			return fmt.Errorf("ping without room: %w", err)
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			return err
		}
		if err := db.Ping(ctx); err != nil {
			return fmt.Errorf("ping with room again: %w", err)
		}
		for name := range acknowledged {
			if snap, err := db.Locks().View(ctx, name); err != nil || len(snap.Lock.Holders) != 1 {
				return fmt.Errorf("%s was acknowledged: %+v, %w", name, snap, err)
			}
		}
		for snap, err := range db.Locks().List(ctx, lokt.Filter{}) {
			if err != nil || !acknowledged[snap.Lock.Name] {
				return fmt.Errorf("%s was refused, but is there: %+v, %w", snap.Lock.Name, snap.Lock, err)
			}
		}
	}
	if recovered < 3 {
		return fmt.Errorf("recovered %d times", recovered)
	}
	if err := db.backend.(*fileDB).check(ctx); err != nil {
		return err
	}
	fmt.Println("fine", len(acknowledged))
	return nil
}

// Promise S-66.
func TestWhenNothingCanBeWrittenRequestsFailUntilItCan(t *testing.T) {
	t.Parallel()
	path := spot(t)
	c := spawn(t, "limited", path)
	if got := c.line(t); !strings.HasPrefix(got, "fine ") {
		t.Error(got)
	}
	db := start(t, path, Options{})
	for round := range 3 {
		if snap, err := db.Locks().View(t.Context(), fmt.Sprint("before-", round)); err != nil || len(snap.Lock.Holders) != 1 {
			t.Errorf("%+v, %v", snap, err)
		}
	}
}
