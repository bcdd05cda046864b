package httpapi_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Promise S-101.
func TestLargeAnswersThatNobodyTakesInDoNotFillTheMemory(t *testing.T) {
	store := memstore.New()
	err := store.Update(t.Context(), "fat", func(s lokt.Snapshot) lokt.Change {
		l := s.Lock
		for i := range 3000 {
			l.Token++
			l.Holders = append(l.Holders, lokt.Holder{Token: l.Token, HeldSince: s.Now, AcquiredAt: s.Now, Claim: lokt.Claim{
				Name: "fat", LeaseID: fmt.Sprint("lease-", i), Owner: ci, Metadata: map[string]string{"k": strings.Repeat("m", lokt.MaxMetadata-1)},
			}})
		}
		return lokt.Change{Lock: l}
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(store)}))
	defer server.Close()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	ask := func(request string) net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
		fmt.Fprint(conn, request)
		return conn
	}
	status := func(conn net.Conn) int {
		answer, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil) //nolint:bodyclose // the connection is closed
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode // the body stays where it is
	}
	const get = "GET /v1/locks/fat HTTP/1.1\r\nHost: x\r\n\r\n"
	answered := 0
	for answered < 100 && status(ask(get)) == http.StatusOK {
		answered++
	}
	if answered < 2 || answered > 10 {
		t.Errorf("%d answers of 12 MB each are being sent", answered)
	}
	claim := `{"owner":{"id":"other"}}`
	if got := status(ask(fmt.Sprintf("POST /v1/locks/fat/leases HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(claim), claim))); got != http.StatusConflict {
		t.Errorf("a claim is answered with %d", got)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	for begun := time.Now(); status(ask(get)) != http.StatusOK; {
		if time.Since(begun) > 2*time.Minute {
			t.Fatal("nobody is answered any more")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
