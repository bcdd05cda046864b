package lokt

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

func TestJSONFormBringsEverythingBack(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 678_901_234, time.UTC)
	claim := Claim{
		Name: "x", LeaseID: "secret", Owner: Owner{ID: "a", Session: "s", Process: Process{PID: 1, Start: 2, Boot: "b"}}, Process: &Process{PID: 3},
		Limit: 2, TTL: 90*time.Second + 1, MaxHold: time.Hour, Preempt: 1500 * time.Microsecond, Wait: -1, Within: []string{"other"},
		Metadata: map[string]string{"k": "<v>"},
	}
	lock := Lock{
		Name: "x", Revision: 1<<63 + 1, Token: 7,
		Holders: []Holder{{
			Claim: claim, Token: 7, HeldSince: at, AcquiredAt: at.Local(), ExpiresAt: at.Add(time.Minute),
			Yield: &Yield{To: claim.Owner, AskedAt: at, Grace: time.Second, Heard: true},
		}},
		Queue:  []*Waiter{{Claim: claim, Place: -3, Since: at, Until: at.Add(time.Second)}},
		Freeze: &Freeze{ID: "f", Owner: claim.Owner, At: at, TTL: time.Hour},
	}
	text, err := Marshal(lock)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"ttl_ms":90000.000001`, `"wait_ms":-0.000001`, `"preempt_ms":1.5`, `"held_since":"2030-01-02T03:04:05.678901234Z"`, `"<v>"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	var back Lock
	if err := Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	lock.Holders[0].AcquiredAt = at
	if !reflect.DeepEqual(back, lock) {
		t.Errorf("%+v came back as %+v", lock, back)
	}
	for _, bad := range []string{`{"holders":[{"ttl_ms":"1"}]}`, `{"holders":[{"ttl_ms":1e16}]}`, "{\"name\":\"\xff\"}", `{} {}`} {
		if err := Unmarshal([]byte(bad), &back); err == nil {
			t.Errorf("%s is taken for a lock", bad)
		}
	}
}

func TestPublicFormHasNoSecrets(t *testing.T) {
	lock := Lock{
		Name:    "x",
		Holders: []Holder{{Claim: Claim{LeaseID: "secret-a"}}},
		Queue:   []*Waiter{{Claim: Claim{LeaseID: "secret-b", Within: []string{"secret-a"}}}},
		Freeze:  &Freeze{ID: "secret-c"},
	}
	event := Event{LeaseID: "secret-a", Extra: map[string]string{ExtraLeaseWas: "secret-b"}}
	for _, v := range []any{lock.Public(), event.Public()} {
		text, err := Marshal(v)
		if err != nil || strings.Contains(string(text), "secret") || !strings.Contains(string(text), PublicID("secret-b")) {
			t.Errorf("%s, %v", text, err)
		}
	}
	if lock.Holders[0].LeaseID != "secret-a" || lock.Queue[0].Within[0] != "secret-a" || event.Extra[ExtraLeaseWas] != "secret-b" {
		t.Error("what was shown has changed")
	}
}

// A name that stands twice would be read as one or the other; in a value that is only passed on it stays as it is.
func TestNamesThatStandTwiceAreRefused(t *testing.T) {
	var v struct {
		Raw jsontext.Value   `json:"raw"`
		Map map[string]int64 `json:"map"`
	}
	for text, fine := range map[string]bool{
		`{"raw":{"a":1,"a":2}}`: true, `{"raw":1,"raw":2}`: false, `{"map":{"a":1,"a":2}}`: false, `{"unknown":{"a":1,"a":2}}`: false,
	} {
		if err := Unmarshal([]byte(text), &v); (err == nil) != fine {
			t.Errorf("%s: %v", text, err)
		}
	}
}
