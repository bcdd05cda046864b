package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/jobs/worker"
	"github.com/lokt-dev/lokt/store/memstore"
)

// fromAfar returns a client of a server of the jobs, over connections in memory.
func fromAfar(t *testing.T, s jobs.Service) *httpapi.JobsClient {
	t.Helper()
	w := newPipeListener()
	server := &http.Server{Handler: httpapi.NewHandler(httpapi.Config{Jobs: s})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(w)
	}()
	transport := &http.Transport{DialContext: w.dial, MaxIdleConnsPerHost: 100}
	both, err := httpapi.New("http://memory", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	c := both.Jobs()
	t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		<-served
	})
	return c
}

// Promise S-84.
func TestJobsClientKeepsEveryPromiseOfTheService(t *testing.T) {
	jobstest.TestService(t, func(t *testing.T, c jobs.Config) jobs.Service {
		m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return fromAfar(t, m)
	})
}

// lossyNetwork loses requests and answers on purpose.
type lossyNetwork struct {
	http.RoundTripper
	mu   sync.Mutex
	rand *rand.Rand
	lost int // requests that were carried out and whose answers were lost
}

var errReset = errors.New("connection reset by peer")

func (n *lossyNetwork) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	fate := n.rand.IntN(6)
	n.mu.Unlock()
	if fate == 0 {
		return nil, errReset // on the way there
	}
	answer, err := n.RoundTripper.RoundTrip(r)
	if err != nil || fate > 2 {
		return answer, err
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost++
	return nil, errReset // on the way back
}

// Promise S-84.
func TestJobsAreDoneOnceOverABadNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		l := newPipeListener()
		server := &http.Server{Handler: httpapi.NewHandler(httpapi.Config{Jobs: m}), ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		transport := &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 100}
		defer transport.CloseIdleConnections()
		network := &lossyNetwork{RoundTripper: transport, rand: rand.New(rand.NewPCG(5, 6))}
		both, err := httpapi.New("http://a,http://b", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: network}, Patience: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		c := both.Jobs()
		const n = 60
		for i := range n {
			spec := jobs.NewSpec()
			spec.IdempotencyKey = fmt.Sprint("k", i)
			if r, err := c.Submit(t.Context(), []jobs.Spec{spec}); err != nil || len(r) != 1 {
				t.Fatalf("submit: %v, %v", r, err)
			}
		}
		var mu sync.Mutex
		done := map[string]int{}
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				worker := fmt.Sprint("w", i)
				for {
					g, err := c.Request(t.Context(), jobs.Request{WorkerID: worker})
					if err != nil {
						t.Errorf("ask: %v", err)
						return
					}
					if g.Denied != nil {
						return
					}
					mu.Lock()
					done[g.Job.ID]++
					mu.Unlock()
					if _, err := c.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: worker}); err != nil {
						t.Errorf("heartbeat: %v", err)
					}
					if _, err := c.Complete(t.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: worker, Status: jobs.Completed}); err != nil {
						t.Errorf("completion: %v", err)
					}
				}
			})
		}
		wg.Wait()
		s, err := m.Stats(t.Context(), 1)
		if err != nil || s.Total != n || s.ByState[jobs.Completed] != n {
			t.Errorf("ended are %+v, %v", s, err)
		}
		for id, times := range done {
			if times != 1 {
				t.Errorf("job %s was granted %d times", id, times)
			}
		}
		if status, err := m.Status(t.Context()); err != nil || status.ActiveLeases != 0 || len(done) != n || network.lost < n/2 {
			t.Errorf("afterwards there is %+v, %v; %d jobs were done, %d answers lost", status, err, len(done), network.lost)
		}

		// Without a key, a job is not submitted again when it may have arrived.
		before := network.lost
		for range 50 {
			r, err := c.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()})
			if err != nil && (!errors.Is(err, lokt.ErrUnavailable) || r != nil) {
				t.Errorf("submit: %v, %v", r, err)
			}
		}
		status, err := m.Status(t.Context())
		if err != nil || status.Queue.Sum() > 50 || network.lost == before {
			t.Errorf("50 jobs without a key became %d, %v", status.Queue.Sum(), err)
		}
	})
}

func TestAskThatIsGivenUpReturnsTheGrantThatCameFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		c := fromAfar(t, m)
		ctx, cancel := context.WithCancel(t.Context())
		// The worker gives up at the very moment at which it is granted a job.
		if _, err := m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); err != nil {
			t.Fatal(err)
		}
		if g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w", RequestID: "r"}); err != nil || g.Denied != nil {
			t.Fatal(g, err)
		}
		time.AfterFunc(time.Second, cancel)
		g, err := c.Request(ctx, jobs.Request{WorkerID: "w", RequestID: "r", Wait: 10 * time.Second})
		if err != nil || g.Lease.WorkerID != "w" {
			t.Errorf("answered with %+v, %v", g, err)
		}
		time.Sleep(time.Minute)
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		other := jobs.NewSpec()
		other.Type = "other"
		if _, err := m.Submit(t.Context(), []jobs.Spec{other}); err != nil {
			t.Fatal(err)
		}
		if g, err := c.Request(ctx, jobs.Request{WorkerID: "w", RequestID: "s", Types: []string{"mine"}, Wait: 10 * time.Second}); !errors.Is(err, context.Canceled) {
			t.Errorf("answered with %+v, %v", g, err)
		}
		if _, err := m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); err != nil {
			t.Fatal(err)
		}
		if s, err := m.Status(t.Context()); err != nil || s.Queue.Sum() != 2 {
			t.Errorf("a request that was given up was granted a job: %+v, %v", s, err)
		}
	})
}

