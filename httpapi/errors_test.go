package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// failing is a service whose every answer is an error.
type failing struct {
	httpapi.Locks
	err error
}

func (f failing) Acquire(context.Context, lokt.Claim) (lokt.Holder, error) {
	return lokt.Holder{}, f.err
}
func (f failing) Poll(context.Context, *lokt.Claim) (*lokt.Holder, error) {
	return nil, f.err
}
func (f failing) Renew(context.Context, lokt.Renewal) (lokt.Holder, error) {
	return lokt.Holder{}, f.err
}
func (f failing) Release(context.Context, lokt.Target) ([]lokt.Holder, error) { return nil, f.err }
func (f failing) Get(context.Context, string) (lokt.Snapshot, error)          { return lokt.Snapshot{}, f.err }

// sentinels are the errors that callers of a service tell apart.
func sentinels() []error {
	return []error{
		lokt.ErrInvalid, lokt.ErrHeld, lokt.ErrFrozen, lokt.ErrNotFound, lokt.ErrNotOwner, lokt.ErrUnavailable, lokt.ErrDamaged, lokt.ErrDeadlock,
		httpapi.ErrUnauthenticated, httpapi.ErrForbidden, httpapi.ErrRateLimited, httpapi.ErrBodyTooLarge, httpapi.ErrNoEvents,
	}
}

