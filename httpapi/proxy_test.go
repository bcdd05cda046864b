package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
)

// roundTrips answers requests in place of a server.
type roundTrips func(r *http.Request) (*http.Response, error)

func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answering returns a client that is answered so, whatever it asks.
func answering(t *testing.T, status int, media string, body func() io.Reader) *httpapi.Client {
	t.Helper()
	client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{HTTPClient: &http.Client{
		Transport: roundTrips(func(r *http.Request) (*http.Response, error) {
			a := &http.Response{Status: fmt.Sprint(status), StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: r}
			a.Header, a.Body = http.Header{"Content-Type": {media}}, io.NopCloser(body())
			return a, nil
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// calls are what a client may ask of which the answer counts.
func calls(c *httpapi.Client) map[string]func(ctx context.Context) error {
	owner, worker, freeze := lokt.Owner{ID: "a"}, c.Jobs(), lokt.Freeze{ID: "f", Owner: lokt.Owner{ID: "a"}}
	return map[string]func(ctx context.Context) error{
		"refresh": func(ctx context.Context) error {
			_, err := c.Acquire(ctx, lokt.Claim{Name: "x", LeaseID: "mine", Owner: lokt.Owner{ID: "b"}, TTL: time.Minute, Refresh: true})
			return err
		},
		"acquire": func(ctx context.Context) error {
			_, err := c.Acquire(ctx, lokt.Claim{Name: "x", LeaseID: "mine", Owner: owner, TTL: time.Minute})
			return err
		},
		"wait": func(ctx context.Context) error {
			_, err := c.Acquire(ctx, lokt.Claim{Name: "x", LeaseID: "mine", Owner: owner, TTL: time.Minute, Wait: time.Minute})
			return err
		},
		"renew": func(ctx context.Context) error {
			_, err := c.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "mine", Owner: &owner})
			return err
		},
		"release": func(ctx context.Context) error {
			_, err := c.Release(ctx, lokt.Target{Name: "x", LeaseID: "mine", Owner: owner})
			return err
		},
		"release all": func(ctx context.Context) error {
			_, err := c.Release(ctx, lokt.Target{Name: "x", Owner: owner, Force: true})
			return err
		},
		"tell": func(ctx context.Context) error {
			_, err := c.Tell(ctx, lokt.Target{Name: "x", Owner: owner}, lokt.Message{ID: "m", Text: "?"})
			return err
		},
		"get":    func(ctx context.Context) error { _, err := c.Get(ctx, "x"); return err },
		"watch":  func(ctx context.Context) error { return c.Wait(ctx, lokt.Watch{Name: "x", Seen: 7}) },
		"events": func(ctx context.Context) error { return c.WaitEvents(ctx, 7) },
		"list": func(ctx context.Context) error {
			for _, err := range c.List(ctx, lokt.Filter{}) {
				return err
			}
			return nil
		},
		"prune":  func(ctx context.Context) error { _, err := c.Prune(ctx, "x"); return err },
		"freeze": func(ctx context.Context) error { _, err := c.Freeze(ctx, "x", freeze); return err },
		"unfreeze": func(ctx context.Context) error {
			_, err := c.Unfreeze(ctx, lokt.Target{Name: "x", Owner: owner})
			return err
		},
		"submit": func(ctx context.Context) error { _, err := worker.Submit(ctx, []jobs.Spec{jobs.NewSpec()}); return err },
		"cancel": func(ctx context.Context) error { _, err := worker.Cancel(ctx, "j", ""); return err },
		"request": func(ctx context.Context) error {
			_, err := worker.Request(ctx, jobs.Request{WorkerID: "w"})
			return err
		},
		"heartbeat": func(ctx context.Context) error {
			_, err := worker.Heartbeat(ctx, jobs.Heartbeat{LeaseID: "l", WorkerID: "w"})
			return err
		},
		"heartbeats": func(ctx context.Context) error { _, err := worker.HeartbeatAll(ctx, "w", []string{"l"}); return err },
		"complete": func(ctx context.Context) error {
			_, err := worker.Complete(ctx, jobs.Completion{LeaseID: "l", WorkerID: "w", Status: jobs.Completed})
			return err
		},
		"report": func(ctx context.Context) error {
			return worker.Report(ctx, jobs.Progress{LeaseID: "l", WorkerID: "w"})
		},
		"revoke":      func(ctx context.Context) error { return worker.Revoke(ctx, "l", "") },
		"freeze type": func(ctx context.Context) error { return worker.Freeze(ctx, "t") },
		"job":         func(ctx context.Context) error { _, err := worker.Get(ctx, "j"); return err },
		"jobs":        func(ctx context.Context) error { _, err := worker.List(ctx, jobs.Filter{}); return err },
	}
}

// Promise S-241.
func TestAnAnswerThatIsNotLoktdsGrantsNothingAndEndsNothing(t *testing.T) {
	holder := func(name, id string, token int) string {
		return fmt.Sprintf(`{"name":%q,"id":%q,"owner":{"id":"a"},"ttl_ms":60000,"token":%d}`, name, lokt.PublicID(id), token)
	}
	others := []string{holder("y", "mine", 1), holder("x", "another's", 1), holder("x", "mine", 0)}
	answers := []struct {
		status      int
		media, body string
	}{
		{200, "application/json", `{}`},
		{200, "application/json", `{"status":"ok"}`},
		{200, "application/json", `{"ok":"yes"}`},
		{200, "application/json", `null`},
		{200, "application/json", `[]`},
		{200, "text/html", `<html>welcome</html>`},
		{202, "application/json", `{}`},
		{202, "application/json", `{"queued":true}`},
		{204, "", ``},
		{200, "application/json", `{"denied":true}`},
		{200, "application/json", `{"denied":false,"lease":{},"job":{}}`},
		{200, "application/json", `{"jobs":[{}],"leases":[{"ok":false}]}`},
		{404, "application/json", `{"detail":"Not Found"}`},
		{404, "application/json", `{"error":{"code":404,"message":"not found"}}`},
		{404, "application/json", `{"code":"not_found"}`},
		{404, "application/problem+json", `{"type":"about:blank","title":"Not Found","status":404,"code":"not_found"}`},
		{404, "application/problem+json", `{"type":"about:blank","status":404,"code":"not_found","gone":true}`},
		{403, "application/json", `{"code":"not_owner","message":"go away"}`},
		{403, "application/problem+json", `{"type":"about:blank","title":"Forbidden","status":403,"code":"not_owner"}`},
		{409, "application/json", `{"code":"held"}`},
		{409, "application/problem+json", `{"type":"about:blank","title":"Conflict","status":409,"code":"held"}`},
		{410, "application/json", `{"detail":"lease_not_found"}`},
		{410, "application/problem+json", `{"type":"about:blank","status":410,"code":"not_found","lock":"x"}`},
		{403, "application/json", `{"detail":"lease_not_found"}`},
		{400, "application/json", `{"detail":[]}`},
		{404, "text/html", `<html>no such page</html>`},
		{401, "application/json", `{"message":"log in"}`},
	}
	for _, h := range others {
		answers = append(answers,
			struct {
				status      int
				media, body string
			}{200, "application/json", `{"holder":` + h + `}`},
			struct {
				status      int
				media, body string
			}{200, "application/json", `{"leases":[{"holder":` + h + `}]}`})
	}
	for _, a := range answers {
		synctest.Test(t, func(t *testing.T) {
			client := answering(t, a.status, a.media, func() io.Reader { return strings.NewReader(a.body) })
			for what, ask := range calls(client) {
				if what == "tell" && strings.Contains(a.body, `"token":1`) { // it names no lease
					continue
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				err := ask(ctx)
				if ctx.Err() != nil {
					t.Errorf("%s: %d %s is asked for ever", what, a.status, a.body)
				}
				for _, wrong := range []error{
					nil, lokt.ErrNotFound, lokt.ErrNotOwner, lokt.ErrHeld, lokt.ErrInvalid,
					jobs.ErrLeaseNotFound, jobs.ErrWorkerMismatch, jobs.ErrJobNotFound, jobs.ErrConflict,
				} {
					if errors.Is(err, wrong) {
						t.Errorf("%s: %d %s is %v", what, a.status, a.body, err)
					}
				}
				if !errors.Is(err, lokt.ErrUnavailable) {
					t.Errorf("%s: %d %s is %v", what, a.status, a.body, err)
				}
				cancel()
			}
		})
	}
}

// endless is an answer that does not end, or not soon.
type endless struct{ read *int }

func (e endless) Read(p []byte) (int, error) {
	if *e.read += len(p); *e.read > 200<<20 {
		return 0, errors.New("so much was read")
	}
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// Promise S-240.
func TestAnAnswerWithoutAnEndIsNotReadToItsEnd(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusNotFound} {
		read := 0
		client := answering(t, status, "application/json", func() io.Reader { return endless{&read} })
		_, err := client.Get(t.Context(), "x")
		if !errors.Is(err, lokt.ErrUnavailable) || read > 130<<20 || status == http.StatusOK && !strings.Contains(err.Error(), "longer than 64 MiB") {
			t.Errorf("%d: %v, of which %d bytes were read", status, err, read)
		}
	}
}
