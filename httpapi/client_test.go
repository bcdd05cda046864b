package httpapi_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/lokttest"
	"github.com/lokt-dev/lokt/store/memstore"
)

// pipeListener is a network of its own: what dials is accepted, without a system call, so that it works in bubbles.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inBubble returns a client of a server of its own over pipes.
func inBubble(t *testing.T, c httpapi.Config) *httpapi.Client {
	t.Helper()
	l := newPipeListener()
	server := &http.Server{Handler: httpapi.NewHandler(c), ReadHeaderTimeout: time.Minute}
	go server.Serve(l) //nolint:errcheck // it ends with the test
	transport := &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 64}
	client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		synctest.Wait() // for claims that the end of the test cancels to be taken back
		transport.CloseIdleConnections()
		server.Close() //nolint:errcheck // it ends with the test
	})
	return client
}

// onLoopback returns a client of a server of its own on this host.
func onLoopback(t *testing.T, c httpapi.Config) *httpapi.Client {
	t.Helper()
	server := httptest.NewServer(httpapi.NewHandler(c))
	t.Cleanup(server.Close)
	client, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() }) //nolint:errcheck // it returns none
	return client
}

func memory() httpapi.Config { return httpapi.Config{Locks: lokt.NewManager(memstore.New())} }

// Promise S-67.
func TestClientKeepsEveryPromiseOfAService(t *testing.T) {
	t.Parallel()
	lokttest.TestService(t, func(t *testing.T) lokt.Service { return inBubble(t, memory()) })
}

// Promise S-67.
func TestClientKeepsItsPromisesInRealTime(t *testing.T) {
	t.Parallel()
	lokttest.TestServiceInRealTime(t, func(t *testing.T) lokt.Service { return onLoopback(t, memory()) })
}

func itoa(n int) string { return strconv.Itoa(n) }

// Promise S-67.
func TestCircleOfShortClaimsIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := inBubble(t, memory())
		claim := func(name, who string, ttl, wait time.Duration, within ...string) lokt.Claim {
			return lokt.Claim{Name: name, LeaseID: name + "-" + who, Owner: lokt.Owner{ID: who}, TTL: ttl, Wait: wait, Within: within}
		}
		for name, who := range map[string]string{"x": "a", "y": "b"} {
			if _, err := client.Acquire(t.Context(), claim(name, who, time.Hour, 0)); err != nil {
				t.Fatal(err)
			}
		}
		failed := make(chan error, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for name, who := range map[string]string{"x": "b", "y": "a"} {
			go func() {
				_, err := client.Acquire(ctx, claim(name, who, time.Second, -1, map[string]string{"a": "x-a", "b": "y-b"}[who]))
				failed <- err
				cancel()
			}()
		}
		asked := time.Now()
		if err := <-failed; !errors.Is(err, lokt.ErrDeadlock) || time.Since(asked) > 10*time.Second {
			t.Errorf("after %v: %v", time.Since(asked), err)
		}
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("the other one: %v", err)
		}
	})
}

func TestAClaimThatIsCalledOffBeforeItIsAskedForSaysWhy(t *testing.T) {
	c, err := httpapi.New("http://127.0.0.1:1", httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, err := c.Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "ann"}, TTL: time.Minute}); !errors.Is(err, why) {
		t.Errorf("acquire gave %v", err)
	}
}

func TestClientSpeaksTLSAndShowsItsToken(t *testing.T) {
	var agents, tokens []string
	handler := httpapi.NewHandler(memory())
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agents, tokens = append(agents, r.UserAgent()), append(tokens, r.Header.Get("Authorization"))
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	for _, o := range []httpapi.ClientOptions{
		{TLS: &tls.Config{RootCAs: roots}, Token: "t-1", UserAgent: "tests"},
		{TLS: &tls.Config{RootCAs: roots}, Token: "t-1", TokenSource: func() (string, error) { return "t-2", nil }},
	} {
		client, err := httpapi.New(server.URL, o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get(t.Context(), "x"); err != nil {
			t.Error(err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(tokens, []string{"Bearer t-1", "Bearer t-2"}) || !slices.Equal(agents, []string{"tests", "lokt"}) {
		t.Errorf("the server saw %q of %q", tokens, agents)
	}
	client, err := httpapi.New(server.URL, httpapi.ClientOptions{Patience: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, Wait: -1}); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate that nobody vouches for: %v", err)
	}
}
