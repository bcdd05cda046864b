package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/history"
)

// Promise S-227.
func TestWhatReplicasDidCanBeJudgedByItsEvents(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	url := c.url()
	var all sync.WaitGroup
	var last *Store
	for i := range 3 {
		s := c.open(t, url, Options{})
		last = s
		m := lokt.NewManager(s)
		for k := range 2 {
			all.Go(func() {
				for n := range 15 {
					claim := lokt.Claim{Name: "x", Owner: lokt.Owner{ID: fmt.Sprint(i, k)}, TTL: 300 * time.Millisecond, Wait: 2 * time.Second, Priority: n % 2, Limit: []int{0, 0, 2}[n%3]}
					h, err := m.Acquire(t.Context(), claim)
					if err != nil {
						if !errors.Is(err, lokt.ErrHeld) {
							t.Error(err)
						}
						continue
					}
					if n%7 != 0 { // what is not given back expires
						_, _ = m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID, Owner: h.Owner})
					}
				}
			})
		}
	}
	all.Wait()
	j, lacking := history.Judge{}, history.Judge{}
	page, err := last.ReadEvents(context.WithoutCancel(t.Context()), lokt.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	ended := 0
	for _, e := range page.Events {
		j.Take(audit.FromEvent(e.Event))
		if ended++; e.Type != lokt.EventRelease || ended < 20 { // the first after that is kept from the other judge
			lacking.Take(audit.FromEvent(e.Event))
		} else {
			ended = -1000
		}
	}
	if j.Grants < 20 || len(j.Findings) > 0 || j.Unknown > j.Grants/2 {
		t.Errorf("%+v", j)
	}
	if len(lacking.Findings) == 0 {
		t.Error("an end that is missing was not found")
	}
}
