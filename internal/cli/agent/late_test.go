package agent

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/clitest"
)

// Promise S-285.
func TestACopyOfAReleaseThatComesLateEndsNoLaterReservation(t *testing.T) {
	to, err := url.Parse(clitest.Server(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	forward, copies := httputil.NewSingleHostReverseProxy(to), []*http.Request{}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.Body = io.NopCloser(bytes.NewReader(body)); r.Method == http.MethodDelete {
			late, err := http.NewRequest(r.Method, to.String()+r.URL.RequestURI(), bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			late.Header = r.Header.Clone()
			copies = append(copies, late)
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	d := clitest.New(t, "ann", Commands()).With("LOKT_SERVER=" + proxy.URL)
	d.Must("reserve", "a")
	d.Must("reserve", "--release")
	d.Must("reserve", "a")
	if len(copies) != 1 {
		t.Fatalf("%d requests to release", len(copies))
	}
	answer, err := http.DefaultClient.Do(copies[0])
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if answer.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if out := d.Must("reserve"); !strings.Contains(out, "/a: ann") {
		t.Errorf("the copy was answered with %d %s, and reserved is: %s", answer.StatusCode, text, out)
	}
}
