package lokt

// The JSON form of locks: one for stores, the wire and the command line. It is what the tags of the types say, with
// durations as milliseconds and times in UTC.

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/internal/rawjson"
)

// Durations are written as RFC 8259 numbers of milliseconds, or of seconds where their name ends in _s, whose fraction
// goes down to nanoseconds, times as RFC 3339 in UTC, and raw values as they are.
var (
	form    = rawjson.New(json.JoinMarshalers(json.MarshalToFunc(writeDuration), json.MarshalToFunc(writeTime)), json.Deterministic(true))
	reading = json.WithUnmarshalers(json.JoinUnmarshalers(json.UnmarshalFromFunc(readDuration),
		json.UnmarshalFromFunc(func(in *jsontext.Decoder, v *jsontext.Value) error {
			if in.PeekKind() == 'n' {
				return in.SkipValue()
			}
			return json.UnmarshalDecode(in, v, json.WithUnmarshalers(nil), jsontext.AllowDuplicateNames(true))
		})))
)

// Marshal returns v, one of the types of this package or made of them, in its JSON form. Stores leave out what is zero.
func Marshal(v any, options ...json.Options) ([]byte, error) { return form.Marshal(v, options...) }

// Unmarshal reads what Marshal wrote; null is nothing. Unless further options of the library say otherwise, members that
// v does not have are skipped. A name that stands twice in an object, unless in a raw value, and text that is not UTF-8
// are errors.
func Unmarshal(data []byte, v any, options ...json.Options) error {
	return json.Unmarshal(data, v, append([]json.Options{reading}, options...)...)
}

// unitOf returns the unit of the duration that a pointer shows, in which it is a number.
func unitOf(p jsontext.Pointer) time.Duration {
	if strings.HasSuffix(string(p), "_s") {
		return time.Second
	}
	return time.Millisecond
}

func writeDuration(out *jsontext.Encoder, d time.Duration) error {
	return out.WriteToken(jsontext.Float(float64(d) / float64(unitOf(out.StackPointer()))))
}

func readDuration(in *jsontext.Decoder, d *time.Duration) error {
	v, err := in.ReadValue()
	if err != nil || v.Kind() == 'n' {
		return err
	}
	unit := float64(unitOf(in.StackPointer()))
	n, err := strconv.ParseFloat(string(v), 64)
	if whole, part := math.Modf(n); err == nil && math.Abs(n) <= math.MaxInt64/unit {
		if *d = time.Duration(whole)*time.Duration(unit) + time.Duration(math.Round(part*unit)); *d == 0 && n != 0 {
			*d = 1 // 0 would mean something else, such as a hold without an end
		}
		return nil
	}
	return &json.SemanticError{Err: invalid("a duration is a number of milliseconds")}
}

func writeTime(out *jsontext.Encoder, t time.Time) error {
	return out.WriteValue(t.UTC().AppendFormat(append(out.AvailableBuffer(), '"'), time.RFC3339Nano+`"`))
}

// PublicID returns what people, logs and other callers see instead of a lease ID: "L-" and the first 20 hexadecimal
// digits of its SHA-256. Nobody can find the lease ID from it. It is empty for an empty lease ID.
func PublicID(leaseID string) string {
	if leaseID == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(leaseID))
	return "L-" + hex.EncodeToString(sum[:10])
}

// hide makes the claim as others than its claimant see it: lease IDs, which prove ownership, are replaced by public ones.
func (c *Claim) hide() {
	if c.LeaseID != "" {
		c.ID, c.LeaseID = PublicID(c.LeaseID), ""
	}
	c.Within = slices.Clone(c.Within)
	for i, id := range c.Within {
		c.Within[i] = PublicID(id)
	}
}

// Public returns the lock as others than those who hold it or wait for it see it.
func (l Lock) Public() Lock {
	l = l.Clone()
	for i := range l.Holders {
		l.Holders[i].hide()
	}
	for i, w := range l.Queue {
		shown := *w
		shown.hide()
		l.Queue[i] = &shown
	}
	l.Freeze = l.Freeze.Public()
	return l
}

// Public returns the freeze as others than who froze the lock see it.
func (f *Freeze) Public() *Freeze {
	if f == nil {
		return nil
	}
	shown := *f
	shown.ID = PublicID(f.ID)
	return &shown
}

// Public returns the event without the secrets of whom it is about.
func (e Event) Public() Event {
	if e.LeaseID != "" {
		e.ID, e.LeaseID = PublicID(e.LeaseID), ""
	}
	if was, ok := e.Extra[ExtraLeaseWas]; ok {
		e.Extra = maps.Clone(e.Extra)
		e.Extra[ExtraLeaseWas] = PublicID(was)
	}
	return e
}
