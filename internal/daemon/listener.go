package daemon

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Bounds on clients that are slow, or say nothing: with netutil.LimitListener, who comes when there are as many
// connections as there may be waits for one of these to end.
const (
	headerTimeout = 10 * time.Second // for a header to arrive; Config.BodyTimeout if that is less
	idleTimeout   = 30 * time.Second // between two requests
	maxHeader     = 16 << 10
)

// connections counts those that are open.
type connections struct{ open atomic.Int64 }

// follow is an http.Server's ConnState.
func (c *connections) follow(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		c.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		c.open.Add(-1)
	}
}
