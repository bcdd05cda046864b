package daemon

import (
	"net"
	"strings"
	"time"

	"github.com/lokt-dev/lokt/internal/lane"
)

// partTimeout is how long a request may be in coming before it is no longer a simple one.
const partTimeout = time.Second

// simpleRequests answers simple requests that come to the socket before the http.Server sees them.
func (d *daemon) simpleRequests(socket net.Listener) *lane.Listener {
	return lane.Listen(socket, lane.Options{
		Handler: d.route(d.api), Takes: inOnePiece, Grants: grants, ConnState: d.crowd.follow, Begin: d.crowd.start,
		First: headerTimeout, Idle: idleTimeout, Part: partTimeout, Log: d.log,
	})
}

// inOnePiece reports whether what is at a path is answered so: not streams, not what may be as large as the database.
func inOnePiece(path string) bool {
	return strings.HasPrefix(path, "/api/system/scheduler/") || strings.HasPrefix(path, "/v1/locks/")
}

// grants reports whether a job or a lock may be granted at a path.
func grants(path string) bool {
	return strings.HasSuffix(path, "/leases/request") || strings.HasSuffix(path, "/leases")
}
