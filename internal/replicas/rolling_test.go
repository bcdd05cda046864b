//go:build unix

package replicas_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/lokttest"
	"github.com/lokt-dev/lokt/store/memstore"
)

// startLokt runs the command line against the servers, and returns it with what it will have written.
func startLokt(t *testing.T, servers string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	c := command(t, "lokt", args...)
	c.Env = append(c.Env, "LOKT_SERVER="+servers)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	return c, &out
}

// Replicas are replaced one after the other, as an upgrade does, while guards hold locks and wait for them, and workers work.
func TestGuardsAndWorkersOutliveThatEveryReplicaIsReplaced(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a quarter of a minute and more")
	}
	replicas, _ := startReplicas(t, 2, "--lease-ttl", "15s")
	servers := urls(replicas)
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate") // the first guard's command ends when this is there
	// Each command takes a directory for itself while it runs: two at a time would fail.
	script := fmt.Sprintf(`mkdir %[1]s/inside || exit 77; while [ ! -e %[2]s ]; do sleep 0.05; done; echo "$1" >>%[1]s/order; rmdir %[1]s/inside`, dir, gate)
	type running struct {
		cmd *exec.Cmd
		out *bytes.Buffer
	}
	var guards []running
	for i := range 4 {
		c, out := startLokt(t, servers, "guard", "deploy", "--ttl", "10s", "--wait", "--timeout", "5m", "--", "sh", "-c", script, "sh", fmt.Sprint(i))
		guards = append(guards, running{c, out})
		if i == 0 {
			waitFor(t, func() bool { _, err := os.Stat(filepath.Join(dir, "inside")); return err == nil })
		}
	}
	worker, workerOut := startLokt(t, servers, "worker", "--type", "slow", "--concurrency", "2", "--", "sh", "-c", `sleep 1; echo "$LOKT_JOB_ID" >>`+dir+"/done")
	both, err := httpapi.New(servers, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := both.Jobs()
	spec := jobs.NewSpec()
	spec.Type = "slow"
	receipts, err := client.Submit(t.Context(), []jobs.Spec{spec, spec, spec, spec, spec, spec, spec, spec})
	if err != nil {
		t.Fatal(err)
	}

	for round := range 4 {
		r := replicas[round%2]
		r.signal(syscall.SIGTERM)
		select {
		case <-r.done:
		case <-time.After(patience):
			t.Fatal("a replica does not stop")
		}
		time.Sleep(500 * time.Millisecond)
		if err := r.restart(t); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	for i, g := range guards {
		if err := g.cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("guard %d has ended meanwhile: %s", i, g.out)
		}
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, g := range guards {
		if err := g.cmd.Wait(); err != nil {
			t.Errorf("guard %d: %v: %s", i, err, g.out)
		}
	}
	order, _ := os.ReadFile(filepath.Join(dir, "order"))
	if n := strings.Count(string(order), "\n"); n != 4 {
		t.Errorf("%d of 4 commands were run: %q", n, order)
	}
	for _, r := range receipts {
		waitFor(t, func() bool {
			v, err := client.Get(t.Context(), r.JobID)
			if err == nil && v.Job.State.Ended() && v.Job.State != jobs.Completed {
				t.Fatalf("job %s is %s: %s", r.JobID, v.Job.State, workerOut)
			}
			return err == nil && v.Job.State == jobs.Completed
		})
	}
	_ = worker.Process.Signal(syscall.SIGTERM)
	if err := worker.Wait(); err != nil {
		t.Errorf("worker: %v: %s", err, workerOut)
	}
	done, _ := os.ReadFile(filepath.Join(dir, "done"))
	if n := strings.Count(string(done), "\n"); n != len(receipts) {
		t.Errorf("%d jobs were run %d times: %q", len(receipts), n, done)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it takes too long")
		}
	}
}

// Replicas that know nothing of each other stand behind a plain balancer, which sends each request to the next of them.
// What one of them has begun, another goes on with.
func TestServiceBehindABalancerKeepsItsPromises(t *testing.T) {
	t.Parallel()
	lokttest.TestServiceInRealTime(t, func(t *testing.T) lokt.Service {
		store := memstore.New()
		var backends []*url.URL
		for range 3 {
			s := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(store)}))
			t.Cleanup(s.Close)
			u, err := url.Parse(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			backends = append(backends, u)
		}
		var next atomic.Uint64
		balancer := httptest.NewServer(&httputil.ReverseProxy{
			Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(backends[next.Add(1)%uint64(len(backends))]) },
			ErrorLog: log.New(io.Discard, "", 0), // it tells of every client that hangs up
		})
		t.Cleanup(balancer.Close)
		c, err := httpapi.New(balancer.URL, httpapi.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	})
}

// A balancer in front of two replicas on one database takes one away whose readiness fails, and nobody notices.
func TestABalancerThatAsksForReadinessHidesAReplicaThatStops(t *testing.T) {
	t.Parallel()
	replicas, _ := startReplicas(t, 2, "--lease-ttl", "15s")
	balancer := newReadyBalancer(t, replicas)
	client, err := httpapi.New("http://"+balancer, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	k, err := lokt.NewLocker(client, lokt.Owner{ID: "behind"}, lokt.LockerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := k.Acquire(t.Context(), "x", lokt.Options{TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		h, err := client.Acquire(t.Context(), lokt.Claim{
			Name: "x", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: "waiter"}, Strict: true, TTL: time.Minute, Wait: patience,
		})
		if err == nil && h.Token <= l.Token() {
			err = errors.New("the token has not risen")
		}
		waiting <- err
	}()
	replicas[0].signal(syscall.SIGTERM)
	<-replicas[0].done
	time.Sleep(11 * time.Second) // more than the lock lasts without a renewal
	if l.Err() != nil {
		t.Errorf("the lease was lost because a replica stopped: %v", l.Err())
	}
	select {
	case err := <-waiting:
		t.Errorf("the waiter returned while the lock was held: %v", err)
	default:
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case err := <-waiting:
		if err != nil {
			t.Errorf("the waiter: %v", err)
		}
	case <-time.After(patience):
		t.Error("the waiter was forgotten")
	}
}

// newReadyBalancer returns the address of a balancer of connections that asks each replica's /readyz before it gives it one.
func newReadyBalancer(t *testing.T, replicas []*replica) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	ready := func(r *replica) bool {
		c := http.Client{Timeout: 2 * time.Second}
		a, err := c.Get("http://" + r.front.Addr() + "/readyz")
		if err != nil {
			return false
		}
		_ = a.Body.Close()
		return a.StatusCode == http.StatusOK
	}
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			taken := false
			for i := range replicas {
				r := replicas[(n+i)%len(replicas)]
				if !ready(r) {
					continue
				}
				up, err := net.Dial("tcp", r.front.Addr())
				if err != nil {
					continue
				}
				wg.Go(func() { _, _ = io.Copy(up, c); _ = up.Close() })
				wg.Go(func() { _, _ = io.Copy(c, up); _ = c.Close() })
				taken = true
				break
			}
			if !taken {
				_ = c.Close()
			}
		}
	})
	return l.Addr().String()
}
