//go:build unix

package lane_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/lokt-dev/lokt/internal/lane"
)

// A client that had hung up before its request was read is granted nothing; others are, and so is whoever sends more at once.
func TestWhoIsGoneAlreadyIsGrantedNothing(t *testing.T) {
	l := listen(t)
	gone, half, ahead := dial(t, l.Addr().String()), dial(t, l.Addr().String()), dial(t, l.Addr().String())
	for c, path := range map[*client]string{gone: "/grants/gone", half: "/half", ahead: "/grants/ahead"} {
		c.send(post(path, "1"))
	}
	ahead.send(post("/grants/next", "")[:10])
	_ = gone.Close()
	_ = half.Conn.(*net.TCPConn).CloseWrite()
	ended := make(chan string, 3)
	newSiteOn(t, l, listen(t), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Context().Err() != nil {
			ended <- r.URL.Path
		}
	}), func(o *lane.Options) { o.Grants = func(path string) bool { return path != "/half" } })
	half.must()
	ahead.must()
	if path := <-ended; path != "/grants/gone" || len(ended) > 0 {
		t.Errorf("%s is cancelled, and %d others", path, len(ended))
	}
}
