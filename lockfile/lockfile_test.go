package lockfile

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	epoch = time.Date(2026, 2, 1, 14, 30, 0, 123456789, time.UTC)
	here  = Now{Wall: epoch.Add(time.Second), Monotonic: 5000 * time.Second, BootID: "boot-1", TimeNS: "ns-1"}
)

// fill sets every field below v to something that no other field has.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text-%d", *n))
	case reflect.Int, reflect.Int64:
		v.SetInt(*n)
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(epoch.Add(time.Duration(*n) * time.Minute)))
			return
		}
		for i := range v.NumField() {
			if recorded(v.Type(), v.Type().Field(i).Name) {
				fill(v.Field(i), n)
			}
		}
	default:
		panic(v.Kind())
	}
}

// recorded reports whether a record has the field: it has neither the public form of an ID, nor the place in the queue, nor
// what only requests have.
func recorded(of reflect.Type, field string) bool {
	return !(of == reflect.TypeFor[lokt.Message]() && field == "Pass" || of == reflect.TypeFor[lokt.Claim]() && field == "ID" || of == reflect.TypeFor[lokt.Waiter]() && field == "Place" ||
		of == reflect.TypeFor[lokt.Holder]() && field == "HeartbeatIn")
}

func filled[T any]() T {
	var v T
	n := int64(1)
	fill(reflect.ValueOf(&v).Elem(), &n)
	return v
}

func fullHolder() lokt.Holder {
	h := filled[lokt.Holder]()
	h.Name = "build"
	return h
}

func fullWaiter() lokt.Waiter {
	w := filled[lokt.Waiter]()
	w.Name = "build"
	return w
}

func fullFreeze() lokt.Freeze {
	f := filled[lokt.Freeze]()
	f.Damaged = "" // of a record that cannot be read
	return f
}

func TestEveryFieldOfAHolderComesBack(t *testing.T) {
	want := fullHolder()
	data, err := FromHolder(want, here).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Decode("build", data)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Holder(here); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v\nfrom %s", got, want, data)
	}
	zero, err := Decode("build", []byte(`{"name":"build","owner":"o","lock_id":"1","kind":"lease","acquired_ts":"0001-01-01T00:00:00Z"}`))
	if err != nil {
		t.Fatal(err)
	}
	bare := lokt.Holder{Claim: lokt.Claim{Name: "build", LeaseID: "1", Owner: lokt.Owner{ID: "o"}}}
	if got := zero.Holder(here); !reflect.DeepEqual(got, bare) {
		t.Errorf("a bare record gives %+v", got)
	}
	if again, err := FromHolder(bare, here).Encode(nil); err != nil {
		t.Error(err)
	} else if r, err := Decode("build", again); err != nil || !reflect.DeepEqual(r.Holder(here), bare) {
		t.Errorf("a bare holder comes back as %+v, %v", r, err)
	}
}

func TestEveryFieldOfAWaiterComesBack(t *testing.T) {
	want := []lokt.Waiter{fullWaiter(), fullWaiter()}
	want[1].LeaseID, want[1].Strict, want[1].Process = "other", false, nil
	q := Queue{Name: "build"}
	for _, w := range want {
		q.Waiters = append(q.Waiters, FromWaiter(w, here))
	}
	data, err := q.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeQueue("build", data)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range back.Waiters {
		if got := r.Waiter(here); !reflect.DeepEqual(got, want[i]) {
			t.Errorf("got  %+v\nwant %+v", got, want[i])
		}
	}
}

func TestEveryFieldOfAFreezeComesBack(t *testing.T) {
	want := fullFreeze()
	data, err := FromFreeze("build", want, here).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Decode("build", data)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Freeze(here); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// without calls try with v and, one after another, each of its fields left out, those of embedded structs and of the
// owner included.
func without[T any](v T, try func(what string, v T)) {
	var walk func(path string, index []int, typ reflect.Type)
	walk = func(path string, index []int, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			at := append(slices.Clone(index), i)
			changed := v
			reflect.ValueOf(&changed).Elem().FieldByIndex(at).SetZero()
			if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[time.Time]() && f.Type != reflect.TypeFor[lokt.Process]() {
				walk(path+f.Name+".", at, f.Type)
				continue
			}
			try(path+f.Name, changed)
		}
	}
	walk("", nil, reflect.TypeFor[T]())
}

