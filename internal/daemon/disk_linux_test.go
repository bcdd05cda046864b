package daemon_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt"
)

// Promise S-102.
func TestFullDiskRefusesAndIsRecoveredFrom(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "loktd.db")
	p := start(t, "--store", url, "--lease-ttl", "1h")
	a := p.api()
	held := lokt.NewLeaseID()
	a.do(t, http.StatusOK, "POST", locks+"held/leases", body{"lease_id": held, "owner": body{"id": "a"}, "ttl_ms": 600_000})
	a.do(t, http.StatusOK, "POST", scheduler+"/jobs", body{})
	lease := a.do(t, http.StatusOK, "POST", scheduler+"/leases/request", body{"worker_id": "w"}).text("lease", "lease_id")

	// No file may grow beyond what the largest has now: to the daemon, a full disk.
	limit := func(bytes uint64) {
		t.Helper()
		if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil); err != nil {
			t.Fatal(err)
		}
	}
	limit(4096)
	acknowledged := map[string]bool{}
	refused := map[string]int{}
	payload := body{"payload": body{"x": strings.Repeat("x", 20_000)}}
	for range 30 {
		ans, err := a.try("POST", scheduler+"/jobs", payload)
		if err != nil {
			t.Fatalf("the daemon is gone: %v; the log:\n%s", err, p.log)
		}
		switch ans.status {
		case http.StatusOK:
			acknowledged[ans.text("job_id")] = true
		case http.StatusServiceUnavailable:
			refused["jobs"]++
		default:
			t.Fatalf("on a full disk a job is answered with %d %s", ans.status, ans.body)
		}
		if ans, err = a.try("POST", locks+"other/leases", body{"owner": body{"id": "a"}, "limit": 1000, "ttl_ms": 60_000}); err != nil {
			t.Fatal(err)
		} else if ans.status == http.StatusServiceUnavailable {
			refused["locks"]++
		} else if ans.status != http.StatusOK {
			t.Fatalf("on a full disk a claim is answered with %d %s", ans.status, ans.body)
		}
	}
	if refused["jobs"] == 0 || refused["locks"] == 0 {
		t.Fatalf("nothing was refused: %v", refused)
	}
	a.do(t, http.StatusOK, "GET", locks+"held", nil) // what there is can be read
	a.do(t, http.StatusOK, "GET", "/healthz", nil)
	if n, _ := a.metric(t, `lokt_store_errors_total{keeps="locks",operation="update"}`); n == 0 {
		t.Error("the metrics show no errors")
	}

	limit(unix.RLIM_INFINITY)
	eventually(t, "jobs are taken again", func() bool {
		ans, err := a.try("POST", scheduler+"/jobs", payload)
		if err != nil {
			t.Fatal(err)
		}
		if ans.status == http.StatusOK {
			acknowledged[ans.text("job_id")] = true
		}
		return ans.status == http.StatusOK
	})
	eventually(t, "the daemon is ready", func() bool {
		ans, err := a.try("GET", "/readyz", nil)
		return err == nil && ans.status == http.StatusOK
	})
	check := func(a *api) {
		t.Helper()
		for job := range acknowledged {
			a.do(t, http.StatusOK, "GET", scheduler+"/jobs/"+job, nil)
		}
		a.do(t, http.StatusOK, "POST", scheduler+"/leases/"+lease+"/heartbeat", body{"worker_id": "w"})
		a.renew(t, http.StatusOK, "held", held)
	}
	check(a)
	p.kill()
	p = start(t, "--store", url, "--lease-ttl", "1h")
	check(p.api())
	p.stop()
}

func TestDirectoryThatCannotBeWrittenIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "loktd.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{filepath.Join(dir, "loktd.db"): "loktd.db", "/proc/nowhere/loktd.db": "/proc/nowhere"} {
		code, out, stderr := run(t, nil, "--store", "sqlite:"+path, "--listen", "127.0.0.1:0")
		if code != 1 || out != "" || !strings.Contains(stderr, says) || strings.Contains(stderr, "goroutine ") {
			t.Errorf("a store at %s: exit code %d, %s", path, code, stderr)
		}
	}
}
