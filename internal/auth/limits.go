package auth

import (
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxLimits is how many callers or addresses are told apart; the rest share one limit.
const maxLimits = 10_000

// limits are rates of many callers.
type limits struct {
	rate  rate.Limit
	burst int

	mu    sync.Mutex
	by    map[string]*rate.Limiter
	other *rate.Limiter
	swept time.Time
}

// sweepEvery is how often, at most, callers that have not asked for long are forgotten.
const sweepEvery = time.Second

func newLimits(r rate.Limit, burst int) *limits {
	return &limits{rate: r, burst: burst, by: map[string]*rate.Limiter{}, other: rate.NewLimiter(r, burst)}
}

// allow reports whether the caller may make one more request now.
func (l *limits) allow(who string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.by[who]
	if one == nil {
		if now := time.Now(); len(l.by) >= maxLimits && now.Sub(l.swept) >= sweepEvery {
			l.swept = now
			maps.DeleteFunc(l.by, func(_ string, old *rate.Limiter) bool {
				return old.Tokens() >= float64(l.burst) // has not asked for long: a new one would be just the same
			})
		}
		if one = l.other; len(l.by) < maxLimits {
			one = rate.NewLimiter(l.rate, l.burst)
			l.by[who] = one
		}
	}
	return one.Allow()
}

// address returns whom an unknown caller counts as: its IPv4 address, or the /64 of its IPv6 address, of which one host
// may have as many as it likes.
func address(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	ip := from.Addr().Unmap().WithZone("")
	if ip.Is6() {
		p, _ := ip.Prefix(64) // fits: the address has 128 bits
		return p.String()
	}
	return ip.String()
}