func TestAFieldThatIsLeftOutStaysSo(t *testing.T) {
	must := []string{"Claim.Name", "Claim.Owner.ID", "Owner.ID"} // or it would be no record
	without(fullHolder(), func(what string, want lokt.Holder) {
		switch {
		case slices.Contains(must, what) || what == "Claim.LeaseID":
			return
		case what == "HeldSince":
			want.HeldSince = want.AcquiredAt // as older programs had it
		case what == "ExpiresAt":
			want.TTL = 0 // or it follows from that
		}
		if want.Strict && want.Process == nil {
			want.Process = &want.Owner.Process // a guard is bound to its process
		}
		data, err := FromHolder(want, here).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Decode("build", data)
		if err != nil {
			t.Fatalf("without %s: %v", what, err)
		}
		if got := r.Holder(here); !reflect.DeepEqual(got, want) {
			t.Errorf("without %s: got\n%+v, want\n%+v", what, got, want)
		}
	})
	without(fullWaiter(), func(what string, want lokt.Waiter) {
		if slices.Contains(must, what) || what == "Claim.LeaseID" {
			return
		}
		if want.Strict && want.Process == nil {
			want.Process = &want.Owner.Process
		}
		data, err := (&Queue{Name: "build", Waiters: []*Record{FromWaiter(want, here)}}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		q, err := DecodeQueue("build", data)
		if err != nil {
			t.Fatalf("without %s: %v", what, err)
		}
		if got := q.Waiters[0].Waiter(here); !reflect.DeepEqual(got, want) {
			t.Errorf("without %s: got\n%+v, want\n%+v", what, got, want)
		}
	})
	without(fullFreeze(), func(what string, want lokt.Freeze) {
		switch {
		case slices.Contains(must, what) || what == "ID":
			return
		case what == "ExpiresAt":
			want.TTL = 0
		}
		data, err := FromFreeze("build", want, here).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Decode("build", data)
		if err != nil {
			t.Fatalf("without %s: %v", what, err)
		}
		if got := r.Freeze(here); !reflect.DeepEqual(got, want) {
			t.Errorf("without %s: got\n%+v, want\n%+v", what, got, want)
		}
	})
}

// golden compares with a file that other programs, and records that exist, rely on.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("version 1 is written otherwise than in %s:\n%s\nwant\n%s", path, got, want)
	}
}

func TestVersion1StaysAsItIs(t *testing.T) {
	one := FromHolder(fullHolder(), here)
	data, err := one.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "holder.json", data)

	plain := lokt.Holder{
		Claim: lokt.Claim{
			Name: "build", LeaseID: "0123456789abcdef0123456789abcdef", TTL: 5 * time.Minute,
			Owner: lokt.Owner{ID: "alice", Session: "session-7-00c0ffee", Host: "host", Process: lokt.Process{PID: 42, Start: 4711}},
		},
		Token: 7, HeldSince: epoch, AcquiredAt: epoch, ExpiresAt: epoch.Add(5 * time.Minute),
	}
	data, err = FromHolder(plain, Now{Wall: epoch}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "lease.json", data)

	several := *FromHolder(plain, here)
	several.Holders = []*Record{FromHolder(plain, here), FromHolder(fullHolder(), here)}
	data, err = several.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "holders.json", data)

	data, err = FromFreeze("build", fullFreeze(), here).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "freeze.json", data)

	data, err = (&Queue{Name: "build", Waiters: []*Record{FromWaiter(fullWaiter(), here)}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "queue.json", data)
}

