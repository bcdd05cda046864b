package httpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

const scheduler = "/api/system/scheduler"

// site is a server of the scheduler, spoken to as its existing clients do: by plain HTTP and JSON.
type site struct {
	*testing.T
	url     string
	manager *manager.Manager
	store   *memstore.Jobs
	client  *http.Client
}

// newSite starts a server of 100 units on this host. Edits change what it is made of.
func newSite(t *testing.T, edits ...func(*manager.Options, *httpapi.Config)) *site {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	s := openSite(t, server.Config, transport, edits)
	server.Start()
	s.url = server.URL
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	return s
}

// bubbled runs a test of a server in a bubble of testing/synctest: time passes only while everything waits. Requests go
// over pipes, through the same server and client of net/http.
func bubbled(t *testing.T, test func(s *site), edits ...func(*manager.Options, *httpapi.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l, server := newPipeListener(), &http.Server{ReadHeaderTimeout: time.Minute}
		transport := &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 100}
		s := openSite(t, server, transport, edits)
		s.url = "http://lokt.example"
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(l)
		}()
		t.Cleanup(func() {
			transport.CloseIdleConnections()
			_ = server.Close()
			<-served
		})
		test(s)
	})
}

// openSite gives a server its handler.
func openSite(t *testing.T, server *http.Server, transport http.RoundTripper, edits []func(*manager.Options, *httpapi.Config)) *site {
	t.Helper()
	store := memstore.NewJobs()
	var o manager.Options
	var c httpapi.Config
	for _, edit := range edits {
		edit(&o, &c)
	}
	m, err := manager.Open(t.Context(), store, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if c.Jobs == nil {
		c.Jobs = m
	}
	server.Handler = httpapi.NewHandler(c)
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &site{T: t, manager: m, store: store, client: client}
}

// reply is an answer.
type reply struct {
	status int
	header http.Header
	body   string
	value  map[string]any // nil if the body is no object
}

// send sends a request with a body, or without one if it is empty. Edits change the request before it is sent.
func (s *site) send(method, path, body string, edits ...func(*http.Request)) reply {
	s.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	if !strings.HasPrefix(path, "/api/") && !strings.HasPrefix(path, "/v1/") {
		path = scheduler + path
	}
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+path, content)
	if err != nil {
		s.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, edit := range edits {
		edit(r)
	}
	answer, err := s.client.Do(r)
	if err != nil {
		s.Fatalf("%s %s: %v", method, path, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.Fatalf("%s %s: %v", method, path, err)
	}
	got := reply{status: answer.StatusCode, header: answer.Header, body: string(text)}
	describe().check(s.T, method, path, body, got.status, got.header, text)
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&got.value) != nil {
		got.value = nil
	}
	return got
}

func (s *site) post(path, body string) reply { s.Helper(); return s.send("POST", path, body) }
func (s *site) get(path string) reply        { s.Helper(); return s.send("GET", path, "") }

// ok sends a request that must succeed.
func (s *site) ok(method, path, body string) map[string]any {
	s.Helper()
	r := s.send(method, path, body)
	if r.status != http.StatusOK || r.value == nil || r.header.Get("Content-Type") != "application/json" {
		s.Fatalf("%s %s with %s was answered with %d %s", method, path, body, r.status, r.body)
	}
	return r.value
}

// refused sends a request that must be answered with the error.
func (s *site) refused(status int, detail, method, path, body string, edits ...func(*http.Request)) reply {
	s.Helper()
	r := s.send(method, path, body, edits...)
	if want := fmt.Sprintf(`{"detail":%q}`, detail); r.status != status || r.body != want || r.header.Get("Content-Type") != "application/json" {
		s.Errorf("%s %s with %.200s was answered with %d %s, not with %d %s", method, path, body, r.status, r.body, status, want)
	}
	return r
}

// invalid sends a request that must be answered with 422 and problems at exactly these places.
func (s *site) invalid(method, path, body string, locs ...string) {
	s.Helper()
	r := s.send(method, path, body)
	var told struct {
		Detail []struct {
			Type *string
			Loc  []any
			Msg  *string
		}
	}
	if err := json.Unmarshal([]byte(r.body), &told); err != nil || r.status != http.StatusUnprocessableEntity {
		s.Errorf("%s %s with %.200s was answered with %d %s, not with problems at %q", method, path, body, r.status, r.body, locs)
		return
	}
	var got []string
	for _, p := range told.Detail {
		if p.Type == nil || *p.Type == "" || p.Msg == nil || *p.Msg == "" {
			s.Errorf("a problem of %s %s says too little: %s", method, path, r.body)
		}
		got = append(got, strings.TrimSuffix(fmt.Sprintln(p.Loc...), "\n"))
	}
	if strings.Join(got, "|") != strings.Join(locs, "|") {
		s.Errorf("%s %s with %.200s has problems at %q, not at %q: %s", method, path, body, got, locs, r.body)
	}
}

// submit submits a job and returns its ID.
func (s *site) submit(body string) string {
	s.Helper()
	v := s.ok("POST", "/jobs", body)
	id, _ := v["job_id"].(string)
	if id == "" || v["state"] != "queued" {
		s.Fatalf("submitting %s was answered with %v", body, v)
	}
	return id
}

// lease asks for a job, which must be granted, and returns the lease ID and the whole answer.
func (s *site) lease(worker string) (string, map[string]any) {
	s.Helper()
	v := s.ok("POST", "/leases/request", fmt.Sprintf(`{"worker_id":%q}`, worker))
	if v["denied"] != false {
		s.Fatalf("worker %s was denied: %v", worker, v)
	}
	return v["lease"].(map[string]any)["lease_id"].(string), v
}

// job returns a job.
func (s *site) job(id string) map[string]any {
	s.Helper()
	return s.ok("GET", "/jobs/"+id, "")
}

// dig returns what lies in a value in that direction.
func (s *site) dig(v any, path ...any) any {
	s.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				s.Fatalf("%v is no object, and has no %s", v, p)
			}
			if v, ok = m[p]; !ok {
				s.Fatalf("%v has no %s", m, p)
			}
		case int:
			a, ok := v.([]any)
			if !ok || p >= len(a) {
				s.Fatalf("%v has no element %d", v, p)
			}
			v = a[p]
		}
	}
	return v
}

// has checks what lies in a value in that direction, as fmt writes it.
func (s *site) has(want string, v any, path ...any) {
	s.Helper()
	if got := fmt.Sprint(s.dig(v, path...)); got != want {
		s.Errorf("%v is %s, not %s", path, got, want)
	}
}

// state checks a job's state.
func (s *site) state(id, want string) {
	s.Helper()
	if got := s.job(id)["state"]; got != want {
		s.Errorf("job %s is %v, not %s", id, got, want)
	}
}

// moment reads a time, which must be RFC 3339 in UTC with Z and exactly three digits.
func (s *site) moment(v any) time.Time {
	s.Helper()
	text, _ := v.(string)
	t, err := time.Parse("2006-01-02T15:04:05.000Z", text)
	if err != nil || len(text) != len("2006-01-02T15:04:05.000Z") {
		s.Fatalf("%v is not a time as it should be written", v)
	}
	return t
}

func TestTheBoundOfAWaitIsToldInItsUnit(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/leases/request", "/leases/never/heartbeat"} {
		if a := s.post(path, `{"worker_id":"w","wait_ms":30001}`); a.status != 422 || !strings.Contains(a.body, "less than or equal to 30000\"") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}
