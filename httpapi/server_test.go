package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// ask sends a request to a handler and returns the answer, decoded.
func ask(t *testing.T, handler http.Handler, method, target, body string, headers ...string) (int, map[string]any) {
	t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	var answer map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s %s is answered %d %q", method, target, w.Code, w.Body)
	}
	return w.Code, answer
}

// Promise S-72.
func TestParkedRequestsAreBoundedAndEndWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, stop := context.WithCancel(t.Context())
		manager := lokt.NewManager(memstore.New())
		config := httpapi.Config{Locks: manager, Stop: running, Limits: httpapi.Limits{Parked: 2}}
		handler := httpapi.NewHandler(config)
		if _, err := manager.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		answers := make(chan string, 2)
		parked := time.Now()
		wg.Go(func() {
			code, p := ask(t, handler, "POST", "/v1/locks/x/leases", `{"owner":{"id":"b"},"wait_ms":20000}`)
			answers <- fmt.Sprint(code, p["code"], time.Since(parked))
		})
		synctest.Wait()
		seen := snapshot(t, manager, "x").Lock.Revision
		if code, p := ask(t, handler, "GET", fmt.Sprintf("/v1/locks/x?seen=%d&wait_ms=20000", seen+1), ""); code != 200 {
			t.Errorf("a lock that is not as it was seen is answered %d %v", code, p)
		}
		wg.Go(func() {
			code, p := ask(t, handler, "GET", fmt.Sprintf("/v1/locks/x?seen=%d&wait_ms=20000", seen), "")
			answers <- fmt.Sprint(code, p["code"], time.Since(parked))
		})
		synctest.Wait()
		if code, p := ask(t, handler, "POST", "/v1/locks/x/leases", `{"owner":{"id":"c"},"wait_ms":1000}`); code != 503 || p["code"] != "unavailable" {
			t.Errorf("one too many is answered %d %v", code, p)
		}
		if code, _ := ask(t, handler, "GET", "/v1/locks/x", ""); code != 200 {
			t.Errorf("one that does not wait is answered %d", code)
		}
		time.Sleep(3 * time.Second)
		stop()
		wg.Wait()
		for range 2 {
			if got := <-answers; got != "503unavailable3s" {
				t.Errorf("at the end of the server the answer is %s", got)
			}
		}
		if snap := snapshot(t, manager, "x"); len(snap.Lock.Queue) != 1 || snap.Lock.Queue[0].Owner.ID != "b" {
			t.Errorf("in the queue is %+v", snap.Lock.Queue)
		}
		if code, _ := ask(t, handler, "POST", "/v1/locks/x/leases", `{"owner":{"id":"b"},"wait_ms":20000}`); code != 503 {
			t.Errorf("one that would wait now is answered %d", code)
		}
	})
}

func snapshot(t *testing.T, s lokt.Service, name string) lokt.Snapshot {
	t.Helper()
	snap, err := s.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func TestWaitWithoutStayLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := httpapi.NewHandler(memory())
		_, held := ask(t, handler, "POST", "/v1/locks/x/leases", `{"owner":{"id":"a"}}`)
		if id := held["holder"].(map[string]any)["lease_id"]; len(id.(string)) != 32 {
			t.Errorf("granted %v", held)
		}
		asked := time.Now()
		code, p := ask(t, handler, "POST", "/v1/locks/x/leases", `{"owner":{"id":"b"},"wait_ms":2000}`)
		if code != 409 || p["code"] != "held" || p["timed_out_ms"] != 2000.0 || time.Since(asked) != 2*time.Second {
			t.Errorf("after %v: %d %v", time.Since(asked), code, p)
		}
		code, p = ask(t, handler, "POST", "/v1/locks/x/leases", `{"lease_id":"c's own","owner":{"id":"c"},"wait_ms":2000,"stay":true}`)
		if code != 400 {
			t.Errorf("a lease ID with a space: %d %v", code, p)
		}
		code, p = ask(t, handler, "POST", "/v1/locks/x/leases", `{"lease_id":"of-c","owner":{"id":"c"},"wait_ms":2000,"stay":true}`)
		if code != 202 || p["queued"] != true || p["id"] != lokt.PublicID("of-c") {
			t.Errorf("%d %v", code, p)
		}
		_, lock := ask(t, handler, "GET", "/v1/locks/x", "")
		if queue := lock["queue"].([]any); len(queue) != 1 || queue[0].(map[string]any)["id"] != lokt.PublicID("of-c") {
			t.Errorf("in the queue is %v", queue)
		}
	})
}

