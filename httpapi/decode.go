package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
)

// maxDepth is how deep values in a body may be nested.
const maxDepth = 64

// readBody reads the request's body. The error is errBodyTooLarge, errMediaType, or wraps lokt.ErrInvalid if the body
// cannot be read to its end.
func (c *call) readBody() ([]byte, error) {
	if !jsonMediaType(c.r.Header.Get("Content-Type")) {
		return nil, errMediaType
	}
	limit := c.s.Limits.Body
	if c.r.ContentLength > limit {
		c.w.Header().Set("Connection", "close")
		return nil, errBodyTooLarge
	}
	c.bodyDeadline()
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, limit))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, errBodyTooLarge
	}
	if err != nil {
		return nil, c.bodyLost(err)
	}
	c.bodyArrived()
	return body, nil
}

// bodyDeadline gives a slow client so long to send its body. Where the connection has no deadlines, the server's own limits hold.
func (c *call) bodyDeadline() {
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(c.s.Limits.Request))
}

// bodyArrived lifts bodyDeadline, which would end long waits. If the body did not arrive it must stay: the server reads what is left
// of a body before it sends the answer, and would wait for it for ever.
func (c *call) bodyArrived() {
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{})
	c.arrived = true
}

// bodyLost says why a body cannot be read, without what the network says of it, and keeps the connection from being used again.
func (c *call) bodyLost(err error) error {
	c.w.Header().Set("Connection", "close")
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Now()) // nothing is worth waiting for any more
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

// unread sees to it that the answer is sent even if not all of the body has arrived. What has is read: a connection that is closed with
// something unread is reset, and the client may lose the answer with it.
//
// Once a body has been read to its end, the server reads on to notice that the client hangs up. A deadline that passes then looks to
// it like a client that has gone, and every later request of the connection is cancelled; so there must be none, and where there was one
// for a moment, the connection is not used again.
func (c *call) unread() {
	if c.arrived || c.r.Body == nil || c.r.Body == http.NoBody || c.r.ProtoMajor != 1 {
		return
	}
	c.w.Header().Set("Connection", "close")
	control := http.NewResponseController(c.w)
	if control.SetReadDeadline(time.Now().Add(unreadPatience)) == nil {
		if _, err := io.CopyN(io.Discard, c.r.Body, mostUnread); errors.Is(err, io.EOF) {
			c.bodyArrived()
			return
		}
	}
	_ = control.EnableFullDuplex() // where there is none, the answer waits for the body
}

// jsonMediaType reports whether a Content-Type is JSON, or missing.
func jsonMediaType(t string) bool {
	if t == "" {
		return true
	}
	media, params, err := mime.ParseMediaType(t)
	if err != nil {
		return false
	}
	if charset, given := params["charset"]; given && !strings.EqualFold(charset, "utf-8") {
		return false
	}
	return media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
}

// checkJSON reports what is wrong with a body before it is decoded into anything: it must be valid UTF-8 and exactly one
// JSON value, nested at most maxDepth deep.
func checkJSON(body []byte) error {
	if !utf8.Valid(body) {
		return errors.New("body is not valid UTF-8")
	}
	depth, quoted, escaped := 0, false, false
	for _, b := range body {
		switch {
		case escaped:
			escaped = false
		case quoted:
			escaped = b == '\\'
			quoted = b != '"'
		case b == '"':
			quoted = true
		case b == '[' || b == '{':
			if depth++; depth > maxDepth {
				return fmt.Errorf("body is nested more than %d deep", maxDepth)
			}
		case b == ']' || b == '}':
			depth--
		}
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return errors.New("body is empty")
	}
	if !json.Valid(body) {
		var v jsontext.Value
		return fmt.Errorf("body is not JSON: %w", json.Unmarshal(body, &v))
	}
	return nil
}

// decode reads the request's body into v, an object all of whose members must be known: a misspelt time to live is not
// the same as none. An empty body leaves v as it is if that is optional.
func (c *call) decode(v any, optional bool) error {
	body, err := c.readBody()
	if err != nil {
		return err
	}
	if optional && len(body) == 0 {
		return nil
	}
	if err := checkJSON(body); err != nil {
		return invalid("%v", err)
	}
	if member := repeated(body); member != "" {
		return invalid("%s is there more than once", clipped(member))
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return invalid("%s", clipped(misfit(err)))
	}
	return nil
}

