package httpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Promise S-72.
func TestWhoSendsABodyTooSlowlyIsAnswered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, request string
		limit         time.Duration
		status        int
		says          string
	}{
		{"a lock", "POST /v1/locks/x/leases", 50 * time.Millisecond, 400, "body did not arrive in time"},
		{"a job", "POST /api/system/scheduler/jobs", 50 * time.Millisecond, 422, "the body could not be read to its end"},
		{"no route", "POST /nowhere", time.Hour, 404, "no_route"},
		{"no route of the scheduler", "POST /api/system/scheduler/nowhere", time.Hour, 404, "not_found"},
		{"no method", "PATCH /v1/locks", time.Hour, 405, "method_not_allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, func(_ *manager.Options, config *httpapi.Config) {
				config.Locks, config.Limits.Request = lokt.NewManager(memstore.New()), c.limit
			})
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{", c.request)
			_ = conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			body, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != c.status || !strings.Contains(string(body), c.says) || strings.Contains(string(body), "127.0.0.1") {
				t.Errorf("%d %s, %v", answer.StatusCode, body, err)
			}
		})
	}
}

func TestABodyIsNotRepeatedAtLength(t *testing.T) {
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New())}))
	defer server.Close()
	for _, body := range []string{`{"owner":{"id":"a"},"ttl_ms":` + strings.Repeat("9", 1<<19) + `}`, `{"` + strings.Repeat("é", 1<<18) + `":1}`} {
		answer, err := http.Post(server.URL+"/v1/locks/x/leases", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusBadRequest || len(text) > 2000 || !json.Valid(text) {
			t.Errorf("%d, %d bytes: %.300s, %v", answer.StatusCode, len(text), text, err)
		}
	}
}
