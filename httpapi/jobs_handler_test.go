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
	"time"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/store/memstore"
)

const scheduler = "/api/system/scheduler"

// site is a server of the scheduler, spoken to as its existing clients do: by plain HTTP and JSON.
type site struct {
	*testing.T
	url     string
	manager *jobs.Manager
	client  *http.Client
}

// newSite starts a server of 100 units. Edits change what it is made of.
func newSite(t *testing.T, edits ...func(*jobs.Options, *httpapi.Config)) *site {
	t.Helper()
	var o jobs.Options
	var c httpapi.Config
	for _, edit := range edits {
		edit(&o, &c)
	}
	m, err := jobs.Open(t.Context(), memstore.NewJobs(), o)
	if err != nil {
		t.Fatal(err)
	}
	if c.Jobs == nil {
		c.Jobs = m
	}
	server := httptest.NewServer(httpapi.NewHandler(c))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		server.Close()
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &site{T: t, url: server.URL, manager: m, client: client}
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
	if !strings.HasPrefix(path, "/api/") {
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
