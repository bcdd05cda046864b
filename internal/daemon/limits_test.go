//go:build unix

package daemon_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// metrics returns all metrics. A daemon gives up, and says so, when it takes long to collect them.
func (a *api) metrics(t *testing.T) (text string) {
	t.Helper()
	eventually(t, "metrics are told", func() bool {
		ans, err := a.try("GET", "/metrics", nil)
		if text = ans.body; err != nil || ans.status != http.StatusOK && ans.status != http.StatusServiceUnavailable {
			t.Fatalf("GET /metrics was answered with %d %s, %v", ans.status, ans.body, err)
		}
		return ans.status == http.StatusOK
	})
	return text
}

// metric returns the value of a metric, named with its labels, and whether there is one.
func (a *api) metric(t *testing.T, name string) (float64, bool) {
	t.Helper()
	for line := range strings.Lines(a.metrics(t)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v, true
		}
	}
	return 0, false
}

// usually returns how long the quicker half of some turns took at most: a machine that stands still for a while slows the others.
func usually(turns int, do func()) time.Duration {
	took := make([]time.Duration, turns)
	for i := range took {
		begun := time.Now()
		do()
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	return took[turns/2]
}

// Promise S-101.
func TestSlowClientsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	p := start(t, "--store", "memory:", "--max-connections", "50", "--body-timeout", "300ms")
	heads := []string{
		"",                             // says nothing
		"GET /v1/locks HTTP/1.1\r\nHo", // a header by and by
		"POST /v1/locks/x/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", // a body by and by
		"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{",        // one that nobody reads
	}
	for i := range 200 {
		if _, err := io.WriteString(p.dial(), heads[i%len(heads)]); err != nil {
			continue // it was too slow
		}
	}
	if took := usually(20, func() {
		p.api().do(t, http.StatusOK, "GET", "/v1/locks", nil) // each over a connection of its own
	}); took > 20*time.Second {
		t.Errorf("among slow clients an answer took %v", took)
	}
	if n, _ := p.api().metric(t, "lokt_http_connections"); n > 51 {
		t.Errorf("%v connections are open", n)
	}
	slow := p.dial()
	if _, err := io.WriteString(slow, heads[2]); err != nil {
		t.Fatal(err)
	}
	status, err := statusFrom(slow)
	if ne := (net.Error)(nil); errors.As(err, &ne) && ne.Timeout() {
		t.Error("a body that does not come is waited for")
	} else if err == nil && status != http.StatusBadRequest && status != http.StatusRequestTimeout {
		t.Errorf("a body that does not come is answered with %d", status)
	}
	p.stop()
}

// Promise S-101.
func TestIdleConnectionsDoNotUseUpAllFiles(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t, nil, "--store", "memory:", "--listen", "127.0.0.1:0", "--body-timeout", "300ms")
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `ulimit -n 150; exec "$0" "$@"`, self}, cmd.Args[1:]...)
	p := launch(t, cmd, nil)
	for range 300 {
		p.dial()
	}
	for range 5 {
		p.api().do(t, http.StatusOK, "GET", "/v1/locks", nil)
	}
	p.stop()
	if !strings.Contains(p.log.String(), "limit on open files") {
		t.Errorf("the log:\n%s", p.log)
	}
}

