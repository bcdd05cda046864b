package manager_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Promise S-152.
func TestWhatATurnStoresIsBoundedHoweverManyAskAtOnce(t *testing.T) {
	for name, load := range map[string]struct {
		each int
		edit func(*jobs.Spec)
	}{
		"many jobs":      {jobs.MaxSubmit, func(*jobs.Spec) {}},
		"large payloads": {10, func(s *jobs.Spec) { s.Payload = []byte(`{"p":"` + strings.Repeat("x", 100<<10) + `"}`) }},
		"many tags":      {10, func(s *jobs.Spec) { s.Tags = strings.Fields(strings.Repeat("tag ", jobs.MaxTags)) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				most, bytes, turns, made := 0, 0, 0, 0
				store := &slowStore{memstore.NewJobs(), func(c jobs.Changes) {
					time.Sleep(time.Millisecond)
					n, size := len(c.Jobs), 0
					for i := range c.Jobs {
						n, size = n+len(c.Jobs[i].Tags), size+len(c.Jobs[i].Payload)
					}
					most, bytes, turns, made = max(most, n), max(bytes, size), turns+1, made+len(c.Jobs)
				}}
				m, err := manager.Open(t.Context(), store, manager.Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() {
						specs := make([]jobs.Spec, load.each)
						for i := range specs {
							specs[i] = jobs.NewSpec()
							load.edit(&specs[i])
						}
						if r, err := m.Submit(t.Context(), specs); err != nil || len(r) != len(specs) {
							t.Errorf("submitted %d, %v", len(r), err)
						}
					})
				}
				wg.Wait()
				if most > 5000 || bytes > 5<<20 {
					t.Errorf("a turn stored %d rows and %d bytes", most, bytes)
				}
				if made != 50*load.each || turns > 100 {
					t.Errorf("%d jobs took %d turns", made, turns)
				}
			})
		})
	}
}

// Promise S-152.
func TestWhatATurnGrantsAndTakesBackIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, size = 100, 512 << 10
		most, turns := 0, 0
		store := &slowStore{memstore.NewJobs(), func(c jobs.Changes) {
			bytes := 0
			for i := range c.Jobs {
				bytes += len(c.Jobs[i].Payload)
			}
			time.Sleep(time.Millisecond)
			if bytes > 0 {
				most, turns = max(most, bytes), turns+1
			}
		}}
		m, err := manager.Open(t.Context(), store, manager.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if err := m.Freeze(t.Context(), "large"); err != nil {
			t.Fatal(err)
		}
		for range n {
			spec := jobs.NewSpec()
			spec.Type, spec.Payload = "large", []byte(`{"p":"`+strings.Repeat("x", size)+`"}`)
			if _, err := m.Submit(t.Context(), []jobs.Spec{spec}); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		begun := time.Now()
		for i := range n {
			wg.Go(func() {
				wait := time.Duration(0)
				if i%2 == 0 {
					wait = 10 * time.Second
				} else { // many of these are in one turn, and do not wait
					time.Sleep(2 * time.Second)
				}
				if g, err := m.Request(t.Context(), jobs.Request{WorkerID: fmt.Sprint("w", i), Wait: wait}); err != nil || g.Denied != nil {
					t.Errorf("not granted: %+v, %v", g.Denied, err)
				}
				if took := time.Since(begun); i%2 == 0 && took > 3*time.Second/2 {
					t.Errorf("granted after %v", took)
				}
			})
		}
		time.Sleep(time.Second / 2)
		time.AfterFunc(time.Second/2, func() { _ = m.Unfreeze(context.Background(), "large") })
		wg.Wait()
		time.Sleep(time.Hour)
		if s, err := m.Status(t.Context()); err != nil || s.ActiveLeases != 0 {
			t.Errorf("%d leases are left, %v", s.ActiveLeases, err)
		}
		if most > 9<<20 || turns < 3*n/16 {
			t.Errorf("in %d turns, one stored %d bytes", turns, most)
		}
	})
}
