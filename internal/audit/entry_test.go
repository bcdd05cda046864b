package audit

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

func TestEventBecomesALineWithTheRecordsFieldNames(t *testing.T) {
	e := event("build", 7)
	e.LeaseID = "0123"
	e.Time = noon.Add(5).In(time.FixedZone("", 3600))
	e.TTL = 1500 * time.Millisecond
	e.Extra = map[string]string{
		"waited_ms": "12", "odd_ms": "soon", "reason": "<expired> & gone", "lease_was": "12", "revision": "9", "token": "forged",
	}
	bare := lokt.Event{Time: noon, Type: lokt.EventDeny, Name: "build", Owner: lokt.Owner{ID: "bob"}}
	want := `{"ts":"2026-11-21T12:00:00.000000005Z","event":"acquire","name":"build","lock_id":"0123","owner":"ann","host":"h1",` +
		`"pid":42,"agent_id":"s1","ttl_sec":2,"extra":{"lease_was":"12","odd_ms":"soon","reason":"<expired> & gone",` +
		`"revision":9,"token":7,"waited_ms":12}}` + "\n" +
		`{"ts":"2026-11-21T12:00:00Z","event":"deny","name":"build","owner":"bob","host":"","pid":0}` + "\n"
	if got := string(Encode([]lokt.Event{e, bare})); got != want {
		t.Fatalf("encoded\n%swant\n%s", got, want)
	}
}

func TestEveryEventBecomesOneLine(t *testing.T) {
	e := event("build", math.MaxUint64)
	e.Time = time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)
	e.Owner.Host = "a\nb\xff\u2028"
	e.TTL = math.MaxInt64
	got := Encode([]lokt.Event{e})
	l, ok := parse(got)
	if !ok || strings.Count(string(got), "\n") != 1 || !strings.Contains(string(got), `"token":18446744073709551615`) {
		t.Fatalf("encoded %s", got)
	}
	if back := l.entry(got); back.Host != "a\nb\ufffd\u2028" || !back.TS.IsZero() ||
		back.Extra[ExtraToken] != Number("18446744073709551615") || back.TTLSec != 9223372037 {
		t.Fatalf("read back %+v", back)
	}
}

// unusual lines are some that no program should write, and some that are refused.
func unusual() []string {
	const begin = `{"ts":"2026-01-01T00:00:00Z","event":"acquire"`
	return []string{
		``, `{}`, `[]`, `null`, begin + `}`, begin + `,}`, ` { "ts" : "2026-01-01T00:00:00Z" , "event" : "acquire" } `,
		`{"TS":"2026-01-01T00:00:00Z","Event":"acquire"}`, begin + `,"event":"deny"}`, begin + `,"new":{"a":[1]}}`, begin + `}x`,
		begin + `,"pid":1.5}`, begin + `,"pid":"7"}`, begin + `,"pid":99999999999999999999}`, begin + `,"pid":4294967296}`, begin + `,"ttl_sec":-3}`,
		`{"ts":"2026-01-01T00:00:00Z","event":"\u0061cquire"}`, begin + `,"owner":"a` + "\xff" + `"}`, begin + `,"name":null}`,
		begin + `,"extra":{"a":1,"b":"x","c":true,"d":null,"e":1.5,"f":{"g":1}}}`, begin + `,"extra":{"token":18446744073709551615,"a":-1}}`,
		begin + `,"extra":{"a":true}}`, begin + `,"extra":{}}`, begin + `,"extra":[]}`, begin + `,"extra":null}`, begin + `,"extra":{"a":1,"a":2}}`,
		begin + `,"extra":{"a":tru}}`, begin + `,"extra":{"a":01}}`, begin + `,"extra":{"":"\n"}}`, begin + `,"extra":{"a":1},"extra":{"b":1}}`,
		`{"ts":"yesterday","event":"acquire"}`, `{"ts":"2026-01-01T00:00:00Z","event":""}`, `{"ts":1,"event":"acquire"}`,
		begin + `,"lock_id":"0123","name":"n","owner":"o","host":"h","pid":7,"agent_id":"a","ttl_sec":5,"extra":{"a_ms":1}}`,
	}
}

func TestUnusualLinesAreReadAsFarAsTheyMakeSense(t *testing.T) {
	read := 0
	for _, raw := range unusual() {
		l, ok := parse([]byte(raw))
		if !ok {
			continue
		}
		read++
		if e := l.entry([]byte(raw)); e.TS.IsZero() || e.Event == "" || strings.Contains(raw, `"pid":`) && e.PID != 0 && e.PID != 7 && int64(e.PID) != 4294967296 {
			t.Errorf("%q is read as %+v", raw, e)
		}
	}
	if read != 23 {
		t.Errorf("%d lines are entries", read)
	}
}

func FuzzParse(f *testing.F) {
	for _, raw := range unusual() {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if l, ok := parse(raw); ok {
			l.entry(raw)
		}
	})
}
