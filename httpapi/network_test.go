package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/lokttest"
	"github.com/lokt-dev/lokt/store/memstore"
)

// daemon is a server in a bubble that can be stopped and started again over the same store.
type daemon struct {
	config httpapi.Config
	mu     sync.Mutex
	stop   context.CancelFunc
	l      *pipeListener
	server *http.Server
}

func (d *daemon) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	config := d.config
	config.Stop, d.stop = context.WithCancel(context.Background())
	d.l = newPipeListener()
	d.server = &http.Server{Handler: httpapi.NewHandler(config), ReadHeaderTimeout: time.Minute}
	go d.server.Serve(d.l) //nolint:errcheck // it ends with the test
}

// halt stops the server: at once and without a word, or with the notice that a signal gives it.
func (d *daemon) halt(gracefully bool) {
	d.mu.Lock()
	stop, server, l := d.stop, d.server, d.l
	d.mu.Unlock() // in a bubble nobody may wait for a mutex while its holder waits for time to pass
	if gracefully {
		stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(ctx)
	}
	_ = server.Close()
	_ = l.Close()
}

func (d *daemon) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d.mu.Lock()
	l := d.l
	d.mu.Unlock()
	return l.dial(ctx, network, addr)
}

// badNetwork is a RoundTripper that delays, loses and repeats requests, and loses answers after the server has acted.
type badNetwork struct {
	http.RoundTripper
	mu     sync.Mutex
	random *rand.Rand
	lost   atomic.Int32 // answers
}

var errLost = errors.New("lost on the way")

func (n *badNetwork) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	before, after := time.Duration(n.random.IntN(20))*time.Millisecond, time.Duration(n.random.IntN(20))*time.Millisecond
	fate := n.random.IntN(20)
	n.mu.Unlock()
	time.Sleep(before)
	switch fate {
	case 0: // the request is lost, and told to be
		return nil, errLost
	case 1: // the request is lost without a word
		<-r.Context().Done()
		return nil, r.Context().Err()
	case 2: // it arrives twice, the copy late
		if r.GetBody != nil {
			again := r.Clone(context.WithoutCancel(r.Context()))
			again.Body, _ = r.GetBody()
			go func() {
				time.Sleep(after)
				if resp, err := n.RoundTripper.RoundTrip(again); err == nil {
					_ = resp.Body.Close()
				}
			}()
		}
	}
	resp, err := n.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	time.Sleep(after)
	switch fate {
	case 3: // the answer is lost, and the connection with it
		n.lost.Add(1)
		return nil, errLost
	case 4: // it is cut off
		n.lost.Add(1)
		text = text[:len(text)/2]
	case 5: // it is lost without a word
		n.lost.Add(1)
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp, nil
}

// Promises S-69, S-70.
func TestHistoriesOverABadNetworkCanBeExplained(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		var r *lokttest.Recorder
		network := &badNetwork{random: rand.New(rand.NewPCG(seed, 1))}
		synctest.Test(t, func(t *testing.T) {
			d := &daemon{config: memory()}
			d.start()
			transport := &http.Transport{DialContext: d.dial, MaxIdleConnsPerHost: 64}
			network.RoundTripper = transport
			client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{
				HTTPClient: &http.Client{Transport: network}, Attempt: 500 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			r = lokttest.NewRecorder(client)
			over := make(chan struct{})
			restarted := make(chan int)
			go func() {
				restarts := 0
				for i := range 1000 {
					select {
					case <-over:
						restarted <- restarts
						return
					case <-time.After(7 * time.Second):
					}
					d.halt(i%2 == 0)
					time.Sleep(time.Duration(seed) * 150 * time.Millisecond)
					d.start()
					restarts++
				}
				restarted <- restarts
			}()
			lokttest.Exercise(t, r, 5, 12, 30*time.Second, seed)
			close(over)
			if n := <-restarted; n == 0 {
				t.Error("the server was never restarted")
			}
			d.halt(true)
			transport.CloseIdleConnections()
			time.Sleep(time.Minute) // for copies that are still under way
		})
		if err := r.Check(2 * time.Minute); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if network.lost.Load() == 0 {
			t.Errorf("seed %d: no answer was lost", seed)
		}
		t.Logf("seed %d: %d operations, %d answers lost", seed, r.Len(), network.lost.Load())
	}
}

