package lane

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// watchAfter is how long a request that grants nothing is worked on before it is found out whether its client is still there.
const watchAfter = 10 * time.Millisecond

// watcher reads while a request is worked on for long: only so is it known that the client has hung up.
type watcher struct {
	timer *time.Timer
	done  chan struct{} // gets a value each time that the timer's function ends

	mu     sync.Mutex
	over   bool // the request is answered
	cancel context.CancelFunc
	byte   [1]byte
	early  []byte // what was read: the beginning of the next request
}

// watch has cancel called if the client hangs up after so long, or later.
func (c *conn) watch(cancel context.CancelFunc, after time.Duration) {
	w := &c.watcher
	w.over, w.cancel, w.early = false, cancel, nil // nobody watches yet
	if w.timer == nil {
		w.done = make(chan struct{}, 1)
		w.timer = time.AfterFunc(after, c.look)
		return
	}
	w.timer.Reset(after)
}

// look waits for a byte, or for the end.
func (c *conn) look() {
	w := &c.watcher
	defer func() { w.done <- struct{}{} }()
	w.mu.Lock()
	over := w.over
	if !over {
		_ = c.SetReadDeadline(time.Time{}) // if not, reading fails, too
	}
	w.mu.Unlock()
	if over {
		return
	}
	n, err := c.Read(w.byte[:])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.early = w.byte[:n]
	if err != nil && !w.over {
		w.cancel()
	}
}

// unwatch ends what watch began, and returns what was read meanwhile.
func (c *conn) unwatch() (early []byte) {
	w := &c.watcher
	if w.timer.Stop() {
		return nil
	}
	w.mu.Lock()
	w.over, c.due = true, time.Time{}
	_ = c.SetReadDeadline(time.Unix(1, 0)) // long ago: reading ends
	w.mu.Unlock()
	<-w.done
	return w.early
}

// body is a request's body.
type body struct {
	mu    sync.Mutex
	rest  []byte
	ended bool // the request is answered, and its bytes are of others now
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, http.ErrBodyReadAfterClose
	}
	n := copy(p, b.rest)
	if b.rest = b.rest[n:]; len(b.rest) == 0 {
		return n, io.EOF
	}
	return n, nil
}

// Close ends reading.
func (b *body) Close() error {
	b.end()
	return nil
}

func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended, b.rest = true, nil
}
