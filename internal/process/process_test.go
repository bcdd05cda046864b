package process

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/lokt-dev/lokt"
)

func TestSelfIsAlive(t *testing.T) {
	p := Self()
	if p.PID != os.Getpid() || Check(p, true) != Alive {
		t.Fatalf("Check(%+v) = %v", p, Check(p, true))
	}
	if q, err := Lookup(os.Getpid()); err != nil || q != p {
		t.Fatalf("Lookup = %+v, %v; Self = %+v", q, err, p)
	}
}

// mostPID is the highest that a process may have. It is no constant: where an int has 32 bits, one more is less than zero.
var mostPID = 1<<31 - 1

func TestLookupRefusesWhatIsNoProcess(t *testing.T) {
	for pid, want := range map[int]error{0: ErrInvalidPID, -1: ErrInvalidPID, mostPID + 1: ErrInvalidPID, mostPID: ErrNoProcess} {
		if p, err := Lookup(pid); !errors.Is(err, want) || p != (lokt.Process{}) {
			t.Errorf("Lookup(%d) = %+v, %v, want %v", pid, p, err, want)
		}
	}
}

func TestSessionHasTheDocumentedForm(t *testing.T) {
	if s := Session(); !regexp.MustCompile(`^session-\d+-[0-9a-f]{8}$`).MatchString(s) || s != Session() {
		t.Errorf("Session() = %q", s)
	}
}

// Promises S-33, S-34, S-36.
func TestDeathIsClaimedOnlyIfItIsCertain(t *testing.T) {
	us := kernel{boot: "boot", namespace: "ns"}
	world := map[int]sight{
		10: {exists: true, start: 100},
		11: {exists: true, start: 100, zombie: true},
		12: {exists: true}, // hidden
	}
	full := func(pid int, start int64) lokt.Process {
		return lokt.Process{PID: pid, Start: start, Boot: "boot", Namespace: "ns"}
	}
	withChild := func(p lokt.Process, pid int, start int64) lokt.Process {
		p.Child, p.ChildStart = pid, start
		return p
	}
	for _, test := range []struct {
		name      string
		p         lokt.Process
		here      kernel
		same      State // recorded on a host of this name
		elsewhere State // recorded on a host of another name
	}{
		{"it runs", full(10, 100), us, Alive, Alive},
		{"its ID belongs to a later process", full(10, 99), us, Dead, Dead},
		{"it is gone", full(9, 100), us, Dead, Dead},
		{"it is a zombie", full(11, 100), us, Dead, Dead},
		{"it is hidden", full(12, 100), us, Unknown, Unknown},
		{"it is hidden and has no start time", full(12, 0), us, Alive, Alive},
		{"it has no start time", full(10, 0), us, Alive, Alive},
		{"a zombie without start time", full(11, 0), us, Dead, Dead},

		{"another boot", lokt.Process{PID: 10, Start: 100, Boot: "old", Namespace: "ns"}, us, Dead, Unknown},
		{"another boot and namespace", lokt.Process{PID: 10, Start: 100, Boot: "old", Namespace: "other"}, us, Dead, Unknown},
		{"another namespace", lokt.Process{PID: 10, Start: 99, Boot: "boot", Namespace: "other"}, us, Unknown, Unknown},
		{"another namespace, and gone here", lokt.Process{PID: 9, Boot: "boot", Namespace: "other"}, us, Unknown, Unknown},
		{"no namespace", lokt.Process{PID: 9, Start: 100, Boot: "boot"}, us, Dead, Unknown},
		{"no boot", lokt.Process{PID: 9, Start: 100, Namespace: "ns"}, us, Dead, Unknown},

		{"an older record that runs", lokt.Process{PID: 10, Start: 100}, us, Alive, Unknown},
		{"an older record that is gone", lokt.Process{PID: 9, Start: 100}, us, Dead, Unknown},
		{"an older record whose ID is used again", lokt.Process{PID: 10, Start: 99}, us, Dead, Unknown},

		{"our boot is not known", full(10, 100), kernel{namespace: "ns"}, Alive, Unknown},
		{"our boot is not known, and it is gone", full(9, 100), kernel{namespace: "ns"}, Dead, Unknown},
		{"our namespace is not known", full(9, 100), kernel{boot: "boot"}, Unknown, Unknown},
		{"nothing is known of us", lokt.Process{PID: 9, Start: 100}, kernel{}, Dead, Unknown},

		{"no process ID", full(0, 100), us, Unknown, Unknown},
		{"a negative process ID", full(-1, 100), us, Unknown, Unknown},
		{"a process ID beyond all", full(mostPID+1, 100), us, Unknown, Unknown},
		{"nothing", lokt.Process{}, us, Unknown, Unknown},

		{"gone, its child runs", withChild(full(9, 100), 10, 100), us, Alive, Alive},
		{"gone, its child is hidden", withChild(full(9, 100), 12, 100), us, Unknown, Unknown},
		{"gone, and so is its child", withChild(full(9, 100), 10, 99), us, Dead, Dead},
		{"hidden, its child runs", withChild(full(12, 100), 10, 100), us, Alive, Alive},
		{"hidden, its child is gone", withChild(full(12, 100), 9, 100), us, Unknown, Unknown},
		{"gone, with a child that cannot be", withChild(full(9, 100), -4, 0), us, Unknown, Unknown},
		{"runs, its child is gone", withChild(full(10, 100), 9, 100), us, Alive, Alive},
		{"another boot, with a child", lokt.Process{PID: 9, Boot: "old", Child: 10}, us, Dead, Unknown},
	} {
		inspect := func(pid int) sight { return world[pid] }
		if got := judge(test.p, true, test.here, inspect); got != test.same {
			t.Errorf("%s: on this host %v, want %v", test.name, got, test.same)
		}
		if got := judge(test.p, false, test.here, inspect); got != test.elsewhere {
			t.Errorf("%s: on another host %v, want %v", test.name, got, test.elsewhere)
		}
	}
}

func TestStatesHaveNames(t *testing.T) {
	for s, want := range map[State]string{Unknown: "unknown", Alive: "alive", Dead: "dead", 7: "unknown"} {
		if s.String() != want {
			t.Errorf("State(%d) = %q, want %q", s, s, want)
		}
	}
}

func TestDescendantsAreFoundThroughTheDeadAndListedParentsFirst(t *testing.T) {
	list := []node{
		{pid: 1, parent: 0}, {pid: 2, parent: 0}, {pid: 10, parent: 1}, {pid: 5, parent: 10}, {pid: 6, parent: 10, ended: true},
		{pid: 7, parent: 6}, {pid: 11, parent: 1}, {pid: 12, parent: 11},
	}
	found, torn := below(10, list)
	if got := pids(found); !slices.Equal(got, []int{5, 7}) || torn {
		t.Errorf("below(10) = %v, torn %v", got, torn)
	}
	if found, _ = below(12, list); len(found) > 0 {
		t.Errorf("below(12) = %v", found)
	}
	if _, torn = below(1, append(list, node{pid: 20, parent: 19})); !torn {
		t.Error("a list without the parent of one of them is taken for complete")
	}
	if found, _ = below(3, []node{{pid: 3, parent: 4}, {pid: 4, parent: 3}}); len(found) != 1 {
		t.Errorf("circle: %v", found)
	}
}
