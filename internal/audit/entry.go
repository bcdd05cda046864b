package audit

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
)

// Entry is one line of the log.
type Entry struct {
	TS      time.Time      `json:"ts"`
	Event   string         `json:"event"`
	Name    string         `json:"name"`
	LockID  string         `json:"lock_id,omitzero"`
	Owner   string         `json:"owner"`
	Host    string         `json:"host"`
	PID     int            `json:"pid"`
	AgentID string         `json:"agent_id,omitzero"`
	TTLSec  int64          `json:"ttl_sec,omitzero"` // rounded up
	Extra   map[string]any `json:"extra,omitempty"`  // numbers are Numbers in an entry that was read

	// Raw is the line as it stands in the log, without its end: fields that this version does not know are in it. Nil
	// in an entry that was not read.
	Raw jsontext.Value `json:"-"`
}

// Number is a number as it stands in the log.
type Number string

// Keys of an entry's Extra that are numbers, besides those that end in "_ms".
const (
	ExtraToken    = "token"    // the fencing token of the hold; absent from entries that are not about one
	ExtraRevision = "revision" // the lock's revision, if the store says it
)

// FromEvent returns the entry for an event. Its token goes to Extra, and so do its own extras: as numbers if their keys
// say so and they are.
func FromEvent(e lokt.Event) Entry {
	entry := Entry{
		TS: e.Time.UTC(), Event: string(e.Type), Name: e.Name, LockID: e.LeaseID,
		Owner: e.Owner.ID, Host: e.Owner.Host, PID: e.Owner.Process.PID, AgentID: e.Owner.Session,
		TTLSec: int64(math.Ceil(e.TTL.Seconds())),
	}
	if y := entry.TS.Year(); y < 0 || y > 9999 { // RFC 3339 cannot say it; an entry without its time is better than none
		entry.TS = time.Time{}
	}
	entry.Extra = make(map[string]any, len(e.Extra)+1)
	for k, v := range e.Extra {
		entry.Extra[k] = v
		if strings.HasSuffix(k, "_ms") || k == ExtraRevision {
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				entry.Extra[k] = n
			}
		}
	}
	if e.Token != 0 {
		entry.Extra[ExtraToken] = e.Token
	}
	return entry
}

// form is how lines are written and read.
var form = json.JoinOptions(json.Deterministic(true), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true), json.MatchCaseInsensitiveNames(true))

// Encode returns the lines for the events, in order. The same events always give the same bytes.
func Encode(events []lokt.Event) (lines []byte) {
	for _, e := range events {
		line, err := json.Marshal(FromEvent(e), form)
		if err != nil { // an entry is of strings, numbers and a time that can be written
			panic(err)
		}
		lines = append(append(lines, line...), '\n')
	}
	return lines
}

// line is an entry of which only what filters look at has been made sense of.
type line struct {
	TS      string         `json:"ts"`
	Event   string         `json:"event"`
	Name    jsontext.Value `json:"name"`
	LockID  jsontext.Value `json:"lock_id"`
	Owner   jsontext.Value `json:"owner"`
	Host    jsontext.Value `json:"host"`
	PID     jsontext.Value `json:"pid"`
	AgentID jsontext.Value `json:"agent_id"`
	TTLSec  jsontext.Value `json:"ttl_sec"`
	Extra   jsontext.Value `json:"extra"`
	ts      time.Time
}

// parse reads a line, and reports whether it is an entry at all: an object with a time and an event. Other fields that
// are not of the type they should be are as if they were not there.
func parse(raw []byte) (l line, ok bool) {
	if json.Unmarshal(raw, &l, form) != nil {
		return line{}, false
	}
	var err error
	l.ts, err = time.Parse(time.RFC3339Nano, l.TS)
	return l, err == nil && l.Event != ""
}

// value returns what the text says, or nothing if it is of another type.
func value[T any](text jsontext.Value) (v T) {
	if json.Unmarshal(text, &v, form) != nil {
		return *new(T)
	}
	return v
}

// entry returns the whole entry, which shares nothing with raw.
func (l line) entry(raw []byte) Entry {
	e := Entry{
		TS: l.ts, Event: l.Event, Name: value[string](l.Name), LockID: value[string](l.LockID), Owner: value[string](l.Owner),
		Host: value[string](l.Host), PID: value[int](l.PID), AgentID: value[string](l.AgentID), TTLSec: value[int64](l.TTLSec),
		Raw: bytes.Clone(bytes.TrimSpace(raw)),
	}
	for k, v := range value[map[string]jsontext.Value](l.Extra) {
		if e.Extra == nil {
			e.Extra = map[string]any{}
		}
		if v.Kind() == '0' { // tokens are 64 bits wide
			e.Extra[k] = Number(v)
		} else {
			e.Extra[k] = value[any](v)
		}
	}
	return e
}