// Promise S-72.
func TestSlowClientsAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		manager := lokt.NewManager(store)
		for i := range 300 {
			c := lokt.Claim{Name: fmt.Sprint("lock-", i), Owner: lokt.Owner{ID: "a"}, Metadata: map[string]string{"k": strings.Repeat("v", 4000)}}
			if _, err := manager.Acquire(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		l := newPipeListener()
		ended := make(chan httpapi.Request, 3)
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: httpapi.NewHandler(httpapi.Config{
			Locks: manager, Events: store, Observe: func(r httpapi.Request) { ended <- r }, Limits: httpapi.Limits{Request: 5 * time.Second},
		})}
		go server.Serve(l) //nolint:errcheck // it ends with the test
		for _, request := range []string{
			"GET /v1/locks HTTP/1.1\r\nHost: x\r\n\r\n",                                     // and takes nothing in
			"POST /v1/locks/x/leases HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"", // and sends no more
			"GET /v1/events?after=1 HTTP/1.1\r\nHost: x\r\n\r\n",
		} {
			begun := time.Now()
			conn, err := l.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			r := <-ended
			if took := time.Since(begun); took < 5*time.Second || took > 11*time.Second {
				t.Errorf("%s took %v", r.Pattern, took)
			}
			conn.Close() //nolint:errcheck // it is at its end
		}
		server.Close() //nolint:errcheck // it ends with the test
	})
}

// spy remembers what a handler answers, and to whom.
type spy struct {
	http.Handler
	mu    sync.Mutex
	notes []note
}

type note struct{ url, sent, lease, answer string }

func (s *spy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	t := &tee{ResponseWriter: w}
	s.Handler.ServeHTTP(t, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, note{r.URL.String(), string(body), r.Header.Get("Lokt-Lease"), t.text.String() + fmt.Sprint(w.Header())})
}

type tee struct {
	http.ResponseWriter
	text bytes.Buffer
}

func (t *tee) Write(p []byte) (int, error) {
	t.text.Write(p)
	return t.ResponseWriter.Write(p)
}

