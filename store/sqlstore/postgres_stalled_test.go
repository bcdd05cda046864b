//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// Promise S-173.
func TestAStalledPostgreSQLCostsNobodyMoreThanTenSeconds(t *testing.T) {
	t.Parallel()
	name := server.Schema(t)
	proxy := servers.NewProxy(t, server.Addr)
	db := openPG(t, server.URL(proxy.Addr(), name), Options{})
	locks := lokt.NewManager(db.Locks())
	scheduler, err := manager.Open(t.Context(), db.Jobs(), manager.Options{Config: jobs.Config{Shared: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = scheduler.Close() }()
	asks := map[string]func(n int) error{
		"acquire": func(n int) error {
			c := claim(fmt.Sprint("x", n), fmt.Sprint("o", n), time.Minute)
			c.LeaseID = ""
			h, err := locks.Poll(t.Context(), &c) // as for who asks over HTTP
			if err == nil {
				_, err = locks.Release(t.Context(), lokt.Target{Name: h.Name, LeaseID: h.LeaseID, Owner: h.Owner})
			}
			return err
		},
		"view":   func(int) error { _, err := locks.Get(t.Context(), "x0"); return err },
		"submit": func(int) error { _, err := scheduler.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); return err },
		"list":   func(int) error { _, err := db.Jobs().ListEnded(t.Context(), jobs.Filter{}, 0, 1<<63, 1); return err },
	}
	all := func(pause time.Duration, answered func(what string, took time.Duration, err error)) {
		var wg sync.WaitGroup
		for what, ask := range asks {
			for n := range 8 {
				time.Sleep(pause)
				wg.Go(func() {
					begin := time.Now()
					err := ask(n)
					answered(what, time.Since(begin), err)
				})
			}
		}
		wg.Wait()
	}
	all(0, func(string, time.Duration, error) {}) // connections are there
	proxy.Hole()
	all(100*time.Millisecond, func(what string, took time.Duration, err error) {
		if !errors.Is(err, lokt.ErrUnavailable) || took > 20*time.Second {
			t.Errorf("%s: after %v %v", what, took, err)
		}
	})
	proxy.Heal()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for what, ask := range asks {
		for err := ask(0); err != nil; err = ask(0) {
			if ctx.Err() != nil {
				t.Fatalf("%s: it does not work again: %v", what, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
