package daemon

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// arrivals tells the crowd which connections have sent a whole request, and bounds how long a body may take to arrive, even
// one that no handler reads.
func arrivals(next http.Handler, c *crowd, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &arrival{begin: func() func() { return c.begin(r.Context()) }}
		defer a.leave()
		if r.Body == nil || r.Body == http.NoBody {
			a.whole()
		} else {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(limit)) // the handler lifts it when it has read the body
			a.body = r.Body
			r.Body = a
		}
		next.ServeHTTP(w, r)
	})
}

// arrival is a body that tells when it has arrived.
type arrival struct {
	body  io.ReadCloser
	begin func() (end func())

	mu   sync.Mutex
	end  func() // nil until it has arrived
	left bool
}

func (a *arrival) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if err != nil {
		a.whole()
	}
	return n, err
}

func (a *arrival) Close() error { return a.body.Close() }

// whole says that there is nothing left to read.
func (a *arrival) whole() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end == nil && !a.left {
		a.end = a.begin()
	}
}

// leave says that the request was answered.
func (a *arrival) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = true
	if a.end != nil {
		a.end()
	}
}
