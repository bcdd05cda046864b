package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

func newReader(l *Log, q Query) *reader { return &reader{log: l, query: q} }

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestReadGoesThroughRotatedFilesOldestFirst(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 500, Keep: 20})
	appendTokens(t, l, upTo(30)...)
	if n := files(t, l); n < 10 {
		t.Fatalf("there are %d files, want many", n)
	}
	got, _ := readAll(t, l, Query{})
	wantTokens(t, got, upTo(30)...)
}

func TestQueryFilters(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 700, Keep: 20})
	for i := range uint64(10) {
		e := event([]string{"even", "odd"}[(i+1)%2], i+1)
		if (i+1)%3 == 0 {
			e.Type = "deny"
		}
		if err := l.Append(Encode([]lokt.Event{e})); err != nil {
			t.Fatal(err)
		}
	}
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	for _, c := range []struct {
		q    Query
		want []uint64
	}{
		{Query{}, upTo(10)},
		{Query{Since: at(8)}, []uint64{8, 9, 10}},
		{Query{Since: at(9).In(time.FixedZone("", 3600))}, []uint64{9, 10}},
		{Query{Name: "odd"}, []uint64{1, 3, 5, 7, 9}},
		{Query{Types: []lokt.EventType{lokt.EventDeny}}, []uint64{3, 6, 9}},
		{Query{Types: []lokt.EventType{lokt.EventDeny}, Name: "even"}, []uint64{6}},
		{Query{Limit: 3}, []uint64{8, 9, 10}},
		{Query{Limit: 100}, upTo(10)},
		{Query{Limit: 2, Types: []lokt.EventType{lokt.EventDeny}}, []uint64{6, 9}},
		{Query{Limit: -1}, nil},
		{Query{Name: "none"}, nil},
	} {
		t.Run(fmt.Sprintf("%+v", c.q), func(t *testing.T) {
			got, _ := readAll(t, l, c.q)
			wantTokens(t, got, c.want...)
		})
	}
}

func TestGarbageIsReportedAndPassedOver(t *testing.T) {
	l := Open(t.TempDir())
	appendTokens(t, l, 1)
	garbage := []string{
		"not JSON", `{"ts":"2026-11-21T12:00:00Z"`, `[1,2]`, `"x"`, `null`, `{}`, `{"event":"acquire"}`,
		`{"ts":"yesterday","event":"acquire"}`, `{"ts":"2026-11-21T12:00:00Z","event":""}`, "\x00\x00\x00", "\xff\xfe",
		strings.TrimSpace(string(entryLine("a", 8))) + strings.TrimSpace(string(entryLine("a", 9))), strings.Repeat("#", 200_000),
	}
	for _, g := range garbage {
		addRaw(t, l, g+"\n")
	}
	addRaw(t, l, "\n\r\n   \n")
	appendTokens(t, l, 2)
	got, found := readAll(t, l, Query{})
	wantTokens(t, got, 1, 2)
	if len(found) != len(garbage) {
		t.Fatalf("%d lines of garbage reported, want %d: %v", len(found), len(garbage), found)
	}
	b, err := os.ReadFile(l.Path())
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range found {
		if s := string(b[g.Offset : g.Offset+g.Size]); s != garbage[i] {
			t.Errorf("garbage at %d is %.40q, want %.40q", g.Offset, s, garbage[i])
		}
	}
}

func TestEntriesOfOtherVersionsKeepWhatTheyHave(t *testing.T) {
	l := Open(t.TempDir())
	raw := `{"v":9,"ts":"2026-11-21T12:00:00.5+01:00","event":"levitate","name":"n","pid":"none","ttl_sec":1.5,` +
		`"extra":{"token":18446744073709551615,"deep":{"a":[1]}},"more":{"x":1}}`
	addRaw(t, l, "  "+raw+" \r\n")
	addRaw(t, l, `{"ts":"2026-11-21T12:00:00Z","event":"odd","extra":"text"}`) // no end of line either
	var got []Entry
	for e, err := range l.Read(context.Background(), Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	if len(got) != 2 || got[1].Event != "odd" || got[1].Extra != nil {
		t.Fatalf("read %+v", got)
	}
	e := got[0]
	if string(e.Raw) != raw {
		t.Errorf("Raw is %s", e.Raw)
	}
	if e.Event != "levitate" || e.PID != 0 || !e.TS.Equal(noon.Add(500*time.Millisecond-time.Hour)) ||
		e.Extra["token"] != Number("18446744073709551615") {
		t.Errorf("read %+v", e)
	}
}

func TestLineOfTenMegabytesIsReadAndFollowed(t *testing.T) {
	l := openAs(t.TempDir(), Options{Poll: time.Millisecond})
	f := follow(t, l, Query{})
	e := event("build", 1)
	e.Extra = map[string]string{"reason": strings.Repeat("long ", 2_000_000)}
	if err := l.Append(Encode([]lokt.Event{e})); err != nil {
		t.Fatal(err)
	}
	appendTokens(t, l, 2)
	got, err := f.next()
	if err != nil || got.Extra["reason"] != e.Extra["reason"] {
		t.Fatalf("followed something else: %v", err)
	}
	f.want(2)
	tokens, _ := readAll(t, l, Query{})
	wantTokens(t, tokens, 1, 2)
}

func TestRotationWhileReadingNeitherLosesNorDoubles(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 500, Keep: 3})
	appendTokens(t, l, upTo(6)...)
	var got []string
	for e, err := range l.Read(context.Background(), Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			appendTokens(t, l, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16) // every file that is being read is deleted
		}
		got = append(got, token(e))
	}
	wantTokens(t, got, upTo(6)...)
}