func (t *tee) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Promise S-73.
func TestLeaseIDsAreShownOnlyToWhoNamesThem(t *testing.T) {
	store := memstore.New()
	manager := lokt.NewManager(store)
	var logged bytes.Buffer
	var observed []httpapi.Request
	watch := &spy{}
	watch.Handler = httpapi.NewHandler(httpapi.Config{
		Locks: manager, Events: store, Log: slog.New(slog.NewTextHandler(&logged, nil)), Observe: func(r httpapi.Request) { observed = append(observed, r) },
	})
	server := httptest.NewServer(watch)
	defer server.Close()
	client := func() *httpapi.Client {
		c, err := httpapi.New(server.URL, httpapi.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b, ctx := client(), client(), t.Context()
	claim := func(id, who string, edits ...func(*lokt.Claim)) lokt.Claim {
		c := lokt.Claim{Name: "x", LeaseID: "secret-" + id, Owner: lokt.Owner{ID: who}, TTL: time.Hour}
		for _, edit := range edits {
			edit(&c)
		}
		return c
	}
	var said strings.Builder // by errors
	note := func(_ any, err error) {
		if err != nil {
			fmt.Fprintln(&said, err)
			if blocked, ok := errors.AsType[*lokt.BlockedError](err); ok {
				fmt.Fprintf(&said, "%+v\n", blocked)
			}
			if gone, ok := errors.AsType[*lokt.GoneError](err); ok {
				fmt.Fprintf(&said, "%+v\n", gone.Holders)
			}
		}
	}
	h, err := a.Acquire(ctx, claim("1", "a"))
	if err != nil || h.LeaseID != "secret-1" {
		t.Fatalf("granted %+v, %v", h, err)
	}
	note(b.Acquire(ctx, claim("2", "b")))
	note(b.Acquire(ctx, claim("1", "b"))) // stolen, and named, but another's
	note(b.Acquire(ctx, claim("3", "b", func(c *lokt.Claim) { c.Wait = 10 * time.Millisecond; c.Within = []string{"secret-4"} })))
	note(b.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "secret-5"}))
	note(b.Release(ctx, lokt.Target{Name: "x", LeaseID: "secret-6"}))
	note(b.Release(ctx, lokt.Target{Name: "x", Owner: lokt.Owner{ID: "b"}}))
	snap, err := b.Get(ctx, "x")
	if err != nil || snap.Lock.Holders[0].LeaseID != lokt.PublicID("secret-1") {
		t.Errorf("b sees %+v, %v", snap.Lock, err)
	}
	if snap, err = a.Get(ctx, "x"); err != nil || snap.Lock.Holders[0].LeaseID != "secret-1" {
		t.Errorf("a sees %+v, %v", snap.Lock, err)
	}
	for snap, err = range b.List(ctx, lokt.Filter{}) {
		if err != nil || snap.Lock.Holders[0].LeaseID != lokt.PublicID("secret-1") {
			t.Errorf("b sees %+v, %v", snap.Lock, err)
		}
	}
	ended, err := b.Release(ctx, lokt.Target{Name: "x", LeaseID: lokt.PublicID("secret-1"), Force: true, Owner: lokt.Owner{ID: "root"}})
	if err != nil || len(ended) != 1 || ended[0].LeaseID != lokt.PublicID("secret-1") {
		t.Errorf("force by a public ID ended %+v, %v", ended, err)
	}
	note(a.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "secret-1"}))
	if _, err = a.Acquire(ctx, claim("7", "a", func(c *lokt.Claim) { c.TTL = time.Millisecond })); err != nil {
		t.Fatal(err)
	}
	for len(snapshot(t, manager, "x").Live()) > 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err = b.Acquire(ctx, claim("8", "b")); err != nil { // a takeover, which names the lease that was
		t.Fatal(err)
	}
	page, err := b.ReadEvents(ctx, lokt.EventQuery{})
	if err != nil || len(page.Events) < 10 {
		t.Fatalf("events %+v, %v", page, err)
	}
	takeovers := 0
	for _, e := range page.Events {
		if e.Type == lokt.EventTakeover {
			takeovers++
			if e.Extra[lokt.ExtraLeaseWas] != lokt.PublicID("secret-7") || e.LeaseID != "secret-8" {
				t.Errorf("b sees the takeover %+v", e)
			}
		}
	}
	if takeovers != 1 {
		t.Errorf("there were %d takeovers", takeovers)
	}
	streamed := 0
	for _, err := range follow(ctx, b, lokt.EventQuery{After: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if streamed++; streamed == len(page.Events)-1 {
			break
		}
	}
	server.Close()

	watch.mu.Lock()
	defer watch.mu.Unlock()
	for _, n := range watch.notes {
		if strings.Contains(n.url, "secret") {
			t.Errorf("a URL has a lease ID: %s", n.url)
		}
		for i := 1; i <= 8; i++ {
			id := fmt.Sprint("secret-", i)
			named := n.lease == id || strings.Contains(n.sent, `"lease_id":"`+id+`"`)
			if strings.Contains(n.answer, id) && (!named || strings.Contains(n.answer, "problem+json")) {
				t.Errorf("%s with %s %s is answered %s", n.url, n.lease, n.sent, n.answer)
			}
		}
	}
	if text := logged.String() + fmt.Sprint(observed) + said.String(); strings.Contains(text, "secret-") || len(observed) == 0 || said.Len() == 0 {
		t.Errorf("people read %s", text)
	}
}

// users are callers by token.
type users map[string]*user

type user struct {
	name   string
	scopes []httpapi.Scope
	prefix string
}

