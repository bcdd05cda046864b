//go:build unix

package daemon_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// ledger is what a daemon acknowledged, over all its lives.
type ledger struct {
	t  *testing.T
	mu sync.Mutex

	submitted []string          // jobs
	granted   map[string]string // lease by job
	running   map[string]string // job by lease that is not known to have ended
	ending    map[string]bool   // leases whose end was asked for
	completed map[string]bool   // jobs
	asked     map[string]string // per worker, the ID of the request that was not answered
	serial    int

	held   map[string]string // lease by lock that is not known to have ended
	unsure map[string]string // lease by lock that may or may not be held
	tokens map[string]uint64 // last token by lock
	grants int               // of locks

	full    bool // the disk has no room, so that requests may be refused
	refused int  // how many were
}

func newLedger(t *testing.T) *ledger {
	return &ledger{
		t: t, granted: map[string]string{}, running: map[string]string{}, ending: map[string]bool{}, completed: map[string]bool{},
		asked: map[string]string{}, held: map[string]string{}, unsure: map[string]string{}, tokens: map[string]uint64{},
	}
}

// refuses reports whether a request was refused because there is no room: who asked ends then. The ledger is locked.
func (l *ledger) refuses(ans answer) bool {
	if l.full && ans.status == http.StatusServiceUnavailable {
		l.refused++
		return true
	}
	return false
}

// submit submits jobs until the daemon is gone.
func (l *ledger) submit(a *api) {
	for {
		ans, err := a.try("POST", scheduler+"/jobs", body{})
		if err != nil {
			return
		}
		l.mu.Lock()
		if l.refuses(ans) {
			l.mu.Unlock()
			return
		}
		if ans.status != http.StatusOK {
			l.t.Errorf("submit: %d %s", ans.status, ans.body)
		}
		l.submitted = append(l.submitted, ans.text("job_id"))
		l.mu.Unlock()
	}
}

// work takes jobs and completes every other one until the daemon is gone.
func (l *ledger) work(a *api, worker string) {
	for {
		l.mu.Lock()
		if l.asked[worker] == "" {
			l.serial++
			l.asked[worker] = "r" + strconv.Itoa(l.serial)
		}
		ask := body{"worker_id": worker, "request_id": l.asked[worker], "wait_ms": 1000}
		l.mu.Unlock()
		ans, err := a.try("POST", scheduler+"/leases/request", ask)
		if err != nil {
			return
		}
		lease, job := ans.text("lease", "lease_id"), ans.text("job", "job_id")
		l.mu.Lock()
		delete(l.asked, worker)
		if lease == "" {
			full := l.full
			l.mu.Unlock()
			if full {
				return
			}
			continue
		}
		if before, twice := l.granted[job]; twice && before != lease {
			l.t.Errorf("job %s was granted to lease %s and to lease %s", job, before, lease)
		}
		l.granted[job], l.running[lease] = lease, job
		complete := len(l.granted)%2 == 0
		l.mu.Unlock()
		if _, err := a.try("POST", scheduler+"/leases/"+lease+"/heartbeat", body{"worker_id": worker}); err != nil {
			return
		}
		if !complete {
			continue
		}
		l.mu.Lock()
		l.ending[lease] = true
		l.mu.Unlock()
		ans, err = a.try("POST", scheduler+"/leases/"+lease+"/complete", body{"worker_id": worker, "status": "completed"})
		if err != nil {
			return
		}
		l.mu.Lock()
		if l.refuses(ans) {
			l.mu.Unlock()
			return
		}
		if ans.status != http.StatusOK || ans.text("applied") != "true" {
			l.t.Errorf("complete: %d %s", ans.status, ans.body)
		}
		l.completed[job] = true
		delete(l.running, lease)
		l.mu.Unlock()
	}
}

// lock takes one lock again and again until the daemon is gone, and gives it back every other time.
func (l *ledger) lock(a *api, name string) {
	for {
		lease := lokt.NewLeaseID()
		l.mu.Lock()
		l.unsure[name] = lease
		l.mu.Unlock()
		ans, err := a.try("POST", locks+name+"/leases", body{"lease_id": lease, "owner": body{"id": lease}, "ttl_ms": 600_000})
		if err != nil {
			return
		}
		l.mu.Lock()
		if l.refuses(ans) {
			l.mu.Unlock()
			return
		}
		token := ans.number("holder", "token")
		if ans.status != http.StatusOK || token <= l.tokens[name] {
			l.t.Errorf("lock %s after token %d: %d %s", name, l.tokens[name], ans.status, ans.body)
		}
		l.tokens[name], l.held[name] = token, lease
		l.grants++
		delete(l.unsure, name)
		keep := rand.IntN(30) == 0
		l.mu.Unlock()
		if keep {
			return
		}
		l.mu.Lock()
		l.unsure[name] = lease
		delete(l.held, name)
		l.mu.Unlock()
		if ok, err := l.release(a, name, lease); err != nil {
			return
		} else if !ok {
			l.mu.Lock()
			defer l.mu.Unlock()
			if !l.full {
				l.t.Errorf("lock %s was not held when it was given back", name)
			}
			return
		}
		l.mu.Lock()
		delete(l.unsure, name)
		l.mu.Unlock()
	}
}

