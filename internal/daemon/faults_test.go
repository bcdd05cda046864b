//go:build unix

package daemon_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/faultvfs"
)

// envFaults names a file that says which operations on the files of SQLite fail: a line for each, with the operation and how the
// path ends. While there is no such file, none do.
const envFaults = "LOKT_TEST_FAULTS"

// failOn makes operations fail as a file says, if there is to be one.
func failOn(file string) (*faultvfs.FS, error) {
	if file == "" {
		return nil, nil
	}
	return faultvfs.Install(func(op faultvfs.Op, path string) faultvfs.Outcome {
		b, err := os.ReadFile(file)
		if err != nil {
			return faultvfs.Pass
		}
		for line := range strings.Lines(string(b)) {
			var which, suffix string
			if n, _ := fmt.Sscan(line, &which, &suffix); n == 2 && which == string(op) && strings.HasSuffix(path, suffix) {
				return faultvfs.Fail
			}
		}
		return faultvfs.Pass
	})
}

// fails makes operations fail that a daemon does from now on, or none.
func fails(t *testing.T, file string, ops ...string) {
	t.Helper()
	if len(ops) == 0 {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(file+".new", []byte(strings.Join(ops, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// promised is what was acknowledged to clients that only take locks, each another one, and submit jobs.
type promised struct {
	mu      sync.Mutex
	serial  int
	locks   map[string]string // lease by lock
	jobs    []string
	refused int
}

// ask makes one request of each kind, and returns the error if the daemon is gone.
func (p *promised) ask(t *testing.T, a *api) error {
	p.mu.Lock()
	p.serial++
	name, lease := fmt.Sprint("lock-", p.serial), lokt.NewLeaseID()
	p.mu.Unlock()
	held, err := a.try("POST", locks+name+"/leases", body{"lease_id": lease, "owner": body{"id": "a"}, "ttl_ms": 600_000})
	if err != nil {
		return err
	}
	job, err := a.try("POST", scheduler+"/jobs", body{})
	p.mu.Lock()
	defer p.mu.Unlock()
	switch held.status {
	case http.StatusOK:
		p.locks[name] = lease
	case http.StatusServiceUnavailable:
		p.refused++
	default:
		t.Errorf("a claim is answered with %d %s", held.status, held.body)
	}
	if err != nil {
		return err
	}
	switch job.status {
	case http.StatusOK:
		p.jobs = append(p.jobs, job.text("job_id"))
	case http.StatusServiceUnavailable:
		p.refused++
	default:
		t.Errorf("a job is answered with %d %s", job.status, job.body)
	}
	return nil
}

// check checks that a daemon has what was acknowledged.
func (p *promised) check(t *testing.T, a *api) {
	t.Helper()
	for name, lease := range p.locks {
		a.renew(t, http.StatusOK, name, lease)
	}
	for _, job := range p.jobs {
		a.do(t, http.StatusOK, "GET", scheduler+"/jobs/"+job, nil)
	}
	if len(p.locks) == 0 || len(p.jobs) == 0 || p.refused == 0 {
		t.Errorf("%d locks, %d jobs, %d requests refused", len(p.locks), len(p.jobs), p.refused)
	}
}

// Promises S-102, S-136.
func TestDiskThatCannotBeReadOrWrittenRefusesAndIsRecoveredFrom(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"write -wal", "map -shm", "read .db", "truncate -wal"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			url, faults := "sqlite:"+filepath.Join(dir, "loktd.db"), filepath.Join(dir, "faults")
			p := launch(t, command(t, []string{envFaults + "=" + faults}, "--listen", "127.0.0.1:0", "--store", url), nil)
			a := p.api()
			was := &promised{locks: map[string]string{}}
			ask := func() {
				t.Helper()
				if err := was.ask(t, a); err != nil {
					t.Fatalf("the daemon is gone: %v; the log:\n%s", err, p.log)
				}
			}
			ask()
			fails(t, faults, fault, "write -wal")
			for range 10 {
				ask()
			}
			if was.refused == 0 {
				t.Error("nothing was refused")
			}
			eventually(t, "the daemon is not ready", func() bool {
				ans, err := a.try("GET", "/readyz", nil)
				return err == nil && ans.status == http.StatusServiceUnavailable
			})
			a.do(t, http.StatusOK, "GET", "/healthz", nil)
			a.do(t, http.StatusOK, "GET", locks+"lock-1", nil)
			fails(t, faults)
			eventually(t, "the daemon is ready again", func() bool {
				ans, err := a.try("GET", "/readyz", nil)
				return err == nil && ans.status == http.StatusOK
			})
			before := was.refused
			eventually(t, "everything is taken", func() bool {
				ask()
				now := was.refused
				defer func() { before = now }()
				return now == before
			})
			was.check(t, a)
			p.kill()
			p = start(t, "--store", url)
			was.check(t, p.api())
			p.stop()
		})
	}
}

// Promise S-135.
func TestFlushThatFailsEndsTheDaemonAndTheNextOneHasEverything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url, faults := "sqlite:"+filepath.Join(dir, "loktd.db"), filepath.Join(dir, "faults")
	was := &promised{locks: map[string]string{}}
	for range 3 {
		p := launch(t, command(t, []string{envFaults + "=" + faults}, "--listen", "127.0.0.1:0", "--store", url), nil)
		a := p.api()
		if len(was.locks) > 0 {
			was.check(t, a)
		}
		if err := was.ask(t, a); err != nil {
			t.Fatalf("the daemon is gone: %v; the log:\n%s", err, p.log)
		}
		var crew sync.WaitGroup
		for range 3 {
			crew.Go(func() {
				for was.ask(t, a) == nil { // until it ends
				}
			})
		}
		fails(t, faults, "sync -wal")
		if code := p.wait(); code != 1 || !strings.Contains(p.log.String(), "could not be flushed to the disk") {
			t.Errorf("exit code %d; the log:\n%s", code, p.log)
		}
		crew.Wait()
		fails(t, faults)
	}
	p := start(t, "--store", url)
	was.check(t, p.api())
	p.stop()
	if _, err := os.Stat(filepath.Join(dir, "loktd.db-wal")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a daemon that ends in order leaves its log: %v", err)
	}
}
