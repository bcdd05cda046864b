package lane

import (
	"bytes"
	"net/http"
	"strings"
)

// verdict is what is known of the bytes that have come.
type verdict int

const (
	part  verdict = iota // so far they may be a simple request
	whole                // they begin with a simple request
	other                // they are something else, or too much
)

// mostHeader and mostRequest bound simple requests, in bytes.
const (
	mostHeader  = 4 << 10
	mostRequest = 64 << 10
)

// request is a simple request.
type request struct {
	method string
	target string // path and query
	path   string
	query  string
	values [len(known)]string // of the known fields of its header; none is empty but those that it does not have
	body   []byte             // a part of what was read
	length int                // of all of it, in bytes; 0 while that is not known
}

// known are the fields of the header that a simple request may have, each once. None of them says how a request is framed
// or what becomes of its connection, but for Content-Length, and for Connection, which must be "keep-alive".
var known = [...]string{ //nolint:gochecknoglobals // never changed
	"Host", "Content-Type", "Content-Length", "Accept", "Accept-Encoding", "Accept-Language", "User-Agent", "Authorization", "Connection",
	"X-Request-Id", "Traceparent", "Tracestate", "Lokt-Lease", "Lokt-Operation",
}

// Places in known.
const (
	fieldHost       = 0
	fieldLength     = 2
	fieldConnection = 8
)

// parse looks at what has come over a connection: RFC 9112, of which it takes only what leaves no choice. Whatever it calls
// whole, http.ReadRequest reads in the same way.
func parse(b []byte, r *request) verdict {
	*r = request{}
	end := bytes.Index(b[:min(len(b), mostHeader)], []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) >= mostHeader || !begins(b) {
			return other
		}
		return part
	}
	head := string(b[:end+2]) // the values of the request share it
	line, fields, _ := strings.Cut(head, "\r\n")
	method, line, _ := strings.Cut(line, " ")
	target, protocol, _ := strings.Cut(line, " ")
	target = strings.Clone(target) // whoever keeps a name from it does not keep all of the header
	path, query, asks := strings.Cut(target, "?")
	if !methods(method) || !simplePath(path) || asks && !simpleQuery(query) || protocol != "HTTP/1.1" {
		return other
	}
	r.method, r.target, r.path, r.query = method, target, path, query
	for fields != "" {
		line, fields, _ = strings.Cut(fields, "\r\n")
		name, value, ok := strings.Cut(line, ":")
		i := field(name)
		value = strings.Trim(value, " ")
		if !ok || i < 0 || r.values[i] != "" || value == "" || !visible(value) {
			return other
		}
		r.values[i] = value
	}
	keep := r.values[fieldConnection]
	if !simpleHost(r.values[fieldHost]) || keep != "" && !strings.EqualFold(keep, "keep-alive") {
		return other
	}
	size := 0
	if given := r.values[fieldLength]; given != "" {
		if size = length(given); size < 0 || method == http.MethodGet {
			return other
		}
	}
	if end+4+size > mostRequest {
		return other
	}
	if r.length = end + 4 + size; len(b) < r.length {
		return part
	}
	r.body = b[end+4 : r.length : r.length]
	return whole
}

// begins reports whether the header of a simple request may begin like that. It does not look closely.
func begins(b []byte) bool {
	for at, rest := 0, b; ; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			break
		}
		if at += i; at == 0 || b[at-1] != '\r' {
			return false
		}
		at++
		rest = b[at:]
	}
	method, _, ok := bytes.Cut(b[:min(len(b), 8)], []byte(" "))
	return ok && methods(string(method)) || !ok && len(b) < 8
}

// methods reports whether a simple request may have the method.
func methods(m string) bool {
	return m == http.MethodPost || m == http.MethodPut || m == http.MethodGet || m == http.MethodDelete
}

// simplePath reports whether a path is absolute and needs no decoding and no cleaning.
func simplePath(p string) bool {
	if len(p) < 2 || p[0] != '/' {
		return false
	}
	for i := 1; i < len(p); i++ {
		c := p[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		case (c == '/' || c == '.') && p[i-1] != '/': // no empty elements, and none that begin with a dot
		default:
			return false
		}
	}
	return true
}

// simpleQuery reports whether a query is not empty and has only characters that mean nothing to whoever passes it on: some of those of RFC 3986,
// section 3.4.
func simpleQuery(q string) bool {
	for i := range len(q) {
		c := q[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~%=&+:,/", c) >= 0) {
			return false
		}
	}
	return q != ""
}

// simpleHost reports whether it is a name or an IPv4 address, with a port or without.
func simpleHost(h string) bool {
	for i := range len(h) {
		c := h[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == ':') {
			return false
		}
	}
	return h != ""
}

// field returns the place of a name in known, or -1.
func field(name string) int {
	for i, k := range known {
		if len(k) == len(name) && strings.EqualFold(k, name) {
			return i
		}
	}
	return -1
}

// visible reports whether a value has nothing but visible ASCII and spaces.
func visible(v string) bool {
	for i := range len(v) {
		if v[i] < ' ' || v[i] > '~' {
			return false
		}
	}
	return true
}

// length returns the value of a Content-Length, or -1.
func length(v string) int {
	if len(v) > 6 {
		return -1
	}
	n := 0
	for i := range len(v) {
		if v[i] < '0' || v[i] > '9' {
			return -1
		}
		n = 10*n + int(v[i]-'0')
	}
	return n
}
