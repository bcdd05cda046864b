package process

import (
	"errors"
	"os"
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
	t.Logf("%+v %s", p, Session())
}

func TestLookupRefusesWhatIsNoProcess(t *testing.T) {
	for pid, want := range map[int]error{0: ErrInvalidPID, -1: ErrInvalidPID, 1 << 40: ErrInvalidPID, 1<<31 - 1: ErrNoProcess} {
		if p, err := Lookup(pid); !errors.Is(err, want) || p != (lokt.Process{}) {
			t.Errorf("Lookup(%d) = %+v, %v, want %v", pid, p, err, want)
		}
	}
}
