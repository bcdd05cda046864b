package httpapi_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
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
		go func() { over <- wait(ctx, greedy) }()
	}
	var limited *httpapi.RateLimitedError
	for end := time.Now().Add(time.Minute); ; { // the two may not be there yet
		short, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := wait(short, greedy)
		done()
		if errors.As(err, &limited) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the third is answered %v", err)
		}
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
