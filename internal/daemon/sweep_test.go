//go:build unix

package daemon_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Promise S-172.
func TestExpiredLocksAreForgottenWithoutAnybodyAskingForThem(t *testing.T) {
	t.Parallel()
	p := start(t, "--store", "sqlite:"+filepath.Join(t.TempDir(), "loktd.db"))
	a := p.api()
	a.do(t, http.StatusOK, "POST", locks+"kept/leases", body{"owner": body{"id": "a"}, "ttl_ms": 600_000})
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			for i := range 100 {
				a.do(t, http.StatusOK, "POST", fmt.Sprintf("%sshort-%d-%d/leases", locks, w, i), body{"owner": body{"id": "a"}, "ttl_ms": 1000})
			}
		})
	}
	wg.Wait()
	eventually(t, "all are swept, and one is left", func() bool {
		ended := a.do(t, http.StatusOK, "GET", "/v1/audit?type=auto-prune&limit=1", nil).body
		listed := a.do(t, http.StatusOK, "GET", "/v1/locks", nil).body
		return strings.Contains(ended, "short-") && strings.Contains(listed, `"kept"`) && !strings.Contains(listed, "short-")
	})
	if token := a.do(t, http.StatusOK, "POST", locks+"short-3-3/leases", body{"owner": body{"id": "a"}, "ttl_ms": 1000}).text("holder", "token"); token == "1" {
		t.Errorf("granted again with token %s", token)
	}
	p.stop()
}
