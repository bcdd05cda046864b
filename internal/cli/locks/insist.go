package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

// insistent is a Service on a server whose renewals are repeated for as long as their context lasts: one whose answer does
// not come is given up soon and asked for again, over a new connection, because a connection may be dead without a word
// while the server is well. To wait for one answer until the lease is nearly over would be to lose it for that.
type insistent struct {
	lokt.Service
	from    string                    // the server, for people
	attempt time.Duration             // how long one answer may take
	failed  func(lokt.Renewal, error) // is told of each attempt that failed, though more will follow
}

// Renew implements lokt.Service.
func (s insistent) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	for {
		short, cancel := context.WithTimeout(ctx, s.attempt)
		h, err := s.Service.Renew(short, r)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: no answer from %s within %v", lokt.ErrUnavailable, s.from, s.attempt)
		}
		if err == nil || !errors.Is(err, lokt.ErrUnavailable) {
			return h, err
		}
		s.failed(r, err)
		if !app.Pause(ctx, s.attempt/10) {
			return h, err
		}
	}
}

// attemptTime is how long an answer to a guard with that TTL may take before it is asked for again.
func attemptTime(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 250*time.Millisecond), 3*time.Second)
}
