//go:build unix

package replicas_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// leave sends a request and hangs up after so long, whatever has come back.
func leave(t *testing.T, r *replica, stay time.Duration, method, path, body string) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.address())
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, r.address(), len(body), body); err != nil {
		t.Error(err)
	}
	time.Sleep(stay)
}

// opened returns how many connections to the server daemons have ever opened.
func opened(t *testing.T, schema string) int {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(shared.Dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(log, []byte("application_name="+schema+"."))
}

// Promise S-163.
func TestClientsThatHangUpCostNoConnections(t *testing.T) {
	t.Parallel()
	all, schema := startReplicas(t, 1)
	r := all[0]
	const locks, scheduler = "/v1/locks", "/api/system/scheduler"
	call(t, r, "POST", locks+"/held/leases", `{"owner": {"id": "holder"}, "ttl_ms": 600000}`)
	requests := [][3]string{
		{"GET", locks, ""}, {"GET", locks + "/held", ""}, {"GET", "/v1/audit", ""}, {"GET", "/v1/events", ""}, {"GET", scheduler + "/jobs", ""},
		{"GET", scheduler + "/jobs/none", ""}, {"GET", scheduler + "/stats", ""},
		{"POST", locks + "/held/leases", `{"owner": {"id": "gone"}, "ttl_ms": 600000, "wait_ms": 30000}`},
		{"POST", scheduler + "/leases/request", `{"worker_id": "gone", "wait_ms": 30000}`},
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 100 {
				q := requests[rand.IntN(len(requests))]
				leave(t, r, time.Duration(rand.IntN(4000))*time.Microsecond, q[0], q[1], q[2])
			}
		})
	}
	wg.Wait()
	// 11 are opened however many come. On a busy machine a few statements take the second after which they are called back.
	if n := opened(t, schema); n > 30 {
		t.Errorf("%d connections were opened for 2,000 clients", n)
	}
	// Nobody is granted anything who is known to be gone, which a busy machine finds out late: neither the job nor the lock.
	// One whose end was not seen waits for half a minute, and keeps its place for most of another.
	for end := time.Now().Add(3 * patience); strings.Contains(call(t, r, "GET", locks+"/held", ""), `"gone"`); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("clients that hung up wait for ever")
		}
	}
	call(t, r, "POST", scheduler+"/jobs", `{}`)
	if got := call(t, r, "POST", scheduler+"/leases/request", `{"worker_id": "here", "wait_ms": 30000}`); !strings.Contains(got, `"attempt":1`) {
		t.Errorf("who is here is granted %s", got)
	}
	call(t, r, "DELETE", locks+"/held/leases?force=true&owner=boss", "")
	if got := call(t, r, "POST", locks+"/held/leases", `{"owner": {"id": "here"}, "ttl_ms": 600000, "wait_ms": 30000}`); !strings.Contains(got, `"here"`) {
		t.Errorf("who is here is granted %s", got)
	}
}

// Promise S-163.
func TestClientsThatHungUpKeepNoConnectionsBusy(t *testing.T) {
	t.Parallel()
	all, schema := startReplicas(t, 1)
	r := all[0]
	held := make(chan error, 1)
	go func() {
		held <- shared.Exec("BEGIN; LOCK TABLE " + schema + ".lock_events; SELECT pg_sleep(8); COMMIT")
	}()
	gone := &http.Client{Timeout: time.Second}
	blocked := func() bool {
		a, err := gone.Get("http://" + r.address() + "/v1/audit")
		if err == nil {
			_, _ = io.Copy(io.Discard, a.Body)
			_ = a.Body.Close()
		}
		return err != nil
	}
	waitFor(t, blocked)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { leave(t, r, 200*time.Millisecond, "GET", "/v1/audit", "") })
	}
	wg.Wait()
	begun := time.Now()
	call(t, r, "GET", "/v1/locks/x", "")
	if took := time.Since(begun); took > 4*time.Second || !blocked() {
		t.Errorf("who is here was answered after %v", took)
	}
	if err := <-held; err != nil {
		t.Error(err)
	}
}
