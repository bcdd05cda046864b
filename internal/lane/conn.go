package lane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
)

// What a connection is doing.
const (
	idle  int32 = iota // nothing of a request has come
	busy               // with a request, or a part of one
	ended              // nothing: it was closed by Shutdown
)

// conn is a connection.
type conn struct {
	net.Conn
	l      *Listener
	base   context.Context //nolint:containedctx // of all its requests
	remote string
	raw    syscall.RawConn // nil: there is none
	state  atomic.Int32

	in   []byte    // what was read and not answered
	body []byte    // of the last answer
	out  []byte    // all of it
	due  time.Time // until when to read
	late bool      // the answer has a deadline
	used bool      // something has come
	ends int       // so many line ends are nothing: old clients send them behind the body of a POST

	request request // that in begins with
	watcher watcher

	asked, answered http.Header // of the last request and answer, to be used again
}

// enter counts a connection in.
func (l *Listener) enter(nc net.Conn) *conn {
	c := &conn{
		Conn: nc, l: l, remote: nc.RemoteAddr().String(),
		base: context.WithValue(context.Background(), http.LocalAddrContextKey, nc.LocalAddr()),
	}
	if s, ok := nc.(syscall.Conn); ok {
		c.raw, _ = s.SyscallConn() // nil if not
	}
	l.o.ConnState(nc, http.StateNew)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	return c
}

// serve serves a connection until it ends or is for the http.Server.
func (c *conn) serve() {
	l := c.l
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, c)
	}()
	if !c.run() || c.SetReadDeadline(time.Time{}) != nil {
		_ = c.Close() // nothing more is said on it
		l.o.ConnState(c.Conn, http.StateClosed)
		return
	}
	l.o.ConnState(c.Conn, http.StateHijacked)
	if !l.pass(accepted{conn: &Resumed{c.Conn, c.in}}) {
		_ = c.Close() // the server is not there any more
		l.o.ConnState(c.Conn, http.StateClosed)
	}
}

// run answers simple requests. It returns true at the first bytes that are no such thing, and false when the connection is over.
func (c *conn) run() (handOver bool) {
	for wait := c.l.o.First; ; wait = c.l.o.Idle {
		switch c.read(wait) {
		case whole:
		case other:
			return true
		default:
			return false
		}
		if !c.serveRequest() || !c.state.CompareAndSwap(busy, idle) {
			return false
		}
	}
}

// read reads until there is a simple request, or something else. A part of a request is left if there is nothing more to read.
func (c *conn) read(wait time.Duration) verdict {
	for begun := false; ; {
		for ; c.ends > 0 && len(c.in) > 0 && (c.in[0] == '\r' || c.in[0] == '\n'); c.ends-- {
			c.in = append(c.in[:0], c.in[1:]...)
		}
		if len(c.in) > 0 {
			if !begun && !c.state.CompareAndSwap(idle, busy) {
				return part
			}
			v := parse(c.in, &c.request)
			if v == whole && !c.l.o.Takes(c.request.path) {
				v = other
			}
			if v != part {
				return v
			}
		}
		switch now := time.Now(); {
		case len(c.in) == 0:
			if left := c.due.Sub(now); left < wait-wait/64 || left > wait { // not for every request
				c.due = now.Add(wait)
				_ = c.SetReadDeadline(c.due) // if not, reading fails, too
			}
		case !begun:
			begun, c.due = true, now.Add(c.l.o.Part)
			_ = c.SetReadDeadline(c.due) // as above
		}
		n, err := c.Read(c.room())
		if n > 0 && !c.used {
			c.used = true
			c.l.o.ConnState(c.Conn, http.StateActive)
		}
		if c.in = c.in[:len(c.in)+n]; err != nil && n == 0 {
			if len(c.in) > 0 && errors.Is(err, os.ErrDeadlineExceeded) || len(c.in) >= leastPart && errors.Is(err, io.EOF) {
				return other // the http.Server knows what to do with those who are slow, and what to tell those who send no more
			}
			return part
		}
	}
}

// leastPart is how many bytes of a request net/http answers where nothing follows them and other requests went before.
const leastPart = 4

// room returns where to read to: for as much as the request needs, or more, but not for all that is only announced.
func (c *conn) room() []byte {
	if need := max(min(c.request.length, 4*len(c.in)), len(c.in)+1, mostHeader); need > cap(c.in) {
		c.in = append(make([]byte, 0, need), c.in...)
	}
	return c.in[len(c.in):cap(c.in)]
}

// exchange is what belongs to a request, so that it is allocated at once.
type exchange struct {
	url    url.URL
	values [len(known)]string
	body   body
	answer answer
}

// serveRequest has a request answered, and reports whether the connection goes on.
func (c *conn) serveRequest() bool {
	x := &exchange{url: url.URL{Path: c.request.path, RawQuery: c.request.query}, values: c.request.values}
	if c.asked == nil {
		c.asked, c.answered = make(http.Header, 8), make(http.Header, 4)
	}
	for i := range x.values {
		if x.values[i] != "" && i != fieldHost {
			c.asked[known[i]] = x.values[i : i+1 : i+1]
		}
	}
	ctx, cancel := context.WithCancel(c.base)
	r := (&http.Request{
		Method: c.request.method, URL: &x.url, RequestURI: c.request.target, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: c.asked, Host: c.request.values[fieldHost], RemoteAddr: c.remote, Body: http.NoBody,
	}).WithContext(ctx)
	if len(c.request.body) > 0 {
		x.body.rest = c.request.body
		r.Body, r.ContentLength = &x.body, int64(len(c.request.body))
	}
	x.answer = answer{c: c, header: c.answered, body: c.body[:0]}
	end, patience := c.l.o.Begin(c.Conn), watchAfter
	if c.l.o.Grants != nil && c.l.o.Grants(c.request.path) {
		if patience = 0; c.gone() {
			cancel()
		}
	}
	c.watch(cancel, patience)
	answered := c.handle(&x.answer, r)
	end()
	cancel()
	early := c.unwatch()
	x.body.end()
	if !answered || !x.answer.send() {
		return false
	}
	rest := c.in[c.request.length:]
	if cap(c.in) > keptBuffer {
		c.in = nil
	}
	c.in = append(append(c.in[:0], rest...), early...)
	if cap(c.out) > keptBuffer {
		c.out, c.body = nil, nil
	}
	if c.ends = 0; c.request.method == http.MethodPost {
		c.ends = mostEnds
	}
	c.request = request{} // its strings need not stay
	clear(c.asked)
	clear(c.answered)
	return true
}

// mostEnds is how many line ends behind the body of a POST are nothing, as for net/http.
const mostEnds = 4

// keptBuffer is the largest buffer that is kept between requests.
const keptBuffer = 2 * mostHeader

// handle calls the handler, and reports whether there is an answer.
func (c *conn) handle(w http.ResponseWriter, r *http.Request) (answered bool) {
	defer func() {
		if answered {
			return
		}
		if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint,err113 // panics are compared as they are
			c.l.o.Log.Error("panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	c.l.o.Handler.ServeHTTP(w, r)
	return true
}

// Resumed is the connection that the http.Server gets for one of which something has been read already.
type Resumed struct {
	net.Conn // that one
	rest     []byte
}

// Read implements net.Conn.
func (r *Resumed) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return r.Conn.Read(p)
	}
	n := copy(p, r.rest)
	if r.rest = r.rest[n:]; len(r.rest) == 0 {
		r.rest = nil
	}
	return n, nil
}

// CloseWrite is what an http.Server calls when it has said its last before the client has: so the client knows at once.
func (r *Resumed) CloseWrite() error {
	if half, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
