package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// keys is a gate that lets callers in by their token, which lists their scopes: "read,work", or "submit:tag" to submit
// jobs of that tag only.
type keys struct{}

func (keys) Enter(r *http.Request) (httpapi.Caller, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: no token", httpapi.ErrUnauthenticated)
	case token == "busy":
		return nil, &httpapi.RateLimitedError{RetryAfter: 2500 * time.Millisecond}
	case strings.HasPrefix(token, "often,"):
		return bearer(strings.Split(token, ",")[1:]), fmt.Errorf("too often: %w", &httpapi.RateLimitedError{RetryAfter: 2500 * time.Millisecond})
	case token == "broken":
		return nil, errors.New("the list of tokens is gone")
	}
	return bearer(strings.Split(token, ",")), nil
}

type bearer []string

func (b bearer) Name() string { return "somebody" }

func (b bearer) May(s httpapi.Scope, lockOrTag string) bool {
	return slices.ContainsFunc(b, func(key string) bool {
		scope, only, limited := strings.Cut(key, ":")
		return scope == string(s) && (!limited || lockOrTag == "" || lockOrTag == only)
	})
}

func guarded(_ *manager.Options, c *httpapi.Config) { c.Gate = keys{} }

func token(t string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+t) }
}

// Promise S-83.
func TestWithAGateEachRouteNeedsItsScope(t *testing.T) {
	s := newSite(t, guarded)
	for _, route := range []struct{ method, path, scope string }{
		{"GET", "/jobs", "read"}, {"GET", "/jobs/x", "read"}, {"GET", "/status", "read"}, {"GET", "/workers", "read"}, {"GET", "/history/stats", "read"},
		{"GET", "/history/decisions", "read"}, {"GET", "/history/count", "read"}, {"POST", "/jobs", "submit"}, {"POST", "/jobs/x/cancel", "submit"}, {"POST", "/leases/request", "work"},
		{"POST", "/leases/heartbeat", "work"}, {"POST", "/leases/x/heartbeat", "work"}, {"POST", "/leases/x/complete", "work"}, {"POST", "/leases/x/report", "work"},
		{"POST", "/leases/x/revoke", "admin"}, {"POST", "/history/cleanup?days=1", "admin"}, {"POST", "/freeze", "admin"}, {"POST", "/unfreeze", "admin"},
	} {
		body := ""
		if route.method == "POST" {
			body = `{`
		}
		r := s.refused(401, "unauthenticated", route.method, route.path, body)
		if r.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("who is unknown is not told how to become known: %v", r.header)
		}
		if r := s.refused(429, "rate_limited", route.method, route.path, body, token("busy")); r.header.Get("Retry-After") != "3" {
			t.Errorf("who asks too often is told to ask again after %q", r.header.Get("Retry-After"))
		}
		s.refused(500, "internal", route.method, route.path, body, token("broken"))
		for _, scope := range []string{"read", "lock", "force", "submit", "work", "admin"} {
			if scope != route.scope { // before the body is looked at
				r := s.refused(403, "forbidden", route.method, route.path, body, token(scope))
				if why := r.header.Get("Lokt-Reason"); why != fmt.Sprintf("the scope %q is missing", route.scope) {
					t.Errorf("%s %s is refused because %q", route.method, route.path, why)
				}
			} else if r := s.send(route.method, route.path, "", token(scope)); r.status == 401 || r.status == 403 {
				t.Errorf("%s %s with the scope %s was answered with %d %s", route.method, route.path, scope, r.status, r.body)
			}
		}
	}
	s.refused(401, "unauthenticated", "GET", "/nowhere", "")
	s.refused(404, "not_found", "GET", "/nowhere", "", token("read"))
}