func TestOlderProgramsFindTheFieldsThatTheyKnow(t *testing.T) {
	data, err := FromHolder(fullHolder(), here).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(data), `{"version":1,"name":"build","lock_id":`) || !strings.HasSuffix(string(data), "}\n") {
		t.Errorf("the record is %s", data)
	}
	var old struct { // as the earlier tool had it
		Version    int       `json:"version"`
		Name       string    `json:"name"`
		LockID     string    `json:"lock_id"`
		Owner      string    `json:"owner"`
		Host       string    `json:"host"`
		PID        int       `json:"pid"`
		PIDStartNS int64     `json:"pid_start_ns"`
		AgentID    string    `json:"agent_id"`
		AcquiredAt time.Time `json:"acquired_ts"`
		TTLSec     int       `json:"ttl_sec"`
		ExpiresAt  time.Time `json:"expires_at"`
	}
	if err := json.Unmarshal(data, &old); err != nil {
		t.Fatal(err)
	}
	h := fullHolder()
	if old.Version != 1 || old.Name != "build" || old.LockID != h.LeaseID || old.Owner != h.Owner.ID || old.Host != h.Owner.Host ||
		old.PID != h.Process.PID || old.PIDStartNS != h.Process.Start || old.AgentID != h.Owner.Session ||
		!old.AcquiredAt.Equal(h.AcquiredAt) || old.TTLSec != 1 || !old.ExpiresAt.Equal(h.ExpiresAt) {
		t.Errorf("an older program reads %+v from %s", old, data)
	}
}

func TestTTLsAreExactAndTheirSecondsRoundUp(t *testing.T) {
	for ttl, seconds := range map[time.Duration]int64{
		0: 0, 1: 1, time.Second: 1, time.Second + 1: 2, 1500 * time.Millisecond: 2, 5 * time.Minute: 300, 1<<63 - 1: 9223372037,
	} {
		h := fullHolder()
		h.TTL = ttl
		r := FromHolder(h, here)
		if r.TTLSec != seconds {
			t.Errorf("%v is written as %d s", ttl, r.TTLSec)
		}
		if got := r.Holder(here).TTL; got != ttl {
			t.Errorf("%v comes back as %v", ttl, got)
		}
	}
	r, err := Decode("x", []byte(`{"name":"x","owner":"o","ttl_sec":9223372036854775807,"acquired_ts":"2026-02-01T14:30:00Z"}`))
	if err != nil {
		t.Fatal(err)
	}
	if h := r.Holder(here); h.TTL < 200*365*24*time.Hour || !h.ExpiresAt.After(here.Wall) {
		t.Errorf("the longest TTL there is comes back as %v, until %v", h.TTL, h.ExpiresAt)
	}
}

func TestExpiryPrefersWhatIsWritten(t *testing.T) {
	for _, test := range []struct{ fields, want string }{
		{`"acquired_ts":"2026-02-01T14:30:00Z"`, ""},
		{`"acquired_ts":"2026-02-01T14:30:00Z","ttl_sec":60`, "2026-02-01T14:31:00Z"},
		{`"acquired_ts":"2026-02-01T14:30:00Z","ttl_sec":60,"ttl_ns":59500000000`, "2026-02-01T14:30:59.5Z"},
		{`"acquired_ts":"2026-02-01T14:30:00Z","ttl_sec":60,"expires_at":"2026-02-01T20:00:00Z"`, "2026-02-01T20:00:00Z"},
		{`"acquired_ts":"2026-02-01T14:30:00+01:00","expires_at":"2026-02-01T14:40:00.000000001+01:00"`, "2026-02-01T13:40:00.000000001Z"},
	} {
		r, err := Decode("x", []byte(`{"name":"x","owner":"o",`+test.fields+`}`))
		if err != nil {
			t.Fatal(err)
		}
		got := r.Holder(here).ExpiresAt
		if want, _ := time.Parse(time.RFC3339Nano, test.want); !got.Equal(want) {
			t.Errorf("%s expires at %v", test.fields, got)
		}
	}
}

