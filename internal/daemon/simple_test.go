//go:build unix

package daemon_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Jobs are not granted to clients that hang up as soon as they have asked, but for a few that nobody could notice in time.
func TestWhoHangsUpAtOnceIsGrantedNothing(t *testing.T) {
	p := start(t, "--store", "sqlite:"+filepath.Join(t.TempDir(), "lokt.db"))
	a := p.api()
	const many = 100
	a.do(t, 200, "POST", scheduler+"/jobs", json.RawMessage(`{"jobs":[`+strings.TrimSuffix(strings.Repeat(`{"payload":{}},`, many), ",")+`]}`))
	const body = `{"worker_id":"w"}`
	for range many {
		c := p.dial()
		if _, err := fmt.Fprintf(c, "POST %s/leases/request HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", scheduler, len(body), body); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	eventually(t, "all connections are over", func() bool {
		open, ok := a.metric(t, "lokt_http_connections")
		return ok && open <= 2
	})
	if n, ok := a.metric(t, "lokt_scheduler_active_leases"); !ok || n > many/4 {
		t.Errorf("of %d clients that were gone %v hold jobs", many, n)
	}
	p.stop()
}