// Promises S-95, S-101.
func TestThousandRequestsThatWaitKeepNobodyOut(t *testing.T) {
	p := start(t, "--store", "memory:")
	a := p.api()
	a.client.Timeout = 10 * time.Minute // a thousand waits end together, and a busy machine takes its time to answer them
	const n = 1000
	type end struct {
		status int
		err    error
		vain   bool // 409 for a lock, having waited as long as was asked for
	}
	ends := make(chan end, n)
	var stopping atomic.Bool
	a.do(t, http.StatusOK, "POST", locks+"x/leases", body{"owner": body{"id": "holder"}, "ttl_ms": 600_000})
	for i := range n {
		go func() {
			for {
				var ans answer
				var err error
				begun := time.Now()
				switch i % 3 {
				case 0:
					ans, err = a.try("POST", scheduler+"/leases/request", body{"worker_id": fmt.Sprint("w", i), "types": []string{"rare"}, "wait_ms": 30_000})
				case 1:
					ans, err = a.try("POST", locks+"x/leases", body{"owner": body{"id": fmt.Sprint("o", i)}, "ttl_ms": 60_000, "wait_ms": 30_000})
				default:
					ans, err = a.try("GET", "/v1/locks/free?seen=0&wait_ms=30000", nil)
				}
				if err != nil || stopping.Load() || ans.status >= 500 {
					ends <- end{ans.status, err, ans.status == http.StatusConflict && time.Since(begun) >= 30*time.Second}
					return
				} // or it has waited in vain, on a slow machine, and waits again
			}
		}()
	}
	other := p.api()
	eventually(t, "all of them wait", func() bool {
		connections, _ := other.metric(t, "lokt_http_connections")
		parked, _ := other.metric(t, `lokt_scheduler_parked{kind="lease"}`)
		queued, _ := other.metric(t, `lokt_lock_queue_length{name="x"}`)
		return connections > n && parked > n/3*9/10 && queued > n/3*9/10 // but for those that ask again, on a slow machine
	})
	if took := usually(20, func() {
		job := other.do(t, http.StatusOK, "POST", scheduler+"/jobs", body{}).text("job_id")
		got := other.do(t, http.StatusOK, "POST", scheduler+"/leases/request", body{"worker_id": "quick"})
		other.do(t, http.StatusOK, "POST", locks+"y/leases", body{"owner": body{"id": job}, "limit": 100, "ttl_ms": 60_000})
		if got.text("job", "job_id") != job {
			t.Errorf("with a thousand waiting, there is %s", got.body)
		}
	}); took > 20*time.Second {
		t.Errorf("with a thousand waiting, it took %v", took)
	}
	stopping.Store(true)
	p.stop()
	for range n {
		if e := <-ends; e.err != nil || e.status != http.StatusOK && e.status != http.StatusServiceUnavailable && !e.vain {
			t.Errorf("at the end a request that waited was answered with %d, %v", e.status, e.err)
		}
	}
}