func TestFollowerSurvivesSeveralRotationsBetweenLooks(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 1, Keep: 10, Poll: time.Millisecond})
	appendTokens(t, l, 1)
	next := uint64(2)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var got []string
	for e, err := range l.Follow(ctx, Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, token(e))
		if len(got) == 33 {
			break
		}
		if len(got)%8 == 1 { // the follower does not look before this is over
			for range 8 {
				appendTokens(t, l, next)
				next++
			}
		}
	}
	wantTokens(t, got, upTo(33)...)
}

func TestFileMetTwiceIsReadOnce(t *testing.T) {
	l := Open(t.TempDir())
	appendTokens(t, l, 1, 2)
	if err := os.Link(l.path(0), l.path(1)); err != nil { // what a look sees that comes before and after a rotation
		t.Fatal(err)
	}
	got, _ := readAll(t, l, Query{})
	wantTokens(t, got, 1, 2)
}

func TestEntryOfASlowWriterIsFollowedBeforeWhatWasAppendedAfterIt(t *testing.T) {
	const pairs = 3000
	l := Open(t.TempDir())
	appendTokens(t, l, 1)
	slow, _, err := l.openAppend()
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	rename(t, l.path(0), l.path(1))
	appendTokens(t, l, 2)
	written := make(chan error, 1)
	go func() {
		for n := uint64(3); n < 2*pairs; n += 2 {
			_, err := writeOnce(slow, entryLine("build", n))
			if err == nil {
				err = l.Append(entryLine("build", n+1))
			}
			if err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	r := newReader(l, Query{})
	defer r.close()
	seen := map[string]bool{"0": true}
	keep := func(e Entry, err error) bool {
		if err != nil {
			t.Fatal(err)
		}
		seen[token(e)] = true
		if n, _ := strconv.Atoi(token(e)); n%2 == 0 && !seen[fmt.Sprint(n-1)] {
			t.Fatalf("followed %d before %d", n, n-1)
		}
		return true
	}
	r.begin(t.Context(), false, keep)
	for running := true; running; {
		select {
		case err := <-written:
			if running = false; err != nil {
				t.Fatal(err)
			}
		default:
		}
		r.again(t.Context(), keep)
	}
	if len(seen) != 2*pairs+1 {
		t.Fatalf("followed %d entries, want %d", len(seen)-1, 2*pairs)
	}
}

func TestFollowerWaitsForALogThatIsNotThereYet(t *testing.T) {
	l := openAs(filepath.Join(t.TempDir(), "later"), Options{Poll: time.Millisecond})
	f := follow(t, l, Query{})
	appendTokens(t, l, 1, 2)
	f.want(1, 2)
}

func TestFollowerReadsATruncatedLogAgain(t *testing.T) {
	l := openAs(t.TempDir(), Options{Poll: time.Millisecond})
	f := follow(t, l, Query{})
	appendTokens(t, l, 1, 2, 3)
	f.want(1, 2, 3)
	truncate := func(then ...uint64) {
		t.Helper()
		var b []byte
		for _, n := range then {
			b = append(b, entryLine("build", n)...)
		}
		if err := os.WriteFile(l.Path(), b, 0o600); err != nil { // truncates, then writes
			t.Fatal(err)
		}
	}
	truncate(4)
	f.want(4)
	appendTokens(t, l, 5)
	f.want(5)
}

func TestFollowerWaitsForTheRestOfALine(t *testing.T) {
	l := Open(t.TempDir())
	line := string(entryLine("build", 1))
	r := newReader(l, Query{})
	defer r.close()
	var got []string
	keep := func(e Entry, err error) bool {
		got = append(got, fmt.Sprint(token(e), err))
		return true
	}
	r.begin(t.Context(), false, keep)
	for _, part := range []string{line[:10], line[10:30], line[30 : len(line)-1]} {
		addRaw(t, l, part)
		r.again(t.Context(), keep)
		if got != nil {
			t.Fatalf("followed %v before the line was whole", got)
		}
	}
	addRaw(t, l, "\n"+line[:10])
	r.again(t.Context(), keep)
	if !slices.Equal(got, []string{"1<nil>"}) {
		t.Fatalf("followed %v", got)
	}
	if err := os.Remove(l.Path()); err != nil {
		t.Fatal(err)
	}
	r.again(t.Context(), keep) // nobody can finish the line now
	if len(got) != 2 || len(r.sources) != 0 {
		t.Fatalf("followed %v with %d files open", got, len(r.sources))
	}
}

func TestFollowBeginsWithTheNewestOfWhatIsThere(t *testing.T) {
	for limit, want := range map[int][]uint64{3: {5, 6, 7, 8, 9}, -1: {8, 9}, 0: upTo(9)} {
		l := openAs(t.TempDir(), Options{MaxSize: 500, Keep: 20, Poll: time.Millisecond})
		appendTokens(t, l, upTo(7)...)
		r := newReader(l, Query{Limit: limit})
		var got []string
		keep := func(e Entry, err error) bool {
			if err != nil {
				t.Error(err)
			}
			got = append(got, token(e))
			return true
		}
		r.begin(t.Context(), false, keep)
		appendTokens(t, l, 8, 9)
		r.again(t.Context(), keep)
		r.close()
		wantTokens(t, got, want...)
	}
}

func TestSkippedFileGoesOnWithItsUnfinishedLine(t *testing.T) {
	l := openAs(t.TempDir(), Options{Poll: time.Millisecond})
	appendTokens(t, l, 1, 2)
	line := string(entryLine("build", 3))
	addRaw(t, l, line[:40])
	r := newReader(l, Query{Limit: -1})
	defer r.close()
	var got []string
	keep := func(e Entry, err error) bool {
		got = append(got, fmt.Sprint(token(e), err))
		return true
	}
	r.begin(t.Context(), false, keep)
	addRaw(t, l, line[40:])
	r.again(t.Context(), keep)
	if !slices.Equal(got, []string{"3<nil>"}) {
		t.Fatalf("followed %v", got)
	}
}

func TestReadSaysThatItsContextEnded(t *testing.T) {
	l := Open(t.TempDir())
	appendTokens(t, l, 1, 2)
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	var last error
	for e, err := range l.Read(ctx, Query{}) {
		if err == nil {
			t.Fatalf("read %v after the end", e)
		}
		last = err
	}
	if !errors.Is(last, gone) {
		t.Fatalf("Read ended with %v", last)
	}
	for e, err := range l.Follow(ctx, Query{}) {
		t.Fatalf("followed %v, %v after the end", e, err)
	}
}

func FuzzReadAccountsForEveryByte(f *testing.F) {
	f.Add([]byte("x\n\n {}\n"))
	f.Add(append(entryLine("a", 1), entryLine("b", 2)[:70]...))
	f.Fuzz(func(t *testing.T, log []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), log, 0o600); err != nil {
			t.Fatal(err)
		}
		r := newReader(Open(dir), Query{})
		defer r.close()
		var lines [][]byte // that are not blank
		for l := range bytes.Lines(log) {
			if l = bytes.Trim(l, "\n"); len(bytes.TrimLeft(l, " \t\r")) > 0 {
				lines = append(lines, l)
			}
		}
		n := 0
		r.begin(t.Context(), true, func(e Entry, err error) bool {
			if n == len(lines) {
				t.Fatal("more came than there is")
			}
			line := lines[n]
			n++
			var garbage *GarbageError
			switch {
			case errors.As(err, &garbage):
				if !bytes.Equal(log[garbage.Offset:garbage.Offset+garbage.Size], line) {
					t.Fatalf("%v, want %q", garbage, line)
				}
			case err != nil || !bytes.Equal(e.Raw, bytes.TrimSpace(line)) || !json.Valid(e.Raw) || e.Event == "":
				t.Fatalf("read %+v, %v from %q", e, err, line)
			}
			return true
		})
		if n != len(lines) {
			t.Fatalf("%d of %d lines came", n, len(lines))
		}
	})
}

