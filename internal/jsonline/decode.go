package jsonline

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// Reader reads JSON from the start of B. As soon as anything is not what the caller expects, or is written in an unusual
// way, Bad is set, and everything that was read is to be thrown away.
type Reader struct {
	B   []byte
	Bad bool
	at  int
}

func (r *Reader) space() {
	for r.at < len(r.B) && (r.B[r.at] == ' ' || r.B[r.at] == '\n' || r.B[r.at] == '\t' || r.B[r.at] == '\r') {
		r.at++
	}
}

// take consumes c, or sets Bad.
func (r *Reader) take(c byte) {
	r.space()
	if r.Bad || r.at >= len(r.B) || r.B[r.at] != c {
		r.Bad = true
		return
	}
	r.at++
}

// peek reports whether c is next.
func (r *Reader) peek(c byte) bool {
	r.space()
	return !r.Bad && r.at < len(r.B) && r.B[r.at] == c
}

// Next returns the byte with which what is next begins; 0 at the end.
func (r *Reader) Next() byte {
	if r.space(); r.at < len(r.B) {
		return r.B[r.at]
	}
	return 0
}

// End sets Bad unless everything was read.
func (r *Reader) End() {
	if r.space(); r.at != len(r.B) {
		r.Bad = true
	}
}

// Object reads an object and calls member for each key, to read its value. A key that comes twice sets Bad, if both come
// within the first 64 members.
func (r *Reader) Object(member func(key string)) {
	r.take('{')
	if r.peek('}') {
		r.at++
		return
	}
	var seen [64]string
	for n := 0; !r.Bad; n++ {
		key := r.String()
		for _, k := range seen[:min(n, len(seen))] {
			if k == key {
				r.Bad = true
				return
			}
		}
		if n < len(seen) {
			seen[n] = key
		}
		r.take(':')
		if r.Bad {
			return
		}
		member(key)
		if r.peek(',') {
			r.at++
			continue
		}
		r.take('}')
		return
	}
}

// List reads a list and calls item for each, to read it.
func (r *Reader) List(item func()) {
	r.take('[')
	if r.peek(']') {
		r.at++
		return
	}
	for !r.Bad {
		item()
		if r.peek(',') {
			r.at++
			continue
		}
		r.take(']')
		return
	}
}

// String reads a string without escapes.
func (r *Reader) String() string {
	r.take('"')
	start := r.at
	for ; !r.Bad && r.at < len(r.B); r.at++ {
		switch c := r.B[r.at]; {
		case c == '"':
			s := r.B[start:r.at]
			r.at++
			if !utf8.Valid(s) {
				r.Bad = true
			}
			return string(s)
		case c == '\\' || c < 0x20:
			r.Bad = true
		}
	}
	r.Bad = true
	return ""
}

// Text reads any string.
func (r *Reader) Text() string {
	r.space()
	start, escaped := r.at, false
	r.take('"')
	for ; !r.Bad && r.at < len(r.B); r.at++ {
		switch r.B[r.at] {
		case '\\':
			escaped = true
			r.at++
		case '"':
			if !escaped {
				r.at = start
				return r.String()
			}
			r.at++
			var s string
			r.Bad = json.Unmarshal(r.B[start:r.at], &s) != nil
			return s
		}
	}
	r.Bad = true
	return ""
}

// Number reads an integer and returns its digits, however many.
func (r *Reader) Number() string {
	r.space()
	start := r.at
	if r.at < len(r.B) && r.B[r.at] == '-' {
		r.at++
	}
	first := r.at
	for r.at < len(r.B) && r.B[r.at] >= '0' && r.B[r.at] <= '9' {
		r.at++
	}
	if n := r.at - first; n == 0 || n > 1 && r.B[first] == '0' {
		r.Bad = true
	}
	if r.at < len(r.B) && (r.B[r.at] == '.' || r.B[r.at] == 'e' || r.B[r.at] == 'E') {
		r.Bad = true
	}
	return string(r.B[start:r.at])
}

// Int reads an integer.
func (r *Reader) Int() int64 {
	v, err := strconv.ParseInt(r.Number(), 10, 64)
	r.Bad = r.Bad || err != nil
	return v
}

// Uint reads an integer that is not negative.
func (r *Reader) Uint() uint64 {
	v, err := strconv.ParseUint(r.Number(), 10, 64)
	r.Bad = r.Bad || err != nil
	return v
}

// Bool reads true or false.
func (r *Reader) Bool() bool {
	r.space()
	rest := r.B[min(r.at, len(r.B)):]
	switch {
	case len(rest) >= 4 && string(rest[:4]) == "true":
		r.at += 4
		return true
	case len(rest) >= 5 && string(rest[:5]) == "false":
		r.at += 5
		return false
	}
	r.Bad = true
	return false
}

// Time reads a time in RFC 3339.
func (r *Reader) Time() time.Time {
	s := r.String()
	if r.Bad {
		return time.Time{}
	}
	var t time.Time
	if t.UnmarshalText([]byte(s)) != nil {
		r.Bad = true
	}
	return t
}

// Scalars reads an object of strings, integers and booleans, and returns its text.
func (r *Reader) Scalars() []byte {
	r.space()
	start := r.at
	r.Object(func(string) {
		switch {
		case r.peek('"'):
			_ = r.String()
		case r.peek('t'), r.peek('f'):
			_ = r.Bool()
		default:
			_ = r.Number()
		}
	})
	return r.B[min(start, r.at):r.at]
}

// Strings reads a list of strings.
func (r *Reader) Strings() []string {
	v := []string{}
	r.List(func() { v = append(v, r.String()) })
	return v
}

// Map reads an object of strings.
func (r *Reader) Map() map[string]string {
	v := map[string]string{}
	r.Object(func(key string) {
		if _, twice := v[key]; twice {
			r.Bad = true
		}
		v[key] = r.String()
	})
	return v
}
