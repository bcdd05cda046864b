package httpapi

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
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

// The scheduler's JSON: times with three digits, durations in seconds or in milliseconds, as their names say, null for
// what is not there. Values that are only passed on come back byte for byte. A body may have several problems, and is
// told all of them, each with its place: so values of the wrong type are noted and skipped, where the library would
// stop.

// form is how the scheduler's wire writes values.
var form = rawjson.New(
	json.JoinMarshalers(
		json.MarshalToFunc(writeTime), json.MarshalToFunc(writeDuration), json.MarshalToFunc(writeString)),
	json.Deterministic(true), jsontext.AllowDuplicateNames(true),
)

func writeTime(enc *jsontext.Encoder, t time.Time) error {
	if t.IsZero() {
		return enc.WriteToken(jsontext.Null)
	}
	return enc.WriteValue(t.UTC().AppendFormat(enc.AvailableBuffer(), `"2006-01-02T15:04:05.000Z"`))
}

// inMillis reports whether the duration that a pointer shows is in milliseconds.
func inMillis(p jsontext.Pointer) bool { return strings.HasSuffix(string(p), "_ms") }

// writeDuration writes what is waited in whole milliseconds, rounded up.
func writeDuration(enc *jsontext.Encoder, d time.Duration) error {
	switch p := enc.StackPointer(); {
	case inMillis(p):
		return enc.WriteToken(jsontext.Int(int64((d + time.Millisecond - 1) / time.Millisecond)))
	case d == 0 && strings.HasSuffix(string(p), "/max_runtime_s"): // there is no limit
		return enc.WriteToken(jsontext.Null)
	}
	return enc.WriteToken(jsontext.Float(float64(d) / float64(time.Second)))
}

// writeString writes null for a member that is empty, but for a type: null would stand for the default.
func writeString(enc *jsontext.Encoder, s string) error {
	if s == "" {
		outer, _ := enc.StackIndex(enc.StackDepth())
		if outer == '{' && !strings.HasSuffix(string(enc.StackPointer()), "/type") {
			return enc.WriteToken(jsontext.Null)
		}
	}
	return enc.WriteToken(jsontext.String(s))
}

// reader reads bodies, and collects what is wrong with them. Null is the same as nothing. Readers are used again.
type reader struct {
	options  json.Options
	problems []jobs.Problem
	there    []jsontext.Pointer // the members of the body that are not null
}

// newReader returns a reader, for a pool.
func newReader() any {
	r := new(reader)
	const text = "a valid string"
	r.options = json.WithUnmarshalers(json.JoinUnmarshalers(
		kind[string](r, '"', "string_type", text), kind[jobs.Priority](r, '"', "string_type", text),
		kind[jobs.State](r, '"', "string_type", text), kind[bool](r, 't', "bool_type", "a valid boolean"),
		json.UnmarshalFromFunc(r.strings), json.UnmarshalFromFunc(r.specs), json.UnmarshalFromFunc(r.spec),
		json.UnmarshalFromFunc(r.int), json.UnmarshalFromFunc(r.float), json.UnmarshalFromFunc(r.duration),
		json.UnmarshalFromFunc(func(dec *jsontext.Decoder, n *int64) error { return integer(r, dec, n) }),
		json.UnmarshalFromFunc(r.time), json.UnmarshalFromFunc(r.value),
	))
	return r
}

// kind lets the library read values of a type that are of the kind, and notes others.
func kind[T any](r *reader, k jsontext.Kind, problem, msg string) *json.Unmarshalers {
	return json.UnmarshalFromFunc(func(dec *jsontext.Decoder, _ *T) error {
		if ok, err := r.is(dec, k, problem, msg); !ok {
			return err
		}
		return errors.ErrUnsupported
	})
}

// read reads an object into what v points to. The error is about the whole; what is wrong with fields is noted, also
// that those that are needed are missing.
func (r *reader) read(body []byte, v any, needed []string) error {
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
	var other *json.SemanticError
	switch {
	case errors.As(err, &wrong) && strings.Contains(err.Error(), "surrogate") && utf8.Valid(body):
		at := elements(wrong.JSONPointer)
		r.add("string_unicode", "Input should be a valid string, without half surrogate pairs", at...)
	case errors.As(err, &wrong):
		return syntax(wrong, body)
	case errors.As(err, &other): // texts, numbers and lists have readers of their own
		return invalidAt("model_attributes_type", "Input should be an object", elements(other.JSONPointer)...)
	case err != nil:
		return invalidAt("value_error", err.Error())
	case body[0] != '{':
		return invalidAt("model_attributes_type", "Input should be an object")
	default:
		for _, name := range needed {
			if !slices.Contains(r.there, jsontext.Pointer("/"+name)) {
				r.add("missing", "Field required", name)
			}
		}
	}
	return nil
}