// A worker that does not know of ErrBodyTooLarge must not offer the same result for ever.
func TestAResultThatIsTooLargeForTheServerFailsTheJob(t *testing.T) {
	s := newSite(t, func(_ *manager.Options, config *httpapi.Config) { config.Limits.Body = 1000 })
	both, err := httpapi.New(s.url, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := both.Jobs()
	spec := jobs.NewSpec()
	spec.Type = "x"
	r, err := c.Submit(t.Context(), []jobs.Spec{spec})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := worker.NewWorker(c, func(context.Context, *worker.Run) (any, error) {
		cancel() // the last job that it takes
		return strings.Repeat("x", 2000), nil
	}, worker.WorkerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	giveUp := time.AfterFunc(time.Minute, w.Stop)
	defer giveUp.Stop()
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if v, err := c.Get(t.Context(), r[0].JobID); err != nil || v.Job.State != jobs.Failed || !strings.Contains(string(v.Job.Output.Error), "too large") {
		t.Errorf("the job is %+v, %v", v.Job, err)
	}
}

func TestJobsClientTellsErrorsApart(t *testing.T) {
	answer := func(w http.ResponseWriter, status int, body string) {
		w.Header().Set("Content-Type", "application/json")
		if status == http.StatusForbidden {
			w.Header().Set("Lokt-Reason", "of the scope")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
	for _, test := range []struct {
		status int
		body   string
		want   []error
	}{
		{401, `{"detail":"unauthenticated"}`, []error{httpapi.ErrUnauthenticated}},
		{403, `{"detail":"forbidden"}`, []error{httpapi.ErrForbidden}},
		{403, `{"detail":"worker_mismatch"}`, []error{jobs.ErrWorkerMismatch}},
		{404, `{"detail":"lease_not_found"}`, []error{jobs.ErrLeaseNotFound}},
		{404, `{"detail":"not_found"}`, []error{lokt.ErrUnavailable}},
		{409, `{"detail":"idempotency_conflict"}`, []error{jobs.ErrConflict}},
		{413, `{"detail":"body_too_large"}`, []error{httpapi.ErrBodyTooLarge, lokt.ErrInvalid}},
		{422, `{"detail":[{"type":"missing","loc":["body","worker_id"],"msg":"Field required"}]}`, []error{lokt.ErrInvalid}},
		{429, `{"detail":"rate_limited"}`, []error{httpapi.ErrRateLimited}},
		{503, `{"detail":"unavailable"}`, []error{lokt.ErrUnavailable}},
		{502, `<html>bad gateway</html>`, []error{lokt.ErrUnavailable}},
		{404, `<html>not found</html>`, []error{lokt.ErrUnavailable}},
		{200, `<html>welcome</html>`, []error{lokt.ErrUnavailable}},
		{200, `{"denied":true,"code":"unavailable","reason":"the disk is full","retry_after_ms":5000}`, []error{lokt.ErrUnavailable}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("a request has the header %v", r.Header)
			}
			answer(w, test.status, test.body)
		}))
		both, err := httpapi.New(server.URL, httpapi.ClientOptions{Token: "secret", Patience: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		c := both.Jobs()
		_, err = c.Request(t.Context(), jobs.Request{WorkerID: "w"})
		for _, want := range test.want {
			if !errors.Is(err, want) {
				t.Errorf("%d %s is %v, not %v", test.status, test.body, err, want)
			}
		}
		if test.status == 503 && !httpapi.Answered(err) {
			t.Errorf("%v is not told from a server that is not there", err)
		}
		if errors.Is(err, httpapi.ErrForbidden) && !strings.Contains(err.Error(), "of the scope") {
			t.Errorf("%v does not say why", err)
		}
		if errors.Is(err, lokt.ErrUnavailable) && !strings.Contains(err.Error(), server.URL) {
			t.Errorf("%v does not name the server", err)
		}
		_ = c.Close()
		server.Close()
	}
}

func TestParkedHeartbeatOfARevokedLeaseSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		c := fromAfar(t, m)
		if _, err := c.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); err != nil {
			t.Fatal(err)
		}
		g, err := c.Request(t.Context(), jobs.Request{WorkerID: "w"})
		if err != nil || g.Denied != nil {
			t.Fatal(g, err)
		}
		told := make(chan error)
		go func() {
			_, err := c.Heartbeat(t.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w", Wait: jobs.MaxWait})
			told <- err
		}()
		time.Sleep(time.Second)
		if err := c.Revoke(t.Context(), g.Lease.ID, "off with it"); err != nil {
			t.Fatal(err)
		}
		if err := <-told; !errors.Is(err, jobs.ErrRevoked) || jobs.Code(err) != "lease_not_found" {
			t.Errorf("the worker is told %v", err)
		}
	})
}
