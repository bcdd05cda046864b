package lokttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// TestReopen checks that a store that outlives its process does. place returns a function that opens the same, at first
// empty, store again and again; what it returned before has been closed by then.
func TestReopen(t *testing.T, place func(t *testing.T) (open func() lokt.Store)) {
	open := place(t)
	var want lokt.Lock
	s := open()
	put(t, s, "full", func(l *lokt.Lock, now time.Time) {
		want = full("full", now)
		*l = want.Clone()
	})
	put(t, s, "free", held(id(1)))
	put(t, s, "free", held(id(2)))
	last := view(t, s, "free").Lock.Token
	put(t, s, "free", freed)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open()
		if diff := differences(want, view(t, s, "full").Lock); diff != "" {
			t.Error(diff)
		}
		if l := view(t, s, "free").Lock; !l.Free() || l.Token < last {
			t.Errorf("a free lock is %+v", l)
		}
		expectNames(t, s, lokt.Filter{}, "full")
	}
	_ = s.Close()
}

// TestObserver checks that a store that tells an observer what happened to its locks tells it everything, once, in the
// order of the changes. open returns a new, empty store that calls observe with the events of each change.
func TestObserver(t *testing.T, open func(t *testing.T, observe func([]lokt.Event)) lokt.Store) {
	granted := func(h lokt.Holder) []lokt.Event {
		e := lokt.Event{Time: h.HeldSince, Type: lokt.EventWait, Name: "x", LeaseID: h.LeaseID, Owner: h.Owner, Extra: map[string]string{lokt.ExtraOutcome: "granted"}}
		return []lokt.Event{e, {Time: h.HeldSince, Type: lokt.EventAcquire, Name: "x", LeaseID: h.LeaseID, Owner: h.Owner, Token: h.Token, TTL: time.Minute}}
	}
	const goroutines, rounds = 8, 10
	var mu sync.Mutex
	var got, want []lokt.Event
	s := open(t, func(events []lokt.Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, events...)
	})
	defer func() { _ = s.Close() }()
	together(goroutines, func(int) {
		for range rounds {
			if err := s.Update(within(t), "x", func(snap lokt.Snapshot) lokt.Change {
				held(id(len(snap.Lock.Holders)))(&snap.Lock, snap.Now)
				return lokt.Change{Lock: snap.Lock, Events: granted(snap.Lock.Holders[len(snap.Lock.Holders)-1])}
			}); err != nil {
				t.Error(err)
			}
		}
	})
	for _, h := range view(t, s, "x").Lock.Holders {
		want = append(want, granted(h)...)
	}
	eventually(t, "all events were observed", pause, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) >= len(want)
	})
	mu.Lock()
	defer mu.Unlock()
	if diff := differences(want, got); diff != "" || len(want) != 2*goroutines*rounds {
		t.Errorf("%d events: %s", len(want), diff)
	}
}

// eventually waits until the condition holds, and looks again after each pause.
func eventually(t *testing.T, what string, pause time.Duration, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("it never came to pass that %s", what)
		}
	}
}

// differences compares locks, holders or events by what they say: without a lock's revision, without the zone and the
// monotonic reading of times. It returns an empty string if they are alike.
func differences(want, got any) string {
	a, b := strings.Split(canonical(want), "\n"), strings.Split(canonical(got), "\n")
	first := 0
	for first < min(len(a), len(b)) && a[first] == b[first] {
		first++
	}
	if first == len(a) && first == len(b) {
		return ""
	}
	some := func(lines []string) string { // enough to see where
		return strings.Join(lines[max(first-6, 0):min(first+6, len(lines))], "\n")
	}
	return fmt.Sprintf("want …\n%s\n…, got …\n%s\n…", some(a), some(b))
}

// canonical is the JSON form, on many lines.
func canonical(v any) string {
	if l, ok := v.(lokt.Lock); ok {
		l.Revision = 0
		v = l
	}
	text, err := lokt.Marshal(v)
	if err != nil {
		return err.Error()
	}
	var lines bytes.Buffer
	_ = json.Indent(&lines, text, "", " ") // valid, for it was just written
	return lines.String()
}
