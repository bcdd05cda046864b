//go:build unix

package replicas_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// startReplicas starts daemons that share a PostgreSQL.
func startReplicas(t *testing.T, pg *servers.Postgres, n int) (all []*replica) {
	t.Helper()
	if err := pg.Exec("CREATE SCHEMA lokt"); err != nil {
		t.Fatal(err)
	}
	for range n {
		all = append(all, startReplica(t, []string{pg.Addr}, func(a []string) []string { return []string{"--store", pg.URL(a[0], "lokt")} }))
	}
	return all
}

// call makes a request of a replica and returns the answer, which must be 200.
func call(t *testing.T, r *replica, method, path, body string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.front.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d %s, %v", method, path, a.StatusCode, text, err)
	}
	return string(text)
}
