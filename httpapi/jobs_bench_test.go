package httpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Heartbeats over HTTP, beside a handler of net/http and encoding/json that decodes the same body and answers the same,
// and does nothing else. Run both in one run and compare:
//
//	go test ./httpapi -run '^$' -bench Heartbeat -count 6

// bare answers heartbeats without looking at them.
func bare() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+scheduler+"/leases/{lease_id}/heartbeat", func(w http.ResponseWriter, r *http.Request) {
		var beat struct {
			WorkerID string `json:"worker_id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&beat); err != nil || beat.WorkerID == "" || r.PathValue("lease_id") == "" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct {
			OK        bool    `json:"ok"`
			ExpiresAt string  `json:"expires_at"`
			Interval  float64 `json:"heartbeat_interval_s"`
		}{true, time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), 15})
	})
	return mux
}

// leases returns a handler over a manager with so many live leases of worker "w", and their IDs.
func leases(b testing.TB, n int) (http.Handler, []string) {
	b.Helper()
	m, err := manager.Open(b.Context(), memstore.NewJobs(), manager.Options{Config: jobs.Config{Total: n, TTL: time.Hour}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = m.Close() })
	specs := make([]jobs.Spec, min(n, jobs.MaxSubmit))
	for i := range specs {
		specs[i] = jobs.NewSpec()
	}
	ids := make([]string, 0, n)
	for len(ids) < n {
		if _, err := m.Submit(b.Context(), specs[:min(n-len(ids), len(specs))]); err != nil {
			b.Fatal(err)
		}
		for range specs[:min(n-len(ids), len(specs))] {
			g, err := m.Request(b.Context(), jobs.Request{WorkerID: "w"})
			if err != nil || g.Denied != nil {
				b.Fatal(g.Denied, err)
			}
			ids = append(ids, g.Lease.ID)
		}
	}
	for _, id := range ids {
		if _, err := m.Heartbeat(b.Context(), jobs.Heartbeat{LeaseID: id, WorkerID: "w"}); err != nil {
			b.Fatal(err)
		}
	}
	return httpapi.NewHandler(httpapi.Config{Jobs: m}), ids
}

// load sends requests over so many connections, as fast as they are answered, with next to no cost of its own.
func load(b *testing.B, h http.Handler, connections int, request func(i int) string) {
	b.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	var next atomic.Int64
	failed := make(chan error, connections)
	b.ReportAllocs()
	b.ResetTimer()
	for range connections {
		go func() {
			conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
			if err != nil {
				failed <- err
				return
			}
			defer conn.Close()
			r := bufio.NewReader(conn)
			for i := int(next.Add(1)); i <= b.N; i = int(next.Add(1)) {
				if _, err := io.WriteString(conn, request(i)); err != nil {
					failed <- err
					return
				}
				if err := skipAnswer(r); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	for range connections {
		if err := <-failed; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// skipAnswer reads an answer, which must be 200.
func skipAnswer(r *bufio.Reader) error {
	length := 0
	for n := 0; ; n++ {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		switch {
		case n == 0 && !strings.Contains(string(line), " 200 "):
			return fmt.Errorf("answered with %s", line)
		case len(line) > 16 && strings.EqualFold(string(line[:16]), "Content-Length: "):
			if length, err = strconv.Atoi(strings.TrimSpace(string(line[16:]))); err != nil {
				return err
			}
		case len(line) <= 2:
			_, err := r.Discard(length)
			return err
		}
	}
}

func post(path, body string) string {
	return fmt.Sprintf("POST %s%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", scheduler, path, len(body), body)
}

func BenchmarkHeartbeat(b *testing.B) {
	beats := func(ids []string) func(int) string {
		all := make([]string, len(ids))
		for i, id := range ids {
			all[i] = post("/leases/"+id+"/heartbeat", `{"worker_id":"w"}`)
		}
		return func(i int) string { return all[i*7919%len(all)] }
	}
	for _, n := range []int{64, 10_000, 100_000} {
		h, ids := leases(b, n)
		if n == 64 {
			b.Run("bare", func(b *testing.B) { load(b, bare(), 16, beats(ids)) })
		}
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) { load(b, h, 16, beats(ids)) })
	}
}

// BenchmarkCycle is what a worker of short jobs does: a request, three heartbeats and a completion, 64 at a time. The bare handler
// answers five heartbeats for each.
func BenchmarkCycle(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		one := post("/leases/0123456789abcdef0123456789abcdef/heartbeat", `{"worker_id":"w"}`)
		cycles(b, bare(), func(conn io.ReadWriter, r *bufio.Reader, _ int) error {
			for range 5 {
				if _, err := exchange(conn, r, one); err != nil {
					return err
				}
			}
			return nil
		})
	})
	b.Run("lokt", func(b *testing.B) {
		m, err := manager.Open(b.Context(), memstore.NewJobs(), manager.Options{Config: jobs.Config{Total: 1000, TTL: time.Hour}})
		if err != nil {
			b.Fatal(err)
		}
		defer m.Close()
		for left := b.N + 64; left > 0; left -= jobs.MaxSubmit {
			specs := make([]jobs.Spec, min(left, jobs.MaxSubmit))
			for i := range specs {
				specs[i] = jobs.NewSpec()
			}
			if _, err := m.Submit(b.Context(), specs); err != nil {
				b.Fatal(err)
			}
		}
		cycles(b, httpapi.NewHandler(httpapi.Config{Jobs: m}), func(conn io.ReadWriter, r *bufio.Reader, i int) error {
			worker := fmt.Sprintf(`{"worker_id":"w%d"`, i)
			answer, err := exchange(conn, r, post("/leases/request", worker+`}`))
			if err != nil {
				return err
			}
			_, lease, _ := strings.Cut(string(answer), `"lease_id":"`)
			lease, _, _ = strings.Cut(lease, `"`)
			beat := post("/leases/"+lease+"/heartbeat", worker+`}`)
			for _, request := range []string{beat, beat, beat, post("/leases/"+lease+"/complete", worker+`,"status":"completed"}`)} {
				if _, err := exchange(conn, r, request); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// cycles runs cycles over 64 connections.
func cycles(b *testing.B, h http.Handler, cycle func(conn io.ReadWriter, r *bufio.Reader, i int) error) {
	server := httptest.NewServer(h)
	defer server.Close()
	var next atomic.Int64
	failed := make(chan error)
	b.ResetTimer()
	for i := range 64 {
		go func() {
			conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
			if err == nil {
				defer conn.Close()
			}
			for r := bufio.NewReader(conn); err == nil && int(next.Add(1)) <= b.N; {
				err = cycle(conn, r, i)
			}
			failed <- err
		}()
	}
	for range 64 {
		if err := <-failed; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(5*float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// exchange sends a request and returns the body of its answer, which must be 200.
func exchange(conn io.Writer, r *bufio.Reader, request string) ([]byte, error) {
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	a, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("answered with %s %s", a.Status, body)
	}
	return body, err
}

func BenchmarkBatchHeartbeat(b *testing.B) {
	h, ids := leases(b, 1000)
	batch := post("/leases/heartbeat", `{"worker_id":"w","lease_ids":["`+strings.Join(ids[:100], `","`)+`"]}`)
	load(b, h, 16, func(int) string { return batch })
	b.ReportMetric(100*float64(b.N)/b.Elapsed().Seconds(), "renewals/s")
}

// nobody is a ResponseWriter whose client does not read.
type nobody struct{ header http.Header }

func (n nobody) Header() http.Header         { return n.header }
func (n nobody) Write(p []byte) (int, error) { return len(p), nil }
func (n nobody) WriteHeader(int)             {}

// BenchmarkHeartbeatHandler is the same without a network: what the handlers themselves take.
func BenchmarkHeartbeatHandler(b *testing.B) {
	run := func(h http.Handler, ids []string) func(b *testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			r := httptest.NewRequest(http.MethodPost, scheduler+"/leases/x/heartbeat", nil)
			r.Header.Set("Content-Type", "application/json")
			body := strings.NewReader("")
			r.Body, r.ContentLength = io.NopCloser(body), 17
			for i := 0; b.Loop(); i++ {
				r.URL.Path = scheduler + "/leases/" + ids[i*7919%len(ids)] + "/heartbeat"
				body.Reset(`{"worker_id":"w"}`)
				h.ServeHTTP(nobody{http.Header{}}, r)
			}
		}
	}
	for _, n := range []int{64, 100_000} {
		h, ids := leases(b, n)
		if n == 64 {
			b.Run("bare", run(bare(), ids))
		}
		b.Run(fmt.Sprintf("leases=%d", n), run(h, ids))
	}
}

// BenchmarkBatchHandler is a batch of a hundred without a network.
func BenchmarkBatchHandler(b *testing.B) {
	h, ids := leases(b, 1000)
	text := `{"worker_id":"w","lease_ids":["` + strings.Join(ids[:100], `","`) + `"]}`
	b.ReportAllocs()
	r := httptest.NewRequest(http.MethodPost, scheduler+"/leases/heartbeat", nil)
	r.Header.Set("Content-Type", "application/json")
	body := strings.NewReader("")
	r.Body, r.ContentLength = io.NopCloser(body), int64(len(text))
	for b.Loop() {
		body.Reset(text)
		h.ServeHTTP(nobody{http.Header{}}, r)
	}
}
