package httpapi_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// garbler answers every request with a recorded answer that was changed on the way.
type garbler struct {
	random  *rand.Rand
	answers []string
}

func (g *garbler) RoundTrip(r *http.Request) (*http.Response, error) {
	body := g.answers[g.random.IntN(len(g.answers))]
	for range g.random.IntN(4) {
		body = mutate(g.random, body)
	}
	status := []int{200, 200, 200, 200, 202, 204, 302, 400, 404, 409, 422, 429, 500, 503}[g.random.IntN(14)]
	a := &http.Response{Status: fmt.Sprint(status), StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Request: r}
	a.Header.Set("Content-Type", []string{"application/json", "application/json", "application/problem+json", "text/html", ""}[g.random.IntN(5)])
	a.Header.Set("Retry-After", mutate(g.random, "1"))
	a.Body = io.NopCloser(strings.NewReader(body))
	return a, nil
}

// What answers may be no server, or a broken one: the client returns an error or makes the best of it, and soon.
func TestClientsSurviveGarbage(t *testing.T) {
	t.Parallel()
	g := &garbler{random: rand.New(rand.NewPCG(3, 4))}
	for _, file := range []string{"scheduler.txt", "locks.txt"} {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			if line[0] == '{' && len(line) < 4000 {
				g.answers = append(g.answers, strings.TrimSpace(string(line)))
			}
		}
	}
	client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{
		HTTPClient: &http.Client{Transport: g, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		Patience:   time.Nanosecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	worker, owner := client.Jobs(), lokt.Owner{ID: "a"}
	calls := []func(ctx context.Context){
		func(ctx context.Context) {
			_, _ = client.Acquire(ctx, lokt.Claim{Name: "x", Owner: owner, TTL: time.Second})
		},
		func(ctx context.Context) {
			_, _ = client.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "l", Owner: &owner})
		},
		func(ctx context.Context) { _, _ = client.Release(ctx, lokt.Target{Name: "x", LeaseID: "l"}) },
		func(ctx context.Context) { _, _ = client.Freeze(ctx, "x", lokt.Freeze{Owner: owner}) },
		func(ctx context.Context) { _, _ = client.Prune(ctx, "x") },
		func(ctx context.Context) { _, _ = client.Get(ctx, "x") },
		func(ctx context.Context) {
			for range client.List(ctx, lokt.Filter{}) { //nolint:errcheck,revive // only a panic would be wrong
			}
		},
		func(ctx context.Context) { _, _ = client.ReadEvents(ctx, lokt.EventQuery{}) },
		func(ctx context.Context) { _, _ = client.About(ctx) },
		func(ctx context.Context) { _, _ = worker.Submit(ctx, []jobs.Spec{jobs.NewSpec()}) },
		func(ctx context.Context) { _, _ = worker.Request(ctx, jobs.Request{WorkerID: "w"}) },
		func(ctx context.Context) { _, _ = worker.Heartbeat(ctx, jobs.Heartbeat{LeaseID: "l", WorkerID: "w"}) },
		func(ctx context.Context) { _, _ = worker.HeartbeatAll(ctx, "w", []string{"l"}) },
		func(ctx context.Context) {
			_, _ = worker.Complete(ctx, jobs.Completion{LeaseID: "l", WorkerID: "w", Status: jobs.Failed})
		},
		func(ctx context.Context) { _, _ = worker.Get(ctx, "j") },
		func(ctx context.Context) { _, _ = worker.List(ctx, jobs.Filter{}) },
		func(ctx context.Context) { _, _ = worker.Status(ctx) },
		func(ctx context.Context) { _, _ = worker.Workers(ctx) },
		func(ctx context.Context) { _, _ = worker.Stats(ctx, 30) },
		func(ctx context.Context) { _, _ = worker.Decisions(ctx, 30) },
		func(ctx context.Context) { _, _ = worker.CountEnded(ctx, "", "") },
	}
	for i := range 20_000 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		calls[i%len(calls)](ctx)
		cancel()
	}
}

// stalled is a store of locks that does not answer changes.
type stalled struct{ lokt.Store }

func (stalled) Update(ctx context.Context, _ string, _ func(lokt.Snapshot) lokt.Change) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAClaimThatIsNotOnRecordIsNotSaidToBeQueued(t *testing.T) {
	bubbled(t, func(s *site) {
		for _, wait := range []int{100, 1000, 30_000} {
			begun := time.Now()
			r := s.send("POST", "/v1/locks/x/leases", fmt.Sprintf(`{"owner":{"id":"a"},"wait_ms":%d,"stay":true}`, wait))
			if took := time.Since(begun); r.status != http.StatusServiceUnavailable || took > 11*time.Second {
				t.Errorf("a claim that waits for %d ms is answered with %d %s after %v", wait, r.status, r.body, took)
			}
		}
	}, func(_ *manager.Options, c *httpapi.Config) { c.Locks = lokt.NewManager(stalled{}) })
}