// A file of a tebibyte that nobody wrote.
func TestReadingIsBoundedAndSaysSo(t *testing.T) {
	l := Open(t.TempDir())
	appendTokens(t, l, 1)
	if err := os.Truncate(l.Path(), 1<<40); err != nil {
		t.Skip(err)
	}
	addRaw(t, l, "\n")
	appendTokens(t, l, 2)
	for _, q := range []Query{{}, {Limit: 5}} {
		var tokens []string
		told := false
		for e, err := range l.Read(t.Context(), q) {
			var garbage *GarbageError
			switch {
			case err == nil:
				tokens = append(tokens, token(e))
			case !errors.As(err, &garbage):
				told = strings.Contains(err.Error(), "only the last")
			}
		}
		if !told || !slices.Equal(tokens, []string{"2"}) {
			t.Errorf("%+v: told: %v, read %v", q, told, tokens)
		}
	}
	last, err := os.Stat(l.Path())
	if err != nil {
		t.Fatal(err)
	}
	appendTokens(t, l, 3, 4)
	after, err := os.Stat(l.Path())
	if err != nil {
		t.Fatal(err)
	}
	var tokens []string
	for e, err := range l.Ends(after.Size()-last.Size()).Read(t.Context(), Query{Limit: 5}) {
		if err == nil {
			tokens = append(tokens, token(e))
		}
	}
	if !slices.Equal(tokens, []string{"3", "4"}) {
		t.Errorf("of the end it read %v", tokens)
	}
	if err := os.Truncate(l.Path(), 1<<40); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for e, err := range l.Follow(ctx, Query{Limit: -1}) {
		if err == nil {
			t.Errorf("followed %v", e)
		}
	}
}
