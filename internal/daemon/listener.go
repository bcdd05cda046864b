package daemon

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/internal/lane"
)

// crowd bounds how many connections there are. When one more comes than there may be, the one that has been without a
// whole request for longest is closed to make room: whoever merely holds connections open, or sends requests by and by,
// keeps nobody else out.
type crowd struct {
	most int

	mu      sync.Mutex
	all     map[net.Conn]*guest
	evicted int64
}

// guest is a connection.
type guest struct {
	busy int       // requests that are being answered
	idle time.Time // since when there are none
	mute bool      // it has not sent a byte yet
}

func newCrowd(most int) *crowd { return &crowd{most: most, all: map[net.Conn]*guest{}} }

// connKey is the key of the connection in the context of its requests.
type connKey struct{}

// attach is an http.Server's ConnContext.
func (*crowd) attach(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, counted(conn))
}

// counted returns the connection as it is counted: one that has changed hands is still the same.
func counted(conn net.Conn) net.Conn {
	if r, ok := conn.(*lane.Resumed); ok {
		return r.Conn
	}
	return conn
}

// follow is the ConnState of an http.Server and of a lane.
func (c *crowd) follow(conn net.Conn, state http.ConnState) {
	known := counted(conn)
	switch state {
	case http.StateNew:
		if known != conn {
			return // it came long ago, and if it is not there any more, it was closed to make room
		}
		if drop := c.enter(conn); drop != nil {
			go func() { _ = drop.Close() }() // saying goodbye on TLS can take a while
		}
	case http.StateActive:
		c.mu.Lock()
		defer c.mu.Unlock()
		if g := c.all[known]; g != nil {
			g.mute = false
		}
	case http.StateClosed:
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.all, known)
	}
}

// enter adds a connection, and returns one to be closed if there are too many.
func (c *crowd) enter(conn net.Conn) (drop net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[conn] = &guest{idle: time.Now(), mute: true}
	if len(c.all) <= c.most {
		return nil
	}
	c.evicted++
	drop = conn // unless somebody has been idle for longer
	for other, g := range c.all {
		if g.busy == 0 && g.idle.Before(c.all[drop].idle) {
			drop = other
		}
	}
	delete(c.all, drop)
	return drop
}

// begin notes that a whole request of the connection, which the context has, has arrived; what it returns must be called
// when it is answered.
func (c *crowd) begin(ctx context.Context) (end func()) {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	return c.start(conn)
}

// start does what begin does, for a connection.
func (c *crowd) start(conn net.Conn) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.all[conn]
	if g == nil {
		return func() {}
	}
	g.busy++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		g.busy--
		g.idle = time.Now()
	}
}

// dismiss closes connections over which nothing has come yet. An http.Server that shuts down waits for them for a while.
func (c *crowd) dismiss() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn, g := range c.all {
		if g.mute {
			go func() { _ = conn.Close() }()
		}
	}
}

// count returns how many connections there are, and how many were closed to make room.
func (c *crowd) count() (open int, evicted int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all), c.evicted
}