// Promise S-70.
func TestWaitingClaimsKeepTheirPlacesOverARestart(t *testing.T) {
	for _, gracefully := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			d := &daemon{config: memory()}
			d.start()
			transport := &http.Transport{DialContext: d.dial, MaxIdleConnsPerHost: 64}
			client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: transport}})
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			h, err := client.Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			order := make(chan string, 3)
			var wg sync.WaitGroup
			for _, who := range []string{"b", "c", "d"} {
				wg.Go(func() {
					h, err := client.Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: who}, TTL: time.Hour, Wait: -1})
					if err != nil {
						t.Errorf("%s: %v", who, err)
						return
					}
					order <- who
					if _, err := client.Release(ctx, lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
						t.Errorf("%s: %v", who, err)
					}
				})
				time.Sleep(time.Second)
			}
			d.halt(gracefully)
			time.Sleep(4 * time.Second)
			d.start()
			time.Sleep(5 * time.Second)
			if _, err := client.Release(ctx, lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
				t.Error(err)
			}
			wg.Wait()
			close(order)
			got := ""
			for who := range order {
				got += who
			}
			if got != "bcd" {
				t.Errorf("granted in the order %s", got)
			}
			d.halt(true)
			transport.CloseIdleConnections()
		})
	}
}

// Promise S-70.
func TestHalfOpenConnectionIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var deaf atomic.Bool
		l := newPipeListener()
		server := &http.Server{Handler: httpapi.NewHandler(memory()), ReadHeaderTimeout: time.Minute}
		go server.Serve(l) //nolint:errcheck // it ends with the test
		transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if deaf.Load() {
				near, far := net.Pipe()
				go io.Copy(io.Discard, far) //nolint:errcheck // nobody answers
				return near, nil
			}
			return l.dial(ctx, network, addr)
		}}
		client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: transport}, Attempt: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		deaf.Store(true)
		go func() {
			time.Sleep(5 * time.Second)
			deaf.Store(false)
		}()
		asked := time.Now()
		if _, err := client.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "l", Owner: lokt.Owner{ID: "a"}, TTL: time.Hour}); err != nil {
			t.Error(err)
		}
		if took := time.Since(asked); took < 5*time.Second || took > 8*time.Second {
			t.Errorf("it took %v", took)
		}

		transport.CloseIdleConnections()
		deaf.Store(true)
		asked = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := client.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "l"}); !errors.Is(err, context.DeadlineExceeded) ||
			!errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "http://lokt.example") || time.Since(asked) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(asked), err)
		}
		asked = time.Now()
		_, err = client.Get(t.Context(), "x")
		if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "http://lokt.example") || time.Since(asked) > 10*time.Second {
			t.Errorf("after %v: %v", time.Since(asked), err)
		}
		transport.CloseIdleConnections()
		server.Close() //nolint:errcheck // it ends with the test
	})
}

// renewals counts what arrives.
type counting struct {
	http.Handler
	mu       sync.Mutex
	arrivals []time.Time
	fail     atomic.Bool
}

func (c *counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.arrivals = append(c.arrivals, time.Now())
	c.mu.Unlock()
	if c.fail.Load() {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	c.Handler.ServeHTTP(w, r)
}

// Promise S-70.
func TestRenewalIsNotSentAgainAfterItsContextEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := &counting{Handler: httpapi.NewHandler(memory())}
		l := newPipeListener()
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		go server.Serve(l) //nolint:errcheck // it ends with the test
		transport := &http.Transport{DialContext: l.dial}
		client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: transport}, Patience: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		handler.fail.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		end := time.Now().Add(3 * time.Second)
		if _, err := client.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "l"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		handler.mu.Lock()
		defer handler.mu.Unlock()
		if len(handler.arrivals) < 3 {
			t.Errorf("it was sent %d times", len(handler.arrivals))
		}
		for _, at := range handler.arrivals {
			if at.After(end) {
				t.Errorf("it was sent again %v after its end", at.Sub(end))
			}
		}
		transport.CloseIdleConnections()
		server.Close() //nolint:errcheck // it ends with the test
	})
}

// losing starts a server that carries every request out, and whose answer is lost where lose says so.
func losing(handler http.Handler, lose func(*http.Request) bool) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lose(r) {
			handler.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		handler.ServeHTTP(w, r)
	}))
}

