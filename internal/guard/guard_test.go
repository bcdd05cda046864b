//go:build unix

package guard

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/store/memstore"
)

// desk is a store of locks, somebody who takes them, and the signals of the test process.
type desk struct {
	t       *testing.T
	m       *lokt.Manager
	k       *lokt.Locker
	signals *Signals
}

func newDesk(t *testing.T) desk {
	t.Helper()
	m := lokt.NewManager(memstore.New())
	k, err := lokt.NewLocker(m, lokt.Owner{ID: "me"}, lokt.LockerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // which this process may have been started to ignore, as nohup does
	s := Notify()
	t.Cleanup(s.Stop)
	return desk{t, m, k, s}
}

func (d desk) lease(o lokt.Options) lokt.Leases {
	d.t.Helper()
	l, err := d.k.Acquire(context.Background(), "x", o)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = l.Release(context.Background()) }) // it may be lost
	return lokt.Leases{l}
}

// run runs a shell script under the leases.
func (d desk) run(c Command, leases lokt.Leases, script string) (code int, err error) {
	d.t.Helper()
	path, err := Find("sh")
	if err != nil {
		d.t.Fatal(err)
	}
	c.Path, c.Args, c.Env = path, []string{"sh", "-c", script}, os.Environ()
	return Run(c, leases, d.signals)
}

func TestProgramsThatCannotRunHaveTheCodesOfShells(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for program, code := range map[string]int{"no-such-program": 127, dir + "/none": 127, plain: 126, dir: 126} {
		_, err := Find(program)
		var e *NotFoundError
		if !errors.As(err, &e) || e.Code != code || e.Program != program {
			t.Errorf("%s: %v, want code %d", program, err, code)
		}
	}
	d := newDesk(t)
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte{0, 1}, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Run(Command{Path: broken, Args: []string{broken}}, nil, d.signals)
	var e *NotFoundError
	if !errors.As(err, &e) || e.Code != ExitNotExecutable {
		t.Errorf("what the system cannot execute: %v", err)
	}
}

func TestTheExitCodeIsTheCommands(t *testing.T) {
	d := newDesk(t)
	for script, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -KILL $$": 137, "kill -TERM $$": 143} {
		started := 0
		code, err := d.run(Command{Started: func(pid int) { started = pid }}, nil, script)
		if err != nil || code != want || started == 0 {
			t.Errorf("%s: code %d, %v, started %d", script, code, err, started)
		}
	}
}

func TestASignalFromBeforeTheStartKeepsTheCommandFromStarting(t *testing.T) {
	d := newDesk(t)
	d.signals.Ready()
	ctx, stop := d.signals.Context(context.Background())
	stop() // nobody waits any more, and the command does not run yet
	interrupt(t, d.signals)
	code, err := d.run(Command{Started: func(int) { t.Error("it was started") }}, nil, "exit 0")
	if err != nil || code != 128+int(syscall.SIGHUP) || ctx.Err() != nil {
		t.Errorf("code %d, %v; context: %v", code, err, ctx.Err())
	}
}

// interrupt sends this process a signal and waits until it is there.
func interrupt(t *testing.T, s *Signals) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); len(s.c) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the signal did not come")
		}
	}
}

func TestASignalEndsTheContextOfWhoWaits(t *testing.T) {
	d := newDesk(t)
	ctx, stop := d.signals.Context(context.Background())
	defer stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	var e *SignalError
	if !errors.As(context.Cause(ctx), &e) || e.Signal != syscall.SIGHUP || e.Code() != 129 {
		t.Errorf("cause: %v", context.Cause(ctx))
	}
}

// longestPause returns how long this machine stood still at most, from now until what it returns is called.
func longestPause() (end func() time.Duration) {
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		most, last := time.Duration(0), time.Now()
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-tick.C:
			case <-stop:
				tick.Stop()
				longest <- max(most, time.Since(last))
				return
			}
			now := time.Now()
			most, last = max(most, now.Sub(last)), now
		}
	}()
	return func() time.Duration { close(stop); return <-longest }
}

