package httpapi

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt/jobs"
)

// bodyReader reads the values of a body that was found to be JSON, and collects what is wrong with them.
type bodyReader struct {
	at       []any // where the object is whose fields are read
	problems []jobs.Problem
}

// newBodyReader checks that a body is one JSON value in UTF-8, and returns it without the space around it.
func newBodyReader(body []byte) (*bodyReader, []byte) {
	d := &bodyReader{}
	begin := skipSpace(body, 0)
	end, ok := skipValue(body, begin, 0)
	switch {
	case begin == len(body):
		d.add("missing", "Field required")
	case !ok:
		d.add("json_invalid", fmt.Sprintf("JSON decode error at byte %d", end))
	case skipSpace(body, end) != len(body):
		d.add("json_invalid", fmt.Sprintf("JSON decode error: there is more behind byte %d, where the value ends", end))
	case !utf8.Valid(body):
		d.add("json_invalid", "JSON decode error: the text is not UTF-8")
	default:
		return d, body[begin:end]
	}
	return d, nil
}

// add notes a problem with the object, or with what lies in it in that direction.
func (d *bodyReader) add(kind, msg string, loc ...any) {
	d.problems = append(d.problems, jobs.Problem{Type: kind, Loc: append(d.at[:len(d.at):len(d.at)], loc...), Msg: msg})
}

// err returns the problems as an error, or nil.
func (d *bodyReader) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	return &jobs.InvalidError{Problems: d.problems}
}

// fields finds the members of an object that have the given names, exactly, and puts their values into the same places
// of values; those that are absent or null stay nil. Others are ignored.
func (d *bodyReader) fields(object []byte, names []string, values [][]byte) {
	if len(object) == 0 {
		return
	}
	if object[0] != '{' {
		d.add("model_attributes_type", "Input should be an object")
		return
	}
	var seen uint64
	for i := skipSpace(object, 1); object[i] != '}'; {
		begin := i
		i, _ = skipString(object, i)
		at := place(object[begin:i], names)
		i = skipSpace(object, skipSpace(object, i)+1) // behind the colon
		begin = i
		i, _ = skipValue(object, i, 0)
		if at >= 0 {
			if seen&(1<<at) != 0 {
				d.add("value_error", "Field should be there once", names[at])
			}
			seen |= 1 << at
			if object[begin] != 'n' {
				values[at] = object[begin:i]
			}
		}
		if i = skipSpace(object, i); object[i] == ',' {
			i = skipSpace(object, i+1)
		}
	}
}

// place returns which of the names a quoted one is, or -1.
func place(quoted []byte, names []string) int {
	for i, name := range names {
		if len(quoted) == len(name)+2 && string(quoted[1:len(quoted)-1]) == name {
			return i
		}
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return -1
	}
	if text, ok := unquote(quoted); ok {
		for i, name := range names {
			if text == name {
				return i
			}
		}
	}
	return -1
}

