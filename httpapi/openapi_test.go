package httpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// description is the OpenAPI document, and what was compiled of it.
type description struct {
	mu       sync.Mutex
	plain    *jsonschema.Compiler // for requests: members that are not described are ignored
	strict   *jsonschema.Compiler // for answers: there are none
	document map[string]any
	compiled map[string]*jsonschema.Schema
}

// describe reads the document, once.
var describe = sync.OnceValue(func() *description {
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		panic(err)
	}
	d := &description{compiled: map[string]*jsonschema.Schema{}}
	for _, c := range []**jsonschema.Compiler{&d.plain, &d.strict} {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			panic(err)
		}
		if c == &d.strict {
			seal(doc)
		}
		*c = jsonschema.NewCompiler()
		(*c).DefaultDraft(jsonschema.Draft2020)
		(*c).AssertFormat()
		if err := (*c).AddResource("http://lokt.example/openapi.json", doc); err != nil {
			panic(err)
		}
		d.document = doc.(map[string]any)
	}
	return d
})

// seal makes schemas of objects refuse members that they do not describe.
func seal(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, described := v["properties"].(map[string]any); described {
			v["additionalProperties"] = false
		}
		for _, e := range v {
			seal(e)
		}
	case []any:
		for _, e := range v {
			seal(e)
		}
	}
}

// at follows member names from the document's root.
func (d *description) at(path ...string) map[string]any {
	v := d.document
	for _, p := range path {
		v, _ = v[p].(map[string]any)
	}
	return v
}

// operation finds what describes a request: its path and method, or nothing.
func (d *description) operation(method, path string) (template string, op map[string]any) {
	path, _, _ = strings.Cut(path, "?")
	elements := strings.Split(path, "/")
	for _, template := range slices.Sorted(maps.Keys(d.at("paths"))) { // those with fewer variables need not come first: none are ambiguous but one
		parts := strings.Split(template, "/")
		if len(parts) != len(elements) {
			continue
		}
		fits := true
		for i, p := range parts {
			fits = fits && (p == elements[i] || strings.HasPrefix(p, "{") && elements[i] != "")
		}
		if op := d.at("paths", template, strings.ToLower(method)); fits && op != nil {
			return template, op
		}
	}
	return "", nil
}

// schema compiles what stands at a place in the document.
func (d *description) schema(t testing.TB, c *jsonschema.Compiler, path ...string) *jsonschema.Schema {
	t.Helper()
	place := "http://lokt.example/openapi.json#"
	for _, p := range path {
		place += "/" + url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(p))
	}
	key := fmt.Sprintf("%p %s", c, place)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.compiled[key] == nil {
		s, err := c.Compile(place)
		if err != nil {
			t.Fatalf("%s: %v", place, err)
		}
		d.compiled[key] = s
	}
	return d.compiled[key]
}

// check holds an answer, and the request if it was granted, against what is described. Requests that no route takes are
// none of its business.
func (d *description) check(t testing.TB, method, path, body string, status int, header http.Header, answer []byte) {
	t.Helper()
	template, op := d.operation(method, path)
	if op == nil {
		if status != http.StatusNotFound && status != http.StatusMethodNotAllowed && status != http.StatusUnauthorized {
			t.Errorf("%s %s is not described, and answered with %d", method, path, status)
		}
		return
	}
	if status == http.StatusNotFound && string(answer) == `{"detail":"not_found"}` {
		return
	}
	method = strings.ToLower(method)
	where := []string{"paths", template, method, "responses", fmt.Sprint(status)}
	if d.at(where...) == nil {
		where[4] = "default"
	}
	described := d.at(where...)
	if described == nil {
		t.Errorf("%s %s is described without an answer of %d: %s", method, template, status, answer)
		return
	}
	if ref, ok := described["$ref"].(string); ok {
		where = strings.Split(strings.TrimPrefix(ref, "#/"), "/")
	}
	media, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	where = append(where, "content", media, "schema")
	if d.at(where...) == nil {
		t.Errorf("%s %s is not described to answer %d with %q", method, template, status, media)
		return
	}
	if media == "text/event-stream" {
		return
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(answer))
	if err != nil {
		t.Errorf("%s %s was answered with what is no JSON: %q", method, path, answer)
		return
	}
	if err := d.schema(t, d.strict, where...).Validate(v); err != nil {
		t.Errorf("%s %s was answered with %d %s, which is not as described: %v", method, path, status, answer, err)
	}
	if where := []string{"paths", template, method, "requestBody", "content", "application/json", "schema"}; status < 300 && body != "" && d.at(where...) != nil {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
		if err == nil && v != nil {
			err = d.schema(t, d.plain, where...).Validate(v)
		}
		if err != nil {
			t.Errorf("%s %s with %s was answered with %d, though the request is not as described: %v", method, path, body, status, err)
		}
	}
}

