package daemon_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMemoryThatIsNotNeededIsGivenBack(t *testing.T) {
	unlessRaced(t)
	t.Parallel()
	p := start(t, "--store", "memory:")
	a := p.api()
	resident := func() (pages int) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
		if err == nil {
			_, err = fmt.Sscan(string(b), new(int), &pages)
		}
		if err != nil {
			t.Fatal(err)
		}
		return pages * os.Getpagesize()
	}
	const most = 12 << 20
	before, long := resident(), strings.Repeat("x", 64<<10)
	for range 300 {
		a.do(t, http.StatusBadRequest, "POST", locks+"x/leases", body{"owner": body{"id": long}, "ttl_ms": 60_000})
	}
	if grown := resident() - before; grown < most {
		t.Fatalf("there are %d bytes more, which shows nothing", grown)
	}
	eventually(t, "what was asked for costs nothing any more", func() bool { return resident()-before < most })
	p.stop()
}

// Promise S-391.
func TestADaemonWhoseMemoryIsNearlyFullTakesNothingNew(t *testing.T) {
	t.Parallel()
	args := []string{"--store", "sqlite:" + filepath.Join(t.TempDir(), "lokt.db")}
	env := []string{"GOMEMLIMIT=96MiB"}
	p := startWith(t, env, args...)
	a := p.api()
	claim := func(status int, name, owner string) {
		t.Helper()
		a.do(t, status, "POST", locks+name+"/leases", body{"owner": body{"id": owner}, "lease_id": "lease-" + owner, "ttl_ms": 600_000})
	}
	claim(http.StatusOK, "held", "ana")
	large, small := body{"type": "large", "payload": body{"x": strings.Repeat("x", 900<<10)}}, body{"type": "small"}
	var queued []string
	for refused := false; !refused; {
		ans, err := a.try("POST", scheduler+"/jobs", large)
		if err != nil || len(queued) > 100 {
			t.Fatalf("after %d jobs: %v", len(queued), err)
		}
		if refused = ans.status == http.StatusServiceUnavailable; !refused {
			queued = append(queued, ans.text("job_id"))
		}
	}
	if len(queued) < 10 {
		t.Fatalf("%d jobs fill its memory", len(queued))
	}
	if !strings.Contains(p.log.String(), "memory is nearly full") {
		t.Error("the log does not say so")
	}
	claim(http.StatusServiceUnavailable, "new", "bob")
	claim(http.StatusConflict, "held", "bob")
	if ans := a.do(t, http.StatusOK, "POST", "/v1/leases/heartbeat", body{"leases": []body{{"name": "held", "lease_id": "lease-ana"}}}); strings.Contains(ans.body, "error") {
		t.Error(ans.body)
	}
	granted := a.do(t, http.StatusOK, "POST", scheduler+"/leases/request", body{"worker_id": "w"})
	a.do(t, http.StatusOK, "POST", scheduler+"/leases/"+granted.text("lease", "lease_id")+"/complete", body{"worker_id": "w", "status": "completed"})
	p.kill()
	p = startWith(t, env, args...)
	a = p.api()
	for _, id := range queued[1:] {
		a.do(t, http.StatusOK, "POST", scheduler+"/jobs/"+id+"/cancel", body{})
	}
	eventually(t, "there is room again", func() bool {
		ans, err := a.try("POST", scheduler+"/jobs", small)
		return err == nil && ans.status < 300
	})
	claim(http.StatusOK, "new", "bob")
	p.stop()
}
