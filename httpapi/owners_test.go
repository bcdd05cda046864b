package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// club is a server with callers, whom it knows by the names that they give as tokens.
type club struct {
	*testing.T
	store *memstore.Store
	url   string
}

type anybody struct{ scopes []httpapi.Scope }

func (a anybody) Enter(r *http.Request) (httpapi.Caller, error) {
	name := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	scopes := a.scopes
	if name == "root" {
		scopes = append([]httpapi.Scope{httpapi.ScopeForce}, scopes...)
	}
	return &user{name: name, scopes: scopes}, nil
}

func newClub(t *testing.T) *club {
	store := memstore.New()
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{
		Locks: lokt.NewManager(store), Events: store, Gate: anybody{[]httpapi.Scope{httpapi.ScopeRead, httpapi.ScopeLock}},
	}))
	t.Cleanup(server.Close)
	return &club{t, store, server.URL}
}

func (c *club) as(name string) *httpapi.Client {
	client, err := httpapi.New(c.url, httpapi.ClientOptions{Token: name, Patience: time.Millisecond})
	if err != nil {
		c.Fatal(err)
	}
	return client
}

func (c *club) acquire(name string, claim lokt.Claim) lokt.Holder {
	c.Helper()
	h, err := c.as(name).Acquire(c.Context(), claim)
	if err != nil {
		c.Fatal(err)
	}
	return h
}

func (c *club) refused(what string, err, want error) {
	c.Helper()
	if !errors.Is(err, want) {
		c.Errorf("%s: %v, not %v", what, err, want)
	}
}

var ci = lokt.Owner{ID: "ci", Host: "h", AnySession: true}

// Promise S-73.
func TestAnotherCallerIsAnotherOwnerWhateverItCallsItself(t *testing.T) {
	c := newClub(t)
	h := c.acquire("ann", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour})
	if h.Owner != ci {
		t.Errorf("ann holds as %+v", h.Owner)
	}
	for _, id := range []string{"ci", "ann/ci", "ann%2Fci"} {
		as := lokt.Owner{ID: id, Host: "h", AnySession: true}
		for _, refresh := range []bool{false, true} {
			_, err := c.as("bob").Acquire(t.Context(), lokt.Claim{Name: "x", Owner: as, TTL: time.Hour, Refresh: refresh})
			c.refused("entering as "+id, err, lokt.ErrHeld)
			if blocked := (*lokt.BlockedError)(nil); !errors.As(err, &blocked) || blocked.Holders[0].Owner.ID != "ann/ci" || !strings.Contains(err.Error(), "ann/ci@h") {
				t.Errorf("bob is told %v", err)
			}
		}
		_, err := c.as("bob").Release(t.Context(), lokt.Target{Name: "x", Owner: as})
		c.refused("releasing as "+id, err, lokt.ErrNotOwner)
		_, err = c.as("bob").Release(t.Context(), lokt.Target{Name: "x", Owner: as, Force: true})
		c.refused("force without its scope", err, httpapi.ErrForbidden)
		_, err = c.as("bob").Unfreeze(t.Context(), lokt.Target{Name: "x", Owner: as, Force: true})
		c.refused("thawing by force without its scope", err, httpapi.ErrForbidden)
	}
	again := c.acquire("ann", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour, Refresh: true}) // from another machine
	if again.LeaseID == "" || again.Token != h.Token || again.Renewals != 1 {
		t.Errorf("ann entered again: %+v", again)
	}
	second := c.acquire("ann", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour})
	if second.Token <= h.Token {
		t.Errorf("ann entered again: %+v", second)
	}
	ended, err := c.as("ann").Release(t.Context(), lokt.Target{Name: "x", Owner: ci})
	if err != nil || len(ended) != 2 || ended[0].Owner != ci {
		t.Errorf("ann released %+v, %v", ended, err)
	}
	c.acquire("bob", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour})
	ended, err = c.as("root").Release(t.Context(), lokt.Target{Name: "x", Owner: ci, Force: true})
	if err != nil || len(ended) != 1 || ended[0].Owner.ID != "bob/ci" {
		t.Errorf("root released %+v, %v", ended, err)
	}
}

