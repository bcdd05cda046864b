package lane

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// someRequests are requests of all kinds, simple and other ones.
func someRequests() []string {
	body := func(head, b string) string { return strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n" + b }
	return []string{
		body("POST /a/b HTTP/1.1\nHost: h\nContent-Length: 2", "{}"),
		body("POST /a/b HTTP/1.1\nHost: h:80\nContent-Type: application/json\nContent-Length: 2\nAuthorization: Bearer x", "{}GET /a HTTP/1.1\r\nHost: h\r\n\r\n"),
		body("GET /a HTTP/1.1\nhost: 127.0.0.1:7117\naccept: */*\nUSER-AGENT: curl/8\nconnection: Keep-Alive", ""),
		body("PUT /a-b_c.d/e HTTP/1.1\nHost: h\nContent-Length: 0", ""),
		body("DELETE /a HTTP/1.1\nHost: h\nLokt-Lease: x", ""),
		body("POST /a?b=c&d=%2Fe%&f=g+h&&i=k:l,m/.. HTTP/1.1\nHost: h", ""),
		body("DELETE /a HTTP/1.1\nHost: h\nContent-Length: 3\nX-Request-Id:   spaces   ", "abcd"),
		body("POST /a HTTP/1.1\nHost: h\nContent-Length: 00002", "{}"),
		body("POST /a HTTP/1.1\nHost: h\nContent-Length: 70000", "{}"),
		body("POST /a HTTP/1.1\nHost: h\nContent-Length: +2", "{}"),
		body("POST /a HTTP/1.1\nHost: h\nContent-Length: 2\nContent-Length: 2", "{}"),
		body("POST /a HTTP/1.1\nHost: h\nContent-Length: 2, 2", "{}"),
		body("POST /a HTTP/1.1\nHost: h\nContent-Length: 2\nTransfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n"),
		body("POST /a HTTP/1.1\nHost: h\nTransfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n"),
		body("POST /a HTTP/1.1\nHost: h\nContent-Length : 2", "{}"),
		body("POST /a HTTP/1.1\nHost: h\n Content-Length: 2", "{}"),
		body("POST /a HTTP/1.1\nHost: h\nContent-Length: 2\nExpect: 100-continue", "{}"),
		body("POST /a HTTP/1.1\nHost: h\nConnection: close\nContent-Length: 2", "{}"),
		body("POST /a HTTP/1.1\nHost: h\nConnection: Upgrade\nUpgrade: h2c", ""),
		body("POST /a HTTP/1.1\nHost: h\nHost: i", ""),
		body("POST /a HTTP/1.1\nContent-Length: 2", "{}"),
		body("POST /a HTTP/1.0\nHost: h\nContent-Length: 2", "{}"),
		body("POST /a HTTP/1.1 \nHost: h", ""),
		body("POST  /a HTTP/1.1\nHost: h", ""),
		body("POST /a%2Fb HTTP/1.1\nHost: h", ""),
		body("POST /a? HTTP/1.1\nHost: h", ""),
		body("POST /a?b=c#d HTTP/1.1\nHost: h", ""),
		body("POST /a?b=c?d HTTP/1.1\nHost: h", ""),
		body("POST /a?b=c;d HTTP/1.1\nHost: h", ""),
		body("POST /a?b=\"c\" HTTP/1.1\nHost: h", ""),
		body("POST /a?b=\xff HTTP/1.1\nHost: h", ""),
		body("POST ?b=c HTTP/1.1\nHost: h", ""),
		body("POST /a#b HTTP/1.1\nHost: h", ""),
		body("POST //a HTTP/1.1\nHost: h", ""),
		body("POST /a/../b HTTP/1.1\nHost: h", ""),
		body("POST http://h/a HTTP/1.1\nHost: h", ""),
		body("POST * HTTP/1.1\nHost: h", ""),
		body("PATCH /a HTTP/1.1\nHost: h", ""),
		body("GET /a HTTP/1.1\nHost: h\nContent-Length: 2", "{}"),
		body("GET /a HTTP/1.1\nHost: h\nAccept:", ""),
		body("GET /a HTTP/1.1\nHost: h\nAccept: \x01", ""),
		body("GET /a HTTP/1.1\nHost: h\nAccept: é", ""),
		body("GET /a HTTP/1.1\nHost: [::1]:80", ""),
		body("GET /a HTTP/1.1\nHost: h/x", ""),
		body("GET /a HTTP/1.1\nHost: h\nOrigin: http://evil", ""),
		body("GET /a HTTP/1.1\nHost: h\nAccept: "+strings.Repeat("x", mostHeader), ""),
		"GET /a HTTP/1.1\nHost: h\n\n",
		"GET /a HTTP/1.1\r\nHost: h\n\r\n\r\n",
		"GET /a HTTP/1.1\r\nHost: h\r\nAccept: a\rb\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01",
		"quit",
		"",
	}
}

// FuzzParse compares parse with net/http.
func FuzzParse(f *testing.F) {
	for _, s := range someRequests() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r request
		if parse(b, &r) != whole {
			return
		}
		in := bufio.NewReaderSize(bytes.NewReader(b), len(b)+16)
		want, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("%q is a request to parse only: %v", b, err)
		}
		body, err := io.ReadAll(want.Body)
		if err != nil || !bytes.Equal(body, r.body) || want.ContentLength != int64(len(r.body)) {
			t.Errorf("body %q, net/http reads %q, %v, of length %d", r.body, body, err, want.ContentLength)
		}
		if rest, _ := io.ReadAll(in); !bytes.Equal(rest, b[r.length:]) {
			t.Errorf("leaves %q, net/http %q", b[r.length:], rest)
		}
		if want.Method != r.method || want.URL.String() != r.target || want.RequestURI != r.target ||
			*want.URL != (url.URL{Path: r.path, RawQuery: r.query}) || want.Proto != "HTTP/1.1" {
			t.Errorf("%s %s, net/http reads %s %#v", r.method, r.path, want.Method, want.URL)
		}
		if want.Host != r.values[fieldHost] || want.Close || len(want.TransferEncoding) > 0 || len(want.Trailer) > 0 {
			t.Errorf("host %q, net/http reads %+v", r.values[fieldHost], want)
		}
		n := 0
		for i, v := range r.values {
			if i != fieldHost && v != "" {
				if n++; len(want.Header[known[i]]) != 1 || want.Header[known[i]][0] != v {
					t.Errorf("%s: %q, net/http reads %q", known[i], v, want.Header[known[i]])
				}
			}
		}
		if n != len(want.Header) {
			t.Errorf("%d fields, net/http reads %v", n, want.Header)
		}
		for i := range r.length {
			var part0 request
			if v := parse(b[:i], &part0); v != part {
				t.Fatalf("%q begins a simple request, and is %v", b[:i], v)
			}
		}
	})
}

func TestOnlySimpleRequestsAreSimple(t *testing.T) {
	for i, s := range someRequests() {
		var r request
		want := other
		if i < 8 {
			want = whole
		} else if s == "" || s == "quit" {
			want = part
		}
		if got := parse([]byte(s), &r); got != want {
			t.Errorf("%q is %v, want %v", s, got, want)
		}
	}
}