// watched returns a handler whose answers are held against the description; seen gets the pattern and status of each.
func (d *description) watched(t testing.TB, h http.Handler, seen func(method, path string, status int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") { // does not end
			h.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		d.check(t, r.Method, r.URL.RequestURI(), string(body), rec.Code, rec.Header(), rec.Body.Bytes())
		seen(r.Method, r.URL.RequestURI(), rec.Code)
		maps.Copy(w.Header(), rec.Header())
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	})
}

func TestEveryRouteIsDescribedAndWhatIsDescribedIsARoute(t *testing.T) {
	d := describe()
	store := memstore.New()
	m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	h := httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(store), Events: store, Jobs: m})
	var described []string
	ids := map[any]bool{}
	for path := range d.at("paths") {
		for method, op := range d.at("paths", path) {
			described = append(described, strings.ToUpper(method)+" "+path)
			ids[op.(map[string]any)["operationId"]] = true
		}
	}
	slices.Sort(described)
	if routes := httpapi.Patterns(h); !slices.Equal(routes, described) {
		t.Errorf("routes are\n%s\nbut described are\n%s", strings.Join(routes, "\n"), strings.Join(described, "\n"))
	}
	if len(ids) != len(described) {
		t.Errorf("%d operations share %d IDs", len(described), len(ids))
	}
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"schemas", "responses"} {
		for name := range d.at("components", kind) {
			if !strings.Contains(string(text), fmt.Sprintf(`"#/components/%s/%s"`, kind, name)) {
				t.Errorf("nothing refers to the %s %s", kind, name)
			}
			if kind == "schemas" {
				d.schema(t, d.plain, "components", kind, name)
			}
		}
	}
	for path := range d.at("paths") {
		for method, op := range d.at("paths", path) {
			var named []string
			params, _ := op.(map[string]any)["parameters"].([]any)
			for _, p := range params {
				if p := p.(map[string]any); p["in"] == "path" {
					named = append(named, "{"+p["name"].(string)+"}")
				}
			}
			for _, part := range strings.Split(path, "/") {
				if strings.HasPrefix(part, "{") && !slices.Contains(named, part) {
					t.Errorf("%s %s does not describe its parameter %s", method, path, part)
				}
			}
			if strings.Count(path, "{") != len(named) {
				t.Errorf("%s %s describes other parameters of its path: %v", method, path, named)
			}
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	if w.Code != 200 || w.Body.String() != string(text) || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("the document is served as %d %v", w.Code, w.Header())
	}
	guarded := httpapi.NewHandler(httpapi.Config{Jobs: m, Gate: keys{}})
	w = httptest.NewRecorder()
	if guarded.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil)); w.Code != 200 {
		t.Errorf("with a gate, the document is served as %d %s", w.Code, w.Body)
	}
}