// Promise S-83.
func TestWithAGateOnlyAdminsAreShownLeaseIDs(t *testing.T) {
	s := newSite(t, guarded)
	job := s.send("POST", "/jobs", `{}`, token("submit"))
	id := s.dig(job.value, "job_id").(string)
	grant := s.send("POST", "/leases/request", `{"worker_id":"w"}`, token("work"))
	lease, ok := s.dig(grant.value, "lease", "lease_id").(string)
	if !ok || s.dig(grant.value, "job", "lease_id") != lease {
		t.Fatalf("the worker is not told its lease ID: %s", grant.body)
	}
	for _, path := range []string{"/jobs", "/jobs/" + id} {
		if r := s.send("GET", path, "", token("read")); r.status != 200 || strings.Contains(r.body, lease) || !strings.Contains(r.body, `"lease_id":null`) {
			t.Errorf("%s shows a reader %s", path, r.body)
		}
		if r := s.send("GET", path, "", token("read,admin")); r.status != 200 || !strings.Contains(r.body, lease) {
			t.Errorf("%s shows an admin %s", path, r.body)
		}
	}
	if r := s.send("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"w"}`, token("work")); r.status != 200 {
		t.Errorf("a heartbeat was answered with %d %s", r.status, r.body)
	}
}

func TestWithAGateTagsAndLocksOfJobsNeedTheirScope(t *testing.T) {
	s := newSite(t, guarded)
	for body, allowed := range map[string]bool{
		`{}`: true, `{"tags":["mine"]}`: true, `{"tags":["mine","yours"]}`: false, `{"jobs":[{},{"tags":["yours"]}]}`: false,
		`{"locks":["l"]}`: true, `{"locks":["l","m"]}`: false,
	} {
		if r := s.send("POST", "/jobs", body, token("submit:mine,lock:l")); (r.status == 200) != allowed || !allowed && r.body != `{"detail":"forbidden"}` {
			t.Errorf("submitting %s was answered with %d %s", body, r.status, r.body)
		}
	}
	yours := s.dig(s.send("POST", "/jobs", `{"tags":["yours"]}`, token("submit")).value, "job_id").(string)
	s.refused(403, "forbidden", "POST", "/jobs/"+yours+"/cancel", "", token("submit:mine"))
	s.refused(404, "job_not_found", "POST", "/jobs/unknown/cancel", "", token("submit:mine"))
	if r := s.send("POST", "/jobs/"+yours+"/cancel", "", token("submit:yours")); r.status != 200 {
		t.Errorf("cancelling was answered with %d %s", r.status, r.body)
	}
}

// Promise S-150.
func TestAKnownWorkerThatAsksTooOftenIsDeniedAJob(t *testing.T) {
	s := newSite(t, guarded)
	often := token("often,work,read,submit")
	for _, body := range []string{`{"worker_id":"w"}`, `{"worker_id":"w","wait_ms":30000}`} {
		r := s.send("POST", "/leases/request", body, often)
		if want := `{"denied":true,"reason":"this caller asks too often","retry_after_ms":2500,"code":"rate_limited"}`; r.status != 200 || r.body != want {
			t.Errorf("%s: answered with %d %s", body, r.status, r.body)
		}
	}
	for _, route := range [][2]string{{"POST", "/leases/x/report"}, {"POST", "/jobs"}, {"GET", "/status"}} {
		s.refused(429, "rate_limited", route[0], route[1], "", often)
	}
	s.refused(403, "forbidden", "POST", "/leases/request", `{"worker_id":"w"}`, token("often,read"))
}

