package machine

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/machine"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Promise S-203.
func TestOnlyTheFirstHolderStartsUnderPressure(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "proc/pressure/io")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	press := func(percent string) {
		if err := os.WriteFile(file+"~", []byte("some avg10="+percent+" avg60=0.00 avg300=0.00 total=1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+"~", file); err != nil {
			t.Fatal(err)
		}
	}
	press("99.00")
	p := &Pressure{text: "50", limit: 50, machine: machine.Machine{Root: root}}
	var told strings.Builder
	a := app.New(nil, app.Streams{Out: io.Discard, Err: &told})
	b := &app.Backend{Service: lokt.NewManager(memstore.New())}
	take := func(who string) *lokt.Lease {
		k, err := lokt.NewLocker(b, lokt.Owner{ID: who}, lokt.LockerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := k.Acquire(t.Context(), "build", lokt.Options{Limit: 3, Strict: true, TTL: lokt.NoTTL, ManualHeartbeat: true})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	hold := func(ctx context.Context, l *lokt.Lease, wait time.Duration) error {
		return p.Hold(ctx, a, b, l, time.Now(), wait, "why")
	}

	first, second, third := take("first"), take("second"), take("third")
	if err := hold(t.Context(), first, 0); err != nil {
		t.Errorf("the first was held back: %v", err)
	}
	var blocked *lokt.BlockedError
	if err := hold(t.Context(), second, 0); !errors.As(err, &blocked) || len(blocked.Holders) != 1 || blocked.Holders[0].Owner.ID != "first" {
		t.Errorf("the second was let in, or told nothing of the first: %v", err)
	}
	if err := hold(t.Context(), third, time.Millisecond); !errors.As(err, &blocked) || len(blocked.Holders) != 2 || blocked.TimedOut == 0 {
		t.Errorf("the third was let in, or told nothing of the others: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := hold(ended, third, -1); !errors.Is(err, context.Canceled) {
		t.Errorf("whose waiting was ended got: %v", err)
	}

	waited := make(chan error, 2)
	go func() { waited <- hold(t.Context(), second, -1) }()
	select {
	case err := <-waited:
		t.Fatalf("the second did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := first.Release(t.Context()); err != nil { // now the second is the first
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("the second was held back when the first had left: %v", err)
	}
	if !strings.Contains(told.String(), "held back: io pressure is 99 %, above 50 %, and 1 had \"build\" before") {
		t.Errorf("who waits was told: %s", &told)
	}
	press("50.00")
	if err := hold(t.Context(), third, 0); err != nil {
		t.Errorf("the third was held back without pressure: %v", err)
	}
}
