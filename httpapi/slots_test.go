package httpapi_test

import (
	"context"
	"errors"
	"fmt"
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

// byToken is a gate that takes the bearer token for the caller's name.
type byToken struct{}

func (byToken) Enter(r *http.Request) (httpapi.Caller, error) {
	return callerNamed(r.Header.Get("Authorization")), nil
}

type callerNamed string

func (c callerNamed) Name() string                 { return string(c) }
func (callerNamed) May(httpapi.Scope, string) bool { return true }

// Promise S-127.
func TestNoCallerMayHaveMoreThanItsShareOfWhatWaits(t *testing.T) {
	t.Parallel()
	manager := lokt.NewManager(memstore.New())
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{
		Locks: manager, Gate: byToken{}, Limits: httpapi.Limits{Parked: 3, StreamsEach: 1},
	}))
	defer server.Close()
	client := func(name string) *httpapi.Client {
		c, err := httpapi.New(server.URL, httpapi.ClientOptions{Token: name, Patience: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	greedy, modest := client("greedy"), client("modest")
	wait := func(ctx context.Context, c *httpapi.Client) error {
		return c.Wait(ctx, lokt.Watch{Name: "x"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 2)
	for range 2 {
		go func() {
			err := wait(ctx, greedy)
			for limited := (*httpapi.RateLimitedError)(nil); errors.As(err, &limited); { // the one below was there first
				time.Sleep(10 * time.Millisecond)
				err = wait(ctx, greedy)
			}
			over <- err
		}()
	}
	var limited *httpapi.RateLimitedError
	soon := 100 * time.Millisecond
	for end := time.Now().Add(5 * time.Minute); ; soon = min(2*soon, 10*time.Second) { // the two may not be there yet, or this machine is slow
		short, done := context.WithTimeout(t.Context(), soon)
		err := wait(short, greedy)
		done()
		if errors.As(err, &limited) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the third is answered %v", err)
		}
		time.Sleep(soon) // so that one of the two whose place this had comes in
	}
	if limited.RetryAfter <= 0 {
		t.Errorf("it is told to come again in %v", limited.RetryAfter)
	}
	short, done := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer done()
	if err := wait(short, modest); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, httpapi.ErrRateLimited) {
		t.Errorf("another caller is answered %v", err)
	}
	cancel()
	for range 2 {
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	for end := time.Now().Add(time.Minute); ; { // what was given back can be had again
		again, done := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := wait(again, greedy)
		done()
		if !errors.As(err, &limited) {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// away is a service whose store is out of reach.
type away struct{ httpapi.Locks }

func (away) Get(context.Context, string) (lokt.Snapshot, error) {
	return lokt.Snapshot{}, fmt.Errorf("%w: the disk is full", lokt.ErrUnavailable)
}

func TestWhoObservesIsToldWhyAnAnswerWasAFailure(t *testing.T) {
	var seen httpapi.Request
	handler := httpapi.NewHandler(httpapi.Config{Locks: away{}, Observe: func(r httpapi.Request) { seen = r }})
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/locks/x", nil))
	if seen.Status != http.StatusServiceUnavailable || !strings.Contains(seen.Reason, "the disk is full") {
		t.Errorf("it is told %+v", seen)
	}
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/nothing", nil))
	if seen.Status != http.StatusNotFound || seen.Reason != "" {
		t.Errorf("of another it is told %+v", seen)
	}
}

func TestNoCallerMayHaveMoreThanItsShareOfStreams(t *testing.T) {
	store := memstore.New()
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{
		Locks: lokt.NewManager(store), Events: store, Gate: byToken{}, Limits: httpapi.Limits{Streams: 5, StreamsEach: 1},
	}))
	t.Cleanup(server.Close)
	open := func(who string) (status int, retryAfter string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", who)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp.StatusCode, resp.Header.Get("Retry-After")
	}
	if status, _ := open("greedy"); status != http.StatusOK {
		t.Errorf("the first stream is answered %d", status)
	}
	if status, retry := open("greedy"); status != http.StatusTooManyRequests || retry == "" {
		t.Errorf("the second is answered %d, to come again after %q", status, retry)
	}
	if status, _ := open("modest"); status != http.StatusOK {
		t.Errorf("another caller's is answered %d", status)
	}
}

// Promise S-183.
func TestNoCallerFillsTheQueueOfALockForAllOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New()), Gate: byToken{}})
		ask := func(token, lease string, wait time.Duration) (status int, body string) {
			r := httptest.NewRequest(http.MethodPost, "/v1/locks/x/leases", strings.NewReader(fmt.Sprintf(
				`{"lease_id":%q,"owner":{"id":"o"},"ttl_ms":600000,"wait_ms":%d,"stay":%t}`, lease, wait.Milliseconds(), wait > 0)))
			r.Header.Set("Authorization", token)
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code, w.Body.String()
		}
		lease := func(n int) string { return fmt.Sprintf("%032x", n) }
		if status, body := ask("owner", lease(0), 0); status != http.StatusOK {
			t.Fatal(status, body)
		}
		for n := 1; n <= httpapi.MaxPlaces; n++ {
			if status, body := ask("greedy", lease(n), time.Millisecond); status != http.StatusAccepted {
				t.Fatal(n, status, body)
			}
		}
		if status, body := ask("greedy", lease(httpapi.MaxPlaces+1), time.Millisecond); status != http.StatusTooManyRequests || !strings.Contains(body, `"full"`) {
			t.Error("who has so many places is answered ", status, body)
		}
		if status, body := ask("greedy", lease(1), time.Millisecond); status != http.StatusAccepted {
			t.Error("who has a place is answered ", status, body)
		}
		if status, body := ask("modest", strings.Repeat("f", 32), time.Millisecond); status != http.StatusAccepted {
			t.Error("another caller is answered ", status, body)
		}
	})
}

// Promise S-183.
func TestNoCallerFillsTheQueueOfALockByAskingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := httpapi.NewHandler(httpapi.Config{Locks: slowQueue{lokt.NewManager(memstore.New())}, Gate: byToken{}})
		statuses := make(chan int, httpapi.MaxPlaces+100)
		ask := func(token string, n int) {
			r := httptest.NewRequest(http.MethodPost, "/v1/locks/x/leases", strings.NewReader(fmt.Sprintf(
				`{"lease_id":"%032x","owner":{"id":"o"},"ttl_ms":600000,"wait_ms":10000,"stay":true}`, n)))
			r.Header.Set("Authorization", token)
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			statuses <- w.Code
		}
		ask("owner", 0)
		<-statuses
		for n := range cap(statuses) {
			go ask("greedy", n+1)
		}
		counts := map[int]int{}
		for range cap(statuses) {
			counts[<-statuses]++
		}
		if counts[http.StatusAccepted] != httpapi.MaxPlaces || counts[http.StatusTooManyRequests] != 100 {
			t.Error("answers are ", counts)
		}
		ask("greedy", httpapi.MaxPlaces+200) // places last
		if status := <-statuses; status != http.StatusTooManyRequests {
			t.Error("another is answered ", status)
		}
	})
}

// slowQueue is a service that takes its time before a claim is in a queue.
type slowQueue struct{ *lokt.Manager }

func (s slowQueue) Poll(ctx context.Context, c *lokt.Claim) (*lokt.Holder, error) {
	time.Sleep(time.Second)
	return s.Manager.Poll(ctx, c)
}
