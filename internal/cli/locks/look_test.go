package locks

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/testkit/clitest"
	"github.com/lokt-dev/lokt/lockfile"
)

func TestTimesThatJSONCannotTellAreLeftOut(t *testing.T) {
	d := newDesk(t, "ann")
	d.Record("locks", lockfile.Record{
		Name: "x", Owner: "zoe", Host: "h", TTLSec: 9e9, Kind: "lease", AcquiredTS: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
	})
	var locks []map[string]any
	if code := d.JSON(&locks, "status"); code != 0 || len(locks) != 1 || locks[0]["owner"] != "zoe" {
		t.Fatalf("exit %d, %v", code, locks)
	}
	if at, there := locks[0]["expires_at"]; there {
		t.Errorf("expires at %v", at)
	}
}

func TestTheTableIsAligned(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(app.Table(table([]lockView{
		{Name: "a", hold: hold{party: party{Owner: "ann", Host: "h", Kind: "lease"}, State: StateHeld}},
		{Name: "much-longer", Waiters: 3, Holders: []hold{
			{party: party{Owner: "émile", Host: "h", Kind: "guard", Limit: -1, PID: 12345}, State: StateHeld},
			{party: party{Owner: "zoe", Kind: "guard", Limit: 3}, State: lokt.ReasonDead},
		}},
		{Name: "ice", hold: hold{State: StateFrozen}, Freeze: &freeze{party: party{Owner: "bob"}}},
	})), "\n"), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	if strings.Contains(lines[1], " 0 ") {
		t.Errorf("no process has the ID 0: %s", lines[1])
	}
	column := func(line, cell string) int {
		return utf8.RuneCountInString(line[:strings.Index(line, cell)])
	}
	for _, same := range [][]struct {
		line int
		cell string
	}{
		{{0, "STATE"}, {1, "held"}, {2, "held"}, {3, "STALE(dead)"}, {4, "frozen"}},
		{{0, "OWNER"}, {1, "ann@h"}, {2, "émile@h"}, {3, "zoe"}},
		{{0, "SHARE"}, {2, "shared"}, {3, "slots=3"}},
		{{0, "FREEZE"}, {4, "by bob"}},
		{{0, "WAITING"}, {2, "3 "}},
	} {
		for _, c := range same[1:] {
			if got, want := column(lines[c.line], c.cell), column(lines[same[0].line], same[0].cell); got != want {
				t.Errorf("%s is in column %d, not %d:\n%s", c.cell, got, want, strings.Join(lines, "\n"))
			}
		}
	}
}

func TestNoNameOfOthersMovesTheCursor(t *testing.T) {
	d := newDesk(t, "ann")
	d.Record("locks", lockfile.Record{
		Name: "x", Owner: "zoe\n\x1b[2Jroot", Host: "h\u202eevil", AgentID: "a\tb", Kind: "lease", Metadata: map[string]string{"k\r": "\u009b1m"},
	})
	d.Record("freezes", lockfile.Record{Name: "x", Owner: "bob\x07", Reason: "first\nsecond", TTLSec: 60})
	for _, args := range [][]string{{"status"}, {"status", "x"}, {"why", "x"}, {"unlock", "x"}, {"unfreeze", "x"}, {"freeze", "x", "--ttl", "1m"}} {
		_, out, errs := d.Lokt(args...)
		if both := out + errs; strings.ContainsAny(both, "\x1b\x07\u009b\r\u202e") || !strings.Contains(both, "?") {
			t.Errorf("%v writes %q", args, both)
		}
	}
	if out := d.Must("status"); strings.Count(out, "\n") != 2 {
		t.Errorf("one lock in a table of lines %q", out)
	}
}

func TestWaitersThatGaveUpAreNotCounted(t *testing.T) {
	now := time.Now()
	w := func(id string, until time.Time) *lokt.Waiter {
		return &lokt.Waiter{Claim: lokt.Claim{LeaseID: id}, Since: now, Until: until}
	}
	s := lokt.Snapshot{
		Lock: lokt.Lock{
			Queue:   []*lokt.Waiter{w("dead", now.Add(1)), w("late", now.Add(-1)), w("granted", now.Add(1)), w("patient", now.Add(1))},
			Holders: []lokt.Holder{{Claim: lokt.Claim{LeaseID: "granted"}}},
		},
		Now: now, Dead: map[string]bool{"dead": true},
	}
	if got := waiting(s); len(got) != 1 || got[0].LeaseID != "patient" {
		t.Errorf("%d wait: %+v", len(got), got)
	}
	if len(s.Lock.Queue) != 4 {
		t.Error("counting changed the queue")
	}
}