// Promise S-68.
func TestEveryErrorSurvivesTheWire(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 123_000_000, time.UTC)
	holder := lokt.Holder{
		Claim: lokt.Claim{
			Name: "x", LeaseID: "secret of the holder", Owner: lokt.Owner{ID: "a", Session: "s", Host: "h", Process: lokt.Process{PID: 7}},
			TTL: time.Minute, Limit: 3, Metadata: map[string]string{"why": "tests"},
		},
		Token: 9, HeldSince: now, AcquiredAt: now, ExpiresAt: now.Add(time.Minute),
	}
	waiter := &lokt.Waiter{Claim: lokt.Claim{Name: "x", LeaseID: "secret of the waiter", Owner: lokt.Owner{ID: "w"}}, Since: now, Until: now.Add(lokt.QueueTTL)}
	freeze := &lokt.Freeze{ID: "freeze", Owner: lokt.Owner{ID: "root"}, Reason: "release day", At: now}
	for _, test := range []struct {
		err    error
		status int
		code   string
	}{
		{&lokt.BlockedError{Name: "x", Holders: []lokt.Holder{holder}, Now: now}, 409, "held"},
		{&lokt.BlockedError{Name: "x", Ahead: []*lokt.Waiter{waiter}, Now: now, TimedOut: 3 * time.Second, Unsure: true}, 409, "held"},
		{&lokt.BlockedError{Name: "x", Holders: []lokt.Holder{holder}, Now: now, Cycle: []string{"a", "x", "b", "y", "a"}}, 409, "held"},
		{&lokt.BlockedError{Name: "x", Freeze: freeze, Now: now}, 423, "frozen"},
		{&lokt.BlockedError{Name: "x", Freeze: &lokt.Freeze{Damaged: "no JSON"}, Now: now}, 423, "frozen"},
		{&lokt.GoneError{Name: "x", LeaseID: "mine", Cause: lokt.ReasonExpired}, 404, "not_found"},
		{&lokt.GoneError{Name: "x", LeaseID: "mine", Holders: []lokt.Holder{holder}}, 403, "not_owner"},
		{&lokt.NotOwnerError{Name: "x", Holders: []lokt.Holder{holder}}, 403, "not_owner"},
		{&lokt.NotOwnerError{Name: "x", Holders: []lokt.Holder{holder}, Guard: true}, 403, "not_owner"},
		{&lokt.NotOwnerError{Name: "x", Freeze: freeze}, 403, "not_owner"},
		{fmt.Errorf("%w: no such thing", lokt.ErrInvalid), 400, "invalid"},
		{fmt.Errorf("%w: file is torn", lokt.ErrDamaged), 500, "damaged"},
		{fmt.Errorf("%w: disk is full", lokt.ErrUnavailable), 503, "unavailable"},
		{fmt.Errorf("%w: caf\xe9.db is full", lokt.ErrUnavailable), 503, "unavailable"},
		{fmt.Errorf("%w: no token", httpapi.ErrUnauthenticated), 401, "unauthenticated"},
		{fmt.Errorf("%w: no", httpapi.ErrForbidden), 403, "forbidden"},
		{&httpapi.RateLimitedError{RetryAfter: 2500 * time.Millisecond}, 429, "rate_limited"},
		{errors.New("nil pointer at 0xdeadbeef"), 500, "internal"},
	} {
		synctest.Test(t, func(t *testing.T) {
			handler := httpapi.NewHandler(httpapi.Config{Locks: failing{err: test.err}})
			r := httptest.NewRequest(http.MethodGet, "/v1/locks/x", nil)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			var p struct{ Type, Title, Code, Detail string }
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Code != test.code || w.Code != test.status || p.Title == "" || p.Type != "about:blank" {
				t.Errorf("%v is answered %d %s", test.err, w.Code, w.Body)
			}
			if ct := w.Header().Get("Content-Type"); ct != "application/problem+json" {
				t.Errorf("its type is %s", ct)
			}
			if retry := w.Header().Get("Retry-After"); (retry != "") != (test.status == 429 || test.status == 503) {
				t.Errorf("%d with Retry-After %q", test.status, retry)
			}
			if strings.Contains(w.Body.String(), "secret of") || strings.Contains(w.Body.String(), "deadbeef") {
				t.Errorf("%v is answered %s", test.err, w.Body)
			}

			client := inBubble(t, httpapi.Config{Locks: failing{err: test.err}})
			owner := lokt.Owner{ID: "a"}
			_, acquire := client.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "mine", Owner: owner})
			_, renew := client.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: "mine"})
			_, release := client.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "mine", Owner: owner})
			_, get := client.Get(t.Context(), "x")
			for what, err := range map[string]error{"acquire": acquire, "renew": renew, "release": release, "get": get} {
				for _, s := range sentinels() {
					if errors.Is(err, s) != errors.Is(test.err, s) {
						t.Errorf("%s: %q became %q, which is %v: %v", what, test.err, err, s, errors.Is(err, s))
					}
				}
				if what == "release" && test.status == 503 { // it may have been carried out before
					continue
				}
				if want := strings.NewReplacer("nil pointer at 0xdeadbeef", "internal error", "\xe9", "?").Replace(test.err.Error()); !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %q became %q", what, want, err)
				}
				sameType(t, err, test.err)
			}
		})
	}
}

// sameType checks that a typed error arrived as that, with everything that is not secret.
func sameType(t *testing.T, got, want error) {
	t.Helper()
	var wantBlocked, gotBlocked *lokt.BlockedError
	if errors.As(want, &wantBlocked) {
		if !errors.As(got, &gotBlocked) || gotBlocked.Name != "x" || !gotBlocked.Now.Equal(wantBlocked.Now) ||
			len(gotBlocked.Holders) != len(wantBlocked.Holders) || len(gotBlocked.Ahead) != len(wantBlocked.Ahead) || len(gotBlocked.Cycle) != len(wantBlocked.Cycle) ||
			(gotBlocked.Freeze == nil) != (wantBlocked.Freeze == nil) || gotBlocked.TimedOut != wantBlocked.TimedOut || gotBlocked.Unsure != wantBlocked.Unsure {
			t.Errorf("%+v became %+v", wantBlocked, gotBlocked)
		}
	}
	var wantGone, gotGone *lokt.GoneError
	if errors.As(want, &wantGone) && (!errors.As(got, &gotGone) || gotGone.Cause != wantGone.Cause || len(gotGone.Holders) != len(wantGone.Holders)) {
		t.Errorf("%+v became %+v", wantGone, got)
	}
	var wantOwner, gotOwner *lokt.NotOwnerError
	if errors.As(want, &wantOwner) && (!errors.As(got, &gotOwner) || gotOwner.Guard != wantOwner.Guard || (gotOwner.Freeze == nil) != (wantOwner.Freeze == nil)) {
		t.Errorf("%+v became %+v", wantOwner, got)
	}
	var wantLimited, gotLimited *httpapi.RateLimitedError
	if errors.As(want, &wantLimited) && (!errors.As(got, &gotLimited) || gotLimited.RetryAfter != wantLimited.RetryAfter) {
		t.Errorf("%+v became %+v", wantLimited, got)
	}
}

