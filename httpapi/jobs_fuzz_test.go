package httpapi_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// seeds are requests that the scheduler understands: method, path below the prefix, and body.
func seeds() [][3]string {
	return [][3]string{
		{"POST", "/jobs", `{"type":"render","priority":"low","requested_units":3,"unique":true,"payload":{"n":12345678901234567890.10,"s":"é\u00e9"},"idempotency_key":"k","tags":["a","needs:gpu"],"max_runtime_s":90.5,"max_attempts":4,"retry_backoff_s":2.5,"run_at":"2026-02-06T20:15:30.123Z","locks":["x"]}`},
		{"POST", "/jobs", `{"jobs":[{},{"type":"a","requested_units":2},{"priority":"high","tags":["x"]}]}`},
		{"GET", "/jobs?limit=10&state=queued&type=a&tag=x&after=1z.a.b.c", ""},
		{"GET", "/jobs/JOB", ""},
		{"POST", "/jobs/JOB/cancel", `{"reason":"enough"}`},
		{"POST", "/leases/request", `{"worker_id":"w","max_units":5,"types":["a","generic"],"capabilities":["gpu"],"wait_ms":0,"request_id":"r1"}`},
		{"POST", "/leases/heartbeat", `{"worker_id":"w","lease_ids":["LEASE","b"]}`},
		{"POST", "/leases/LEASE/heartbeat", `{"worker_id":"w","progress":0.5,"checkpoint":{"at":[1,2]},"wait_ms":0}`},
		{"POST", "/leases/LEASE/complete", `{"worker_id":"w","status":"completed","result":[1e5],"error":null}`},
		{"POST", "/leases/LEASE/report", `{"worker_id":"w","progress":1,"metrics":{"a":1},"message":"so far"}`},
		{"POST", "/leases/LEASE/revoke", `{"reason":"off"}`},
		{"GET", "/status", ""},
		{"GET", "/workers", ""},
		{"GET", "/history/stats?days=30", ""},
		{"GET", "/history/decisions?days=30", ""},
		{"GET", "/history/count?state=failed&type=a", ""},
		{"POST", "/history/cleanup?days=30", ""},
		{"POST", "/freeze", `{"type":"frozen"}`},
		{"POST", "/unfreeze", `{"type":"frozen"}`},
	}
}

// quarry answers requests without a network, and checks that every answer is one of the contract's.
type quarry struct {
	testing.TB
	handler http.Handler
	jobID   string
	leaseID string
}