func TestAStepOfTheWallClockMovesNoExpiry(t *testing.T) {
	h := fullHolder()
	h.AcquiredAt, h.ExpiresAt = here.Wall, here.Wall.Add(time.Minute)
	data, err := FromHolder(h, here).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Decode("build", data)
	if err != nil {
		t.Fatal(err)
	}
	after := func(mono, wall time.Duration) Now {
		n := here
		n.Monotonic += mono
		n.Wall = n.Wall.Add(wall)
		return n
	}
	left := func(r *Record, n Now) time.Duration { return r.Holder(n).ExpiresAt.Sub(n.Wall) }
	for _, test := range []struct {
		what       string
		mono, wall time.Duration
		want       time.Duration
	}{
		{"no step", 10 * time.Second, 10 * time.Second, 50 * time.Second},
		{"an hour forward", 10 * time.Second, 10*time.Second + time.Hour, 50 * time.Second},
		{"an hour back", 10 * time.Second, 10*time.Second - time.Hour, 50 * time.Second},
		{"the TTL forward", time.Second, time.Second + time.Minute, 59 * time.Second},
		{"expired, and an hour back", 70 * time.Second, 70*time.Second - time.Hour, -10 * time.Second},
		{"less than a step", 10 * time.Second, 10*time.Second + 500*time.Microsecond, 50*time.Second - 500*time.Microsecond},
		{"the machine slept", 10 * time.Second, time.Hour, 50 * time.Second},
	} {
		n := after(test.mono, test.wall)
		if got := left(r, n); got != test.want {
			t.Errorf("%s: %v left, want %v", test.what, got, test.want)
		}
		if moved := r.Holder(n); moved.AcquiredAt.Add(time.Minute) != moved.ExpiresAt {
			t.Errorf("%s: acquired at %v, expires at %v", test.what, moved.AcquiredAt, moved.ExpiresAt)
		}
	}
	hour := after(10*time.Second, 10*time.Second+time.Hour)
	for what, change := range map[string]func(r *Record, n *Now){
		"another boot":           func(_ *Record, n *Now) { n.BootID = "boot-2" },
		"another time namespace": func(_ *Record, n *Now) { n.TimeNS = "ns-2" },
		"no clock of the reader": func(_ *Record, n *Now) { n.BootID = "" },
		"a record without clock": func(r *Record, _ *Now) { r.Clock = nil },
		"an edited acquired_ts":  func(r *Record, _ *Now) { r.AcquiredTS = r.AcquiredTS.Add(1) },
		"an edited expires_at":   func(r *Record, _ *Now) { r.ExpiresAt = r.ExpiresAt.Add(time.Nanosecond) },
		"no expires_at any more": func(r *Record, _ *Now) { r.ExpiresAt, r.TTLSec, r.TTL = time.Time{}, 60, 0 },
	} {
		copied, n := *r, hour
		change(&copied, &n)
		if got := left(&copied, n).Round(time.Second); got != 50*time.Second-time.Hour {
			t.Errorf("%s: the wall clock decides, so %v should be left, not %v", what, 50*time.Second-time.Hour, got)
		}
	}
	// Written again after the step, it still is the same moment.
	moved := FromHolder(r.Holder(hour), hour)
	if got := left(moved, after(20*time.Second, 20*time.Second+time.Hour)); got != 40*time.Second {
		t.Errorf("written again after a step, %v are left", got)
	}
	if got := left(moved, after(20*time.Second, 20*time.Second-time.Hour)); got != 40*time.Second {
		t.Errorf("written again and stepped again, %v are left", got)
	}
}

