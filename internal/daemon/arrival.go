package daemon

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// arrivals tells the crowd which connections have sent a whole request, and bounds how long a body may take to arrive, even
// one that no handler reads.
func arrivals(next http.Handler, c *crowd, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			defer c.begin(r.Context())()
			next.ServeHTTP(w, r)
			return
		}
		a := &arrival{body: r.Body, begin: func() func() { return c.begin(r.Context()) }}
		defer a.leave()
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(limit)) // not every connection has one; the handler lifts it when it has read the body
		r = r.WithContext(r.Context())                     // a copy: the server must know its own body
		r.Body = a
		next.ServeHTTP(w, r)
		if rest, late := a.missing(); late {
			_ = control.SetReadDeadline(time.Now()) // the server need not wait for the rest before it sends the answer
		} else if rest {
			_ = control.SetReadDeadline(time.Now().Add(limit))
		}
	})
}

// arrival is a body that tells when it has arrived.
type arrival struct {
	body  io.ReadCloser
	begin func() (end func())

	mu     sync.Mutex
	failed bool   // it did not arrive
	end    func() // nil until it has arrived
	left   bool
}

func (a *arrival) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if err == nil {
		return n, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !errors.Is(err, io.EOF) {
		a.failed = true
	} else if a.end == nil && !a.left {
		a.end = a.begin()
	}
	return n, err
}

func (a *arrival) Close() error { return a.body.Close() }

// missing reports whether there is something left to read, and whether it is not worth waiting for.
func (a *arrival) missing() (rest, late bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.end == nil, a.failed
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