// Promise S-266.
func TestWhoIsSentAwayAtItsLastRequestHearsSoThoughTheAnswerIsLost(t *testing.T) {
	t.Parallel()
	m := lokt.NewManager(memstore.New())
	handler := httpapi.NewHandler(httpapi.Config{Locks: m})
	claim := func(who string, wait time.Duration) lokt.Claim {
		return lokt.Claim{Name: "x", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: who}, TTL: time.Hour, Newest: true, Wait: wait}
	}
	queued := func() string {
		s, err := m.Get(t.Context(), "x")
		if err != nil || len(s.Lock.Queue) != 1 {
			t.Errorf("in the queue are %+v, %v", s.Lock.Queue, err)
			return ""
		}
		return s.Lock.Queue[0].Owner.ID
	}
	var newer sync.WaitGroup
	defer newer.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var lost atomic.Bool
	server := losing(handler, func(r *http.Request) bool {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(`"stay":true`)) || !lost.CompareAndSwap(false, true) {
			return false
		}
		newer.Go(func() { _, _ = m.Acquire(ctx, claim("c", -1)) })
		for queued() == "b" {
			time.Sleep(time.Millisecond)
		}
		return true
	})
	defer server.Close()
	client, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Acquire(ctx, claim("a", 0)); err != nil {
		t.Fatal(err)
	}
	var blocked *lokt.BlockedError
	if _, err := client.Acquire(ctx, claim("b", 3*time.Second)); !errors.As(err, &blocked) || blocked.Ousted != "c" || blocked.TimedOut != 0 || queued() != "c" {
		t.Errorf("b is told %v", err)
	}
}

// Promise S-69.
func TestReleaseWhoseAnswerWasLostSucceeds(t *testing.T) {
	handler := httpapi.NewHandler(memory())
	var lose atomic.Bool
	server := losing(handler, func(*http.Request) bool { return lose.CompareAndSwap(true, false) })
	defer server.Close()
	client, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	h, err := client.Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	lose.Store(true)
	if ended, err := client.Release(ctx, lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil || len(ended) != 1 || ended[0].Token != h.Token {
		t.Errorf("released %+v, %v", ended, err)
	}
	if _, err := client.Release(ctx, lokt.Target{Name: "x", LeaseID: h.LeaseID}); !errors.Is(err, lokt.ErrNotFound) {
		t.Errorf("a second release: %v", err)
	}
	if _, err := client.Freeze(ctx, "x", lokt.Freeze{Owner: lokt.Owner{ID: "a"}}); err != nil {
		t.Fatal(err)
	}
	lose.Store(true)
	if _, err := client.Unfreeze(ctx, lokt.Target{Name: "x", Owner: lokt.Owner{ID: "a"}}); !errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, lokt.ErrNotFound) {
		t.Errorf("an end of a freeze of which nobody can say whether it was there: %v", err)
	}
}

// Promise S-71.
func TestClaimThatWasTakenBackIsNotGrantedByALateCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		manager := lokt.NewManager(memstore.New())
		l := newPipeListener()
		server := &http.Server{Handler: httpapi.NewHandler(httpapi.Config{Locks: manager}), ReadHeaderTimeout: time.Minute}
		go server.Serve(l) //nolint:errcheck // it ends with the test
		transport := &http.Transport{DialContext: l.dial}
		late := make(chan *http.Request, 1)
		client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPost { // it is stuck on the way
				again := r.Clone(context.WithoutCancel(r.Context()))
				again.Body, _ = r.GetBody()
				late <- again
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return transport.RoundTrip(r)
		})}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := client.Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(<-late)
		if err != nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("the late copy is answered %+v, %v", resp, err)
		}
		_ = resp.Body.Close()
		if snap, err := manager.Get(t.Context(), "x"); err != nil || !snap.Lock.Free() {
			t.Errorf("left behind: %+v, %v", snap.Lock, err)
		}
		transport.CloseIdleConnections()
		server.Close() //nolint:errcheck // it ends with the test
	})
}