// release gives a lock back with the lease ID as proof, and reports whether it was held.
func (l *ledger) release(a *api, name, lease string) (bool, error) {
	r, err := http.NewRequest(http.MethodDelete, a.url+locks+name+"/leases/"+publicID(lease), nil)
	if err != nil {
		l.t.Fatal(err)
	}
	r.Header.Set("Lokt-Lease", lease)
	resp, err := a.client.Do(r)
	if err != nil {
		return false, err
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK, nil
}

// progress returns how many jobs and how many locks were granted.
func (l *ledger) progress() (jobs, locks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.granted), l.grants
}

// audit compares a daemon that was started since a moment with what its predecessors acknowledged.
func (l *ledger) audit(a *api, since time.Time) {
	t := l.t
	t.Helper()
	for _, job := range l.submitted {
		ans := a.do(t, http.StatusOK, "GET", scheduler+"/jobs/"+job, nil)
		if l.completed[job] && ans.text("state") != "completed" {
			t.Errorf("a completed job is %s", ans.body)
		}
	}
	for _, leaseAndJob := range sorted(l.running) {
		lease, job := leaseAndJob[0], leaseAndJob[1]
		ans := a.do(t, http.StatusOK, "GET", scheduler+"/jobs/"+job, nil)
		if l.ending[lease] && ans.text("state") == "completed" {
			l.completed[job] = true
			delete(l.running, lease)
			continue
		}
		if got := ans.text("lease_id"); got != lease {
			t.Errorf("job %s has lease %q, not %s: %s", job, got, lease, ans.body)
		}
	}
	listed := a.do(t, http.StatusOK, "GET", scheduler+"/jobs?limit=1000&state=leased", nil)
	all, _ := listed.json["jobs"].([]any)
	for _, entry := range all {
		e := answer{json: entry.(map[string]any)}
		if left := remaining(t, listed, e.text("lease", "expires_at")); left+time.Since(since) < 599*time.Second {
			t.Errorf("a daemon that was started at %v has a lease that lasts %v", since, left)
		}
	}
	for _, nameAndLease := range sorted(l.unsure) {
		if _, err := l.release(a, nameAndLease[0], nameAndLease[1]); err != nil {
			t.Error(err)
		}
	}
	clear(l.unsure)
	for _, nameAndLease := range sorted(l.held) {
		name, lease := nameAndLease[0], nameAndLease[1]
		now := a.do(t, http.StatusOK, "GET", "/v1/locks/"+name, nil)
		holders, _ := now.json["holders"].([]any)
		if len(holders) != 1 {
			t.Fatalf("lock %s is %s", name, now.body)
		}
		h := answer{json: holders[0].(map[string]any)}
		if left := remaining(t, now, h.text("expires_at")); left+time.Since(since) < 599*time.Second {
			t.Errorf("a daemon that was started at %v has a hold that lasts %v", since, left)
		}
		if h.text("id") != publicID(lease) || h.number("token") != l.tokens[name] {
			t.Errorf("lock %s is held by %v, not by %s with token %d", name, h.json, publicID(lease), l.tokens[name])
		}
		if ok, err := l.release(a, name, lease); err != nil || !ok {
			t.Errorf("lock %s cannot be given back: %v", name, err)
		}
	}
	clear(l.held)
}

// remaining returns how long it is until a time, by the clock of the answer that tells it.
func remaining(t *testing.T, told answer, until string) time.Duration {
	t.Helper()
	now, err1 := time.Parse(time.RFC3339Nano, told.text("now"))
	ends, err2 := time.Parse(time.RFC3339Nano, until)
	if err1 != nil || err2 != nil {
		t.Fatal(told.body, err1, err2)
	}
	return ends.Sub(now)
}

// crew lets clients use the daemon until it is gone, or the disk full, and returns once there is progress.
func (l *ledger) crew(a *api) *sync.WaitGroup {
	l.t.Helper()
	crew := &sync.WaitGroup{}
	for i := range 2 {
		crew.Go(func() { l.submit(a) })
		crew.Go(func() { l.work(a, fmt.Sprint("w", i)) })
		crew.Go(func() { l.lock(a, fmt.Sprint("lock", i)) })
	}
	jobs, grants := l.progress()
	eventually(l.t, "there is progress", func() bool {
		j, g := l.progress()
		return j >= jobs+2 && g >= grants+2
	})
	return crew
}