func (u users) Enter(r *http.Request) (httpapi.Caller, error) {
	c, ok := u[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	if !ok {
		return nil, fmt.Errorf("%w: no such token", httpapi.ErrUnauthenticated)
	}
	if len(c.scopes) == 0 {
		return nil, &httpapi.RateLimitedError{RetryAfter: time.Millisecond}
	}
	return c, nil
}

func (u *user) Name() string { return u.name }

func (u *user) May(s httpapi.Scope, name string) bool {
	return slices.Contains(u.scopes, s) && (name == "" || strings.HasPrefix(name, u.prefix))
}

// Promises S-73, S-174.
func TestCallersDoWhatTheyMay(t *testing.T) {
	store := memstore.New()
	locks := []httpapi.Scope{httpapi.ScopeRead, httpapi.ScopeLock}
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(store), Events: store, Gate: users{
		"1": {name: "ann", scopes: locks}, "2": {name: "bob", scopes: locks},
		"3": {name: "root", scopes: []httpapi.Scope{httpapi.ScopeRead, httpapi.ScopeLock, httpapi.ScopeForce}},
		"4": {name: "eve", scopes: locks, prefix: "eve-"}, "5": {name: "reader", scopes: []httpapi.Scope{httpapi.ScopeRead}},
		"6": {name: "busy"}, "7": {name: "worker", scopes: []httpapi.Scope{httpapi.ScopeWork}},
	}}))
	defer server.Close()
	as := func(token string) *httpapi.Client {
		c, err := httpapi.New(server.URL, httpapi.ClientOptions{Token: token, Patience: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx, build := t.Context(), lokt.Owner{ID: "build"}
	claim := func(name string) lokt.Claim {
		return lokt.Claim{Name: name, Owner: build, TTL: time.Hour, Limit: lokt.Shared}
	}
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || errors.Is(err, httpapi.ErrForbidden) && !errors.Is(want, httpapi.ErrForbidden) {
			t.Errorf("%s: %v, not %v", what, err, want)
		}
	}
	_, err := as("0").Get(ctx, "x")
	is("an unknown token", err, httpapi.ErrUnauthenticated)
	_, err = as("6").Get(ctx, "x")
	is("a caller who asks too often", err, httpapi.ErrRateLimited)
	h, err := as("1").Acquire(ctx, claim("x"))
	if err != nil || h.Owner != build {
		t.Fatalf("ann was granted %+v, %v", h, err)
	}
	_, err = as("5").Acquire(ctx, claim("x"))
	is("a reader's claim", err, httpapi.ErrForbidden)
	_, err = as("4").Acquire(ctx, claim("x"))
	is("a claim outside the prefix", err, httpapi.ErrForbidden)
	if !strings.Contains(err.Error(), `what begins with another prefix, and not "x"`) || strings.Contains(err.Error(), "missing") {
		t.Errorf("a claim outside the prefix: %v", err)
	}
	_, err = as("4").Get(ctx, "x")
	is("a look outside the prefix", err, httpapi.ErrForbidden)
	if _, err = as("4").Acquire(ctx, claim("eve-1")); err != nil {
		t.Error(err)
	}
	names := func(c *httpapi.Client) string {
		var all []string
		for s, err := range c.List(ctx, lokt.Filter{}) {
			if err != nil {
				return err.Error()
			}
			all = append(all, s.Lock.Name)
		}
		return strings.Join(all, " ")
	}
	if got := names(as("4")) + "; " + names(as("5")); got != "eve-1; eve-1 x" {
		t.Errorf("listed %s", got)
	}
	if got := names(as("7")); !strings.Contains(got, "not allowed") {
		t.Errorf("a worker sees %s", got)
	}
	page, err := as("4").ReadEvents(ctx, lokt.EventQuery{})
	if err != nil || len(page.Events) != 1 || page.Events[0].Name != "eve-1" {
		t.Errorf("eve sees %+v, %v", page, err)
	}

	// The same owner, but another caller.
	_, err = as("2").Release(ctx, lokt.Target{Name: "x", Owner: build})
	is("bob's release of ann's hold", err, lokt.ErrNotOwner)
	again, err := as("2").Acquire(ctx, lokt.Claim{Name: "x", Owner: build, TTL: time.Hour, Limit: lokt.Shared, Refresh: true})
	if err != nil || again.Token == h.Token || again.Owner != build {
		t.Errorf("bob refreshed ann's hold: %+v, %v", again, err)
	}
	_, err = as("2").Release(ctx, lokt.Target{Name: "x", LeaseID: lokt.PublicID(h.LeaseID), Owner: build, Force: true})
	is("bob's force", err, httpapi.ErrForbidden)
	_, err = as("2").Release(ctx, lokt.Target{Name: "x", Owner: build, Force: true})
	is("bob's force", err, httpapi.ErrForbidden)
	ended, err := as("2").Release(ctx, lokt.Target{Name: "x", Owner: build})
	if err != nil || len(ended) != 1 || ended[0].Token != again.Token {
		t.Errorf("bob released %+v, %v", ended, err)
	}
	ended, err = as("3").Release(ctx, lokt.Target{Name: "x", LeaseID: lokt.PublicID(h.LeaseID), Owner: build, Force: true})
	if err != nil || len(ended) != 1 || ended[0].Token != h.Token {
		t.Errorf("root released %+v, %v", ended, err)
	}
	_, err = as("3").Release(ctx, lokt.Target{Name: "x", LeaseID: lokt.PublicID(h.LeaseID), Owner: build, Force: true})
	is("force on what is gone", err, lokt.ErrNotFound)
	if _, err = as("1").Freeze(ctx, "x", lokt.Freeze{Owner: build}); err != nil {
		t.Error(err)
	}
	_, err = as("2").Unfreeze(ctx, lokt.Target{Name: "x", Owner: lokt.Owner{ID: "bob"}, Force: true})
	is("bob's forced end of a freeze", err, httpapi.ErrForbidden)
	if _, err = as("3").Unfreeze(ctx, lokt.Target{Name: "x", Owner: lokt.Owner{ID: "root"}, Force: true}); err != nil {
		t.Error(err)
	}
}

// forgetful is an event log of which a test decides what it has forgotten.
type forgetful struct {
	*memstore.Store
	mu     sync.Mutex
	oldest uint64
	newest uint64 // if not 0, what it says
}

func (f *forgetful) ReadEvents(ctx context.Context, q lokt.EventQuery) (lokt.EventPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.newest != 0 {
		return lokt.EventPage{Newest: f.newest}, nil
	}
	page, err := f.Store.ReadEvents(ctx, q)
	page.Oldest = max(page.Oldest, f.oldest)
	page.Events = slices.DeleteFunc(page.Events, func(e lokt.LoggedEvent) bool { return e.Seq < page.Oldest })
	return page, err
}

func (f *forgetful) WaitEvents(ctx context.Context, after uint64) error {
	f.mu.Lock()
	restored := f.newest != 0
	f.mu.Unlock()
	if restored {
		<-ctx.Done()
		return ctx.Err()
	}
	return f.Store.WaitEvents(ctx, after)
}

var errGap = errors.New("gap")

// follow yields events as they happen, from q.After on or from the present on, and errors that wrap errGap where some were
// forgotten. Any other error is the last thing that it yields.
func follow(ctx context.Context, log lokt.EventLog, q lokt.EventQuery) iter.Seq2[lokt.LoggedEvent, error] {
	return func(yield func(lokt.LoggedEvent, error) bool) {
		page, err := log.ReadEvents(ctx, lokt.EventQuery{Latest: true, Limit: 1})
		if q.After == 0 {
			q.After = page.Newest
		}
		for err == nil {
			if page, err = log.ReadEvents(ctx, q); errors.Is(err, lokt.ErrUnavailable) && ctx.Err() == nil {
				time.Sleep(time.Second) // the server is restarted
				err = nil
				continue
			} else if err != nil {
				break
			}
			if page.Newest < q.After || page.Oldest > q.After+1 {
				if !yield(lokt.LoggedEvent{}, fmt.Errorf("%w after %d", errGap, q.After)) {
					return
				}
				q.After = min(q.After, page.Newest)
			}
			for _, e := range page.Events {
				if q.After = e.Seq; !yield(e, nil) {
					return
				}
			}
			if !page.More {
				q.After = page.Newest
				short, done := context.WithTimeout(ctx, 20*time.Second) // numbers may begin again
				_ = log.WaitEvents(short, q.After)                      // the next reading tells
				done()
			}
		}
		yield(lokt.LoggedEvent{}, err)
	}
}

// Promise S-74.
func TestEventsAreStreamedWithoutALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &forgetful{Store: memstore.New()}
		manager := lokt.NewManager(store)
		d := &daemon{config: httpapi.Config{Locks: manager, Events: store}}
		d.start()
		transport := &http.Transport{DialContext: d.dial}
		client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: transport}})
		if err != nil {
			t.Fatal(err)
		}
		happen := func(name string) {
			h, err := manager.Acquire(t.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "a"}})
			if err == nil {
				_, err = manager.Release(t.Context(), lokt.Target{Name: name, LeaseID: h.LeaseID})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		happen("before")
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan string, 100)
		done := make(chan error, 1)
		go func() {
			var last error
			for e, err := range follow(ctx, client, lokt.EventQuery{Prefix: "x"}) {
				switch {
				case errors.Is(err, errGap):
					got <- err.Error()
				case err != nil:
					last = err
				default:
					got <- fmt.Sprint(e.Seq, " ", e.Type, " ", e.Name)
				}
			}
			done <- last
		}()
		synctest.Wait()
		expect := func(want ...string) {
			t.Helper()
			time.Sleep(time.Minute) // several heartbeats
			for _, w := range want {
				select {
				case g := <-got:
					if g != w {
						t.Errorf("got %s, not %s", g, w)
					}
				default:
					t.Errorf("%s is missing", w)
				}
			}
			select {
			case g := <-got:
				t.Errorf("got %s, too", g)
			default:
			}
		}
		happen("x1")
		happen("other")
		happen("x2")
		expect("3 acquire x1", "4 release x1", "7 acquire x2", "8 release x2")
		for _, gracefully := range []bool{true, false} {
			d.halt(gracefully)
			happen("x3")
			time.Sleep(3 * time.Second)
			d.start()
		}
		expect("9 acquire x3", "10 release x3", "11 acquire x3", "12 release x3")
		d.halt(true)
		happen("x4")
		happen("x5")
		store.mu.Lock()
		store.oldest = 15
		store.mu.Unlock()
		d.start()
		expect("gap after 12", "15 acquire x5", "16 release x5")
		store.mu.Lock()
		store.newest = 3 // it was restored from a copy
		store.mu.Unlock()
		d.halt(false)
		d.start()
		expect("gap after 16")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		d.halt(true)
		transport.CloseIdleConnections()
	})
}