// Promise S-160.
func TestWhoAsksTooOftenKeepsWhatItHolds(t *testing.T) {
	s := newSite(t, guarded, func(_ *manager.Options, c *httpapi.Config) { c.Locks = memory().Locks })
	calm, often := token("work,submit,lock"), token("often,work,lock")
	for _, end := range []string{"completed", "failed"} {
		id := s.dig(s.send("POST", "/jobs", `{}`, calm).value, "job_id").(string)
		lease := s.dig(s.send("POST", "/leases/request", `{"worker_id":"w"}`, calm).value, "lease", "lease_id").(string)
		for path, body := range map[string]string{
			"/leases/" + lease + "/heartbeat": `{"worker_id":"w"}`, "/leases/heartbeat": fmt.Sprintf(`{"worker_id":"w","lease_ids":[%q]}`, lease),
		} {
			if r := s.send("POST", path, body, often); r.status != 200 || !strings.Contains(r.body, `"expires_at"`) {
				t.Errorf("%s is answered %d %s", path, r.status, r.body)
			}
		}
		if r := s.send("POST", "/leases/"+lease+"/complete", `{"worker_id":"w","status":"`+end+`"}`, often); r.status != 200 || r.value["applied"] != true {
			t.Errorf("the end of job %s is answered %d %s", id, r.status, r.body)
		}
	}
	s.refused(403, "forbidden", "POST", "/leases/x/complete", `{"worker_id":"w","status":"failed"}`, token("often,read"))
	ask := func(method, path, body string, as func(*http.Request)) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, s.url+"/v1"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		as(r)
		answer, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if retry := answer.Header.Get("Retry-After"); (retry != "") != (answer.StatusCode == http.StatusTooManyRequests) {
			t.Errorf("%s %s is answered %d with Retry-After %q", method, path, answer.StatusCode, retry)
		}
		return answer.StatusCode
	}
	const claim = `{"lease_id":"mine","owner":{"id":"a"},"ttl_ms":60000}`
	const renewal = `{"leases":[{"name":"x","lease_id":"mine"}]}`
	const leases = "/locks/x/leases"
	own := leases + "/" + lokt.PublicID("mine")
	proved := func(r *http.Request) { often(r); r.Header.Set("Lokt-Lease", "mine") }
	for i, got := range []int{
		ask("POST", leases, claim, often), ask("POST", leases, claim, calm), ask("POST", "/leases/heartbeat", renewal, often), ask("DELETE", leases, "", often), ask("DELETE", own, "", proved), ask("POST", "/leases/heartbeat", renewal, token("busy")),
	} {
		if want := []int{429, 200, 200, 429, 200, 429}[i]; got != want {
			t.Errorf("request %d is answered %d, not %d", i, got, want)
		}
	}
}

// Promise S-160.
func TestAnAnswerOfAProxyThatItIsAskedTooOftenIsNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var came []time.Time
		begin := time.Now()
		proxy := roundTrip(func(*http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			if came = append(came, time.Now()); len(came) < 3 {
				w.Header().Set("Retry-After", "2")
				http.Error(w, "<html>slow down</html>", http.StatusTooManyRequests)
				return w.Result(), nil
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"ok":true,"applied":true}`)
			return w.Result(), nil
		})
		both, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: proxy}})
		if err != nil {
			t.Fatal(err)
		}
		client := both.Jobs()
		applied, err := client.Complete(t.Context(), jobs.Completion{LeaseID: "l", WorkerID: "w", Status: jobs.Completed})
		if err != nil || !applied {
			t.Errorf("answered with %v, %v", applied, err)
		}
		if len(came) != 3 || came[2].Sub(begin) < 4*time.Second {
			t.Errorf("it was asked %v after the beginning at %v", came, begin)
		}
	})
}

// Promises S-84, S-150.
func TestAnAskThatCameTooOftenIsMadeAgain(t *testing.T) {
	var ids []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			RequestID string `json:"request_id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
			t.Error(err)
		}
		code := "rate_limited"
		if ids = append(ids, ask.RequestID); len(ids) == 3 {
			code = "queue_empty"
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"denied":true,"reason":"r","retry_after_ms":1,"code":%q}`, code)
	}))
	defer server.Close()
	both, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := both.Jobs()
	g, err := client.Request(t.Context(), jobs.Request{WorkerID: "w"})
	if err != nil || g.Denied == nil || g.Denied.Code != "queue_empty" {
		t.Errorf("answered with %+v, %v", g, err)
	}
	if len(ids) != 3 || ids[0] == "" || ids[1] != ids[0] || ids[2] != ids[0] {
		t.Errorf("it was asked as %q", ids)
	}
}
