package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// reader may only look.
type reader struct{}

func (reader) Enter(*http.Request) (httpapi.Caller, error) { return reader{}, nil }
func (reader) Name() string                                { return "ann" }
func (reader) May(s httpapi.Scope, _ string) bool          { return s == httpapi.ScopeRead }

func TestAboutSaysWhatTheServerIsAndWhatTheCallerMayDo(t *testing.T) {
	store := memstore.New()
	ask := func(c httpapi.Config) httpapi.About {
		t.Helper()
		c.About = httpapi.About{Version: "v1", Store: "memory", Anonymous: false}
		server := httptest.NewServer(httpapi.NewHandler(c))
		defer server.Close()
		client, err := httpapi.New(server.URL, httpapi.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		about, err := client.About(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(about.Now); d < -time.Minute || d > time.Minute || about.Version != "v1" || about.Store != "memory" {
			t.Errorf("about: %+v", about)
		}
		return about
	}
	all := ask(httpapi.Config{Locks: lokt.NewManager(store), Events: store})
	if !all.Locks || !all.Events || all.Jobs || !all.Anonymous || all.Caller != "" || len(all.Scopes) != 6 {
		t.Errorf("without a gate: %+v", all)
	}
	some := ask(httpapi.Config{Locks: lokt.NewManager(store), Gate: reader{}})
	if !some.Locks || some.Events || some.Anonymous || some.Caller != "ann" || !slices.Equal(some.Scopes, []httpapi.Scope{httpapi.ScopeRead}) {
		t.Errorf("with a gate: %+v", some)
	}
}

func TestAClientFindsTheLeasesThatItWasToldOf(t *testing.T) {
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New())}))
	defer server.Close()
	one, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := one.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "ann"}})
	if err != nil {
		t.Fatal(err)
	}
	sees := func() string {
		t.Helper()
		s, err := other.Get(t.Context(), "x")
		if err != nil || len(s.Lock.Holders) != 1 {
			t.Fatalf("%+v, %v", s, err)
		}
		return s.Lock.Holders[0].LeaseID
	}
	shown := lokt.PublicID(h.LeaseID)
	if got := sees(); got != shown || httpapi.Shown(got) != shown || httpapi.Shown(h.LeaseID) != shown {
		t.Errorf("another client sees %q, shown as %q", got, httpapi.Shown(got))
	}
	for _, id := range []string{h.LeaseID, shown, "", strings.Repeat("x", lokt.MaxIDLen+1)} { // the others are no lease IDs
		other.Know(id)
	}
	if got := sees(); got != h.LeaseID {
		t.Errorf("told of %q it sees %q", h.LeaseID, got)
	}
}

func TestAboutHasATimeInUTC(t *testing.T) {
	handler := httpapi.NewHandler(httpapi.Config{})
	for range 20 { // of which some would have fewer digits
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/about", nil))
		if body := w.Body.String(); !regexp.MustCompile(`"now":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z"`).MatchString(body) || strings.Count(body, `"now"`) != 1 {
			t.Fatalf("it is %s", body)
		}
	}
}