func TestALockOnOfferIsToldFromOneThatIsHeld(t *testing.T) {
	now := time.Now()
	h := lokt.Holder{Claim: lokt.Claim{Owner: lokt.Owner{ID: "ann"}, Wait: 3 * time.Minute}, HeldSince: now.Add(-time.Second)}
	if text := holderText(&app.Backend{}, h, now); strings.Contains(text, "waited") {
		t.Errorf("a hold: %q", text)
	}
	h.Pending = now.Add(2 * time.Second)
	if text := holderText(&app.Backend{}, h, now); !strings.Contains(text, "granted in its turn after it had waited 3m0s, and passed on in 2s") {
		t.Errorf("an offer: %q", text)
	}
}

func TestTheTopLevelOfAViewIsTheFirstLiveHolder(t *testing.T) {
	now := time.Now()
	h := func(id string, expires time.Time) lokt.Holder {
		return lokt.Holder{Claim: lokt.Claim{LeaseID: id, Owner: lokt.Owner{ID: id}, Limit: 3}, AcquiredAt: now, HeldSince: now, ExpiresAt: expires}
	}
	b := &app.Backend{}
	s := lokt.Snapshot{Now: now, Lock: lokt.Lock{Name: "x", Holders: []lokt.Holder{h("old", now.Add(-1)), h("new", time.Time{})}}}
	if v := view(b, s); v.State != StateHeld || v.Owner != "new" || len(v.Holders) != 2 || v.Holders[0].State != lokt.ReasonExpired {
		t.Errorf("%+v", v)
	}
	s.Lock.Holders = s.Lock.Holders[:1]
	if v := view(b, s); v.State != lokt.ReasonExpired || !v.Expired || v.Holders != nil {
		t.Errorf("%+v", v)
	}
}

func TestAgesAloneAreNoChange(t *testing.T) {
	now := time.Now()
	s := lokt.Snapshot{Now: now, Lock: lokt.Lock{Name: "x", Revision: 1, Holders: []lokt.Holder{{
		Claim: lokt.Claim{LeaseID: "1", TTL: time.Minute}, AcquiredAt: now, HeldSince: now, ExpiresAt: now.Add(time.Minute),
	}}}}
	b := &app.Backend{}
	look := func() string { return watched([]lockView{view(b, s)}) }
	first := look()
	s.Now = now.Add(30 * time.Second)
	if look() != first {
		t.Error("the lock merely grew older")
	}
	s.Now = now.Add(2 * time.Minute)
	expired := look()
	if expired == first {
		t.Error("nobody is told that it expired")
	}
	s.Lock.Revision = 2
	if look() == expired {
		t.Error("nobody is told of what was stored")
	}
}

func TestATerminalIsDrawnOver(t *testing.T) {
	var out bytes.Buffer
	a := cmd{&app.App{Streams: app.Streams{Out: &out}}}
	locks := []lockView{{Name: "x", hold: hold{party: party{Owner: "ann"}, State: StateHeld}}}
	for _, first := range []bool{true, false} {
		out.Reset()
		if err := a.redraw(locks, "", true, first); err != nil || !strings.HasPrefix(out.String(), "\x1b[H\x1b[J") || !strings.Contains(out.String(), "ann") {
			t.Errorf("drew %q, %v", out.String(), err)
		}
	}
	out.Reset()
	if err := a.redraw(locks, "x", false, true); err != nil || strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "owner:         ann") {
		t.Errorf("wrote %q, %v", out.String(), err)
	}
}

func TestManyLocksAreAllShownInOrder(t *testing.T) {
	const n = 500 // more than are read by one goroutine
	d := newDesk(t, "ann")
	if err := os.Rename(manyLocks(t, n), filepath.Join(d.Dir, "root")); err != nil {
		t.Fatal(err)
	}
	d.Write("locks/lock-00100.json", strings.Replace(clitest.Newer, `"x"`, `"lock-00100"`, 1))
	d.Write("locks/lock-00200.json", "{")
	d.Record("freezes", lockfile.Record{Name: "lock-00300", Owner: "zoe", TTLSec: 60})
	d.Record("freezes", lockfile.Record{Name: "lock-00300-b", Owner: "zoe", TTLSec: 60})
	var locks []lockView
	if code := d.JSON(&locks, "status"); code != 0 || len(locks) != n+1 {
		t.Fatalf("exit %d, %d locks", code, len(locks))
	}
	if !slices.IsSortedFunc(locks, func(a, b lockView) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("they are not in order")
	}
	for _, v := range locks {
		want := lokt.ReasonDead
		switch i, _ := strconv.Atoi(strings.TrimPrefix(v.Name, "lock-")); {
		case v.Name == "lock-00100":
			want = stateUnreadable
		case v.Name == "lock-00200":
			want = stateCorrupt
		case v.Name == "lock-00300-b":
			want = StateFrozen
		case i%2 == 1:
			want = StateHeld
		}
		if frozen := strings.HasPrefix(v.Name, "lock-00300"); v.State != want || (v.Freeze != nil) != frozen {
			t.Errorf("%s is %s, not %s; frozen: %+v", v.Name, v.State, want, v.Freeze)
		}
	}
	if lines := strings.Count(d.Must("status"), "\n"); lines != n+2 {
		t.Errorf("%d lines in the table", lines)
	}
}