// Promise S-73.
func TestAnotherCallerDoesNotThaw(t *testing.T) {
	c := newClub(t)
	f, err := c.as("ann").Freeze(t.Context(), "x", lokt.Freeze{Owner: ci})
	if err != nil || f.Owner != ci {
		t.Fatal(f, err)
	}
	_, err = c.as("bob").Freeze(t.Context(), "x", lokt.Freeze{Owner: ci})
	c.refused("freezing again", err, lokt.ErrFrozen)
	_, err = c.as("bob").Acquire(t.Context(), lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour})
	if blocked := (*lokt.BlockedError)(nil); !errors.As(err, &blocked) || blocked.Freeze.Owner.ID != "ann/ci" {
		t.Errorf("bob is told %v", err)
	}
	_, err = c.as("bob").Unfreeze(t.Context(), lokt.Target{Name: "x", Owner: ci})
	c.refused("thawing", err, lokt.ErrNotOwner)
	if f, err = c.as("ann").Unfreeze(t.Context(), lokt.Target{Name: "x", Owner: ci}); err != nil || f.Owner != ci {
		t.Error(f, err)
	}
}

// Promise S-73.
func TestCallersSeeTheirOwnersAsTheyNamedThemAndWhoseTheOthersAre(t *testing.T) {
	c := newClub(t)
	ctx := t.Context()
	c.acquire("ann", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour, Limit: 2})
	c.acquire("bob", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour, Limit: 2})
	for caller, want := range map[string]string{"ann": "ci bob/ci", "bob": "ann/ci ci", "eve": "ann/ci bob/ci"} {
		s, err := c.as(caller).Get(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Lock.Holders[0].Owner.ID + " " + s.Lock.Holders[1].Owner.ID; got != want {
			t.Errorf("%s sees %s", caller, got)
		}
		for s, err := range c.as(caller).List(ctx, lokt.Filter{}) {
			if got := s.Lock.Holders[0].Owner.ID + " " + s.Lock.Holders[1].Owner.ID; err != nil || got != want {
				t.Errorf("%s sees %s, %v in the list", caller, got, err)
			}
		}
		page, err := c.as(caller).ReadEvents(ctx, lokt.EventQuery{Types: []lokt.EventType{lokt.EventAcquire}})
		if err != nil || len(page.Events) != 2 || page.Events[0].Owner.ID+" "+page.Events[1].Owner.ID != want {
			t.Errorf("%s sees %+v, %v", caller, page, err)
		}
		for i, id := range strings.Fields(want) {
			page, err := c.as(caller).ReadEvents(ctx, lokt.EventQuery{Owner: id})
			if err != nil || len(page.Events) != 1 || page.Events[0].Token != uint64(i+1) || page.Events[0].Owner.ID != id {
				t.Errorf("%s asks for the events of %s: %+v, %v", caller, id, page, err)
			}
		}
	}
	_, err := c.as("root").Release(ctx, lokt.Target{Name: "x", Owner: lokt.Owner{ID: "admin"}, Force: true})
	if err != nil {
		t.Fatal(err)
	}
	for caller, want := range map[string]string{"ann": "root/admin", "root": "admin"} {
		page, err := c.as(caller).ReadEvents(ctx, lokt.EventQuery{Types: []lokt.EventType{lokt.EventForceBreak}})
		if err != nil || len(page.Events) != 2 || page.Events[0].Extra[lokt.ExtraBy] != want {
			t.Errorf("%s sees %+v, %v", caller, page, err)
		}
	}
}

// Promises S-68, S-73.
func TestALeaseIsRenewedWithItsIDByACallerOfAnotherName(t *testing.T) {
	c := newClub(t)
	h := c.acquire("ann", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour, LeaseID: "secret-1"})
	h, err := c.as("ann2").Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID, Owner: &h.Owner})
	if err != nil || h.Renewals != 1 {
		t.Error(h, err)
	}
	_, err = c.as("ann2").Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID, Owner: &lokt.Owner{ID: "other", Host: "h"}})
	c.refused("renewing another owner's lease", err, lokt.ErrNotOwner)
	before, err := lokt.NewManager(c.store).Acquire(t.Context(), lokt.Claim{Name: "y", Owner: ci, TTL: time.Hour, LeaseID: "secret-2"}) // without callers
	if err != nil {
		t.Fatal(err)
	}
	if h, err = c.as("ann").Renew(t.Context(), lokt.Renewal{Name: "y", LeaseID: before.LeaseID, Owner: &ci}); err != nil || h.Renewals != 1 || h.Owner != ci {
		t.Error(h, err)
	}
}