func TestWhatIsNoRecordIsToldApart(t *testing.T) {
	ok := func(fields string) string { return `{"name":"x","owner":"o"` + fields + `}` }
	for _, test := range []struct {
		data string
		want error
	}{
		{ok(``), nil},
		{ok(`,"version":0`), nil},
		{ok(`,"version":1`), nil},
		{ok(`,"version":1,"unknown":{"deep":[1,2,{}]}`), nil},
		{ok(`,"version":2`), ErrVersion},
		{ok(`,"version":"2"`), ErrVersion},
		{ok(`,"version":1.5`), ErrVersion},
		{ok(`,"version":99999999999999999999`), ErrVersion},
		{ok(`,"version":1e400`), ErrVersion},
		{ok(`,"version":2,"pid":"four","holders":7`), ErrVersion},
		{ok(`,"version":-1`), ErrCorrupt},
		{ok(`,"version":-1e400`), ErrCorrupt},
		{ok(`,"version":"one"`), ErrCorrupt},
		{ok(`,"version":null`), nil},
		{``, ErrCorrupt}, {` `, ErrCorrupt}, {"\x00\x00\x00", ErrCorrupt}, {`null`, ErrCorrupt}, {`[]`, ErrCorrupt}, {`{}`, ErrCorrupt},
		{`"x"`, ErrCorrupt}, {`7`, ErrCorrupt}, {`{"name":"x"}`, ErrCorrupt}, {`{"owner":"o"}`, ErrCorrupt}, {`{"name":"","owner":"o"}`, ErrCorrupt},
		{ok(``) + `x`, ErrCorrupt}, {ok(``) + ok(``), ErrCorrupt}, {ok(``)[1:], ErrCorrupt}, {"\xef\xbb\xbf" + ok(``), ErrCorrupt},
		{ok(`,"pid":"four"`), ErrCorrupt}, {ok(`,"pid":1e99`), ErrCorrupt}, {ok(`,"acquired_ts":"yesterday"`), ErrCorrupt},
		{ok(`,"ttl_sec":-1`), ErrCorrupt}, {ok(`,"ttl_ns":-1`), ErrCorrupt}, {ok(`,"limit":-1`), ErrCorrupt}, {ok(`,"max_hold_ns":-1`), ErrCorrupt},
		{ok(`,"token":-1`), ErrCorrupt}, {ok(`,"token":9223372036854775807`), nil}, {ok(`,"token":9223372036854775808`), ErrCorrupt},
		{ok(`,"token":18446744073709551615`), ErrCorrupt},
		{ok(`,"holders":[{"owner":"a","lock_id":"1"},{"owner":"b","lock_id":"2"}]`), nil},
		{ok(`,"holders":[null]`), ErrCorrupt}, {ok(`,"holders":[{}]`), ErrCorrupt}, {ok(`,"holders":[{"owner":"b","limit":-2}]`), ErrCorrupt},
		{`{"name":"y","owner":"o"}`, ErrName}, {`{"name":"X","owner":"o"}`, ErrName}, {`{"name":"../x","owner":"o"}`, ErrName},
	} {
		_, err := Decode("x", []byte(test.data))
		if !errors.Is(err, test.want) || test.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", test.data, err, test.want)
		}
	}
	for _, test := range []struct {
		data string
		want error
	}{
		{`{"version":1,"name":"x","waiters":[{"owner":"o","lock_id":"1"}]}`, nil},
		{`{"name":"x"}`, nil},
		{`{"version":2,"name":"x","waiters":{"first":1}}`, ErrVersion},
		{`{"version":2}`, ErrVersion},
		{`{"name":"y"}`, ErrName},
		{`{"name":"x","waiters":[{"owner":"o"}]}`, ErrCorrupt}, {`{"name":"x","waiters":[{"lock_id":"1"}]}`, ErrCorrupt},
		{`{"name":"x","waiters":[null]}`, ErrCorrupt}, {`{"name":"x","waiters":[{"owner":"o","lock_id":"1","ttl_sec":-1}]}`, ErrCorrupt},
		{``, ErrCorrupt}, {`[]`, ErrCorrupt}, {`{"name":"x"`, ErrCorrupt},
	} {
		_, err := DecodeQueue("x", []byte(test.data))
		if !errors.Is(err, test.want) || test.want == nil && err != nil {
			t.Errorf("queue %s: %v, want %v", test.data, err, test.want)
		}
	}
}

