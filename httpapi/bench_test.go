package httpapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
)

// BenchmarkBareExchange is what the others are to be compared with: net/http alone, with a handler that decodes a renewal's
// body and answers with the same JSON.
func BenchmarkBareExchange(b *testing.B) {
	answer := map[string]any{}
	w := httptest.NewRecorder()
	handler := httpapi.NewHandler(memory())
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/locks/x/leases", strings.NewReader(`{"lease_id":"l","owner":{"id":"a","host":"h"},"ttl_ms":60000}`)))
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Owner struct{ ID, Host string }
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r, err := http.NewRequest(http.MethodPut, server.URL+"/v1/locks/x/leases/l", strings.NewReader(`{"owner":{"id":"a","host":"h"}}`))
			if err != nil {
				b.Fatal(err)
			}
			resp, err := client.Do(r)
			if err != nil {
				b.Fatal(err)
			}
			var answer map[string]jsontext.Value
			if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
}

func benchmarkClient(b *testing.B) *httpapi.Client {
	b.Helper()
	server := httptest.NewServer(httpapi.NewHandler(memory()))
	b.Cleanup(server.Close)
	client, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return client
}

func BenchmarkRenew(b *testing.B) {
	client := benchmarkClient(b)
	owner := lokt.Owner{ID: "a", Host: "h"}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		id := lokt.NewLeaseID()
		if _, err := client.Acquire(b.Context(), lokt.Claim{Name: "lock-" + id, LeaseID: id, Owner: owner, TTL: time.Hour}); err != nil {
			b.Fatal(err)
		}
		for pb.Next() {
			if _, err := client.Renew(b.Context(), lokt.Renewal{Name: "lock-" + id, LeaseID: id, Owner: &owner}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAcquireAndRelease(b *testing.B) {
	client := benchmarkClient(b)
	owner := lokt.Owner{ID: "a", Host: "h"}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		name := "lock-" + lokt.NewLeaseID()
		for pb.Next() {
			h, err := client.Acquire(b.Context(), lokt.Claim{Name: name, Owner: owner, TTL: time.Hour})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := client.Release(b.Context(), lokt.Target{Name: name, LeaseID: h.LeaseID, Owner: owner}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
