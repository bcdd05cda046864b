package jobs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"hash"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Fingerprint tells specs apart: it is equal for specs that decode to the same job, however they were written. It is a
// SHA-256 over every field but the key, with the payload's members in order of name and its numbers by value.
func (s *Spec) Fingerprint() [sha256.Size]byte {
	h := sha256.New()
	w := printer{h}
	w.text(s.Type)
	w.text(string(s.Priority))
	w.number(int64(s.Units))
	w.flag(s.Unique)
	w.list(s.Tags)
	w.number(int64(s.MaxRuntime))
	w.number(int64(s.MaxAttempts))
	w.number(int64(s.RetryBackoff))
	if s.RunAt.IsZero() {
		w.flag(false)
	} else {
		w.flag(true)
		w.number(s.RunAt.UnixMilli())
	}
	w.list(s.Locks)
	d := json.NewDecoder(bytes.NewReader(s.Payload))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		w.text(string(s.Payload)) // not JSON, so no valid spec
	} else {
		w.value(v)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// printer writes values to a hash so that different sequences of them are different bytes.
type printer struct{ hash.Hash }

func (w printer) number(n int64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	_, _ = w.Write(b[:]) // a hash never fails
}

func (w printer) text(s string) {
	w.number(int64(len(s)))
	_, _ = w.Write([]byte(s))
}

func (w printer) flag(b bool) {
	if b {
		w.number(1)
	} else {
		w.number(0)
	}
}

func (w printer) list(all []string) {
	w.number(int64(len(all)))
	for _, s := range all {
		w.text(s)
	}
}

// value writes a decoded JSON value, with what kind of value it is.
func (w printer) value(v any) {
	switch v := v.(type) {
	case nil:
		w.text("null")
	case bool:
		w.text("bool")
		w.flag(v)
	case json.Number:
		w.text("number")
		w.text(decimal(string(v)))
	case string:
		w.text("string")
		w.text(v)
	case []any:
		w.text("array")
		w.number(int64(len(v)))
		for _, e := range v {
			w.value(e)
		}
	case map[string]any:
		w.text("object")
		w.number(int64(len(v)))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			w.text(name)
			w.value(v[name])
		}
	}
}

// decimal writes a JSON number in one way for each value: its digits without zeros at the ends, and an exponent. 1, 1.0
// and 10e-1 are all "1e0". Exponents that no computer reaches are left as they are.
func decimal(n string) string {
	digits, sign, exp := n, "", int64(0)
	if strings.HasPrefix(digits, "-") {
		digits, sign = digits[1:], "-"
	}
	if i := strings.IndexAny(digits, "eE"); i >= 0 {
		var err error
		if exp, err = strconv.ParseInt(digits[i+1:], 10, 48); err != nil {
			return n
		}
		digits = digits[:i]
	}
	if whole, part, ok := strings.Cut(digits, "."); ok {
		digits = whole + part
		exp -= int64(len(part))
	}
	digits = strings.TrimLeft(digits, "0")
	if digits == "" {
		return "0e0"
	}
	short := strings.TrimRight(digits, "0")
	exp += int64(len(digits) - len(short))
	return sign + short + "e" + strconv.FormatInt(exp, 10)
}
