package manager_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

func TestMetricsCountWhatHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openWith(t, manager.Options{})
		if g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w"}); err != nil || g.Denied == nil {
			t.Fatalf("asked for nothing: %+v, %v", g, err)
		}
		submit(t, m)
		time.Sleep(3 * time.Second)
		g := grant(t, m, jobs.Request{WorkerID: "w"})
		beat := jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w"}
		if _, err := m.Heartbeat(t.Context(), beat); err != nil {
			t.Fatal(err)
		}
		if _, err := m.HeartbeatAll(t.Context(), "w", []string{g.Lease.ID, "none"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		complete(t, m, g)
		if _, err := m.Heartbeat(t.Context(), beat); !errors.Is(err, jobs.ErrLeaseNotFound) {
			t.Fatal(err)
		}
		submit(t, m)
		grant(t, m, jobs.Request{WorkerID: "w"})
		time.Sleep(2 * time.Minute) // and it expires
		go func() { _, _ = m.Request(t.Context(), jobs.Request{WorkerID: "w", Wait: time.Second}) }()
		synctest.Wait()

		got := m.Metrics()
		for e, n := range map[jobs.EventType]uint64{
			jobs.EventSubmit: 2, jobs.EventGrant: 2, jobs.EventRunning: 1, jobs.EventComplete: 1, jobs.EventExpire: 1, jobs.EventFail: 0,
		} {
			if got.Events[e] != n {
				t.Errorf("%d events %s, not %d", got.Events[e], e, n)
			}
		}
		if got.Denied[jobs.DeniedEmpty] != 1 || got.Ended[jobs.CodeExpired] != 1 || got.Ended[jobs.CodeCompleted] != 1 || got.Heartbeats != 2 || got.Refused["lease_not_found"] != 2 || got.ParkedRequests != 1 || got.ParkedHeartbeats != 0 {
			t.Errorf("counted are %+v", got)
		}
		if got.Wait.Count() != 2 || got.Wait.Sum != 3*time.Second || got.Run.Count() != 2 || got.Run.Sum != 80*time.Second {
			t.Errorf("jobs waited %+v and ran %+v", got.Wait, got.Run)
		}
		if got.Store.Count() == 0 || got.Wait.Below(time.Second) != 1 || got.Wait.Below(5*time.Second) != 2 {
			t.Errorf("durations are %+v and %+v", got.Store, got.Wait)
		}
		got.Events[jobs.EventSubmit]++
		if m.Metrics().Events[jobs.EventSubmit] != 2 {
			t.Error("who gets metrics changes them")
		}
	})
}

// How long the oldest job of each priority could have run is told by the moment from which it could.
func TestMetricsTellSinceWhenJobsCouldRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openWith(t, manager.Options{})
		begun := time.Now()
		later := jobs.NewSpec()
		later.Priority, later.RunAt = jobs.High, begun.Add(time.Minute)
		if _, err := m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec(), later}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		submit(t, m)
		for _, c := range []struct {
			after        time.Duration
			normal, high time.Duration // from the beginning on; -1: none could run
		}{{30 * time.Second, 0, -1}, {60 * time.Second, 0, 60 * time.Second}} {
			time.Sleep(time.Until(begun.Add(c.after)))
			synctest.Wait()
			got := m.Metrics().Oldest
			high, waits := got[jobs.High]
			if !got[jobs.Normal].Equal(begun.Add(c.normal)) || waits != (c.high >= 0) || waits && !high.Equal(begun.Add(c.high)) {
				t.Errorf("after %v: since %v, begun at %v", c.after, got, begun)
			}
		}
		grant(t, m, jobs.Request{WorkerID: "w"})
		grant(t, m, jobs.Request{WorkerID: "w"})
		if got := m.Metrics().Oldest; len(got) != 1 || !got[jobs.Normal].Equal(begun.Add(30*time.Second)) {
			t.Errorf("behind two that were granted: since %v, begun at %v", got, begun)
		}
	})
}
