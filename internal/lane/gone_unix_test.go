//go:build unix

package lane_test

import (
	"net"
	"net/http"
	"slices"
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
	came, cancelled := make(chan string, 3), make(chan string, 3)
	newSiteOn(t, l, listen(t), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Context().Err() != nil {
			cancelled <- r.URL.Path
		}
		came <- r.URL.Path
	}), func(o *lane.Options) { o.Grants = func(path string) bool { return path != "/half" } })
	half.must()
	ahead.must()
	for range 3 {
		<-came
	}
	close(cancelled)
	var all []string
	for path := range cancelled {
		if path != "/half" { // it may be noticed, and need not be
			all = append(all, path)
		}
	}
	if !slices.Equal(all, []string{"/grants/gone"}) {
		t.Errorf("cancelled: %v", all)
	}
}