func TestHandMadeRecordsGetALeaseIDThatLasts(t *testing.T) {
	data := []byte(`{"name":"x","owner":"o","holders":[{"owner":"o"},{"owner":"p"}]}`)
	r, err := Decode("x", data)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := Decode("x", data)
	all := r.All()
	if len(all) != 2 || all[0].Owner != "o" || all[1].Owner != "p" {
		t.Fatalf("the holders are %+v", all)
	}
	if len(all[0].LockID) != 32 || all[0].LockID == all[1].LockID || again.All()[1].LockID != all[1].LockID {
		t.Errorf("the lease IDs are %q and %q, and then %q", all[0].LockID, all[1].LockID, again.All()[1].LockID)
	}
	if other, _ := Decode("x", []byte(`{"name":"x","owner":"o" }`)); other.LockID == r.LockID {
		t.Error("two records have the same lease ID")
	}
}

func TestTheTopOfARecordPrevailsOverItsListOfHolders(t *testing.T) {
	for data, want := range map[string]string{
		`{"name":"x","owner":"a","lock_id":"1","pid":1,"holders":[{"owner":"a","lock_id":"1","pid":7},{"owner":"b","lock_id":"2"}]}`: "a1 b0",
		`{"name":"x","owner":"c","lock_id":"3","pid":1,"holders":[{"owner":"a","lock_id":"1","pid":7},{"owner":"b","lock_id":"2"}]}`: "c1 a7 b0",
		`{"name":"x","owner":"a","lock_id":"1","pid":1,"holders":[{"owner":"a","lock_id":"1"},{"owner":"a","lock_id":"1","pid":9}]}`: "a1 a9",
		`{"name":"x","owner":"a","lock_id":"1","pid":1}`: "a1",
	} {
		r, err := Decode("x", []byte(data))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range r.All() {
			got = append(got, fmt.Sprintf("%s%d", one.Owner, one.PID))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s is held by %v, want %s", data, got, want)
		}
	}
}

// keys returns the members of a JSON object.
func keys(t *testing.T, data []byte) map[string]json.RawMessage {
	t.Helper()
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return all
}

