package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// slowWriter stands still after a short deadline was set, as a machine does that has too much to do.
type slowWriter struct{ http.ResponseWriter }

func (w slowWriter) SetReadDeadline(at time.Time) error {
	err := http.NewResponseController(w.ResponseWriter).SetReadDeadline(at)
	if !at.IsZero() && time.Until(at) < time.Second {
		time.Sleep(time.Until(at) + 100*time.Millisecond)
	}
	return err
}

// A refusal leaves no deadline behind by which a later request of the same connection is taken for one whose client is gone.
func TestConnectionGoesOnAfterARefusal(t *testing.T) {
	h := httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New())})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(slowWriter{w}, r) }))
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	answers := bufio.NewReader(c)
	ask := func(method, path, body string) (int, bool) {
		_, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
		if err != nil {
			t.Fatal(err)
		}
		a, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.Body.Close() }()
		_, _ = io.Copy(io.Discard, a.Body)
		return a.StatusCode, a.Close
	}
	claim := `{"lease_id":"%s","owner":{"id":"%s"},"strict":true,"ttl_ms":600000}`
	if status, _ := ask("POST", "/v1/locks/x/leases", fmt.Sprintf(claim, "one", "a")); status != http.StatusOK {
		t.Fatalf("the first claim was answered with %d", status)
	}
	for range 2 {
		if status, closed := ask("POST", "/v1/locks/x/leases", fmt.Sprintf(claim, "two", "b")); status != http.StatusConflict || closed {
			t.Fatalf("the second claim was answered with %d, and the connection closed: %v", status, closed)
		}
	}
	if status, _ := ask("POST", "/v1/locks/y/leases", fmt.Sprintf(claim, "three", "b")); status != http.StatusOK {
		t.Fatalf("a claim after refusals was answered with %d", status)
	}
}