func TestStreamOfEventsCanBeReadByAnybody(t *testing.T) {
	store := memstore.New()
	manager := lokt.NewManager(store)
	running, stop := context.WithCancel(t.Context())
	defer stop()
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: manager, Events: store, Stop: running, Limits: httpapi.Limits{Streams: 1}}))
	defer server.Close()
	if _, err := manager.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "secret", Owner: lokt.Owner{ID: "a"}}); err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/events?after=0&type=acquire", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%+v, %v", resp, err)
	}
	defer resp.Body.Close()
	again, err := http.DefaultClient.Do(r)
	if err != nil || again.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("one stream too many: %+v, %v", again, err)
	}
	again.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	var text []string
	for lines.Scan() {
		text = append(text, lines.Text())
		if strings.HasPrefix(lines.Text(), "data: ") {
			stop()
		}
	}
	var e struct {
		Seq              int
		Type, Name, Time string
		ID               string
	}
	if i := slices.Index(text, "id: 1"); i < 0 || json.Unmarshal([]byte(strings.TrimPrefix(text[i+1], "data: ")), &e) != nil || e.Seq != 1 || e.Type != "acquire" ||
		e.Name != "x" || e.ID != lokt.PublicID("secret") || !strings.HasSuffix(e.Time, "Z") {
		t.Errorf("the stream says %q", text)
	}
}

