package httpapi

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/rawjson"
	"github.com/lokt-dev/lokt/jobs"
)

// The scheduler's JSON. Values that are only passed on come back byte for byte. A body may have several problems, and
// is told all of them, each with its place: so values of the wrong type are noted and skipped, where the library would
// stop.

// form is how the scheduler's wire writes values.
var form = rawjson.New(
	json.JoinMarshalers(
		json.MarshalToFunc(writeTime), json.MarshalToFunc(writeSeconds), json.MarshalToFunc(writeString)),
	json.Deterministic(true), jsontext.AllowDuplicateNames(true),
)

func writeTime(enc *jsontext.Encoder, t time.Time) error {
	if t.IsZero() {
		return enc.WriteToken(jsontext.Null)
	}
	return enc.WriteValue(appendTime(enc.AvailableBuffer(), t))
}

// appendTime appends a quoted time. Package time is fast with RFC 3339, and slow with a layout of three digits.
func appendTime(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(append(b, '"'), time.RFC3339)
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(b[:len(b)-1], '.', '0'+byte(ms/100), '0'+byte(ms/10%10), '0'+byte(ms%10), 'Z', '"')
}

// writeSeconds writes a duration as a number of seconds.
func writeSeconds(enc *jsontext.Encoder, d time.Duration) error {
	return enc.WriteValue(appendSeconds(enc.AvailableBuffer(), d))
}

func appendSeconds(b []byte, d time.Duration) []byte {
	whole, part := d/time.Second, d%time.Second
	if d < 0 {
		b, whole, part = append(b, '-'), -whole, -part
	}
	b = strconv.AppendInt(b, int64(whole), 10)
	if part > 0 {
		b = append(b, '.')
		for digit := time.Second / 10; part > 0; digit /= 10 {
			b = append(b, '0'+byte(part/digit))
			part %= digit
		}
	}
	return b
}

// writeString writes null for a member that is empty.
func writeString(enc *jsontext.Encoder, s string) error {
	if s == "" {
		if outer, _ := enc.StackIndex(enc.StackDepth()); outer == '{' {
			return enc.WriteToken(jsontext.Null)
		}
	}
	return enc.WriteToken(jsontext.String(s))
}

// reading is how clients read what the wire has: exactly, and with null for what is not there.
var reading = json.JoinOptions(jsontext.AllowDuplicateNames(true), json.WithUnmarshalers(json.JoinUnmarshalers(
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, d *time.Duration) error {
		var s float64 // exact to the nanosecond for a hundred days
		err := json.UnmarshalDecode(dec, &s)
		*d = time.Duration(max(min(math.Round(s*1e9), math.MaxInt64), math.MinInt64))
		return err
	}),
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *jsontext.Value) error {
		read, err := dec.ReadValue()
		if *v = nil; err == nil && read.Kind() != 'n' {
			*v = read.Clone()
		}
		return err
	}),
)))

// reader reads bodies, and collects what is wrong with them. Null is the same as nothing. Readers are used again.
type reader struct {
	options  json.Options
	problems []jobs.Problem
}

// newReader returns a reader, for a pool.
func newReader() any {
	r := new(reader)
	r.options = json.WithUnmarshalers(json.JoinUnmarshalers(
		json.UnmarshalFromFunc(r.string), json.UnmarshalFromFunc(r.bool), json.UnmarshalFromFunc(r.int),
		json.UnmarshalFromFunc(r.float), json.UnmarshalFromFunc(r.seconds), json.UnmarshalFromFunc(r.time),
		json.UnmarshalFromFunc(r.value), json.UnmarshalFromFunc(r.strings),
		json.UnmarshalFromFunc(r.spec), json.UnmarshalFromFunc(r.specs), json.UnmarshalFromFunc(r.leaseIDs),
		json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *verbatim) error { return r.string(dec, (*string)(v)) }),
	))
	return r
}