func newQuarry(t testing.TB) *quarry {
	t.Helper()
	m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{Config: jobs.Config{MaxParked: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return &quarry{TB: t, handler: httpapi.NewHandler(httpapi.Config{Jobs: m, Limits: httpapi.Limits{Wait: time.Millisecond}})}
}

// names replaces the names of a job and a lease by the last ones that were heard of.
func (q *quarry) names(text string) string {
	return strings.NewReplacer("JOB", q.jobID, "LEASE", q.leaseID).Replace(text)
}

// send sends a request, and fails the test if it is answered with 5xx or what is no answer of the contract.
func (q *quarry) send(method, path, body string) {
	q.Helper()
	r, err := http.NewRequestWithContext(q.Context(), method, "http://x", strings.NewReader(body))
	if err != nil {
		return // no request that could arrive
	}
	if r.URL, err = r.URL.Parse("http://x" + scheduler + path); err != nil {
		return
	}
	w := httptest.NewRecorder()
	q.handler.ServeHTTP(w, r)
	text := w.Body.Bytes()
	if w.Code >= 500 || w.Code < 200 {
		q.Fatalf("%s %q with %q was answered with %d %s", method, path, body, w.Code, text)
	}
	if !json.Valid(text) || !utf8.Valid(text) {
		q.Fatalf("%s %q with %q was answered with %d and what is no JSON: %q", method, path, body, w.Code, text)
	}
	if method == "GET" && w.Code == 200 && len(text) > 1<<20 {
		return
	}
	var v struct {
		Detail any    `json:"detail"`
		JobID  string `json:"job_id"`
		Lease  struct {
			ID string `json:"lease_id"`
		} `json:"lease"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		q.Fatalf("%s %q with %q was answered with %s: %v", method, path, body, text, err)
	}
	if (v.Detail != nil) != (w.Code >= 400) {
		q.Fatalf("%s %q with %q was answered with %d %s", method, path, body, w.Code, text)
	}
	if v.JobID != "" {
		q.jobID = v.JobID
	}
	if v.Lease.ID != "" {
		q.leaseID = v.Lease.ID
	}
}

// mutate changes a text in one of the ways that break programs.
func mutate(r *rand.Rand, text string) string {
	const alphabet = `{}[]",:\0123456789.eE+-/%?&=` + "\x00\xff \n"
	values := []string{
		`null`, `true`, `NaN`, `Infinity`, `1e400`, `-1`, `0`, `1e30`, `100000000000000000000000000`, `9223372036854775808`, `-9223372036854775809`, `0.1`, `""`, `"\ud800"`,
		`"\u0000"`, `[]`, `{}`, `[[[[[[[[]]]]]]]]`, `"w"`, `5`, `{"a":{"a":{}}}`, `"9999-12-31T23:59:59.9999Z"`, `"0001-01-01T00:00:00+23:59"`, `-0`, `1E-400`, strings.Repeat("[", 300),
		`"` + strings.Repeat("x", 300) + `"`,
	}
	at := func() int { return r.IntN(len(text) + 1) }
	switch r.IntN(7) {
	case 0: // a byte is another
		if i := at(); i < len(text) {
			return text[:i] + string(alphabet[r.IntN(len(alphabet))]) + text[i+1:]
		}
	case 1: // a byte is there that was not
		i := at()
		return text[:i] + string(alphabet[r.IntN(len(alphabet))]) + text[i:]
	case 2: // a part is missing
		i := at()
		return text[:i] + text[min(i+1+r.IntN(8), len(text)):]
	case 3: // a part is there twice
		i := at()
		j := min(i+1+r.IntN(16), len(text))
		return text[:j] + text[i:j] + text[j:]
	case 4: // it ends early
		return text[:at()]
	default: // a value is another
		var colons []int
		for i := range len(text) {
			if text[i] == ':' || text[i] == '=' {
				colons = append(colons, i+1)
			}
		}
		if len(colons) > 0 {
			i := colons[r.IntN(len(colons))]
			end := strings.IndexAny(text[i:]+",", ",}&")
			return text[:i] + values[r.IntN(len(values))] + text[i+end:]
		}
	}
	return text
}

// Promise S-80.
func TestTenThousandMutatedRequestsAreNeverAnsweredWith5xx(t *testing.T) {
	t.Parallel()
	q := newQuarry(t)
	r := rand.New(rand.NewPCG(1, 2))
	all := seeds()
	for i := range 10_000 {
		one := all[i%len(all)]
		method, path, body := one[0], q.names(one[1]), q.names(one[2])
		for range 1 + r.IntN(3) {
			if r.IntN(4) == 0 {
				path = mutate(r, path)
			} else {
				body = mutate(r, body)
			}
		}
		q.send(method, path, body)
		if i%20 == 0 {
			q.send(one[0], q.names(one[1]), q.names(one[2])) // so that there are jobs and leases
		}
	}
}

// Promise S-80.
func FuzzScheduler(f *testing.F) {
	for _, one := range seeds() {
		f.Add(one[0] == "POST", one[1], one[2])
	}
	q := newQuarry(f)
	f.Fuzz(func(t *testing.T, post bool, path, body string) {
		method := "GET"
		if post {
			method = "POST"
		}
		here := *q
		here.TB = t
		here.send(method, here.names(path), here.names(body))
	})
}
