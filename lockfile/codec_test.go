package lockfile

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// anyRecord draws records of every shape, strings with everything that JSON must escape among them.
func anyRecord(t *rapid.T, depth int) *Record {
	text := rapid.OneOf(rapid.StringMatching(`[a-z0-9<>&"\\é\x01-]{0,12}`), rapid.String())
	when := func(label string) time.Time {
		if rapid.Bool().Draw(t, label+"?") {
			return time.Time{}
		}
		return time.Unix(rapid.Int64Range(-1<<33, 1<<35).Draw(t, label), rapid.Int64Range(0, 999_999_999).Draw(t, label+" ns")).UTC()
	}
	n := func(label string) int64 { return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64()).Draw(t, label) }
	r := &Record{
		Version: int(n("version")), Name: text.Draw(t, "name"), LockID: text.Draw(t, "lock_id"), Owner: text.Draw(t, "owner"),
		Host: text.Draw(t, "host"), PID: int(n("pid")), PIDStart: n("start"), AgentID: text.Draw(t, "agent"),
		AcquiredTS: when("acquired"), TTLSec: n("ttl"), ExpiresAt: when("expires"), Kind: text.Draw(t, "kind"),
		HeldSince: when("since"), Renewals: int(n("renewals")), Token: uint64(n("token")), Limit: int(n("limit")),
		TTL: time.Duration(n("ttl_ns")), MaxHold: time.Duration(n("max")), Priority: int(n("priority")),
		AnySession: rapid.Bool().Draw(t, "any"), Attended: rapid.Bool().Draw(t, "attended"), Bound: rapid.Bool().Draw(t, "bound"),
		BootID: text.Draw(t, "boot"), PIDNS: text.Draw(t, "ns"), Liveness: text.Draw(t, "live"), ChildPID: int(n("child")),
		ChildStart: n("child start"), Pending: when("pending"), Reason: text.Draw(t, "reason"),
		Wait: time.Duration(n("wait")), Preempt: time.Duration(n("preempt")), Refresh: rapid.Bool().Draw(t, "refresh"),
	}
	asker := func(label string) *Asker {
		if !rapid.Bool().Draw(t, label) {
			return nil
		}
		return &Asker{PID: int(n("apid")), Start: n("astart"), BootID: text.Draw(t, "aboot"), PIDNS: text.Draw(t, "ans"), Liveness: text.Draw(t, "alive"), ChildPID: int(n("achild")), ChildStart: n("achild start")}
	}
	r.Asker = asker("asker")
	if rapid.Bool().Draw(t, "yield") {
		r.Yield = &Yield{AgentID: text.Draw(t, "ysession"), AnySession: rapid.Bool().Draw(t, "yany"), Asker: asker("yasker"), To: text.Draw(t, "to"), Host: text.Draw(t, "yhost"), AskedAt: when("asked"), Grace: time.Duration(n("grace")), Deadline: when("deadline")}
	}
	if rapid.Bool().Draw(t, "clock") {
		r.Clock = &Clock{BootID: text.Draw(t, "cboot"), TimeNS: text.Draw(t, "cns"), Monotonic: time.Duration(n("mono")), AcquiredTS: when("cacq"), ExpiresAt: when("cexp")}
	}
	if rapid.Bool().Draw(t, "within") {
		r.Within = rapid.SliceOfN(text, 1, 3).Draw(t, "leases")
	}
	if rapid.Bool().Draw(t, "metadata") {
		r.Metadata = rapid.MapOfN(text, text, 1, 3).Draw(t, "meta")
	}
	if depth > 0 {
		for range rapid.IntRange(0, 2).Draw(t, "holders") {
			r.Holders = append(r.Holders, anyRecord(t, depth-1))
		}
	}
	return r
}

func TestRecordsAreWrittenAndReadAsEncodingJSONDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord(t, 1)
		fast, err := r.marshal()
		if err != nil {
			t.Fatal(err)
		}
		slow, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if string(fast) != string(slow) {
			t.Fatalf("written as\n%s\nnot as\n%s", fast, slow)
		}
		var want Record
		if err := json.Unmarshal(slow, &want); err != nil {
			t.Fatal(err)
		}
		got, _, err := unmarshal(slow)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(*got, want) {
			t.Fatalf("read as\n%+v\nnot as\n%+v", *got, want)
		}
	})
}

func FuzzUnmarshalAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range []string{
		`{"version":1,"name":"x","owner":"o","host":"h","pid":1,"acquired_ts":"2026-01-02T03:04:05.678Z"}`,
		`{"name":"a","name":"b"}`, `{"pid":01}`, `{"pid":1e2}`, `{"pid":-0}`, `{"Name":"x"}`, `{"pid":null}`, `{"metadata":{"a":"b","a":"c"}}`,
		`{"holders":[{"owner":"a"},null]}`, `{"acquired_ts":"2026-01-02t03:04:05z"}`, `{"token":18446744073709551615}`, `{"owner":"\u0041"}`,
		`{"within":[]}`, `{"any_session":truex}`, `{}x`, ` { "version" : 1 } `, "{\"owner\":\"\xff\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want Record
		wantErr := json.Unmarshal(data, &want)
		got, _, err := unmarshal(data)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("error %v, and encoding/json has %v", err, wantErr)
		}
		if err == nil && !reflect.DeepEqual(*got, want) {
			t.Fatalf("read as\n%+v\nnot as\n%+v", *got, want)
		}
	})
}
