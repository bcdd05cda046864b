package locks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// refusing is a service whose renewals fail a few times.
type refusing struct {
	lokt.Service
	mu    sync.Mutex
	fail  []error
	hang  bool // until the context ends
	late  time.Duration
	calls int
}

func (r *refusing) Renew(ctx context.Context, x lokt.Renewal) (lokt.Holder, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.hang {
		r.hang = false
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		return lokt.Holder{}, context.Cause(ctx)
	}
	if r.late > 0 {
		r.mu.Unlock()
		defer r.mu.Lock()
		select {
		case <-time.After(r.late):
			return lokt.Holder{Token: 7}, nil
		case <-ctx.Done():
			return lokt.Holder{}, context.Cause(ctx)
		}
	}
	if len(r.fail) > 0 {
		err := r.fail[0]
		r.fail = r.fail[1:]
		return lokt.Holder{}, err
	}
	return lokt.Holder{Token: 7}, nil
}

// Promise S-106.
func TestRenewalsAreRepeatedWhileTheServerIsOutOfReachAndNoLonger(t *testing.T) {
	away := fmt.Errorf("%w: refused", lokt.ErrUnavailable)
	gone := &lokt.GoneError{Name: "x"}
	for what, c := range map[string]struct {
		r     *refusing
		calls int
		told  int
		err   error
	}{
		"at once":         {&refusing{}, 1, 0, nil},
		"in the end":      {&refusing{fail: []error{away, away}}, 3, 2, nil},
		"after a silence": {&refusing{hang: true}, 2, 1, nil},
		"gone":            {&refusing{fail: []error{away, gone}}, 2, 1, gone},
	} {
		told := 0
		s := insistent{Service: c.r, attempt: 20 * time.Millisecond, failed: func(lokt.Renewal, error) { told++ }}
		h, err := s.Renew(context.Background(), lokt.Renewal{Name: "x"})
		if c.r.calls != c.calls || told != c.told || !errors.Is(err, c.err) || err == nil && h.Token != 7 {
			t.Errorf("%s: %d calls, %d told, %v, %v", what, c.r.calls, told, h, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r := &refusing{fail: make([]error, 1000)}
	for i := range r.fail {
		r.fail[i] = away
	}
	s := insistent{Service: r, attempt: 20 * time.Millisecond, failed: func(lokt.Renewal, error) {}}
	if _, err := s.Renew(ctx, lokt.Renewal{Name: "x"}); !errors.Is(err, lokt.ErrUnavailable) || r.calls < 2 {
		t.Errorf("%d calls, %v", r.calls, err)
	}
	slow := &refusing{late: 3 * time.Second / 10}
	s = insistent{Service: slow, attempt: time.Second / 10, failed: func(lokt.Renewal, error) {}}
	if h, err := s.Renew(t.Context(), lokt.Renewal{Name: "x"}); err != nil || h.Token != 7 {
		t.Errorf("a slow server: %v, %v", h, err)
	}
	for ttl, want := range map[time.Duration]time.Duration{time.Second: 250 * time.Millisecond, 10 * time.Second: time.Second, time.Hour: 3 * time.Second} {
		if got := attemptTime(ttl); got != want {
			t.Errorf("TTL %v: %v, want %v", ttl, got, want)
		}
	}
}