// read reads an object into what v points to. The error is about the whole; what is wrong with fields is noted.
func (r *reader) read(body []byte, v any) error {
	if body = bytes.Trim(body, " \t\r\n"); len(body) == 0 {
		return invalidAt("missing", "Field required")
	}
	to := v
	if body[0] != '{' {
		to = new(jsontext.Value)
	}
	err := json.Unmarshal(body, to, r.options)
	if err == nil {
		err = bounded(body)
	}
	var wrong *jsontext.SyntacticError
	switch {
	case errors.As(err, &wrong) && strings.Contains(err.Error(), "surrogate") && utf8.Valid(body):
		at := elements(wrong.JSONPointer)
		r.add("string_unicode", "Input should be a valid string, without half surrogate pairs", at...)
	case errors.As(err, &wrong):
		return syntax(wrong, body)
	case err != nil:
		return invalidAt("value_error", err.Error())
	case body[0] != '{':
		return invalidAt("model_attributes_type", "Input should be an object")
	default:
		r.missing(reflect.ValueOf(v).Elem())
	}
	return nil
}

func (r *reader) add(kind, msg string, loc ...any) {
	r.problems = append(r.problems, jobs.Problem{Type: kind, Loc: loc, Msg: msg})
}

// missing notes the fields of an object that must be there, and are not.
func (r *reader) missing(object reflect.Value) {
	for i := range object.NumField() {
		if name, needed := object.Type().Field(i).Tag.Lookup("needed"); needed && object.Field(i).IsNil() {
			r.add("missing", "Field required", name)
		}
	}
}

// invalidAt returns the error of a request with one problem.
func invalidAt(kind, msg string, loc ...any) error {
	return &jobs.InvalidError{Problems: []jobs.Problem{{Type: kind, Msg: msg, Loc: loc}}}
}

// broken returns the error of a body that is no JSON.
func broken(msg string) error { return invalidAt("json_invalid", msg) }

// syntax says what is wrong with a body that is no JSON as it should be.
func syntax(err *jsontext.SyntacticError, body []byte) error {
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return invalidAt("value_error", "Field should be there once", elements(err.JSONPointer)...)
	case !utf8.Valid(body):
		return broken("JSON decode error: the text is not UTF-8")
	case err.JSONPointer == "" && strings.Contains(err.Error(), "after top-level value"):
		return broken(fmt.Sprintf("JSON decode error: there is more behind byte %d, where the value ends", err.ByteOffset))
	}
	return broken(fmt.Sprintf("JSON decode error at byte %d", err.ByteOffset))
}

// elements returns the way that a pointer shows: names, and numbers for what looks like an index.
func elements(p jsontext.Pointer) []any {
	var loc []any
	for name := range p.Tokens() {
		if n, err := strconv.Atoi(name); err == nil {
			loc = append(loc, n)
		} else {
			loc = append(loc, name)
		}
	}
	return loc
}

// maxNesting is how deep arrays and objects may be nested in a body.
const maxNesting = 200

// bounded refuses JSON that is nested too deep, or has a number that a float64 cannot hold: most programs could not
// cope.
func bounded(body []byte) error {
	depth := 0
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '"':
			for i++; body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
		case c == '[' || c == '{':
			if depth++; depth > maxNesting {
				return &jsontext.SyntacticError{ByteOffset: int64(i), Err: errors.New("it is nested too deep")}
			}
		case c == ']' || c == '}':
			depth--
		case c == '-' || c >= '0' && c <= '9':
			begin := i
			for i++; i < len(body) && strings.IndexByte("+-.0123456789Ee", body[i]) >= 0; i++ { //nolint:revive // it only counts
			}
			if f, err := strconv.ParseFloat(string(body[begin:i]), 64); err != nil || math.IsInf(f, 0) {
				return &jsontext.SyntacticError{ByteOffset: int64(begin), Err: errors.New("the number is too large")}
			}
			i--
		}
	}
	return nil
}

// note notes a problem of the value that was read last.
func (r *reader) note(dec *jsontext.Decoder, kind, msg string) {
	r.add(kind, msg, elements(dec.StackPointer())...)
}

// is reports whether the next value is of one of the kinds. Others are skipped: a member that is null is the same as
// none, and everything else a problem.
func (r *reader) is(dec *jsontext.Decoder, kinds, problem, msg string) (bool, error) {
	k := dec.PeekKind()
	if strings.IndexByte(kinds, byte(k)) >= 0 {
		return true, nil
	}
	outer, _ := dec.StackIndex(dec.StackDepth())
	if err := dec.SkipValue(); err != nil || k == 'n' && outer == '{' {
		return false, err
	}
	r.note(dec, problem, "Input should be "+msg)
	return false, nil
}