func (r *reader) add(kind, msg string, loc ...any) {
	r.problems = append(r.problems, jobs.Problem{Type: kind, Loc: loc, Msg: msg})
}

// invalidAt returns the error of a request with one problem.
func invalidAt(kind, msg string, loc ...any) error {
	return &jobs.InvalidError{Problems: []jobs.Problem{{Type: kind, Msg: msg, Loc: loc}}}
}

// syntax says what is wrong with a body that is no JSON as it should be.
func syntax(err *jsontext.SyntacticError, body []byte) error {
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return invalidAt("value_error", "Field should be there once", elements(err.JSONPointer)...)
	case !utf8.Valid(body):
		return invalidAt("json_invalid", "JSON decode error: the text is not UTF-8")
	case err.JSONPointer == "" && strings.Contains(err.Error(), "after top-level value"):
		const text = "JSON decode error: there is more behind byte %d, where the value ends"
		return invalidAt("json_invalid", fmt.Sprintf(text, err.ByteOffset))
	}
	return invalidAt("json_invalid", fmt.Sprintf("JSON decode error at byte %d", err.ByteOffset))
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
	in := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true))
	for t, err := in.ReadToken(); err == nil; t, err = in.ReadToken() { // up to its end: all of it has been read before
		if in.StackDepth() > maxNesting {
			return &jsontext.SyntacticError{ByteOffset: in.InputOffset() - 1, Err: errors.New("it is nested too deep")}
		}
		if t.Kind() != '0' {
			continue
		}
		if _, err := t.Float(); err != nil {
			at := in.InputOffset() - int64(len(t.String()))
			return &jsontext.SyntacticError{ByteOffset: at, Err: errors.New("the number is too large")}
		}
	}
	return nil
}

// note notes a problem of the value that was read last.
func (r *reader) note(dec *jsontext.Decoder, kind, msg string) {
	r.add(kind, msg, elements(dec.StackPointer())...)
}

// is reports whether the next value is of a kind. Others are skipped: a member that is null is the same as none, and
// everything else a problem.
func (r *reader) is(dec *jsontext.Decoder, k jsontext.Kind, problem, msg string) (bool, error) {
	got, depth := dec.PeekKind(), dec.StackDepth()
	if outer, _ := dec.StackIndex(depth); got == 'n' && outer == '{' {
		return false, dec.SkipValue()
	}
	if depth == 1 {
		r.there = append(r.there, dec.StackPointer())
	}
	if got == k || k == 't' && got == 'f' {
		return true, nil
	}
	err := dec.SkipValue()
	if err == nil {
		r.note(dec, problem, "Input should be "+msg)
	}
	return false, err
}

// mostInt bounds integers: beyond, numbers are not exact in most programs.
const mostInt = 1<<53 - 1

// int reads an integer. 5.0 and 5e0 are integers.
func (r *reader) int(dec *jsontext.Decoder, n *int) error { return integer(r, dec, n) }

func integer[T int | int64](r *reader, dec *jsontext.Decoder, n *T) error {
	f, ok, err := r.number(dec, "int_type", "a valid integer")
	switch {
	case !ok:
	case math.Abs(f) > mostInt:
		r.note(dec, "int_parsing_size", "Input should be an integer of at most 53 bits")
	case f != math.Trunc(f):
		r.note(dec, "int_from_float", "Input should be a valid integer, got a number with a fractional part")
	case int64(f) != int64(T(f)):
		r.note(dec, "int_parsing_size", "Input is too large")
	case f == 0 && dec.StackPointer() == "/max_units": // 0 stands for none
		r.note(dec, "greater_than_equal", "Input should be greater than or equal to 1")
	default:
		*n = T(f)
	}
	return err
}

