package httpapi_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// hanging is a store's services while the store does not answer.
type (
	hangingLocks  struct{ httpapi.Locks }
	hangingEvents struct{ lokt.EventLog }
	hangingJobs   struct{ jobs.Service }
)

func (hangingLocks) Get(ctx context.Context, _ string) (lokt.Snapshot, error) {
	<-ctx.Done()
	return lokt.Snapshot{}, ctx.Err()
}

func (hangingEvents) ReadEvents(ctx context.Context, _ lokt.EventQuery) (lokt.EventPage, error) {
	<-ctx.Done()
	return lokt.EventPage{}, ctx.Err()
}

func (hangingJobs) HeartbeatAll(ctx context.Context, _ string, _ []string) ([]jobs.LeaseAnswer, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAStoreThatDoesNotAnswerKeepsNoRequestForLongerThanTheLimit(t *testing.T) {
	bubbled(t, func(s *site) {
		for _, r := range []struct{ method, path, body string }{
			{"GET", "/v1/locks/x", ""},
			{"GET", "/v1/audit", ""},
			{"GET", "/v1/events", ""},
			{"GET", "/v1/events?after=1", ""},
			{"POST", "/api/system/scheduler/leases/heartbeat", `{"worker_id":"w","lease_ids":["l"]}`},
		} {
			ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
			request, err := http.NewRequestWithContext(ctx, r.method, s.url+r.path, strings.NewReader(r.body))
			if err != nil {
				s.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/json")
			begin := time.Now()
			answer, err := s.client.Do(request)
			if took := time.Since(begin); err != nil || answer.StatusCode != http.StatusServiceUnavailable || took > 10*time.Second {
				s.Errorf("%s %s: %+v, %v after %v", r.method, r.path, answer, err, took)
			}
			if err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
			cancel()
		}
	}, func(_ *manager.Options, c *httpapi.Config) {
		c.Limits.Request = 5 * time.Second
		c.Locks, c.Events, c.Jobs = hangingLocks{c.Locks}, hangingEvents{c.Events}, hangingJobs{c.Jobs}
	})
}