// Promises S-69, S-71.
func TestClaimWhoseHoldWasReleasedIsNotGrantedByALateCopy(t *testing.T) {
	manager := lokt.NewManager(memstore.New())
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: manager}))
	defer server.Close()
	var late *http.Request
	client, err := httpapi.New(server.URL, httpapi.ClientOptions{HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPost && late == nil {
			late = r.Clone(t.Context())
			late.Body, _ = r.GetBody()
		}
		return http.DefaultTransport.RoundTrip(r)
	})}})
	if err != nil {
		t.Fatal(err)
	}
	h, err := client.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(late)
	if err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Fatalf("the late copy is answered %+v, %v", resp, err)
	}
	_ = resp.Body.Close()
	if snap, err := manager.Get(t.Context(), "x"); err != nil || !snap.Lock.Free() {
		t.Errorf("left behind: %+v, %v", snap.Lock, err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Promise S-71.
func TestClaimOfAClientThatDiedLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		manager := lokt.NewManager(memstore.New())
		l := newPipeListener()
		status := make(chan int, 1)
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: httpapi.NewHandler(httpapi.Config{
			Locks: manager, Observe: func(r httpapi.Request) { status <- r.Status },
		})}
		go server.Serve(l) //nolint:errcheck // it ends with the test
		h, err := manager.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := l.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		body := `{"owner":{"id":"b"},"wait_ms":30000,"stay":true}`
		go io.Copy(io.Discard, conn) //nolint:errcheck // nothing comes
		if _, err := io.WriteString(conn, "POST /v1/locks/x/leases HTTP/1.1\r\nHost: lokt.example\r\nContent-Length: "+itoa(len(body))+"\r\n\r\n"+body); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if snap, err := manager.Get(t.Context(), "x"); err != nil || len(snap.Lock.Queue) != 1 {
			t.Fatalf("waiting: %+v, %v", snap.Lock.Queue, err)
		}
		died := time.Now()
		_ = conn.Close()
		if s := <-status; s != 499 || time.Since(died) != 0 {
			t.Errorf("after %v it was observed as %d", time.Since(died), s)
		}
		if snap, err := manager.Get(t.Context(), "x"); err != nil || len(snap.Lock.Queue) != 1 {
			t.Errorf("a client that may be about to ask again lost its place: %+v, %v", snap.Lock.Queue, err)
		}
		next, err := manager.Acquire(t.Context(), lokt.Claim{Name: "y", Owner: lokt.Owner{ID: "c"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := manager.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		next, err = manager.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: next.Owner, Wait: -1})
		if took := time.Since(died); err != nil || took > lokt.QueueTTL+time.Second {
			t.Errorf("the next was granted after %v: %+v, %v", took, next, err)
		}
		server.Close() //nolint:errcheck // it ends with the test
	})
}

// Promise S-70.
func TestClientFailsOverToAServerThatAnswers(t *testing.T) {
	config := memory()
	a, b := httptest.NewServer(httpapi.NewHandler(config)), httptest.NewServer(httpapi.NewHandler(config))
	defer b.Close()
	client, err := httpapi.New(a.URL+", "+b.URL, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := client.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if client.URL() != a.URL {
		t.Errorf("asks %s", client.URL())
	}
	a.Close()
	if _, err := client.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID}); err != nil || client.URL() != b.URL {
		t.Errorf("asks %s: %v", client.URL(), err)
	}
}

func TestURLsThatAreNoneAreRefused(t *testing.T) {
	for _, text := range []string{"", ",", "localhost:7117", "ftp://x", "http://", "http://x?y=1", "http://user:secret@[::1", "http://x,y"} {
		if _, err := httpapi.New(text, httpapi.ClientOptions{}); !errors.Is(err, lokt.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A request with such a token would be tried again and again, and reach nobody. An end of the line is left out, as variables have it.
func TestATokenThatNoHeaderCanHaveIsRefused(t *testing.T) {
	if _, err := httpapi.New("http://x", httpapi.ClientOptions{Token: "secret\nmore"}); !errors.Is(err, lokt.ErrInvalid) || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	var got atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got.Store(r.Header.Get("Authorization")) }))
	defer server.Close()
	client, err := httpapi.New(server.URL, httpapi.ClientOptions{Token: "secret\n"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _ = client.Get(t.Context(), "x"); got.Load() != "Bearer secret" {
		t.Errorf("the token arrives as %v", got.Load())
	}
}