func TestErrorsOfTheWireItselfAreProblems(t *testing.T) {
	handler := httpapi.NewHandler(memory())
	big := `{"owner":{"id":"` + strings.Repeat("a", 2<<20) + `"}}`
	for _, test := range []struct {
		method, path, contentType, body string
		status                          int
		code, allow                     string
	}{
		{"GET", "/", "", "", 404, "no_route", ""},
		{"GET", "/v1/locks/", "", "", 404, "no_route", ""},
		{"GET", "/v1//locks", "", "", 404, "no_route", ""},
		{"GET", "/v1/../v1/locks", "", "", 404, "no_route", ""},
		{"GET", "/v1/locks/%2e%2e", "", "", 400, "invalid", ""},
		{"GET", "/v1/locks/a%2Fb", "", "", 400, "invalid", ""},
		{"PATCH", "/v1/locks", "", "", 405, "method_not_allowed", "GET, HEAD"},
		{"GET", "/v1/locks/x/leases", "", "", 405, "method_not_allowed", "DELETE, POST"},
		{"POST", "/v1/locks/x/freeze", "", "", 405, "method_not_allowed", "DELETE, PUT"},
		{"POST", "/v1/locks/x/leases", "text/plain", "{}", 415, "unsupported_media_type", ""},
		{"POST", "/v1/locks/x/leases", "application/json; charset=utf-16", "{\x00}\x00", 400, "invalid", ""},
		{"POST", "/v1/locks/x/leases", "application/json", big, 413, "body_too_large", ""},
		{"POST", "/v1/locks/x/leases", "application/json", "", 400, "invalid", ""},
		{"POST", "/v1/locks/x/leases", "", `{"owner":{"id":"a"}} {}`, 400, "invalid", ""},
		{"POST", "/v1/locks/x/leases", "", `{"owner":{"id":"a"},"tttl_ms":1000}`, 400, "invalid", ""},
		{"POST", "/v1/locks/x/leases", "", `{"owner":{"id":"a"},"ttl_ms":1e400}`, 400, "invalid", ""},
		{"POST", "/v1/locks/x/leases", "", `{"owner":{"id":"a"},"ttl_ms":9223372036854775807}`, 400, "invalid", ""},
		{"POST", "/v1/locks/x/leases", "", `{"owner":{"id":"a"},"limit":99999999999999999999999999}`, 400, "invalid", ""},
		{"POST", "/v1/locks/x/leases", "", `{"owner":{"id":"` + "\xff" + `"}}`, 400, "invalid", ""},
		{"POST", "/v1/locks/x/leases", "", strings.Repeat("[", 100_000), 400, "invalid", ""},
		{"POST", "/v1/locks/x/leases", "application/vnd.lokt+json", `{"owner":{"id":"a"},"ttl_ms":60000}`, 200, "", ""},
		{"GET", "/v1/events", "", "", 404, "no_events", ""},
		{"GET", "/v1/audit", "", "", 404, "no_events", ""},
		{"GET", "/v1/locks?queued=perhaps", "", "", 400, "invalid", ""},
		{"GET", "/v1/locks/x?seen=-1", "", "", 400, "invalid", ""},
		{"GET", "/v1/locks?prefix=%zz", "", "", 400, "invalid", ""},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(test.method, "http://lokt.example/", strings.NewReader(test.body))
		path, query, _ := strings.Cut(test.path, "?")
		r.URL.Path, r.URL.RawQuery = path, query
		if strings.Contains(path, "%") {
			r.URL.RawPath = path
			r.URL.Path = strings.NewReplacer("%2e", ".", "%2F", "/").Replace(path)
		}
		if test.contentType != "" {
			r.Header.Set("Content-Type", test.contentType)
		}
		handler.ServeHTTP(w, r)
		var p struct{ Code string }
		_ = json.Unmarshal(w.Body.Bytes(), &p)
		if w.Code != test.status || p.Code != test.code || w.Header().Get("Allow") != test.allow {
			t.Errorf("%s %s %.60q is answered %d %s %q", test.method, test.path, test.body, w.Code, w.Header().Get("Allow"), w.Body)
		}
	}
}

