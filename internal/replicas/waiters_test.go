//go:build unix

package replicas_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
)

// Promises S-125, S-142.
func TestWaitersThatAreKilledOrCutOffArePassedOverAtEveryReplica(t *testing.T) {
	t.Parallel()
	replicas, _ := startReplicas(t, 2)
	near, far := "http://"+replicas[0].front.Addr(), "http://"+replicas[1].front.Addr()
	client, err := httpapi.New(near, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, lose := range map[string]func(kill func()){
		"killed":  func(kill func()) { kill() },
		"cut-off": func(func()) { replicas[1].front.Hole() },
	} {
		t.Run(name, func(t *testing.T) {
			held, err := client.Acquire(t.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "holder"}, TTL: 10 * time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			queue := func(n int) lokt.Snapshot {
				var s lokt.Snapshot
				waitFor(t, func() bool {
					s, err = client.Get(t.Context(), name)
					return err == nil && len(s.Lock.Queue) == n
				})
				return s
			}
			first, _ := startLokt(t, far, "lock", name, "--ttl", "3s", "--wait")
			queue(1)
			next := make(chan error, 1)
			go func() {
				h, err := client.Acquire(t.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "next"}, TTL: 10 * time.Minute, Wait: -1})
				if err == nil && h.Token != held.Token+1 {
					err = fmt.Errorf("somebody else was granted the lock before: %+v", h)
				}
				if err == nil {
					_, err = client.Release(t.Context(), lokt.Target{Name: name, LeaseID: h.LeaseID})
				}
				next <- err
			}()
			queue(2)
			lose(func() { _ = first.Process.Kill() })
			gone := time.Now()
			waitFor(t, func() bool { s := queue(2); return s.Away(s.Lock.Queue[0]) })
			t.Logf("away after %v", time.Since(gone).Round(time.Millisecond))
			status, out := startLokt(t, near, "status", name)
			if err := status.Wait(); err != nil || !strings.Contains(out.String(), "waiters_away:  1") {
				t.Errorf("its status is %s, %v", out, err)
			}
			if _, err := client.Release(t.Context(), lokt.Target{Name: name, LeaseID: held.LeaseID}); err != nil {
				t.Fatal(err)
			}
			if err := <-next; err != nil {
				t.Error(err)
			}
			_ = first.Process.Kill()
			_ = first.Wait()
			replicas[1].front.Heal()
		})
	}
}