// sorted returns keys and values.
func sorted(m map[string]string) (all [][2]string) {
	for k, v := range m {
		all = append(all, [2]string{k, v})
	}
	slices.SortFunc(all, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return all
}

// Promise S-96.
func TestWhatWasAcknowledgedSurvivesKill(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "loktd.db")
	l := newLedger(t)
	for round := range 20 {
		since := time.Now()
		p := start(t, "--store", url, "--capacity", "100000", "--lease-ttl", "10m")
		a := p.api()
		l.audit(a, since)
		if t.Failed() {
			t.Fatalf("in round %d; the log:\n%s", round, p.log)
		}
		crew := l.crew(a)
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // wherever it is by then
		p.kill()
		crew.Wait()
	}
	if len(l.completed) < 5 {
		t.Errorf("only %d jobs were completed", len(l.completed))
	}
	t.Logf("%d jobs submitted, %d granted, %d completed, %d locks taken", len(l.submitted), len(l.granted), len(l.completed), l.grants)
}

// Promise S-97.
func TestSecondDaemonIsTurnedAwayAndToldByWhom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url := "sqlite:" + filepath.Join(dir, "loktd.db")
	p := start(t, "--store", url)
	for _, args := range [][]string{
		{"--listen", "127.0.0.1:0", "--store", url},
		{"--listen", p.address(), "--store", url},
		{"--listen", "127.0.0.1:0", "--store", "memory:", "--jobs-store", url},
	} {
		code, out, stderr := run(t, nil, args...)
		if code != 1 || out != "" || !strings.Contains(stderr, fmt.Sprint("process ", p.cmd.Process.Pid)) || !strings.Contains(stderr, p.url) {
			t.Errorf("loktd %v: exit code %d, %s", args, code, stderr)
		}
	}
	p.api().do(t, http.StatusOK, "GET", "/readyz", nil)
	p.kill()
	start(t, "--store", url).stop()
}

// Promise S-103.
func TestFrozenDaemonLetsNobodyInTwice(t *testing.T) {
	t.Parallel()
	p := start(t, "--store", "sqlite:"+filepath.Join(t.TempDir(), "loktd.db"), "--lease-ttl", "300ms")
	a := p.api()
	a.do(t, http.StatusOK, "POST", scheduler+"/jobs", body{"max_attempts": 2, "retry_backoff_s": 0.001})
	first := a.do(t, http.StatusOK, "POST", scheduler+"/leases/request", body{"worker_id": "first"})
	lease := lokt.NewLeaseID()
	hold := a.do(t, http.StatusOK, "POST", locks+"x/leases", body{"lease_id": lease, "owner": body{"id": "first"}, "ttl_ms": 300})
	p.signal(syscall.SIGSTOP)
	answers := make(chan answer, 2) // both are sent while the daemon is frozen
	for _, c := range []struct {
		path string
		body body
	}{
		{scheduler + "/leases/request", body{"worker_id": "second", "wait_ms": 30_000}},
		{locks + "x/leases", body{"owner": body{"id": "second"}, "ttl_ms": 60_000, "wait_ms": 30_000}},
	} {
		go func() {
			ans, err := a.try("POST", c.path, c.body)
			if err != nil {
				ans.body = err.Error()
			}
			answers <- ans
		}()
	}
	time.Sleep(900 * time.Millisecond) // for three times the TTL it is not there
	p.signal(syscall.SIGCONT)
	for range 2 {
		ans := <-answers
		switch {
		case ans.status != http.StatusOK:
			t.Fatalf("the second was answered with %d %s", ans.status, ans.body)
		case ans.text("lease", "lease_id") != "":
			if ans.text("job", "job_id") != first.text("job", "job_id") || ans.number("lease", "token") <= first.number("lease", "token") {
				t.Errorf("after %s came %s", first.body, ans.body)
			}
		case ans.number("holder", "token") <= hold.number("holder", "token"):
			t.Errorf("after %s came %s", hold.body, ans.body)
		}
	}
	a.do(t, http.StatusNotFound, "POST", scheduler+"/leases/"+first.text("lease", "lease_id")+"/heartbeat", body{"worker_id": "first"})
	if ans := a.do(t, http.StatusOK, "POST", scheduler+"/leases/"+first.text("lease", "lease_id")+"/complete", body{"worker_id": "first", "status": "completed"}); ans.text("applied") != "false" {
		t.Errorf("the first completed what was taken from it: %s", ans.body)
	}
	a.renew(t, http.StatusForbidden, "x", lease)
	p.stop()
}