func (r *reader) string(dec *jsontext.Decoder, s *string) error {
	ok, err := r.is(dec, `"`, "string_type", "a valid string")
	if ok {
		var t jsontext.Token
		t, err = dec.ReadToken()
		*s = t.String()
	}
	return err
}

func (r *reader) bool(dec *jsontext.Decoder, b *bool) error {
	ok, err := r.is(dec, "tf", "bool_type", "a valid boolean")
	if ok {
		var t jsontext.Token
		t, err = dec.ReadToken()
		*b = t.Kind() == 't'
	}
	return err
}

// mostInt bounds integers: beyond, numbers are not exact in most programs.
const mostInt = 1<<53 - 1

// int reads an integer. 5.0 and 5e0 are integers.
func (r *reader) int(dec *jsontext.Decoder, n *int) error {
	f, ok, err := r.number(dec, "int_type", "a valid integer")
	switch {
	case !ok:
	case math.Abs(f) > mostInt:
		r.note(dec, "int_parsing_size", "Input should be an integer of at most 53 bits")
	case f != math.Trunc(f):
		r.note(dec, "int_from_float", "Input should be a valid integer, got a number with a fractional part")
	case int64(f) != int64(int(f)):
		r.note(dec, "int_parsing_size", "Input is too large")
	default:
		*n = int(f)
	}
	return err
}

// number reads a number, unless it is absent or of another type.
func (r *reader) number(dec *jsontext.Decoder, problem, msg string) (f float64, ok bool, err error) {
	if ok, err = r.is(dec, "0", problem, msg); !ok {
		return 0, false, err
	}
	t, err := dec.ReadToken()
	if err == nil {
		f, _ = t.Float() // infinite ones are refused later
	}
	return f, err == nil, err
}

func (r *reader) float(dec *jsontext.Decoder, to *float64) error {
	f, ok, err := r.number(dec, "float_type", "a valid number")
	if ok {
		*to = f
	}
	return err
}

// seconds reads a duration given in seconds, in whole milliseconds: parts of one count as one. What is too long for a
// time.Duration is the longest of these.
func (r *reader) seconds(dec *jsontext.Decoder, d *time.Duration) error {
	f, ok, err := r.number(dec, "float_type", "a valid number")
	if !ok {
		if len(r.problems) > 0 {
			*d = 1 // 0 might be a problem of its own
		}
		return err
	}
	const most = math.MaxInt64 / int64(time.Millisecond)
	ms := math.Ceil(math.Round(f*1e9) / 1e6) // float64 has no more than nanoseconds of what is allowed
	switch {
	case f < 0:
		*d = min(-1, time.Duration(max(ms, -float64(most)))*time.Millisecond)
	case ms >= float64(most):
		*d = math.MaxInt64
	case f > 0:
		*d = max(time.Duration(ms), 1) * time.Millisecond
	default:
		*d = 0
	}
	return nil
}

// time reads a moment given as RFC 3339 has it, in whole milliseconds.
func (r *reader) time(dec *jsontext.Decoder, to *time.Time) error {
	ok, err := r.is(dec, `"`, "datetime_type", "a time as RFC 3339 has it")
	if !ok {
		return err
	}
	token, err := dec.ReadToken()
	if err != nil {
		return err
	}
	t, err := time.Parse(time.RFC3339Nano, token.String())
	if err != nil {
		r.note(dec, "datetime_parsing", "Input should be a time as RFC 3339 has it")
		return nil
	}
	t = t.UTC()
	if whole := t.Truncate(time.Millisecond); !whole.Equal(t) {
		t = whole.Add(time.Millisecond) // not before is not before
	}
	if t.IsZero() {
		t = t.Add(time.Millisecond) // the zero time stands for none
	}
	*to = t
	return nil
}

// value reads a value that is passed on.
func (r *reader) value(dec *jsontext.Decoder, v *jsontext.Value) error {
	if dec.PeekKind() == 'n' {
		return dec.SkipValue()
	}
	// the names are not ours
	return json.UnmarshalDecode(dec, v, json.WithUnmarshalers(nil), jsontext.AllowDuplicateNames(true))
}

