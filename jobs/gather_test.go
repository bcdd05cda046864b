package jobs_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/jobs"
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
				m, err := jobs.Open(t.Context(), store, jobs.Options{})
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
