// Package jsonline writes and reads small JSON objects of known shape without reflection, which costs a command that
// lives for a millisecond more than all its file operations. What it writes is to the byte what encoding/json writes, and
// what it cannot read it leaves to encoding/json: it is a fast path, never another meaning.
package jsonline

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"
)

// Object is a JSON object under construction. Begin with Open and end with Close.
type Object struct {
	B []byte

	// HTML escapes <, > and & in strings, as encoding/json does unless told otherwise.
	HTML bool

	bad bool
}

// Open begins an object: the outermost one, or one that a Key was written for.
func (o *Object) Open() { o.B = append(o.B, '{') }

// Close ends the object.
func (o *Object) Close() { o.B = append(o.B, '}') }

// OK reports whether everything could be written. A time outside the years 0 to 9999 cannot.
func (o *Object) OK() bool { return !o.bad }

// Key begins a member. Its value is written next.
func (o *Object) Key(name string) {
	if o.B[len(o.B)-1] != '{' {
		o.B = append(o.B, ',')
	}
	o.B = append(o.B, '"')
	o.B = append(o.B, name...)
	o.B = append(o.B, '"', ':')
}

// String writes a member, even if it is empty.
func (o *Object) String(key, v string) {
	o.Key(key)
	o.text(v)
}

// OptString writes a member unless it is empty.
func (o *Object) OptString(key, v string) {
	if v != "" {
		o.String(key, v)
	}
}

// Raw writes a member whose key may be any string and whose value is JSON already.
func (o *Object) Raw(key string, v []byte) {
	if o.B[len(o.B)-1] != '{' {
		o.B = append(o.B, ',')
	}
	o.text(key)
	o.B = append(o.B, ':')
	o.B = append(o.B, v...)
}

// Int writes a member, even if it is 0.
func (o *Object) Int(key string, v int64) {
	o.Key(key)
	o.B = strconv.AppendInt(o.B, v, 10)
}

// OptInt writes a member unless it is 0.
func (o *Object) OptInt(key string, v int64) {
	if v != 0 {
		o.Int(key, v)
	}
}

// OptUint writes a member unless it is 0.
func (o *Object) OptUint(key string, v uint64) {
	if v != 0 {
		o.Key(key)
		o.B = strconv.AppendUint(o.B, v, 10)
	}
}

// OptBool writes a member if it is true.
func (o *Object) OptBool(key string, v bool) {
	if v {
		o.Key(key)
		o.B = append(o.B, "true"...)
	}
}

// Time writes a member as RFC 3339 with nanoseconds.
func (o *Object) Time(key string, v time.Time) {
	o.Key(key)
	if y := v.Year(); y < 0 || y > 9999 {
		o.bad = true
	}
	if _, offset := v.Zone(); offset%60 != 0 || offset <= -24*3600 || offset >= 24*3600 {
		o.bad = true
	}
	o.B = append(o.B, '"')
	o.B = v.AppendFormat(o.B, time.RFC3339Nano)
	o.B = append(o.B, '"')
}

// OptTime writes a member unless it is the zero time.
func (o *Object) OptTime(key string, v time.Time) {
	if !v.IsZero() {
		o.Time(key, v)
	}
}

// OptStrings writes a list unless it is empty.
func (o *Object) OptStrings(key string, v []string) {
	if len(v) == 0 {
		return
	}
	o.Key(key)
	o.B = append(o.B, '[')
	for i, s := range v {
		if i > 0 {
			o.B = append(o.B, ',')
		}
		o.text(s)
	}
	o.B = append(o.B, ']')
}

// OptMap writes an object of strings, by key, unless it is empty.
func (o *Object) OptMap(key string, v map[string]string) {
	if len(v) == 0 {
		return
	}
	o.Key(key)
	o.Open()
	var few [8]string // sorted without an allocation
	keys := few[:0]
	for k := range v {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for i, k := range keys {
		if i > 0 {
			o.B = append(o.B, ',')
		}
		o.text(k)
		o.B = append(o.B, ':')
		o.text(v[k])
	}
	o.Close()
}

// text writes a string.
func (o *Object) text(s string) {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || o.HTML && (c == '<' || c == '>' || c == '&') {
			o.escaped(s)
			return
		}
	}
	o.B = append(o.B, '"')
	o.B = append(o.B, s...)
	o.B = append(o.B, '"')
}

// escaped writes a string that has something unusual.
func (o *Object) escaped(s string) {
	if o.HTML {
		b, err := json.Marshal(s)
		o.bad = o.bad || err != nil
		o.B = append(o.B, b...)
		return
	}
	w := trimmed{o.B}
	enc := json.NewEncoder(&w)
	enc.SetEscapeHTML(false)
	o.bad = enc.Encode(s) != nil || o.bad
	o.B = w.b
}

// trimmed collects what an encoder writes, without the newline at its end.
type trimmed struct{ b []byte }

func (w *trimmed) Write(p []byte) (int, error) {
	n := len(p)
	if n > 0 && p[n-1] == '\n' {
		p = p[:n-1]
	}
	w.b = append(w.b, p...)
	return n, nil
}
