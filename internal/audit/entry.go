package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/jsonline"
)

// Entry is one line of the log.
type Entry struct {
	TS      time.Time      `json:"ts"`
	Event   string         `json:"event"`
	Name    string         `json:"name"`
	LockID  string         `json:"lock_id,omitempty"`
	Owner   string         `json:"owner"`
	Host    string         `json:"host"`
	PID     int            `json:"pid"`
	AgentID string         `json:"agent_id,omitempty"`
	TTLSec  int            `json:"ttl_sec,omitempty"` // rounded up
	Extra   map[string]any `json:"extra,omitempty"`   // numbers are json.Number in an entry that was read

	// Raw is the line as it stands in the log, without its end: fields that this version does not know are in it. Nil in
	// an entry that was not read.
	Raw json.RawMessage `json:"-"`
}

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
		TTLSec: ceilSeconds(e.TTL),
	}
	if y := entry.TS.Year(); y < 0 || y > 9999 { // RFC 3339 cannot say it; an entry without its time is better than none
		entry.TS = time.Time{}
	}
	if len(e.Extra) == 0 && e.Token == 0 {
		return entry
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

func ceilSeconds(d time.Duration) int {
	n := d / time.Second
	if d%time.Second > 0 {
		n++
	}
	return int(n)
}

// Encode returns the lines for the events, in order. The same events always give the same bytes.
func Encode(events []lokt.Event) []byte {
	o := jsonline.Object{B: make([]byte, 0, 320*len(events))} // which leaves < and > as they are: the log is read by people too
	for _, e := range events {
		if len(e.Extra) > 0 {
			FromEvent(e).write(&o)
		} else { // the same without a map for the token alone, as most are
			token := e.Token
			e.Token = 0
			FromEvent(e).writePlain(&o)
			if token != 0 {
				o.Key("extra")
				o.Open()
				o.OptUint(ExtraToken, token)
				o.Close()
			}
			o.Close()
		}
		o.B = append(o.B, '\n')
	}
	return o.B
}

// writePlain writes the entry as encoding/json would, but for its extras and the end.
func (e Entry) writePlain(o *jsonline.Object) {
	o.Open()
	o.Time("ts", e.TS)
	o.String("event", e.Event)
	o.String("name", e.Name)
	o.OptString("lock_id", e.LockID)
	o.String("owner", e.Owner)
	o.String("host", e.Host)
	o.Int("pid", int64(e.PID))
	o.OptString("agent_id", e.AgentID)
	o.OptInt("ttl_sec", int64(e.TTLSec))
}

// write writes the entry as encoding/json would.
func (e Entry) write(o *jsonline.Object) {
	e.writePlain(o)
	if len(e.Extra) > 0 {
		o.Key("extra")
		o.Open()
		for _, k := range slices.Sorted(maps.Keys(e.Extra)) {
			switch v := e.Extra[k].(type) {
			case string:
				o.String(k, v)
			case int64:
				o.Int(k, v)
			case uint64:
				o.OptUint(k, v)
			}
		}
		o.Close()
	}
	o.Close()
}

// line is an entry of which only what filters look at has been made sense of.
type line struct {
	TS      string          `json:"ts"`
	Event   string          `json:"event"`
	Name    string          `json:"name"`
	LockID  string          `json:"lock_id"`
	Owner   string          `json:"owner"`
	Host    string          `json:"host"`
	PID     int             `json:"pid"`
	AgentID string          `json:"agent_id"`
	TTLSec  int             `json:"ttl_sec"`
	Extra   json.RawMessage `json:"extra"`
	ts      time.Time
}

// parse reads a line, and reports whether it is an entry at all: an object with a time and an event. Other fields that
// are not of the type they should be are as if they were not there.
func parse(raw []byte) (line, bool) {
	l, usual := parseUsual(raw)
	if !usual {
		l = line{}
		var mismatch *json.UnmarshalTypeError
		if err := json.Unmarshal(raw, &l); err != nil && !errors.As(err, &mismatch) {
			return line{}, false
		}
	}
	var err error
	l.ts, err = time.Parse(time.RFC3339Nano, l.TS)
	return l, err == nil && l.Event != ""
}

// parseUsual reads a line that is written as this package writes it, which is ten times as fast, and reports whether it is.
func parseUsual(raw []byte) (l line, ok bool) {
	r := jsonline.Reader{B: raw}
	r.Object(func(key string) {
		switch key {
		case "ts":
			l.TS = r.String()
		case "event":
			l.Event = r.String()
		case "name":
			l.Name = r.String()
		case "lock_id":
			l.LockID = r.String()
		case "owner":
			l.Owner = r.String()
		case "host":
			l.Host = r.String()
		case "pid":
			l.PID = smallInt(&r)
		case "agent_id":
			l.AgentID = r.String()
		case "ttl_sec":
			l.TTLSec = smallInt(&r)
		case "extra":
			l.Extra = r.Scalars()
		default:
			r.Bad = true
		}
	})
	r.End()
	return l, !r.Bad
}

func smallInt(r *jsonline.Reader) int {
	n := r.Int()
	r.Bad = r.Bad || n < math.MinInt32 || n > math.MaxInt32
	return int(n)
}

// entry returns the whole entry, which shares nothing with raw.
func (l line) entry(raw []byte) Entry {
	e := Entry{
		TS: l.ts, Event: l.Event, Name: l.Name, LockID: l.LockID, Owner: l.Owner, Host: l.Host, PID: l.PID,
		AgentID: l.AgentID, TTLSec: l.TTLSec, Raw: bytes.Clone(bytes.TrimSpace(raw)),
	}
	if len(l.Extra) > 0 {
		e.Extra = extras(l.Extra)
	}
	return e
}

// extras returns what an object of extras has; nil if it cannot be read.
func extras(raw []byte) map[string]any {
	m := map[string]any{}
	r := jsonline.Reader{B: raw}
	r.Object(func(key string) {
		if r.Next() == '"' {
			m[key] = r.String()
		} else {
			m[key] = json.Number(r.Number())
		}
	})
	if r.End(); !r.Bad {
		return m
	}
	m = nil
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // tokens are 64 bits wide
	if err := dec.Decode(&m); err != nil {
		return nil
	}
	return m
}
