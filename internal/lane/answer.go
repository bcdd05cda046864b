package lane

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answer is the http.ResponseWriter of simple requests.
type answer struct {
	c      *conn
	header http.Header
	status int // 0 while nothing has been written
	body   []byte
	sent   bool // the handler wrote it all at once
	closes bool // the connection ends with it
	failed error
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
}

// Write keeps what is written, but for what is large and all of it: that is sent at once.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	switch {
	case !hasBody(a.status):
		return 0, http.ErrBodyNotAllowed
	case a.sent:
		return 0, http.ErrContentLength
	case len(p) < mostHeader || len(a.body) > 0 || a.header.Get("Content-Length") != strconv.Itoa(len(p)):
		a.body = append(a.body, p...)
		return len(p), nil
	}
	a.sent = true
	head := a.head(nil, p)
	both := net.Buffers{head, p}
	n, err := both.WriteTo(a.c.Conn)
	a.failed = err
	return max(0, int(n)-len(head)), err
}

// SetReadDeadline is for http.ResponseController. The whole request has been read.
func (*answer) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is for http.ResponseController.
func (a *answer) SetWriteDeadline(t time.Time) error {
	a.c.late = true
	return a.c.SetWriteDeadline(t)
}

// hasBody reports whether an answer with the status may have a body.
func hasBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// send sends what was not sent, and reports whether the connection goes on.
func (a *answer) send() bool {
	a.WriteHeader(http.StatusOK)
	c := a.c
	c.body = a.body
	if !a.sent {
		c.out = append(a.head(c.out[:0], a.body), a.body...)
		_, a.failed = c.Write(c.out)
	}
	if c.late {
		c.late = false
		_ = c.SetWriteDeadline(time.Time{}) // if not, writing fails, too
	}
	return !a.closes && a.failed == nil
}

// head appends the status and the header of an answer with that body.
func (a *answer) head(b, body []byte) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = append(strconv.AppendInt(b, int64(a.status), 10), ' ')
	b = append(append(b, http.StatusText(a.status)...), "\r\n"...)
	for name, values := range a.header {
		switch name {
		case "Content-Length", "Date", "Connection", "Transfer-Encoding":
			continue
		}
		for _, v := range values {
			b = appendField(b, name, v)
		}
	}
	if _, said := a.header["Content-Type"]; !said && len(body) > 0 {
		b = appendField(b, "Content-Type", http.DetectContentType(body))
	}
	b = appendField(b, "Date", a.c.l.now())
	if hasBody(a.status) {
		b = append(b, "Content-Length: "...)
		b = append(strconv.AppendInt(b, int64(len(body)), 10), "\r\n"...)
	}
	if a.closes = a.c.l.draining.Load() || strings.EqualFold(a.header.Get("Connection"), "close"); a.closes {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...)
}

// appendField appends a field of a header, on one line whatever its value is.
func appendField(b []byte, name, value string) []byte {
	b = append(append(b, name...), ": "...)
	at := len(b)
	b = append(b, value...)
	for i := at; i < len(b); i++ {
		if b[i] == '\r' || b[i] == '\n' {
			b[i] = ' '
		}
	}
	return append(b, "\r\n"...)
}
