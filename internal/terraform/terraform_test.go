package terraform_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/terraform"
	"github.com/lokt-dev/lokt/store/memstore"
)

// caller is a gate that knows one token, and lets in who brings it.
type caller string

func (c caller) Enter(r *http.Request) (httpapi.Caller, error) {
	if r.Header.Get("Authorization") != "Bearer "+string(c) {
		return nil, httpapi.ErrUnauthenticated
	}
	return c, nil
}
func (c caller) Name() string                   { return "ci" }
func (c caller) May(httpapi.Scope, string) bool { return true }

func server(t *testing.T) (url string, locks *lokt.Manager) {
	t.Helper()
	locks = lokt.NewManager(memstore.New())
	s := httptest.NewServer(terraform.Handler(httpapi.NewHandler(httpapi.Config{Locks: locks, Gate: caller("secret")})))
	t.Cleanup(s.Close)
	return s.URL, locks
}

func send(t *testing.T, method, url, password, body string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.SetBasicAuth("terraform", password)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

const (
	first  = `{"ID":"5a3f","Operation":"OperationTypeApply","Info":"","Who":"ana@laptop","Version":"1.11.4","Created":"2026-01-02T03:04:05Z","Path":""}`
	second = `{"ID":"77c1","Operation":"OperationTypePlan","Info":"","Who":"ana@laptop","Version":"1.11.4","Created":"2026-01-02T03:05:05Z","Path":""}`
)

// Promise S-235: a run cannot be told to end.
func TestARunKeepsItsLockWhateverAsksForIt(t *testing.T) {
	url, locks := server(t)
	at := url + terraform.Prefix + "network"
	if status, text := send(t, "LOCK", at, "secret", first); status != http.StatusOK {
		t.Fatal(status, text)
	}
	urgent := lokt.Claim{Name: "network", Owner: lokt.Owner{ID: "ben"}, Priority: 1, Preempt: time.Millisecond, Wait: 500 * time.Millisecond}
	if h, err := locks.Acquire(t.Context(), urgent); !errors.Is(err, lokt.ErrHeld) {
		t.Errorf("beside a run that goes on: %+v, %v", h, err)
	}
	if status, text := send(t, "UNLOCK", at, "secret", first); status != http.StatusOK {
		t.Error(status, text)
	}
}

func TestOneRunAtATimeLocksAState(t *testing.T) {
	url, locks := server(t)
	for _, methods := range [][2]string{{"LOCK", "UNLOCK"}, {"POST", "DELETE"}} {
		lock, unlock := methods[0], methods[1]
		at := url + terraform.Prefix + "network"
		for range 2 { // an answer may get lost, and the request is made again
			if status, text := send(t, lock, at, "secret", first); status != http.StatusOK {
				t.Fatalf("%s: %d %s", lock, status, text)
			}
		}
		status, text := send(t, lock, at, "secret", second) // of the same user, in another run
		var holder struct{ ID, Operation, Who string }
		if err := json.Unmarshal([]byte(text), &holder); err != nil || status != http.StatusLocked {
			t.Fatalf("%s of another: %d %s, %v", lock, status, text, err)
		}
		if holder.Operation != "OperationTypeApply" || holder.Who != "ana@laptop" || holder.ID == "" || strings.Contains(text, "5a3f") {
			t.Errorf("%s of another names %s", lock, text)
		}
		if status, text := send(t, unlock, at, "secret", second); status == http.StatusOK {
			t.Errorf("%s by another: %d %s", unlock, status, text)
		}
		if status, text := send(t, unlock, at, "secret", first); status != http.StatusOK {
			t.Errorf("%s: %d %s", unlock, status, text)
		}
		if snap, err := locks.Get(t.Context(), "network"); err != nil || len(snap.Lock.Holders) > 0 {
			t.Errorf("after %s: %+v, %v", unlock, snap.Lock, err)
		}
	}
}

func TestLockThatTerraformDoesNotHoldIsNamedToo(t *testing.T) {
	url, locks := server(t)
	if _, err := locks.Poll(t.Context(), &lokt.Claim{Name: "network", Owner: lokt.Owner{ID: "night shift"}}); err != nil {
		t.Fatal(err)
	}
	if status, text := send(t, "LOCK", url+terraform.Prefix+"network", "secret", first); status != http.StatusLocked || !strings.Contains(text, `"Who":"night shift"`) {
		t.Errorf("%d %s", status, text)
	}
}

func TestFreezeIsToldWhereTerraformShowsIt(t *testing.T) {
	url, locks := server(t)
	if _, err := locks.Freeze(t.Context(), "network", lokt.Freeze{Owner: lokt.Owner{ID: "ana"}, Reason: "release day"}); err != nil {
		t.Fatal(err)
	}
	status, text := send(t, "LOCK", url+terraform.Prefix+"network", "secret", first)
	var shown struct{ ID string }
	if err := json.Unmarshal([]byte(text), &shown); err != nil || status != http.StatusLocked || !strings.Contains(shown.ID, "frozen by ana") {
		t.Errorf("%d %s, %v", status, text, err)
	}
}

func TestWhatIsNoStateLockIsRefused(t *testing.T) {
	url, _ := server(t)
	for _, c := range []struct {
		method, path, password, body string
		status                       int
	}{
		{"LOCK", terraform.Prefix + "network", "wrong", first, http.StatusUnauthorized},
		{"LOCK", terraform.Prefix + "net..work", "secret", first, http.StatusBadRequest},
		{"LOCK", terraform.Prefix + "network", "secret", `{}`, http.StatusBadRequest},
		{"POST", terraform.Prefix + "network?ID=5a3f", "secret", `{"version":4,"serial":1,"lineage":"x"}`, http.StatusBadRequest}, // a state
		{"UNLOCK", terraform.Prefix + "network", "secret", ``, http.StatusBadRequest},
		{"GET", terraform.Prefix + "network", "secret", ``, http.StatusUnauthorized}, // the locks' handler knows no passwords
	} {
		if status, text := send(t, c.method, url+c.path, c.password, c.body); status != c.status {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, text)
		}
	}
}