// number reads a number, unless it is absent or of another type.
func (r *reader) number(dec *jsontext.Decoder, problem, msg string) (f float64, ok bool, err error) {
	if ok, err = r.is(dec, '0', problem, msg); !ok {
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

// duration reads a duration given in seconds, in whole milliseconds: parts of one count as one. What is waited is an
// integer of milliseconds. What is too long for a time.Duration is the longest of these.
func (r *reader) duration(dec *jsontext.Decoder, d *time.Duration) error {
	var ms float64
	if name := dec.StackPointer(); inMillis(name) {
		n := 0
		if err := r.int(dec, &n); err != nil {
			return err
		}
		ms = float64(n)
	} else {
		f, ok, err := r.number(dec, "float_type", "a valid number")
		if !ok {
			return err
		}
		if f == 0 && strings.HasSuffix(string(name), "/max_runtime_s") { // 0 stands for none
			r.note(dec, "greater_than", "Input should be greater than 0")
		}
		// float64 has no more than nanoseconds of what is allowed
		if ms = math.Ceil(math.Round(f*1e9) / 1e6); ms == 0 && f != 0 {
			ms = math.Copysign(1, f)
		}
	}
	const most = math.MaxInt64 / int64(time.Millisecond)
	if *d = math.MaxInt64; ms < float64(most) {
		*d = time.Duration(max(ms, -float64(most))) * time.Millisecond
	}
	return nil
}

// time reads a moment given as RFC 3339 has it, in whole milliseconds.
func (r *reader) time(dec *jsontext.Decoder, to *time.Time) error {
	ok, err := r.is(dec, '"', "datetime_type", "a time as RFC 3339 has it")
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

// list reads a list, element by element.
func (r *reader) list(dec *jsontext.Decoder, element func(n int) error) error {
	ok, err := r.is(dec, '[', "list_type", "a valid list")
	if !ok {
		return err
	}
	_, err = dec.ReadToken()
	for n := 0; err == nil && dec.PeekKind() != ']'; n++ {
		err = element(n)
	}
	if err == nil {
		_, err = dec.ReadToken()
	}
	return err
}

// strings reads a list of texts.
func (r *reader) strings(dec *jsontext.Decoder, all *[]string) error {
	return r.list(dec, func(int) error {
		ok, err := r.is(dec, '"', "string_type", "a valid string")
		if !ok {
			return err
		}
		t, err := dec.ReadToken()
		if err == nil {
			*all = append(*all, t.String())
		}
		return err
	})
}

// spec has the library read a job of a list, field by field.
func (r *reader) spec(dec *jsontext.Decoder, s *jobs.Spec) error {
	if dec.PeekKind() != '{' {
		err := dec.SkipValue()
		r.note(dec, "model_attributes_type", "Input should be an object")
		return err
	}
	*s = jobs.NewSpec()
	return errors.ErrUnsupported
}

// specs reads a list of jobs, as far as it may be long.
func (r *reader) specs(dec *jsontext.Decoder, all *[]jobs.Spec) error {
	return r.list(dec, func(n int) error {
		if n >= jobs.MaxSubmit {
			if n == jobs.MaxSubmit {
				r.add("too_long", fmt.Sprintf("List should have at most %d items", jobs.MaxSubmit), "jobs")
			}
			return dec.SkipValue()
		}
		*all = append(*all, jobs.Spec{})
		return json.UnmarshalDecode(dec, &(*all)[n])
	})
}

// decode reads what is asked into what q points to.
func (c *call) decode(q any, needed []string) error {
	switch {
	case !c.takesBody:
		return c.parse(q)
	case !c.scheduled():
		return c.decodeLocks(q)
	}
	r := c.s.readers.Get().(*reader)
	defer c.s.readers.Put(r)
	r.problems, r.there = nil, r.there[:0]
	list, isList := q.(*submitWire)
	if isList {
		list.Spec = new(jobs.NewSpec())
	}
	if err := r.read(c.in, q, needed); err != nil {
		return err
	}
	if isList && list.Jobs != nil { // what stands beside a list does not count
		r.problems = slices.DeleteFunc(r.problems, func(p jobs.Problem) bool { return p.Loc[0] != "jobs" })
	}
	if len(r.problems) > 0 {
		return &jobs.InvalidError{Problems: r.problems}
	}
	return nil
}

// The JSON of locks is that of package lokt.

// decodeLocks reads the request's body into what v points to, an object all of whose members must be known: a misspelt
// time to live is not the same as none.
func (c *call) decodeLocks(v any) error {
	err := lokt.Unmarshal(c.in, v, json.RejectUnknownMembers(true))
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
	return clipped(cmp.Or(strings.ReplaceAll(strings.TrimPrefix(string(p), "/"), "/", "."), "body"))
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
