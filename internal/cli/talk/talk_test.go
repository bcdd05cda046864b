package talk

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/clitest"
)

// Promise S-285: a request that named no grant would pass on a later one.
func TestToPassWhatNobodyHoldsAsksForNothing(t *testing.T) {
	to, err := url.Parse(clitest.Server(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(to)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	d := clitest.New(t, "ann", Commands()).With("LOKT_SERVER=" + proxy.URL)
	if code, out, errs := d.Lokt("pass", "a", "--to", "bob", "--force"); code != 3 {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

func TestAskRefusesATimeThatNothingWaitsFor(t *testing.T) {
	d := clitest.New(t, "ann", Commands())
	for _, flags := range [][]string{{"--timeout", "1s"}, {"--wait", "--timeout", "-1s"}} {
		if code, _, says := d.Lokt(append([]string{"ask", "a", "soon?"}, flags...)...); code != 64 || !strings.Contains(says, "--wait") {
			t.Errorf("%v: exit %d: %s", flags, code, says)
		}
	}
}
