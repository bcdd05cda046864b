package httpapi_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/store/memstore"
)

// wire is a network of one server, in memory.
type wire struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newWire() *wire { return &wire{conns: make(chan net.Conn), done: make(chan struct{})} }

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error   { w.once.Do(func() { close(w.done) }); return nil }
func (w *wire) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case w.conns <- far:
		return near, nil
	case <-w.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fromAfar returns a client of a server of the jobs, over connections in memory.
func fromAfar(t *testing.T, s jobs.Service) *httpapi.JobsClient {
	t.Helper()
	w := newWire()
	server := &http.Server{Handler: httpapi.NewHandler(httpapi.Config{Jobs: s})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(w)
	}()
	transport := &http.Transport{DialContext: w.dial, MaxIdleConnsPerHost: 100}
	c, err := httpapi.NewJobs("http://memory", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
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
		m, err := jobs.Open(t.Context(), memstore.NewJobs(), jobs.Options{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return fromAfar(t, m)
	})
}