func TestUnknownKeysStayWithTheirHold(t *testing.T) {
	first := fullHolder()
	first.LeaseID = "1"
	data, err := FromHolder(first, here).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	data = append([]byte(`{"x_note":{"b":[1,2],"a":"<é>"},"Owner ":3,"":null,`), data[1:]...)
	for range 3 { // renewals
		old, err := Decode("build", data)
		if err != nil {
			t.Fatal(err)
		}
		first.Renewals++
		if data, err = FromHolder(first, here).Encode(old); err != nil {
			t.Fatal(err)
		}
		all := keys(t, data)
		if string(all["x_note"]) != `{"b":[1,2],"a":"<é>"}` || string(all["Owner "]) != "3" || string(all[""]) != "null" {
			t.Fatalf("unknown keys were lost: %s", data)
		}
		if r, err := Decode("build", data); err != nil || !reflect.DeepEqual(r.Holder(here), first) {
			t.Fatalf("%v: %+v from %s", err, r, data)
		}
	}
	// A second holder joins, and then the first leaves.
	second := fullHolder()
	second.LeaseID = "2"
	old, _ := Decode("build", data)
	both := *FromHolder(first, here)
	both.Holders = []*Record{FromHolder(first, here), FromHolder(second, here)}
	if data, err = both.Encode(old); err != nil {
		t.Fatal(err)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(keys(t, data)["holders"], &list); err != nil {
		t.Fatal(err)
	}
	if _, kept := keys(t, list[0])["x_note"]; !kept {
		t.Errorf("unknown keys of the first of two were lost: %s", list[0])
	}
	if _, kept := keys(t, list[1])["x_note"]; kept {
		t.Errorf("the second of two took the first one's: %s", list[1])
	}
	old, err = Decode("build", data)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := FromHolder(first, here).Encode(old)
	if err != nil {
		t.Fatal(err)
	}
	if _, kept := keys(t, alone)["x_note"]; !kept {
		t.Errorf("the first lost its keys when the second left: %s", alone)
	}
	if alone, err = FromHolder(second, here).Encode(old); err != nil {
		t.Fatal(err)
	} else if _, kept := keys(t, alone)["x_note"]; kept {
		t.Errorf("the second inherited keys: %s", alone)
	}
}

func TestKeysThatDifferOnlyInCaseDoNotOutliveARenewal(t *testing.T) {
	old, err := Decode("x", []byte(`{"NAME":"x","Owner":"o","LOCK_ID":"1","Expires_At":"2020-01-01T00:00:00Z","acquired_tſ":"2020-01-01T00:00:00Z","extra":1}`))
	if err != nil {
		t.Fatal(err)
	}
	h := old.Holder(here)
	h.ExpiresAt = epoch
	data, err := FromHolder(h, here).Encode(old)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Decode("x", data)
	if err != nil || !r.ExpiresAt.Equal(epoch) {
		t.Errorf("the old expiry came back: %v, %s", err, data)
	}
	if string(keys(t, data)["extra"]) != "1" {
		t.Errorf("an unknown key was lost: %s", data)
	}
}

func TestARecordThatNobodyCouldReadIsNotWritten(t *testing.T) {
	h := fullHolder()
	h.Metadata = map[string]string{"k": strings.Repeat("x", MaxSize)}
	if _, err := FromHolder(h, here).Encode(nil); err == nil {
		t.Error("a record larger than MaxSize was encoded")
	}
	q := Queue{Name: "x", Waiters: []*Record{FromHolder(h, here)}}
	if _, err := q.Encode(); err == nil {
		t.Error("a queue larger than MaxSize was encoded")
	}
	h = fullHolder()
	h.ExpiresAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	if _, err := FromHolder(h, here).Encode(nil); err == nil {
		t.Error("a time that RFC 3339 cannot say was encoded")
	}
}

func TestEveryTruncationOfARecordIsCorrupt(t *testing.T) {
	data, err := FromHolder(fullHolder(), here).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(data) - 1 { // the last byte only ends the line
		if _, err := Decode("build", data[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no golden files", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, s := range []string{
		`{"name":"build","owner":"o"}`, `{"name":"build","owner":"o","version":2}`, `{"NAME":"build","OWNER":"o","x":[{}]}`,
		`{"name":"build","owner":"o","holders":[{"owner":"a","y":1},{"owner":"b","Holders":[]}]}`,
		`{"name":"build","owner":"o","ttl_sec":9223372036854775807,"acquired_ts":"9999-12-31T23:59:59Z"}`,
		`{"name":"build","owner":"o","clock":{"boot_id":"boot-1","time_ns":"ns-1","monotonic_ns":-9223372036854775808,"acquired_ts":"0001-01-01T00:00:00Z"}}`,
		`{"name":"build","waiters":[{"owner":"o","lock_id":"1"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		known := func(err error) {
			if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrName) {
				t.Fatalf("unexpected error %v", err)
			}
		}
		r, err := Decode("build", data)
		known(err)
		if err == nil {
			checkAgain(t, r)
		}
		q, err := DecodeQueue("build", data)
		known(err)
		if err == nil {
			for _, w := range q.Waiters {
				w.Waiter(here)
			}
		}
	})
}

// checkAgain writes what was read and reads it again.
func checkAgain(t *testing.T, r *Record) {
	all := r.All()
	r.Freeze(here)
	next := *all[0]
	if len(all) > 1 {
		next.Holders = all
	}
	data, err := next.Encode(r)
	if err != nil {
		return // a time that cannot be written
	}
	again, err := Decode("build", data)
	if err != nil {
		t.Fatalf("%v: what was written cannot be read: %s", err, data)
	}
	for i, one := range again.All() {
		if got, want := one.Holder(here), all[i].Holder(here); !reflect.DeepEqual(got, want) {
			t.Fatalf("holder %d came back as\n%+v\nnot as\n%+v", i, got, want)
		}
	}
}