// Promise S-157.
func TestMemberThatIsThereTwiceIsRefusedByName(t *testing.T) {
	handler := httpapi.NewHandler(memory())
	for _, test := range []struct{ method, path, body, member string }{
		{"POST", "/v1/locks/x/leases", `{"owner":{"id":"a"},"ttl_ms":1000,"ttl_ms":2000}`, "ttl_ms"},
		{"POST", "/v1/locks/x/leases", `{"owner":{"id":"a"},"ttl_ms":1000,"TTL_MS":2000}`, "TTL_MS is not known"},
		{"POST", "/v1/locks/x/leases", `{"owner":{"id":"a"},"ttl_ms":1000,"ttl\u005fms":1000}`, "ttl_ms"},
		{"POST", "/v1/locks/x/leases", `{"owner":{"id":"a"},"owner":{"session":"b"}}`, "owner"},
		{"POST", "/v1/locks/x/leases", `{"owner" : { "id" : "a" , "id" : "b" } }`, "owner.id"},
		{"POST", "/v1/locks/x/leases", `{"owner":{"id":"a","process":{"pid":1,"pid":2}}}`, "owner.process.pid"},
		{"POST", "/v1/locks/x/leases", `{"owner":{"id":"a"},"within":["l"],"within":null}`, "within"},
		{"POST", "/v1/locks/x/leases", `{"owner":{"id":"a"},"metadata":{"k":"1","K":"2","k":"3"}}`, "metadata.k"},
		{"POST", "/v1/leases/heartbeat", `{"leases":[{"name":"x","lease_id":"l"},{"owner":{"id":"a"},"owner":{"id":"a"}}]}`, "leases.1.owner"},
		{"PUT", "/v1/locks/x/freeze", `{"owner":{"id":"a"},"reason":"r","reason":"s"}`, "reason"},
		{"POST", "/v1/locks/x/leases", `{"owner":{"id":"a"},"ttl_ms":60000,"metadata":{"k":"1","K":"2","ttl_ms":"3"}}`, ""},
	} {
		r := httptest.NewRequest(test.method, test.path, strings.NewReader(test.body))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		var p struct{ Code, Detail string }
		_ = json.Unmarshal(w.Body.Bytes(), &p)
		if test.member == "" && w.Code == http.StatusOK {
			continue
		}
		if w.Code != http.StatusBadRequest || p.Code != "invalid" || !strings.Contains(p.Detail, test.member) || !strings.HasSuffix(p.Detail, "not known") && !strings.Contains(p.Detail, test.member+" is there more than once") {
			t.Errorf("%s %s is answered %d %s", test.path, test.body, w.Code, w.Body)
		}
	}
}

func TestServerWithoutLocksSaysSo(t *testing.T) {
	client := onLoopback(t, httpapi.Config{})
	if _, err := client.Get(t.Context(), "x"); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), client.URL()) {
		t.Errorf("got %v", err)
	}
	if _, err := client.ReadEvents(t.Context(), lokt.EventQuery{}); !errors.Is(err, httpapi.ErrNoEvents) {
		t.Errorf("got %v", err)
	}
}