// items returns the values of a list, at most so many and one more.
func (d *bodyReader) items(raw []byte, most int, name string) [][]byte {
	if raw == nil {
		return nil
	}
	if raw[0] != '[' {
		d.add("list_type", "Input should be a valid list", name)
		return nil
	}
	all := make([][]byte, 0, min(bytes.Count(raw, []byte{','}), most)+1)
	for i := skipSpace(raw, 1); raw[i] != ']' && len(all) <= most; {
		begin := i
		i, _ = skipValue(raw, i, 0)
		all = append(all, raw[begin:i])
		if i = skipSpace(raw, i); raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return all
}

// string returns the text of a field that must be there.
func (d *bodyReader) string(raw []byte, name string) string {
	if raw == nil {
		d.add("missing", "Field required", name)
		return ""
	}
	return d.optional(raw, name)
}

// optional returns the text of a field, or the empty string.
func (d *bodyReader) optional(raw []byte, loc ...any) string {
	if raw == nil {
		return ""
	}
	if raw[0] != '"' {
		d.add("string_type", "Input should be a valid string", loc...)
		return ""
	}
	text, ok := unquote(raw)
	if !ok {
		d.add("string_unicode", "Input should be a valid string, without half surrogate pairs", loc...)
	}
	return text
}

// strings returns a list of texts, at most so many and one more. They share the memory of one.
func (d *bodyReader) strings(raw []byte, most int, name string) []string {
	items := d.items(raw, most, name)
	if len(items) == 0 {
		return nil
	}
	shared := string(raw)
	all := make([]string, len(items))
	for i, item := range items {
		if item[0] != '"' {
			d.add("string_type", "Input should be a valid string", name, i)
			continue
		}
		if bytes.IndexByte(item, '\\') < 0 {
			begin := cap(raw) - cap(item) + 1
			all[i] = shared[begin : begin+len(item)-2]
			continue
		}
		text, ok := unquote(item)
		if !ok {
			d.add("string_unicode", "Input should be a valid string, without half surrogate pairs", name, i)
		}
		all[i] = text
	}
	return all
}

// bool returns a truth value; false if it is absent.
func (d *bodyReader) bool(raw []byte, name string) bool {
	if raw != nil && raw[0] != 't' && raw[0] != 'f' {
		d.add("bool_type", "Input should be a valid boolean", name)
	}
	return raw != nil && raw[0] == 't'
}

// mostInt bounds integers: beyond, numbers are not exact in most programs.
const mostInt = 1<<53 - 1

// int returns an integer, or what is absent stands for. 5.0 and 5e0 are integers.
func (d *bodyReader) int(raw []byte, absent int, name string) int {
	if raw == nil {
		return absent
	}
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil && n >= -mostInt && n <= mostInt && n == int64(int(n)) {
		return int(n)
	}
	f, ok := d.number(raw, "int_type", "Input should be a valid integer", name)
	if !ok {
		return absent
	}
	switch {
	case math.Abs(f) > mostInt:
		d.add("int_parsing_size", "Input should be an integer of at most 53 bits", name)
	case f != math.Trunc(f):
		d.add("int_from_float", "Input should be a valid integer, got a number with a fractional part", name)
	case int64(f) != int64(int(f)):
		d.add("int_parsing_size", "Input is too large", name)
	default:
		return int(f)
	}
	return absent
}

// number reads a number. Their syntax and range were checked before.
func (d *bodyReader) number(raw []byte, kind, msg, name string) (float64, bool) {
	if c := raw[0]; c != '-' && (c < '0' || c > '9') {
		d.add(kind, msg, name)
		return 0, false
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		d.add(kind, msg, name)
		return 0, false
	}
	return f, true
}

// float returns a number, or nil if it is absent.
func (d *bodyReader) float(raw []byte, name string) *float64 {
	if raw == nil {
		return nil
	}
	f, ok := d.number(raw, "float_type", "Input should be a valid number", name)
	if !ok {
		return nil
	}
	return &f
}

// seconds returns a duration given in seconds, in whole milliseconds: parts of one count as one. What is too long for a
// time.Duration is the longest of these.
func (d *bodyReader) seconds(raw []byte, absent time.Duration, name string) time.Duration {
	if raw == nil {
		return absent
	}
	f, ok := d.number(raw, "float_type", "Input should be a valid number", name)
	if !ok {
		return absent
	}
	const most = math.MaxInt64 / int64(time.Millisecond)
	ms := math.Ceil(math.Round(f*1e9) / 1e6) // float64 has no more than nanoseconds of what is allowed
	switch {
	case f < 0:
		return min(-1, time.Duration(max(ms, -float64(most)))*time.Millisecond)
	case ms >= float64(most):
		return math.MaxInt64
	case f > 0:
		return max(time.Duration(ms), 1) * time.Millisecond
	}
	return 0
}

// millis returns a duration given in milliseconds.
func (d *bodyReader) millis(raw []byte, name string) time.Duration {
	ms := int64(d.int(raw, 0, name))
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(max(min(ms, most), -most)) * time.Millisecond
}

// time returns a moment given as RFC 3339 has it, in whole milliseconds, and the zero time if it is absent.
func (d *bodyReader) time(raw []byte, name string) time.Time {
	if raw == nil {
		return time.Time{}
	}
	if raw[0] != '"' {
		d.add("datetime_type", "Input should be a time as RFC 3339 has it", name)
		return time.Time{}
	}
	text, _ := unquote(raw)
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		d.add("datetime_parsing", "Input should be a time as RFC 3339 has it", name)
		return time.Time{}
	}
	t = t.UTC()
	if whole := t.Truncate(time.Millisecond); !whole.Equal(t) {
		t = whole.Add(time.Millisecond) // not before is not before
	}
	if t.IsZero() {
		t = t.Add(time.Millisecond) // the zero time stands for none
	}
	return t
}

// raw returns a value as it was sent, apart from the body that it came in.
func (d *bodyReader) raw(raw []byte) jsontext.Value {
	if raw == nil {
		return nil
	}
	return append(jsontext.Value(nil), raw...)
}