func (r *reader) strings(dec *jsontext.Decoder, all *[]string) error {
	return r.list(dec, func(n int) error {
		*all = append(*all, "")
		return r.string(dec, &(*all)[n])
	})
}

// leaseIDs reads the IDs of a batch as parts of one string: a hundred strings of their own would take longer than the
// rest.
func (r *reader) leaseIDs(dec *jsontext.Decoder, all *leaseIDsWire) error {
	text, begin := "", int64(0)
	return r.list(dec, func(n int) error {
		if n == 0 {
			text, begin = string(dec.UnreadBuffer()), dec.InputOffset()
			*all = make([]string, 0, min(strings.Count(text, `"`)/2, jobs.MaxHeartbeats))
		}
		*all = append(*all, "")
		if dec.PeekKind() != '"' {
			return r.string(dec, &(*all)[n])
		}
		raw, err := dec.ReadValue()
		if err != nil {
			return err
		}
		end := dec.InputOffset() - begin
		id := text[end-int64(len(raw))+1 : end-1]
		if strings.IndexByte(id, '\\') >= 0 {
			unquoted, _ := jsontext.AppendUnquote(nil, raw) // it was read
			id = string(unquoted)
		}
		(*all)[n] = id
		return nil
	})
}

// list reads a list, element by element.
func (r *reader) list(dec *jsontext.Decoder, read func(n int) error) error {
	ok, err := r.is(dec, "[", "list_type", "a valid list")
	if ok {
		_, err = dec.ReadToken()
	}
	for n := 0; ok && err == nil && dec.PeekKind() != ']'; n++ {
		err = read(n)
	}
	if ok && err == nil {
		_, err = dec.ReadToken()
	}
	return err
}

// spec reads what is asked of a job in a list.
func (r *reader) spec(dec *jsontext.Decoder, s *specWire) error {
	if dec.PeekKind() != '{' {
		err := dec.SkipValue()
		r.note(dec, "model_attributes_type", "Input should be an object")
		return err
	}
	*s = newSpecWire()
	return errors.ErrUnsupported // by the library, field by field
}

// specs reads a list of them, as far as it may be long.
func (r *reader) specs(dec *jsontext.Decoder, all *[]specWire) error {
	return r.list(dec, func(n int) error {
		if n < jobs.MaxSubmit {
			*all = append(*all, specWire{})
			return json.UnmarshalDecode(dec, &(*all)[n])
		}
		if n == jobs.MaxSubmit {
			r.add("too_long", fmt.Sprintf("List should have at most %d items", jobs.MaxSubmit), "jobs")
		}
		return dec.SkipValue()
	})
}

// The JSON of locks is that of package lokt.

// decode reads the request's body into what v points to, an object all of whose members must be known: a misspelt time
// to live is not the same as none. An empty body is an empty object where that is allowed.
func (c *call) decode(v any) error {
	err := lokt.Unmarshal(c.in, v, json.RejectUnknownMembers(true), jsontext.AllowDuplicateNames(false))
	if err == nil {
		err = bounded(c.in)
	}
	var wrong *json.SemanticError
	var text *jsontext.SyntacticError
	switch {
	case err == nil && bytes.TrimLeft(c.in, " \t\r\n")[0] != '{':
		return invalid("body should be an object")
	case err == nil:
		return nil
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &text):
		return invalid("%s is there more than once", member(text.JSONPointer))
	case errors.As(err, &text):
		return invalid("body is not JSON: %s", clipped(strings.TrimPrefix(text.Error(), "jsontext: ")))
	case !errors.As(err, &wrong):
		return invalid("%s", clipped(err.Error()))
	case errors.Is(err, json.ErrUnknownName):
		return invalid("%s is not known", member(wrong.JSONPointer))
	case errors.Is(err, lokt.ErrInvalid):
		return invalid("%s should be a number of milliseconds, not too large", member(wrong.JSONPointer))
	}
	return invalid("%s has the wrong type", member(wrong.JSONPointer))
}

// member names a member of a body as people do: "owner.id".
func member(p jsontext.Pointer) string {
	var names []string
	for name := range p.Tokens() {
		names = append(names, name)
	}
	return clipped(cmp.Or(strings.Join(names, "."), "body"))
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