func TestCallersWithAnyNameAreDifferentOwners(t *testing.T) {
	c := newClub(t)
	long := strings.Repeat("n", 200)
	names := []string{"a", "a/b", "a%2Fb", "job:x", "spiffe://example.org/ci", long, long + "n", strings.Repeat("/", 100), strings.Repeat("/", 101)}
	id := strings.Repeat("i", 128)
	seen := map[string]string{}
	for i, name := range names {
		at := fmt.Sprint("lock", i)
		if h := c.acquire(name, lokt.Claim{Name: at, Owner: lokt.Owner{ID: id}, TTL: time.Hour}); h.Owner.ID != id {
			t.Errorf("%.20q holds as %q", name, h.Owner.ID)
		}
		s, err := lokt.NewManager(c.store).Get(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		stored := s.Lock.Holders[0].Owner.ID
		if was, known := seen[stored]; known || strings.Count(stored, "/") != 1 || len(stored) > lokt.MaxIDLen {
			t.Errorf("%.20q and %.20q are both %q", name, was, stored)
		}
		seen[stored] = name
	}
	_, err := c.as("a").Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: strings.Repeat("i", lokt.MaxIDLen-1)}})
	c.refused("an owner without room for the caller", err, lokt.ErrInvalid)
	for _, body := range []string{`{"owner":{"id":""}}`, `{"owner":{"id":"a\u0007"}}`} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url+"/v1/locks/x/leases", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer a")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", body, answer.Status)
		}
	}
}

// revocable lets everybody in until it is told not to.
type revocable struct {
	anybody
	revoked atomic.Bool
}

func (r *revocable) Enter(q *http.Request) (httpapi.Caller, error) {
	if r.revoked.Load() {
		return nil, httpapi.ErrUnauthenticated
	}
	return r.anybody.Enter(q)
}

// Promise S-98.
func TestAStreamEndsWithTheTokenOfItsCaller(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	locks, gate := lokt.NewManager(store), &revocable{anybody: anybody{[]httpapi.Scope{httpapi.ScopeRead}}}
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: locks, Events: store, Gate: gate}))
	defer server.Close()
	answer, err := http.Get(server.URL + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	over := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, answer.Body)
		over <- err
	}()
	gate.revoked.Store(true)
	deadline := time.After(2 * time.Minute)
	for i := 0; ; i++ {
		if _, err := locks.Acquire(t.Context(), lokt.Claim{Name: fmt.Sprint("x", i), Owner: ci}); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-over:
			if err != nil {
				t.Error(err)
			}
			return
		case <-deadline:
			t.Fatal("the stream goes on")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestAnotherCallerDoesNotTakeBackWhatItDidNotAskFor(t *testing.T) {
	c := newClub(t)
	c.acquire("eve", lokt.Claim{Name: "x", Owner: ci, TTL: time.Hour})
	do := func(ctx context.Context, caller, method, path, body string, header ...string) int {
		r, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		r.Header.Set("Authorization", "Bearer "+caller)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	claim := `{"lease_id":"mine","owner":{"id":"ci"},"wait_ms":20,"stay":true}`
	cancels := "/v1/locks/x/leases/" + lokt.PublicID("made-up")
	do(t.Context(), "bob", http.MethodDelete, cancels, "", "Lokt-Lease", "made-up", "Lokt-Cancels", "op-1")
	if status := do(t.Context(), "ann", http.MethodPost, "/v1/locks/x/leases", claim, "Lokt-Operation", "op-1"); status != http.StatusAccepted {
		t.Errorf("ann's claim after bob took it back: %d", status)
	}
	do(t.Context(), "ann", http.MethodDelete, cancels, "", "Lokt-Lease", "made-up", "Lokt-Cancels", "op-1")
	if status := do(t.Context(), "ann", http.MethodPost, "/v1/locks/x/leases", claim, "Lokt-Operation", "op-1"); status != http.StatusBadRequest {
		t.Errorf("ann's claim after ann took it back: %d", status)
	}
	if status := do(t.Context(), "ann", http.MethodDelete, cancels, "", "Lokt-Lease", "made-up", "Lokt-Cancels", strings.Repeat("o", 65)); status != http.StatusBadRequest {
		t.Errorf("an operation that is too long to be kept: %d", status)
	}
}
