package httpapi

import (
	"fmt"
	"sync"
	"time"
)

// slots bound what many do at the same time, all together and each caller alone. Requests of which the caller is not known
// count only among all.
type slots struct {
	what string // in the plural, for people
	most int
	each int

	mu    sync.Mutex
	taken int
	by    map[string]int
}

func newSlots(what string, most, each int) *slots {
	if each <= 0 {
		each = (most + 1) / 2
	}
	return &slots{what: what, most: most, each: min(each, most), by: map[string]int{}}
}

// take takes a slot for the caller, who gives it back by calling the returned function, once. The error is errFull, or a
// *RateLimitedError if the caller has as many as one may have.
func (s *slots) take(who string) (free func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.taken >= s.most:
		return nil, errFull
	case who != "" && s.by[who] >= s.each:
		return nil, &RateLimitedError{RetryAfter: shareRetry, Why: fmt.Sprintf("%d %s of %s are open already, as many as one caller may have", s.each, s.what, who)}
	}
	s.taken++
	if who != "" {
		s.by[who]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
		if who == "" {
			return
		}
		if s.by[who]--; s.by[who] == 0 {
			delete(s.by, who)
		}
	}, nil
}

// shareRetry is when a caller that has its share may ask again.
const shareRetry = time.Second

// who returns the name of the request's caller, if callers are told apart.
func (c *call) who() string {
	if c.caller == nil {
		return ""
	}
	return c.caller.Name()
}
