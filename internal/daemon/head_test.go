//go:build unix

package daemon_test

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestHEADIsAnsweredAsGETIsButForTheBody(t *testing.T) {
	p := start(t, "--store", "memory:")
	a := p.api()
	a.do(t, 200, "POST", scheduler+"/jobs", jsontext.Value(`{"jobs":[`+strings.TrimSuffix(strings.Repeat(`{"payload":{}},`, 20), ",")+`]}`))
	var c net.Conn
	var in *bufio.Reader
	ask := func(method, path string) (status int, media, text string) {
		t.Helper()
		if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", method, path); err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		return r.StatusCode, r.Header.Get("Content-Type"), string(body)
	}
	for _, path := range []string{
		scheduler + "/status", scheduler + "/jobs", scheduler + "/jobs/never", scheduler + "/workers", scheduler + "/history/stats",
		scheduler + "/history/decisions", locks + "x", "/v1/locks", "/v1/about", "/openapi.json", "/healthz", "/readyz", "/metrics",
	} {
		c = p.dial()
		in = bufio.NewReader(c)
		status, media, _ := ask("GET", path)
		if got, its, text := ask("HEAD", path); got != status || its != media || text != "" {
			t.Errorf("HEAD %s is answered %d %q, %d bytes; GET %d %q", path, got, its, len(text), status, media)
		}
		_ = c.Close()
	}
	for _, path := range []string{scheduler + "/leases/request", locks + "x/leases"} {
		c = p.dial()
		in = bufio.NewReader(c)
		if got, _, _ := ask("HEAD", path); got != http.StatusMethodNotAllowed {
			t.Errorf("HEAD %s is answered %d", path, got)
		}
		_ = c.Close()
	}
	p.stop()
}

func TestThePageAtTheRootNamesWhatAnswers(t *testing.T) {
	p := start(t, "--store", "memory:")
	a := p.api()
	page := string(a.do(t, http.StatusOK, "GET", "/", nil).body)
	var paths []string
	for _, link := range regexp.MustCompile(`(?:href|src)="(/[^"]*)"`).FindAllStringSubmatch(page, -1) {
		paths = append(paths, html.UnescapeString(link[1]))
	}
	for _, path := range paths {
		a.do(t, http.StatusOK, "GET", path, nil)
	}
	for _, path := range []string{"/jobs", "/workers", "/failures", "/audit", "/readyz", "/metrics", "/openapi.json"} {
		if !slices.Contains(paths, path) {
			t.Errorf("the page does not name %s: %q", path, page)
		}
	}
	p.stop()
}
