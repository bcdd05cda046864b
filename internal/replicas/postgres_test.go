//go:build unix

package replicas_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// shared is the PostgreSQL of tests that do it no harm.
var shared servers.Shared

// startReplicas starts daemons that share a schema of that PostgreSQL, as which they are known there.
func startReplicas(t *testing.T, n int, flags ...string) (all []*replica, schema string) {
	t.Helper()
	schema = shared.Schema(t)
	for range n {
		all = append(all, startReplica(t, []string{shared.Addr}, func(a []string) []string {
			return append([]string{"--store", shared.URL(a[0], schema) + "&application_name=" + schema + "."}, flags...)
		}))
	}
	return all, schema
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
