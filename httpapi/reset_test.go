package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// answeredKey finds in a request's context how many requests of its connection were answered.
type answeredKey struct{}

// onceEach serves, but resets a connection with the second request that comes over it, as a server does that ends at this moment. It counts the
// resets.
func onceEach(t *testing.T, handler http.Handler) (url string, resets *atomic.Int32) {
	t.Helper()
	resets = new(atomic.Int32)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(answeredKey{}).(*atomic.Int32).Add(1) == 1 {
			handler.ServeHTTP(w, r)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		resets.Add(1)
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}))
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, answeredKey{}, new(atomic.Int32))
	}
	server.Start()
	t.Cleanup(server.Close)
	return server.URL, resets
}

// Promises S-69, S-84.
func TestARequestOverAConnectionThatTheServerEndsAtThatMomentIsMadeAgain(t *testing.T) {
	t.Parallel()
	m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	url, resets := onceEach(t, httpapi.NewHandler(httpapi.Config{Jobs: m, Locks: lokt.NewManager(memstore.New())}))
	both, err := httpapi.New(url, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	worker := both.Jobs()
	client, err := httpapi.New(url, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := worker.Status(ctx); err != nil { // from here on there is a connection
		t.Fatal(err)
	}
	if _, err := client.Get(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	var lease jobs.Lease
	owner := lokt.Owner{ID: "a"}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"submit", func() error {
			keyed := jobs.NewSpec()
			keyed.IdempotencyKey = "k"
			_, err := worker.Submit(ctx, []jobs.Spec{keyed})
			return err
		}},
		{"ask", func() error {
			g, err := worker.Request(ctx, jobs.Request{WorkerID: "w"})
			if lease = g.Lease; err == nil && g.Denied != nil {
				err = errors.New(g.Denied.Reason)
			}
			return err
		}},
		{"beat", func() error {
			_, err := worker.Heartbeat(ctx, jobs.Heartbeat{LeaseID: lease.ID, WorkerID: "w"})
			return err
		}},
		{"beat all", func() error {
			all, err := worker.HeartbeatAll(ctx, "w", []string{lease.ID})
			if err == nil {
				err = all[0].Err
			}
			return err
		}},
		{"report", func() error {
			return worker.Report(ctx, jobs.Progress{LeaseID: lease.ID, WorkerID: "w", Message: new(string)})
		}},
		{"complete", func() error {
			applied, err := worker.Complete(ctx, jobs.Completion{LeaseID: lease.ID, WorkerID: "w", Status: jobs.Completed})
			if err == nil && !applied {
				err = errors.New("it changed nothing")
			}
			return err
		}},
		{"acquire", func() error {
			_, err := client.Acquire(ctx, lokt.Claim{Name: "x", LeaseID: "mine", Owner: owner, TTL: time.Minute})
			return err
		}},
		{"renew", func() error {
			_, err := client.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "mine"})
			return err
		}},
		{"release", func() error {
			_, err := client.Release(ctx, lokt.Target{Name: "x", LeaseID: "mine", Owner: owner})
			return err
		}},
		{"freeze", func() error {
			_, err := client.Freeze(ctx, "x", lokt.Freeze{Owner: owner, TTL: time.Minute})
			return err
		}},
		{"unfreeze", func() error {
			_, err := client.Unfreeze(ctx, lokt.Target{Name: "x", Owner: owner})
			return err
		}},
	} {
		before := resets.Load()
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if resets.Load() == before {
			t.Errorf("%s: no connection was reset", step.name)
		}
	}
	if _, err := worker.Submit(ctx, []jobs.Spec{jobs.NewSpec()}); !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("a job without a key, which may be there already: %v", err)
	}
	s, err := m.List(ctx, jobs.Filter{})
	if err != nil || len(s.Jobs) != 1 {
		t.Errorf("there are %d jobs, %v", len(s.Jobs), err)
	}
}

// Promise S-84.
func TestAListInWhichAJobHasNoKeyIsNotSentAgainWhenItMayBeQueued(t *testing.T) {
	var sent atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		sent.Add(1)
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	client, err := httpapi.New(server.URL, httpapi.ClientOptions{Patience: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	keyed, other := jobs.NewSpec(), jobs.NewSpec()
	keyed.IdempotencyKey = "k"
	_, err = client.Jobs().Submit(t.Context(), []jobs.Spec{keyed, other})
	if n := sent.Swap(0); n != 1 || !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "with an idempotency key for each that is safe") {
		t.Errorf("sent %d times: %v", n, err)
	}
	_, err = client.Jobs().Submit(t.Context(), []jobs.Spec{keyed, keyed})
	if n := sent.Load(); n < 2 || !errors.Is(err, lokt.ErrUnavailable) || strings.Contains(err.Error(), "key") {
		t.Errorf("sent %d times: %v", n, err)
	}
}

// Who sends all before it reads, as Python's client does, hears that it was too much.
func TestABodyThatIsMuchTooLargeIsAnswered(t *testing.T) {
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New())}))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 64 << 20
	if _, err := fmt.Fprintf(conn, "POST /v1/locks/x/leases HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", size); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("the answer is %s", answer.Status)
	}
}

func TestABodyThatIsNotNeededIsNotAskedFor(t *testing.T) {
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New())}))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40000000\r\nExpect: 100-continue\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusNotFound || !answer.Close {
		t.Errorf("%s, and the connection ends: %v", answer.Status, answer.Close)
	}
}
