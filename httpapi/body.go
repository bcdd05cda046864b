package httpapi

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// read reads the request's body into c.in. The error is errBodyTooLarge, errMediaType, or wraps lokt.ErrInvalid if the
// body cannot be read to its end.
func (c *call) read(r rules) error {
	if !jsonMedia(c.r.Header) {
		return errMediaType
	}
	// A slow client has so long. Where the connection has no deadlines, the server's own limits hold.
	_ = http.NewResponseController(c).SetReadDeadline(time.Now().Add(c.s.Limits.Request))
	most := c.s.Limits.Body
	if c.r.ContentLength <= most {
		var in bytes.Buffer
		in.Grow(int(min(max(c.r.ContentLength, 0), 16<<10)) + bytes.MinRead)
		if _, err := in.ReadFrom(io.LimitReader(c.r.Body, most+1)); err != nil {
			return c.bodyLost(err)
		}
		c.in = in.Bytes()
	}
	if c.r.ContentLength > most || int64(len(c.in)) > most {
		_, _ = io.CopyN(io.Discard, c.r.Body, 128*most) // so that who is still sending hears the answer
		return errBodyTooLarge
	}
	c.bodyArrived()
	if r&optional != 0 && (len(c.in) == 0 || string(bytes.TrimSpace(c.in)) == "null") {
		c.in = []byte("{}")
	}
	return nil
}

// bodyArrived lifts the deadline of read, which would end long waits. If the body did not arrive it must stay: the
// server reads what is left of a body before it sends the answer, and would wait for it for ever.
func (c *call) bodyArrived() {
	_ = http.NewResponseController(c).SetReadDeadline(time.Time{})
	c.arrived = true
}

// bodyLost says why a body cannot be read, without what the network says of it, and keeps the connection from being
// used again.
func (c *call) bodyLost(err error) error {
	c.Header().Set("Connection", "close")
	_ = http.NewResponseController(c).SetReadDeadline(time.Now()) // nothing is worth waiting for any more
	if c.scheduled() {
		return invalidAt("json_invalid", "the body could not be read to its end")
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return invalid("body did not arrive in time")
	}
	return invalid("body could not be read to its end")
}

// What an answer that does not need the body waits for it, and how much of it is read.
const (
	unreadPatience = 200 * time.Millisecond
	mostUnread     = 256 << 10
)

// unread sees to it that the answer is sent even if not all of the body has arrived. What has is read: a connection
// that is closed with something unread is reset, and the client may lose the answer with it. Who asks first (Expect: 100-continue) is not
// told to send it.
//
// Once a body has been read to its end, the server reads on to notice that the client hangs up. A deadline that passes
// then looks to it like a client that has gone, and every later request of the connection is cancelled; so there must
// be none, and where there was one for a moment, the connection is not used again.
func (c *call) unread() {
	if c.arrived || c.r.Body == nil || c.r.Body == http.NoBody || c.r.ProtoMajor != 1 {
		return
	}
	c.Header().Set("Connection", "close")
	control := http.NewResponseController(c)
	if c.r.Header.Get("Expect") == "" && control.SetReadDeadline(time.Now().Add(unreadPatience)) == nil {
		if _, err := io.CopyN(io.Discard, c.r.Body, mostUnread); errors.Is(err, io.EOF) {
			c.bodyArrived()
			return
		}
	}
	_ = control.EnableFullDuplex() // where there is none, the answer waits for the body
}

// jsonMedia reports whether a body is said to be JSON, or nothing is said of it.
func jsonMedia(h http.Header) bool {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return false
	}
	said := h.Get("Content-Type")
	if said == "application/json" || said == "" {
		return true
	}
	media, _, _ := mime.ParseMediaType(said) // empty if it is none
	return media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
}

// shortAnswer is the length up to which net/http counts an answer itself.
const shortAnswer = 2000

// send answers with a body. Large ones are refused while many are being sent, unless they tell of what was done.
func (c *call) send(status int, body []byte) error {
	h := c.Header()
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/json")
	}
	if n := int64(len(body)); n > largeAnswer && (c.r.Method == http.MethodGet || status >= http.StatusBadRequest) {
		defer c.s.large.Add(-n)
		if taken := c.s.large.Add(n); taken > max(mostLarge, n) {
			return errCrowded
		}
	}
	if len(body) > shortAnswer {
		h.Set("Content-Length", strconv.Itoa(len(body)))
		c.writeDeadline()
	}
	if status != http.StatusOK {
		c.WriteHeader(status)
	}
	_, err := c.Write(body)
	return err
}

// writeDeadline gives a slow client so long to take in the next piece of the answer.
func (c *call) writeDeadline() {
	_ = http.NewResponseController(c).SetWriteDeadline(time.Now().Add(c.s.Limits.Request)) // as for reading
}

// Answers of more than largeAnswer bytes are not written while mostLarge bytes of such are being written, unless it is
// one only: clients that ask for crowded locks and do not take in the answers would fill the memory.
const (
	largeAnswer = 128 << 10
	mostLarge   = 64 << 20
)
