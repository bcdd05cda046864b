package httpapi

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// texts are what the reader of JSON is tried on before a fuzzer thinks of more.
func texts() []string {
	return []string{
		`{}`, ` [ 1 , -0.5e+10 , "a\u00e9\n\\\/" , true , false , null , { "a" : { } , "" : [ ] } ] `, `"\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx"`, `"\ude00\ud83d"`,
		`1e400`, `1e308`, `-1e-400`, `01`, `1.`, `.5`, `+1`, `"`, `"\`, `"\u12`, `[`, `[1`, `[1,]`, `{"a"`, `{"a":`, `{"a":1,}`, `nul`, `truefalse`, `1 2`, "\xff", "\"\xff\"",
		`"` + "\x1f" + `"`, strings.Repeat("9", 400), strings.Repeat("[", 201) + strings.Repeat("]", 201), strings.Repeat("[", 200) + strings.Repeat("]", 200), "", " ", "\ufeff1",
		`{"a":1,"b":{"a":2},"a\u0062":3,"c":"x"}`,
	}
}

// agree checks that the reader takes a text exactly if encoding/json does, but for what it is stricter in, and that it
// finds the same in it.
func agree(t *testing.T, text []byte) {
	t.Helper()
	d, value := newBodyReader(text)
	if (value == nil) != (d.err() != nil) {
		t.Fatalf("%q is read as %q with the error %v", text, value, d.err())
	}
	if value == nil {
		over := errors.Is(overflow(text), strconv.ErrRange)
		if json.Valid(text) && utf8.Valid(text) && !over && deepest(text) <= maxNesting {
			t.Fatalf("%q is refused: %v", text, d.err())
		}
		return
	}
	if !json.Valid(text) || !utf8.Valid(text) {
		t.Fatalf("%q is taken", text)
	}
	switch value[0] {
	case '"':
		got, ok := unquote(value)
		var want string
		if err := json.Unmarshal(value, &want); err != nil {
			t.Fatal(err)
		}
		if ok && got != want || !ok && !strings.Contains(want, "\ufffd") {
			t.Fatalf("%q is %q, %v, not %q", value, got, ok, want)
		}
	case '{':
		var want map[string]jsontext.Value
		if err := json.Unmarshal(value, &want); err != nil {
			t.Fatal(err)
		}
		var got [2][]byte
		d.fields(value, []string{"a", "c"}, got[:])
		if d.err() != nil {
			return // one is there twice
		}
		for i, name := range []string{"a", "c"} {
			raw := want[name]
			if string(raw) == "null" {
				raw = nil
			}
			if string(got[i]) != string(raw) {
				t.Fatalf("%q has %q as %s, not %q", value, got[i], name, raw)
			}
		}
	case '[':
		var want []jsontext.Value
		if err := json.Unmarshal(value, &want); err != nil {
			t.Fatal(err)
		}
		got := d.items(value, 1000, "x")
		if len(got) != min(len(want), 1001) {
			t.Fatalf("%q has %d items, not %d", value, len(got), len(want))
		}
		for i := range got {
			if string(got[i]) != string(want[i]) {
				t.Fatalf("%q has %q at %d, not %q", value, got[i], i, want[i])
			}
		}
	}
}

// overflow returns the error of the first number in a valid text that is too large for a float64.
func overflow(text []byte) error {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return nil
		}
		if n, ok := token.(json.Number); ok {
			if _, err := strconv.ParseFloat(string(n), 64); err != nil {
				return err
			}
		}
	}
}

// deepest returns how deep a valid text is nested.
func deepest(text []byte) int {
	d := json.NewDecoder(strings.NewReader(string(text)))
	depth, most := 0, 0
	for {
		token, err := d.Token()
		if err != nil {
			return most
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			depth++
			most = max(most, depth)
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
	}
}

func TestBodiesAreReadAsEncodingJSONDoesButStrictly(t *testing.T) {
	for _, text := range texts() {
		agree(t, []byte(text))
	}
	r := rand.New(rand.NewPCG(3, 4))
	const alphabet = `{}[]",:\u0d8e19.eE+-atrnfls` + "\x00\xff \n"
	for range 50_000 {
		text := []byte(texts()[r.IntN(len(texts()))])
		for range 1 + r.IntN(4) {
			if len(text) > 0 {
				text[r.IntN(len(text))] = alphabet[r.IntN(len(alphabet))]
			}
		}
		agree(t, text)
	}
}

func FuzzBody(f *testing.F) {
	for _, text := range texts() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { agree(t, text) })
}