// Answers of all routes, as the clients of this package get them, are as described. The tests of the scheduler's contract
// hold theirs against the description, too.
func TestAnswersOfEveryRouteAreAsDescribed(t *testing.T) {
	d := describe()
	store := memstore.New()
	m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var mu sync.Mutex
	missing := map[string]bool{}
	h := httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(store), Events: store, Jobs: m, Gate: everybody{}, Limits: httpapi.Limits{Wait: 10 * time.Millisecond}})
	for _, p := range httpapi.Patterns(h) {
		missing[p] = p != "GET /v1/events"
	}
	missing["POST /v1/locks/{name}/leases queued"] = true
	server := httptest.NewServer(d.watched(t, h, func(method, path string, status int) {
		mu.Lock()
		defer mu.Unlock()
		template, op := d.operation(method, path)
		switch {
		case op != nil && status == http.StatusOK:
			delete(missing, method+" "+template)
		case op != nil && status == http.StatusAccepted:
			delete(missing, method+" "+template+" queued")
		}
	}))
	defer server.Close()
	ctx := t.Context()
	c, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	owner := lokt.Owner{ID: "ann", Session: "s1", Host: "h", Process: lokt.Process{PID: 7}}
	claim := lokt.Claim{Name: "a", LeaseID: lokt.NewLeaseID(), Owner: owner, TTL: time.Minute, MaxHold: time.Hour, Limit: 1, Metadata: map[string]string{"why": "x"}}
	_, err = c.Acquire(ctx, claim)
	must(err)
	_, err = c.Renew(ctx, lokt.Renewal{Name: "a", LeaseID: claim.LeaseID})
	must(err)
	other := claim
	other.LeaseID, other.Owner, other.Metadata = lokt.NewLeaseID(), lokt.Owner{ID: "bob"}, nil
	if _, err := c.Acquire(ctx, other); err == nil {
		t.Error("a lock that is held was granted")
	}
	waited := make(chan error)
	go func() {
		other := other
		other.Wait = 10 * time.Second
		_, err := c.Acquire(ctx, other)
		waited <- err
	}()
	for stays := false; !stays; {
		_, err := c.Get(ctx, "a")
		must(err)
		mu.Lock()
		stays = !missing["POST /v1/locks/{name}/leases queued"]
		mu.Unlock()
	}
	for _, err := range c.List(ctx, lokt.Filter{}) {
		must(err)
	}
	_, err = c.Freeze(ctx, "b", lokt.Freeze{Owner: owner, Reason: "upgrade", TTL: time.Hour})
	must(err)
	claim.Name = "b"
	if _, err := c.Acquire(ctx, claim); err == nil {
		t.Error("a lock that is frozen was granted")
	}
	_, err = c.Get(ctx, "b")
	must(err)
	_, err = c.Unfreeze(ctx, lokt.Target{Name: "b", Owner: owner})
	must(err)
	_, err = c.Tell(ctx, lokt.Target{Name: "a", Owner: lokt.Owner{ID: "eve"}}, lokt.Message{Text: "soon?"})
	must(err)
	_, err = c.Tell(ctx, lokt.Target{Name: "a", Owner: owner}, lokt.Message{Answer: "yes"})
	must(err)
	_, err = c.Get(ctx, "a")
	must(err)
	_, err = c.Tell(ctx, lokt.Target{Name: "a", LeaseID: claim.LeaseID, Owner: owner}, lokt.Message{Text: "take care", Pass: &lokt.Claim{Owner: lokt.Owner{ID: "eve"}, TTL: time.Minute}})
	must(err)
	_, err = c.Get(ctx, "a")
	must(err)
	_, err = c.Release(ctx, lokt.Target{Name: "a", Owner: lokt.Owner{ID: "eve"}})
	must(err)
	must(<-waited)
	_, err = c.Release(ctx, lokt.Target{Name: "a", LeaseID: other.LeaseID, Owner: owner})
	must(err)
	_, err = c.Acquire(ctx, lokt.Claim{Name: "a", Owner: owner})
	must(err)
	_, err = c.Release(ctx, lokt.Target{Name: "a", Owner: owner, Force: true})
	must(err)
	_, err = c.Prune(ctx, "a")
	must(err)
	_, err = c.ReadEvents(ctx, lokt.EventQuery{})
	must(err)
	_, err = c.About(ctx)
	must(err)

	j := c.Jobs()
	spec := jobs.NewSpec()
	spec.Tags, spec.MaxAttempts, spec.RetryBackoff, spec.Payload = []string{"x"}, 2, 0, []byte(`{"n":1e2}`)
	r, err := j.Submit(ctx, []jobs.Spec{spec, spec, spec})
	must(err)
	ask := func() jobs.Grant {
		g, err := j.Request(ctx, jobs.Request{WorkerID: "w", MaxUnits: 5, Types: []string{"generic"}})
		must(err)
		return g
	}
	g := ask()
	half, text := 0.5, "half way"
	_, err = j.Heartbeat(ctx, jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: "w", Progress: &half, Checkpoint: []byte(`[1]`)})
	must(err)
	_, err = j.HeartbeatAll(ctx, "w", []string{g.Lease.ID, "never"})
	must(err)
	must(j.Report(ctx, jobs.Progress{LeaseID: g.Lease.ID, WorkerID: "w", Message: &text, Metrics: []byte(`{"a":1}`), Text: "so\nfar"}))
	_, err = j.Output(ctx, r[0].JobID, 0)
	must(err)
	_, err = j.Get(ctx, r[0].JobID)
	must(err)
	_, err = j.Complete(ctx, jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Failed, Error: []byte(`"no luck"`)})
	must(err)
	g = ask()
	must(j.Revoke(ctx, g.Lease.ID, "off with it"))
	_, err = j.Cancel(ctx, r[1].JobID, "enough")
	must(err)
	for _, id := range []string{r[0].JobID, r[1].JobID, r[2].JobID} {
		_, err = j.Get(ctx, id)
		must(err)
	}
	must(j.Freeze(ctx, "generic"))
	ask()
	_, err = j.List(ctx, jobs.Filter{})
	must(err)
	must(j.Unfreeze(ctx, "generic"))
	_, err = j.Status(ctx)
	must(err)
	_, err = j.Workers(ctx)
	must(err)
	_, err = j.Stats(ctx, 30)
	must(err)
	_, err = j.Decisions(ctx, 30)
	must(err)
	_, err = j.CountEnded(ctx, "", "")
	must(err)
	_, err = j.Cleanup(ctx, 1)
	must(err)
	_, err = j.Get(ctx, "unknown")
	if jobs.Code(err) != "job_not_found" {
		t.Errorf("an unknown job is %v", err)
	}
	resp, err := http.Get(server.URL + "/openapi.json")
	must(err)
	must(json.NewDecoder(resp.Body).Decode(&map[string]any{}))
	must(resp.Body.Close())
	for p, is := range missing {
		if is {
			t.Errorf("no answer of %s was held against the description", p)
		}
	}
}

// everybody is a gate that lets everybody in, under one name.
type everybody struct{}

func (everybody) Enter(*http.Request) (httpapi.Caller, error) { return everybody{}, nil }
func (everybody) Name() string                                { return "everybody" }
func (everybody) May(httpapi.Scope, string) bool              { return true }
