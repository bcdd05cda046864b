package lokt

// The JSON form of locks: one for stores, the wire and the command line. It is what the tags of the types say, with
// durations as milliseconds and times in UTC.

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/internal/rawjson"
)

// Durations are written as RFC 8259 numbers of milliseconds, whose fraction goes down to nanoseconds, times as RFC 3339
// in UTC, and raw values as they are.
var (
	form    = rawjson.New(json.JoinMarshalers(json.MarshalToFunc(writeDuration), json.MarshalToFunc(writeTime)), json.Deterministic(true))
	reading = json.JoinOptions(json.WithUnmarshalers(json.UnmarshalFromFunc(readDuration)), jsontext.AllowDuplicateNames(true))
)

// Marshal returns v, one of the types of this package or made of them, in its JSON form.
func Marshal(v any) ([]byte, error) { return form.Marshal(v) }

// Unmarshal reads what Marshal wrote. Unless further options of the library say otherwise, members that v does not have
// are skipped, and a name may stand twice in an object, because it may in a raw value. Text that is not UTF-8 is an
// error.
func Unmarshal(data []byte, v any, options ...json.Options) error {
	return json.Unmarshal(data, v, append([]json.Options{reading}, options...)...)
}

func writeDuration(out *jsontext.Encoder, d time.Duration) error {
	whole, part := d/time.Millisecond, d%time.Millisecond
	text := strconv.AppendInt(nil, int64(whole), 10)
	if part != 0 {
		text = strconv.AppendFloat(nil, float64(whole)+float64(part)/1e6, 'f', -1, 64)
	}
	return out.WriteValue(text)
}

func readDuration(in *jsontext.Decoder, d *time.Duration) error {
	v, err := in.ReadToken()
	if err != nil {
		return err
	}
	if v.Kind() != '0' {
		return &json.SemanticError{Err: errNoMillis}
	}
	ms, err := v.Float()
	if err != nil || ms > maxMillis || ms < -maxMillis {
		return &json.SemanticError{Err: errNoMillis}
	}
	whole, part := math.Modf(ms)
	*d = time.Duration(whole)*time.Millisecond + time.Duration(math.Round(part*1e6))
	return nil
}

// maxMillis is the longest duration: what fits into a time.Duration.
const maxMillis = (1<<63 - 1) / 1e6

var errNoMillis = invalid("a duration is a number of milliseconds")

func writeTime(out *jsontext.Encoder, t time.Time) error {
	return out.WriteToken(jsontext.String(t.UTC().Format(time.RFC3339Nano)))
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

// Public returns the claim as others than its claimant see it: lease IDs, which prove ownership, are replaced by public
// ones.
func (c Claim) Public() Claim {
	if c.LeaseID != "" {
		c.ID, c.LeaseID = PublicID(c.LeaseID), ""
	}
	if len(c.Within) > 0 {
		within := make([]string, len(c.Within))
		for i, id := range c.Within {
			within[i] = PublicID(id)
		}
		c.Within = within
	}
	return c
}

// Public returns the lock as others than those who hold it or wait for it see it.
func (l Lock) Public() Lock {
	l = l.clone()
	for i := range l.Holders {
		l.Holders[i].Claim = l.Holders[i].Claim.Public()
	}
	for i := range l.Queue {
		w := l.edit(i)
		w.Claim = w.Claim.Public()
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