func TestStringsAreWrittenSoThatTheyCanBeRead(t *testing.T) {
	for _, text := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é\u2028\U0001f600", "<&>", "a\xffb\xc0\xaf", "\xe2\x82"} {
		var got string
		if err := json.Unmarshal(appendString(nil, text), &got); err != nil || got != string([]rune(text)) {
			t.Errorf("%q is written as %s, read as %q, %v", text, appendString(nil, text), got, err)
		}
	}
}

func TestDurationsAndTimesAreWrittenExactly(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 1: "0.000000001", time.Millisecond: "0.001", 1500 * time.Millisecond: "1.5", time.Minute: "60", -time.Second / 2: "-0.5", -1: "-0.000000001",
		math.MaxInt64: "9223372036.854775807", math.MinInt64: "-9223372036.854775807", 10*time.Hour + time.Microsecond: "36000.000001",
	} {
		if got := string(appendSeconds(nil, d)); got != want {
			t.Errorf("%d is written as %s, not %s", d, got, want)
		}
	}
	for text, want := range map[string]time.Duration{
		"0": 0, "-0": 0, "0.001": time.Millisecond, "1.5": 1500 * time.Millisecond, "0.0000001": time.Millisecond, "480.001": 480001 * time.Millisecond,
		"315360000": 3650 * 24 * time.Hour, "315360000.001": 3650*24*time.Hour + time.Millisecond, "1e3": 1000 * time.Second, "9223372036.854775807": math.MaxInt64,
		"1e300": math.MaxInt64, "0.1": 100 * time.Millisecond, "0.3": 300 * time.Millisecond, "4.35": 4350 * time.Millisecond,
	} {
		if got := new(bodyReader).seconds([]byte(text), -5, "x"); got != want {
			t.Errorf("%s seconds are %v, not %v", text, got, want)
		}
	}
	for _, text := range []string{"-1", "-1e-9", "-1e300", "-9223372036.9"} {
		if got := new(bodyReader).seconds([]byte(text), 5, "x"); got >= 0 {
			t.Errorf("%s seconds are %v", text, got)
		}
	}
	at := time.Date(2026, 2, 6, 20, 15, 30, 123_999_999, time.FixedZone("", 3600))
	if got := string(appendTime(nil, at)); got != `"2026-02-06T19:15:30.123Z"` {
		t.Errorf("%v is written as %s", at, got)
	}
	r := rand.New(rand.NewPCG(7, 8))
	for range 10_000 {
		at := time.Unix(r.Int64N(253402300800+62167219200)-62167219200, r.Int64N(1e9)) // the years 0 to 9999
		if got, want := string(appendTime(nil, at)), at.UTC().Format(`"`+timeLayout+`"`); got != want {
			t.Fatalf("%v is written as %s, not %s", at, got, want)
		}
	}
	if got := string(appendTime(nil, time.Time{})); got != "null" {
		t.Errorf("no time is written as %s", got)
	}
}

func TestEachByteOfAStringIsLookedAt(t *testing.T) {
	for c := range 256 {
		plain := c >= ' ' && c < 0x80 && c != '"' && c != '\\'
		for at := range 20 {
			text := []byte(strings.Repeat("a", 20))
			text[at] = byte(c)
			want := at / 8 * 8
			if plain {
				want = 16
			}
			if n := skipPlain(text, 0); n != min(want, 16) {
				t.Errorf("byte %#x at %d: %d bytes are plain, want %d", c, at, n, want)
			}
			quoted := `"` + string(text) + `"`
			end, ok := skipString([]byte(quoted), 0)
			switch {
			case c == '"': // the string ends there
				ok = ok && end == at+2
			case c < ' ' || c == '\\': // \a is no escape
				ok = !ok && (end == at+1 || end == at+2)
			default:
				ok = ok && end == len(quoted)
			}
			if c == '\\' && at == 19 { // what follows is the quotation mark
				continue
			}
			if !ok {
				t.Errorf("byte %#x at %d: the string ends at %d", c, at, end)
			}
			if made := string(appendString(nil, string(text))); plain && made != quoted {
				t.Errorf("byte %#x at %d becomes %s", c, at, made)
			}
		}
	}
}