// What a request needs while it is decided or answered is not kept by its connection while another one waits. With so little
// garbage, what is allocated is what is kept.
func TestRequestsThatWaitForALockKeepLittle(t *testing.T) {
	unlessRaced(t)
	p := startWith(t, []string{"GOGC=5"}, "--store", "sqlite:"+filepath.Join(t.TempDir(), "loktd.db"))
	a := p.api()
	kept := func() (stacks, heap float64) {
		stacks, _ = a.metric(t, "go_memstats_stack_inuse_bytes")
		heap, _ = a.metric(t, "go_memstats_heap_alloc_bytes")
		return stacks, heap
	}
	a.do(t, http.StatusOK, "POST", locks+"x/leases", body{"owner": body{"id": "holder"}, "ttl_ms": 600_000})
	stacks, heap := kept()
	const n, mostStacks, mostHeap = 200, 16 << 10, 26 << 10
	var wait [n]func()
	for i := range n {
		c := p.dial()
		answers := bufio.NewReader(c)
		send := func(method, path, text string) {
			if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nLokt-Lease: a%d\r\nContent-Length: %d\r\n\r\n%s", method, path, i, len(text), text); err != nil {
				t.Fatal(err)
			}
		}
		answered := func() {
			answer, err := http.ReadResponse(answers, nil)
			if err != nil || answer.StatusCode != http.StatusOK {
				t.Fatal(answer, err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		send("POST", locks+"own/leases", fmt.Sprintf(`{"lease_id":"a%d","owner":{"id":"o"},"ttl_ms":60000}`, i))
		answered()
		send("DELETE", locks+"own/leases/"+lokt.PublicID(fmt.Sprint("a", i)), "")
		answered()
		wait[i] = func() {
			send("POST", locks+"x/leases", fmt.Sprintf(`{"lease_id":"b%d","owner":{"id":"o%d"},"ttl_ms":60000,"wait_ms":30000}`, i, i))
		}
	}
	for _, begin := range wait { // soon after each other, for none waits longer than 30 s
		begin()
	}
	eventually(t, "all of them wait", func() bool {
		queued, _ := a.metric(t, `lokt_lock_queue_length{name="x"}`)
		return queued == n
	})
	stacksNow, heapNow := kept()
	if s, h := (stacksNow-stacks)/n, (heapNow-heap)/n; s > mostStacks || h > mostHeap {
		t.Errorf("each of %d requests that wait keeps %.0f bytes of stacks and %.0f of the heap", n, s, h)
	}
	p.stop()
}

// Promise S-101.
func TestMoreRequestsThanMayWaitAreAnsweredAtOnce(t *testing.T) {
	p := start(t, "--store", "memory:", "--max-parked", "3", "--max-body", "8K")
	a := p.api()
	wait := body{"worker_id": "w", "wait_ms": 30_000}
	var over atomic.Int32 // requests that have waited in vain
	for range 3 {
		go func() {
			for {
				if _, err := a.try("POST", scheduler+"/leases/request", wait); err != nil {
					return // the daemon has ended
				}
				over.Add(1)
			}
		}()
	}
	eventually(t, "a fourth is answered while three wait", func() bool {
		eventually(t, "three wait", func() bool {
			n, _ := a.metric(t, `lokt_scheduler_parked{kind="lease"}`)
			return n == 3
		})
		before, begun := over.Load(), time.Now()
		ans, err := a.try("POST", scheduler+"/leases/request", wait)
		if err != nil || ans.status != http.StatusOK || ans.text("denied") != "true" {
			t.Fatalf("the fourth was answered with %d %s, %v", ans.status, ans.body, err)
		}
		return time.Since(begun) < 25*time.Second && over.Load() == before
	})
	a.do(t, http.StatusRequestEntityTooLarge, "POST", scheduler+"/jobs", body{"payload": body{"x": strings.Repeat("x", 9000)}})
	a.do(t, http.StatusBadRequest, "POST", locks+"x/leases", body{"owner": body{"id": "a"}, "metadata": body{"x": strings.Repeat("x", 5000)}})
	a.do(t, http.StatusOK, "POST", scheduler+"/jobs", body{})
	p.stop()
}

// Promise S-101.
func TestGarbageLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	p := start(t, "--store", "memory:", "--log-level", "error")
	a := p.api()
	big := strings.Repeat("x", 40_000)
	deep := strings.Repeat("[", 100_000)
	throw := func(i int) {
		name := fmt.Sprint("n", rand.Uint64())
		switch i % 12 {
		case 0, 1:
			c, err := net.Dial("tcp", p.address())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			b := make([]byte, 200+rand.IntN(2000))
			for j := range b {
				b[j] = byte(rand.Uint32())
			}
			if i%12 == 1 {
				b = append([]byte("POST /v1/locks/x/leases HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"), b...)
			}
			_, _ = c.Write(b)
			_ = c.(*net.TCPConn).CloseWrite()
			_ = c.SetReadDeadline(time.Now().Add(patience))
			_, _ = io.Copy(io.Discard, c)
		case 2:
			_, _ = a.try("GET", "/"+name, nil)
		case 3:
			_, _ = a.try("GET", "/v1/locks/"+name, nil)
		case 4:
			_, _ = a.try("GET", scheduler+"/jobs/"+name, nil)
		case 5:
			_, _ = a.try("DELETE", "/v1/locks/"+name+"/leases?owner=x", nil)
		case 6:
			_, _ = a.try(strings.ToUpper(name), "/v1/locks", nil)
		case 7:
			_, _ = a.try("POST", scheduler+"/leases/"+name+"/heartbeat", body{"worker_id": name})
		case 8:
			_, _ = a.try("POST", scheduler+"/jobs", body{"type": 1, name: deep[:100]})
		default:
			r, err := http.NewRequest(http.MethodPost, p.url+scheduler+"/jobs", bytes.NewReader([]byte(deep[:rand.IntN(len(deep))])))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("X-Request-Id", name)
			if i%12 == 9 {
				r.Header.Set("Authorization", "Bearer "+name)
			}
			if i%240 == 10 {
				r.Header.Set("X-Big", big)
			}
			resp, err := a.client.Do(r)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}
	}
	many := func(n int) {
		var crew sync.WaitGroup
		for w := range 4 {
			crew.Go(func() {
				for i := w; i < n; i += 4 {
					throw(i / 4)
				}
			})
		}
		crew.Wait()
	}
	size := func() float64 {
		a.client.CloseIdleConnections()
		heap, _ := a.metric(t, "go_memstats_heap_inuse_bytes")
		stacks, _ := a.metric(t, "go_memstats_stack_inuse_bytes")
		return (heap + stacks) / (1 << 20)
	}
	first, more := 1000, 4000
	if os.Getenv("LOKT_SOAK") != "" {
		first, more = 3000, 10_000
	}
	many(first)
	before := size()
	many(more)
	after := size()
	for range 5 { // it may just not have been collected yet
		if after <= before+24 {
			break
		}
		many(1000)
		after = min(after, size())
	}
	t.Logf("%.1f MiB before, %.1f MiB after", before, after)
	if after > before+24 {
		t.Errorf("memory grew from %.1f to %.1f MiB", before, after)
	}
	text := a.metrics(t)
	if n := strings.Count(text, "\n"); n > 3000 {
		t.Errorf("there are %d lines of metrics", n)
	}
	eventually(t, "few goroutines are left", func() bool {
		n, ok := a.metric(t, "go_goroutines")
		return ok && n <= 100
	})
	if n, _ := a.metric(t, `lokt_http_requests_total{route="none",status="404"}`); n == 0 {
		t.Error("requests without a route are not counted")
	}
	a.do(t, http.StatusOK, "POST", scheduler+"/jobs", body{})
	p.stop()
	if strings.Contains(p.log.String(), "panic") {
		t.Errorf("the log:\n%s", p.log)
	}
}
