package audit

import (
	"encoding/json"
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
		back.Extra[ExtraToken] != json.Number("18446744073709551615") || back.TTLSec != 9223372037 {
		t.Fatalf("read back %+v", back)
	}
}