// Promise S-18. The lease is never renewed here, so its end comes for sure.
func TestACommandIsStoppedBeforeItsLeaseEnds(t *testing.T) {
	scripts := map[string]string{
		"obeys":        "while :; do sleep 0.01; done",
		"ignores TERM": "trap '' TERM; while :; do sleep 0.01; done",
	}
	if runtime.GOOS == "linux" { // elsewhere what detaches itself cannot be found
		scripts["ignores TERM"] = "trap '' TERM; (setsid sh -c 'while :; do sleep 0.01; done' &) ; while :; do sleep 0.01; done"
		scripts["obeys, but what it started does not"] = "(trap '' TERM; setsid sh -c 'while :; do sleep 0.01; done' &) ; while :; do sleep 0.01; done"
	}
	for what, script := range scripts {
		t.Run(what, func(t *testing.T) {
			const margin = 1500 * time.Millisecond // for a machine that is busy
			var late time.Duration
			var first string
			for range 5 { // unless it stands still for nearly as long: then nothing can be told of it
				d := newDesk(t)
				leases := d.lease(lokt.Options{TTL: 8 * time.Second, Margin: margin, ManualHeartbeat: true})
				expires := leases[0].Holder().ExpiresAt
				told := make(chan string, 10)
				pause := longestPause()
				code, err := d.run(Command{
					Stop: true, StopGrace: 3 * time.Second,
					Ending: func(*lokt.Lease) { told <- "ending" },
					Lost:   func(*lokt.Lease, error) *lokt.Lease { told <- "lost"; return nil },
				}, leases, script)
				if err != nil || code != ExitLost {
					t.Errorf("code %d, %v", code, err)
				}
				late, first = time.Since(expires), <-told
				if pause() < margin/2 || late < 0 && first == "ending" {
					break
				}
			}
			if late >= 0 {
				t.Errorf("it ended %v too late", late)
			}
			if first != "ending" {
				t.Errorf("told first: %s", first)
			}
			if left := process.Descendants(os.Getpid()); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestACommandIsStoppedForALeaseThatWasTakenAway(t *testing.T) {
	for script, least := range map[string]time.Duration{
		"while :; do sleep 0.01; done":               0,
		"trap '' TERM; while :; do sleep 0.01; done": 300 * time.Millisecond,
	} {
		d := newDesk(t)
		leases := d.lease(lokt.Options{TTL: 20 * time.Second, Interval: 50 * time.Millisecond})
		var took time.Time
		var reasons []error
		code, err := d.run(Command{
			Stop: true, StopGrace: 300 * time.Millisecond,
			Started: func(int) {
				if _, err := d.m.Release(context.Background(), lokt.Target{Name: "x", Force: true}); err != nil {
					t.Error(err)
				}
				took = time.Now()
			},
			Lost: func(_ *lokt.Lease, err error) *lokt.Lease { reasons = append(reasons, err); return nil },
		}, leases, script)
		if err != nil || code != ExitLost {
			t.Errorf("code %d, %v", code, err)
		}
		if d := time.Since(took); d < least || d > 15*time.Second {
			t.Errorf("stopped %v after the lease was taken away", d)
		}
		if len(reasons) != 1 || !errors.Is(reasons[0], lokt.ErrLost) {
			t.Errorf("told: %v", reasons)
		}
	}
}

// over is a leash that has ended.
type over struct{}

func (over) Done() <-chan struct{}    { return nil }
func (over) Remaining() time.Duration { return 0 }

// Promise S-292.
func TestACommandDoesNotBeginAfterTheEndOfItsLease(t *testing.T) {
	for what, c := range map[string]Command{"warn": {}, "stop": {Stop: true, StopGrace: time.Second}, "leash": {StopGrace: time.Second, Leash: over{}}} {
		d := newDesk(t)
		c.Started = func(int) { t.Errorf("%s: it was started", what) }
		c.Lost = func(*lokt.Lease, error) *lokt.Lease { return nil }
		var leases lokt.Leases
		if c.Leash == nil {
			leases = d.lease(lokt.Options{TTL: 20 * time.Second, ManualHeartbeat: true})
			if _, err := d.m.Release(context.Background(), lokt.Target{Name: "x", Force: true}); err != nil {
				t.Fatal(err)
			}
			if err := leases[0].Renew(context.Background()); !errors.Is(err, lokt.ErrLost) {
				t.Fatalf("%s: a renewal of what was taken away: %v", what, err)
			}
		}
		if code, err := d.run(c, leases, "exit 0"); err != nil || code != ExitLost {
			t.Errorf("%s: code %d, %v", what, code, err)
		}
	}
}

func TestACommandIsNotKilledForTheOneBeforeIt(t *testing.T) {
	for range 20 {
		d := newDesk(t)
		leases := d.lease(lokt.Options{TTL: 20 * time.Second, Interval: 20 * time.Millisecond})
		code, err := d.run(Command{
			Stop: true, StopGrace: time.Millisecond,
			Started: func(int) {
				if _, err := d.m.Release(context.Background(), lokt.Target{Name: "x", Force: true}); err != nil {
					t.Error(err)
				}
			},
			Lost: func(*lokt.Lease, error) *lokt.Lease { return nil },
		}, leases, "trap '' TERM; while :; do sleep 0.01; done")
		if err != nil || code != ExitLost {
			t.Fatalf("the one before: code %d, %v", code, err)
		}
		if code, err := d.run(Command{}, nil, "sleep 0.02; exit 3"); err != nil || code != 3 {
			t.Fatalf("code %d, %v", code, err)
		}
	}
}

func TestALeaseInPlaceOfALostOneIsWatchedToo(t *testing.T) {
	d := newDesk(t)
	o := lokt.Options{TTL: 4 * time.Second, ManualHeartbeat: true}
	leases := d.lease(o)
	var lost []*lokt.Lease
	gone := filepath.Join(t.TempDir(), "gone")
	code, err := d.run(Command{
		Lost: func(l *lokt.Lease, err error) *lokt.Lease {
			if !errors.Is(err, lokt.ErrLost) {
				t.Errorf("cause: %v", err)
			}
			if lost = append(lost, l); len(lost) == 2 {
				if err := os.WriteFile(gone, nil, 0o600); err != nil {
					t.Error(err)
				}
				return nil
			}
			again, err := d.k.Reclaim(context.Background(), l)
			if err != nil {
				t.Error(err)
			}
			return again
		},
	}, leases, "until [ -e "+gone+" ]; do sleep 0.01; done; exit 7")
	if err != nil || code != 7 || len(lost) != 2 || lost[0] != leases[0] || lost[1] == leases[0] {
		t.Errorf("code %d, %v, lost %v", code, err, lost)
	}
}

func TestACommandWhoseLeaseLastsHearsNothing(t *testing.T) {
	d := newDesk(t)
	leases := d.lease(lokt.Options{TTL: 20 * time.Second})
	code, err := d.run(Command{
		Stop: true, StopGrace: 5 * time.Second,
		Ending: func(*lokt.Lease) { t.Error("told of an end") },
		Lost:   func(*lokt.Lease, error) *lokt.Lease { t.Error("told of a loss"); return nil },
	}, leases, "exit 4")
	if err != nil || code != 4 || leases.Err() != nil {
		t.Errorf("code %d, %v; leases: %v", code, err, leases.Err())
	}
}