// panicking is a service that breaks.
type panicking struct{ httpapi.Locks }

func TestPanicIsAnsweredAndTheServerGoesOn(t *testing.T) {
	var seen []httpapi.Request
	handler := httpapi.NewHandler(httpapi.Config{Locks: panicking{}, Observe: func(r httpapi.Request) { seen = append(seen, r) }})
	r := httptest.NewRequest(http.MethodGet, "/v1/locks/x", nil)
	r.Header.Set("X-Request-Id", "mine-7")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), `"code":"internal"`) || strings.Contains(w.Body.String(), "nil pointer") {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
	if w.Header().Get("X-Request-Id") != "mine-7" || len(seen) != 1 || seen[0].ID != "mine-7" || seen[0].Status != 500 || seen[0].Pattern != "GET /v1/locks/{name}" {
		t.Errorf("observed %+v, answered %v", seen, w.Header())
	}
	w = httptest.NewRecorder()
	r = httptest.NewRequest(http.MethodGet, "/nowhere", nil)
	r.Header.Set("X-Request-Id", "not fit\nfor logs")
	handler.ServeHTTP(w, r)
	if id := w.Header().Get("X-Request-Id"); len(id) != 16 || seen[1].ID != id || seen[1].Pattern != "" || seen[1].Status != 404 {
		t.Errorf("observed %+v", seen[1])
	}
}

func TestPagesOfOtherOriginsMayOnlyRead(t *testing.T) {
	handler := httpapi.NewHandler(memory())
	for site, want := range map[string]int{"cross-site": 403, "same-origin": 200, "": 200} {
		r := httptest.NewRequest(http.MethodPost, "/v1/locks/x/leases", strings.NewReader(`{"owner":{"id":"a"},"ttl_ms":60000}`))
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("from %q: %d %s", site, w.Code, w.Body)
		}
	}
}

func TestAnswersThatAreNotOfLoktdAreTold(t *testing.T) {
	for _, answer := range []func(w http.ResponseWriter, r *http.Request){
		func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
		func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hello</html>") },
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"revision":"x"}`)
		},
	} {
		server := httptest.NewServer(http.HandlerFunc(answer))
		client, err := httpapi.New(server.URL, httpapi.ClientOptions{Patience: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get(t.Context(), "x"); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), server.URL) {
			t.Errorf("got %v", err)
		}
		server.Close()
	}
}

func TestWhatIsWrongWithABodyIsSaidInTheWordsOfJSON(t *testing.T) {
	handler := httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New())})
	for body, want := range map[string]string{
		`[]`:                                   "body has the wrong type",
		`"x"`:                                  "body has the wrong type",
		`{"owner":5}`:                          "owner has the wrong type",
		`{"owner":{"id":["a"]}}`:               "owner.id has the wrong type",
		`{"owner":{"id":"a","any_session":1}}`: "owner.any_session has the wrong type",
		`{"owner":{"id":"a"},"ttl_ms":"5"}`:    "ttl_ms should be a number of milliseconds, not too large",
		`{"owner":{"id":"a"},"ttl_ms":1e30}`:   "ttl_ms should be a number of milliseconds, not too large",
		`{"owner":{"id":"a"},"ttl_ms":-1e-7}`:  "TTL 1ns is not at least 1ms", // and not a hold without an end
		`{"owner":{"id":"a"},"limit":1e30}`:    "limit has the wrong type",
		`{"owner":{"id":"a"},"within":{}}`:     "within has the wrong type",
		`{"owner":{"id":"a"},"metadata":[]}`:   "metadata has the wrong type",
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/locks/x/leases", strings.NewReader(body)))
		var got struct{ Detail string }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusBadRequest || got.Detail != "invalid request: "+want {
			t.Errorf("%s: %d %s, %v", body, w.Code, w.Body, err)
		}
	}
}