// Promise S-291.
func TestACallerIsNotWokenByEventsThatItMayNotSee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		manager := lokt.NewManager(store)
		var answers atomic.Int64
		client := inBubble(t, httpapi.Config{Locks: manager, Events: store, Observe: func(httpapi.Request) { answers.Add(1) }, Gate: users{
			"": {name: "eve", scopes: []httpapi.Scope{httpapi.ScopeRead}, prefix: "eve-"},
		}})
		happens := func(name string) {
			if _, err := manager.Acquire(t.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "o"}, TTL: time.Hour}); err != nil {
				t.Error(err)
			}
		}
		for i := range lokt.MaxEvents + 1 {
			happens(fmt.Sprint("others", i))
		}
		happens("eve-1")
		happens("other")
		happens("eve-2")
		for _, c := range []struct {
			q    lokt.EventQuery
			want string
		}{
			{lokt.EventQuery{}, "[eve-1 eve-2] false"}, {lokt.EventQuery{Limit: 1}, "[eve-1] true"}, {lokt.EventQuery{Limit: 1, Latest: true}, "[eve-2] true"},
			{lokt.EventQuery{Latest: true, Before: 1002}, "[] false"},
		} {
			page, err := client.ReadEvents(t.Context(), c.q)
			names := []string{}
			for _, e := range page.Events {
				names = append(names, e.Name)
			}
			if got := fmt.Sprint(names, page.More); err != nil || got != c.want {
				t.Errorf("%+v: %s, not %s: %v", c.q, got, c.want, err)
			}
		}
		page, err := client.ReadEvents(t.Context(), lokt.EventQuery{Limit: 1, Latest: true})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		answers.Store(0)
		woken := make(chan error)
		go func() { woken <- client.WaitEvents(t.Context(), page.Newest) }()
		for i := range 10 {
			time.Sleep(time.Second)
			happens(fmt.Sprint("more", i))
		}
		synctest.Wait()
		if n := answers.Load(); n > 0 {
			t.Errorf("it was answered %d times", n)
		}
		happens("eve-3")
		asked := time.Now()
		if err := <-woken; err != nil || time.Since(asked) > time.Second {
			t.Errorf("after %v: %v", time.Since(asked), err)
		}
	})
}

func TestAuditIsReadInPagesAndAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		manager := lokt.NewManager(store)
		client := inBubble(t, httpapi.Config{Locks: manager, Events: store})
		for i := range 5 {
			if _, err := client.Acquire(t.Context(), lokt.Claim{Name: fmt.Sprint("x", i), Owner: lokt.Owner{ID: fmt.Sprint("o", i%2)}, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		read := func(q lokt.EventQuery) string {
			page, err := client.ReadEvents(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			text := ""
			for _, e := range page.Events {
				text += fmt.Sprint(e.Seq)
			}
			return fmt.Sprint(text, " ", page.Oldest, page.Newest, page.More)
		}
		start := snapshot(t, manager, "x0").Lock.Holders[0].HeldSince
		for want, q := range map[string]lokt.EventQuery{
			"12345 1 5 false": {}, "12 1 5 true": {Limit: 2}, "34 1 5 true": {After: 2, Limit: 2}, "45 1 5 true": {Limit: 2, Latest: true},
			"135 1 5 false": {Owner: "o0"}, "3 1 5 false": {Name: "x2"}, "23 1 5 false": {Since: start.Add(time.Second), Until: start.Add(3 * time.Second)},
			" 1 5 false": {Types: []lokt.EventType{lokt.EventRelease}}, "1234 1 5 false": {Before: 5, Prefix: "x", Types: []lokt.EventType{lokt.EventAcquire, lokt.EventDeny}},
		} {
			if got := read(q); got != want {
				t.Errorf("%+v: %s, not %s", q, got, want)
			}
		}
		woken := make(chan time.Duration)
		asked := time.Now()
		go func() {
			if err := client.WaitEvents(t.Context(), 5); err != nil {
				t.Error(err)
			}
			woken <- time.Since(asked)
		}()
		time.Sleep(2 * time.Minute)
		if _, err := client.Acquire(t.Context(), lokt.Claim{Name: "y", Owner: lokt.Owner{ID: "a"}, TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if took := <-woken; took < 2*time.Minute || took > 2*time.Minute+time.Second {
			t.Errorf("it woke after %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := client.WaitEvents(ctx, 6); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// A proxy between holds back what an earlier process of a ticket has sent.
//
// Promise S-247.
func TestLateRequestsOfAnEarlierProcessOfATicketLeaveTheLaterOneWhatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		manager := lokt.NewManager(memstore.New())
		handler := httpapi.NewHandler(httpapi.Config{Locks: manager})
		held := lokt.Claim{Name: "x", LeaseID: "held", Owner: lokt.Owner{ID: "a"}}
		if _, err := manager.Acquire(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		post := func(number int) string {
			body := `{"lease_id":"mine","owner":{"id":"b","process":{"pid":%d}},"ttl_ms":60000,"wait_ms":30000,"stay":true,"ticket":%[1]d}`
			code, p := ask(t, handler, "POST", "/v1/locks/x/leases", fmt.Sprintf(body, number), "Lokt-Operation", fmt.Sprint("op-", number))
			return fmt.Sprint(code, p["cause"])
		}
		late := func() {
			t.Helper()
			code, p := ask(t, handler, "DELETE", "/v1/locks/x/leases/"+lokt.PublicID("mine")+"?ticket=1", "", "Lokt-Lease", "mine", "Lokt-Cancels", "op-0")
			if p["gone"] != true || p["cause"] != "taken-over" {
				t.Errorf("a late release is answered %d %v", code, p)
			}
			if got := post(1); got != "404taken-over" && got != "403taken-over" {
				t.Errorf("a late claim is answered %s", got)
			}
		}
		first, second := make(chan string, 1), make(chan string, 1)
		go func() { first <- post(1) }()
		synctest.Wait()
		go func() { second <- post(2) }()
		synctest.Wait()
		late()
		if _, err := manager.Release(t.Context(), lokt.Target{Name: "x", LeaseID: held.LeaseID}); err != nil {
			t.Fatal(err)
		}
		if one, two := <-first, <-second; one != "403taken-over" || two != "200 <nil>" {
			t.Errorf("the first is answered %s, the second %s", one, two)
		}
		late()
		if snap := snapshot(t, manager, "x"); len(snap.Lock.Holders) != 1 || snap.Lock.Holders[0].Owner.Process.PID != 2 {
			t.Errorf("there are %+v", snap.Lock.Holders)
		}
	})
}

// Promise S-71.
func TestClaimThatIsTakenBackStopsWaitingAtTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		manager := lokt.NewManager(memstore.New())
		handler := httpapi.NewHandler(httpapi.Config{Locks: manager})
		if _, err := manager.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "held", Owner: lokt.Owner{ID: "a"}}); err != nil {
			t.Fatal(err)
		}
		answered := make(chan string, 1)
		go func() { // of which a proxy between holds the connection open
			code, p := ask(t, handler, "POST", "/v1/locks/x/leases", `{"lease_id":"mine","owner":{"id":"b"},"wait_ms":30000,"stay":true}`, "Lokt-Operation", "op-1")
			answered <- fmt.Sprint(code, p["code"])
		}()
		synctest.Wait()
		asked := time.Now()
		if code, p := ask(t, handler, "DELETE", "/v1/locks/x/leases/"+lokt.PublicID("mine"), "", "Lokt-Lease", "mine", "Lokt-Cancels", "op-1"); code != 200 {
			t.Errorf("taking it back is answered %d %v", code, p)
		}
		if got := <-answered; got != "400invalid" || time.Since(asked) != 0 {
			t.Errorf("after %v the claim is answered %s", time.Since(asked), got)
		}
		if snap := snapshot(t, manager, "x"); len(snap.Lock.Queue) != 0 {
			t.Errorf("still in the queue: %+v", snap.Lock.Queue)
		}
	})
}
