package daemon

import (
	"net"
	"net/http"
	"time"
)

// Bounds on clients that are slow, or say nothing: with netutil.LimitListener, who comes when there are as many
// connections as there may be waits for one of these to end.
const (
	headerTimeout = 10 * time.Second // for a header to arrive; Config.BodyTimeout if that is less
	idleTimeout   = 30 * time.Second // between two requests
	maxHeader     = 16 << 10
)

// follow counts connections, as an http.Server's ConnState.
func (d *daemon) follow(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		d.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		d.conns.Add(-1)
	}
}
