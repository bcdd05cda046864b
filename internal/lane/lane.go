// Package lane answers simple HTTP/1.1 requests with less work than net/http takes for them.
//
// A Listener stands between a socket and an http.Server and reads what comes over each new connection. As long as that is one
// simple request after another, as programs send them to an API, it has the handler answer them. At the first byte that could
// be anything else, the http.Server gets the connection for good, with all that was read and not answered. So net/http stays
// the authority on HTTP, and here is only what everybody reads in the same way.
package lane

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Options say how simple requests are answered. All but Grants and Log are needed.
type Options struct {
	// Handler answers simple requests, as it would for an http.Server, but in one piece, which is sent when it returns:
	// it can neither flush nor take over the connection. When it has returned, it must not use the request any more: its
	// header is that of the next one.
	Handler http.Handler

	// Takes reports whether the Handler answers requests for a path in that way. Others go to the http.Server.
	Takes func(path string) bool

	// Grants reports whether the Handler may give the client something that is lost if that is gone. Before such a request
	// it is looked whether it has hung up already, as those do that had no patience with a busy server, and from then on it
	// is watched. nil: none may.
	Grants func(path string) bool

	// ConnState is told of connections as http.Server.ConnState is: of new ones, in the order in which they came, as active
	// of those over which something has come, once, of closed ones, and, as hijacked, of those that the http.Server gets,
	// which will tell of them as new ones again: it has a *Resumed for them.
	ConnState func(net.Conn, http.ConnState)

	// Begin is told that a request has come over a connection. What it returns is called when the Handler has returned: a
	// client that does not take in the answer keeps nothing busy.
	Begin func(net.Conn) (end func())

	First time.Duration // how long a new connection may be without a request
	Idle  time.Duration // how long it may be without another
	Part  time.Duration // how long to wait for the rest of a request before the http.Server does

	Log *slog.Logger // told of panics; nil: nobody is
}

// Listener is a net.Listener that accepts only connections that are not for it.
type Listener struct {
	net.Listener
	o        Options
	rest     chan accepted // what Accept returns
	full     chan struct{} // closed when there will be no more connections
	shut     func() error  // closes the socket
	closed   chan struct{} // so that nothing more is for the http.Server
	closing  sync.Once
	draining atomic.Bool
	date     atomic.Pointer[date]

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// accepted is what Accept returns.
type accepted struct {
	conn net.Conn
	err  error
}

// Listen begins to accept connections.
func Listen(inner net.Listener, o Options) *Listener {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l := &Listener{Listener: inner, o: o, rest: make(chan accepted), full: make(chan struct{}), closed: make(chan struct{}), conns: map[*conn]struct{}{}}
	l.shut = sync.OnceValue(inner.Close)
	go l.accept()
	return l
}

// accept takes connections until the socket is closed. Errors are for the http.Server, which logs them and asks again after
// a while.
func (l *Listener) accept() {
	defer close(l.full)
	for {
		c, err := l.Listener.Accept()
		if err == nil {
			go l.enter(c).serve()
			continue
		}
		closed := errors.Is(err, net.ErrClosed)
		if closed && l.draining.Load() || !l.pass(accepted{err: err}) || closed {
			return
		}
	}
}

// pass gives the http.Server something, and reports whether it took it.
func (l *Listener) pass(a accepted) bool {
	select {
	case l.rest <- a:
		return true
	case <-l.closed:
		return false
	}
}

// Accept returns the next connection over which something came that is no simple request.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.rest:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close closes the socket. Connections go on, but the http.Server gets no more of them.
func (l *Listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return l.shut()
}

// Drain makes the next answer on each connection the last one.
func (l *Listener) Drain() { l.draining.Store(true) }

// Shutdown closes the socket, and each connection as soon as nothing is to be answered on it. It returns when there are none
// any more. When the context ends first, it closes them all and returns the context's error. The http.Server, which may still
// get some of them, is to be shut down afterwards.
func (l *Listener) Shutdown(ctx context.Context) error {
	l.Drain()
	err := l.shut()
	select {
	case <-l.full:
	case <-ctx.Done():
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for l.end(false) > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			l.end(true)
			return ctx.Err()
		}
	}
	return err
}

// end closes connections, all or the idle ones, and returns how many there are.
func (l *Listener) end(all bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if c.state.CompareAndSwap(idle, ended) || all {
			_ = c.Close() // nothing more is said on it
		}
	}
	return len(l.conns)
}

// date is a moment as a header has it.
type date struct {
	second int64
	text   string
}

// now returns the time as a header has it: RFC 9110, section 5.6.7.
func (l *Listener) now() string {
	t := time.Now()
	if d := l.date.Load(); d != nil && d.second == t.Unix() {
		return d.text
	}
	d := &date{t.Unix(), t.UTC().Format(http.TimeFormat)}
	l.date.Store(d)
	return d.text
}