// repeated returns the path of a member that an object of a body has more than once, or "": programs do not agree on which of them counts. The
// body was found to be JSON.
func repeated(body []byte) string {
	_, path := repeatedIn(body, skipSpace(body, 0), "")
	return path
}

// mostMembers is more than any object has whose members are known.
const mostMembers = 64

// repeatedIn does so for the value at i, which has a path itself, and returns where the value ends.
func repeatedIn(body []byte, i int, path string) (end int, found string) {
	switch body[i] {
	case '"':
		end, _ = skipString(body, i)
		return end, ""
	case '{', '[':
	default: // whether a number fits anywhere is found out later
		for end = i; end < len(body) && !strings.ContainsRune(",]} \t\r\n", rune(body[end])); end++ {
		}
		return end, ""
	}
	object := body[i] == '{'
	free := strings.EqualFold(path, "metadata") // has names of the client's choice, which differ if their case does
	var known []string
	seen := map[string]bool{}
	for i = skipSpace(body, i+1); body[i] != '}' && body[i] != ']'; {
		at := path
		if object {
			begin := i
			i, _ = skipString(body, i)
			var name string
			_ = json.Unmarshal(body[begin:i], &name)  // as it will be decoded
			i = skipSpace(body, skipSpace(body, i)+1) // behind the colon
			at = strings.TrimPrefix(path+"."+name, ".")
			switch {
			case free && seen[name], !free && slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, name) }):
				return i, at
			case free:
				seen[name] = true
			case len(known) < mostMembers: // what has more is refused for one that is not known
				known = append(known, name)
			}
		}
		if i, found = repeatedIn(body, i, at); found != "" {
			return i, found
		}
		if i = skipSpace(body, i); body[i] == ',' {
			i = skipSpace(body, i+1)
		}
	}
	return i + 1, ""
}

// misfit says why a body does not decode, in the words of JSON and not of this program.
func misfit(err error) string {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return strings.TrimPrefix(err.Error(), "json: ")
	}
	want := "an object"
	switch wrong.Type.Kind() {
	case reflect.String:
		want = "a string"
	case reflect.Bool:
		want = "true or false"
	case reflect.Slice:
		want = "a list"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		want = "a whole number that is not too large"
	}
	return fmt.Sprintf("%s should be %s, not %s", cmp.Or(wrong.Field, "body"), want, strings.Replace(wrong.Value, "number ", "", 1))
}

// clipped returns what may be repeated of a text that a client sent: it need not get back all that it sends.
func clipped(text string) string {
	const most = 500
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", lokt.ErrInvalid, fmt.Sprintf(format, args...))
}

// writeJSON answers with a value.
func (c *call) writeJSON(status int, contentType string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > largeAnswer && (c.r.Method == http.MethodGet || status >= http.StatusBadRequest) { // others have done what they tell of
		if !c.s.large.take(int64(len(body))) {
			return errCrowded
		}
		defer c.s.large.give(int64(len(body)))
	}
	c.writeDeadline()
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(status)
	_, err = c.w.Write(append(body, '\n'))
	return err
}

// largeAnswer is how many bytes an answer has that is not written while too much is being written already: clients that ask for
// crowded locks and do not take in the answers would fill the memory.
const largeAnswer = 128 << 10

// mostLarge bounds the bytes of large answers that are being written, unless it is one only.
const mostLarge = 64 << 20

// budget counts bytes.
type budget struct{ taken atomic.Int64 }

// take reports whether there is room for n more.
func (b *budget) take(n int64) bool {
	if taken := b.taken.Add(n); taken > mostLarge && taken > n {
		b.taken.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.taken.Add(-n) }

// writeDeadline gives a slow client so long to take in the next piece of the answer.
func (c *call) writeDeadline() {
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(c.s.Limits.Request)) // as for reading
}
