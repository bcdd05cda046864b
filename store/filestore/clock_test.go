//go:build unix

package filestore

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/lockfile"
)

// hostClock is the clocks of a host, which tests set.
type hostClock struct {
	mu  sync.Mutex
	now lockfile.Now
}

func newHostClock() *hostClock {
	return &hostClock{now: lockfile.Now{
		Wall: time.Date(2026, 2, 1, 12, 0, 0, 0, time.UTC), Monotonic: time.Hour, BootID: "boot", TimeNS: "time",
	}}
}

func (c *hostClock) read() lockfile.Now {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// pass lets time pass.
func (c *hostClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Wall, c.now.Monotonic = c.now.Wall.Add(d), c.now.Monotonic+d
}

// set changes the clocks without time passing.
func (c *hostClock) set(change func(now *lockfile.Now)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.now)
}

func step(d time.Duration) func(now *lockfile.Now) {
	return func(now *lockfile.Now) { now.Wall = now.Wall.Add(d) }
}

// Promise S-28.
func TestAStepOfTheWallClockNeitherEndsNorProlongsAnything(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Hour, -time.Hour, time.Minute, -time.Minute, 400 * 24 * time.Hour} {
		host := newHostClock()
		root := memoryPlace(t)
		s := open(t, root, Options{clock: host.read})
		a := lokt.NewManager(s)
		b := lokt.NewManager(open(t, root, Options{clock: host.read}))
		owner := func(id string) lokt.Owner { return lokt.Owner{ID: id, Host: "elsewhere"} }
		claim := func(name, id string) lokt.Claim {
			return lokt.Claim{Name: name, LeaseID: id, Owner: owner(id), TTL: time.Minute, Attended: true}
		}
		if _, err := a.Acquire(t.Context(), claim("x", "a")); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Freeze(t.Context(), "y", lokt.Freeze{Owner: owner("a"), TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		waiter := lokt.Waiter{Claim: claim("x", "w")}
		if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
			waiter.Since, waiter.Until = snap.Now, snap.Now.Add(time.Minute)
			snap.Lock.Queue = append(snap.Lock.Queue, &waiter)
			return lokt.Change{Lock: snap.Lock}
		}); err != nil {
			t.Fatal(err)
		}
		host.pass(30 * time.Second)
		host.set(step(by))
		for _, m := range []*lokt.Manager{a, b} {
			snap, err := m.Get(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			h := snap.Lock.Holders[0]
			if left := h.ExpiresAt.Sub(snap.Now); left != 30*time.Second || snap.Now.Sub(h.AcquiredAt) != 30*time.Second {
				t.Errorf("after a step of %v: acquired %v ago, %v left", by, snap.Now.Sub(h.AcquiredAt), left)
			}
			if w := snap.Lock.Queue[0]; w.Until.Sub(snap.Now) != 30*time.Second || snap.Now.Sub(w.Since) != 30*time.Second {
				t.Errorf("after a step of %v a waiter leaves after %v", by, w.Until.Sub(snap.Now))
			}
		}
		if _, err := b.Acquire(t.Context(), claim("x", "b")); !errors.Is(err, lokt.ErrHeld) {
			t.Errorf("after a step of %v: %v", by, err)
		}
		if _, err := b.Acquire(t.Context(), claim("y", "b")); !errors.Is(err, lokt.ErrFrozen) {
			t.Errorf("after a step of %v: %v", by, err)
		}
		// A renewal after the step counts from then, whatever steps follow.
		if _, err := a.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: "a"}); err != nil {
			t.Errorf("after a step of %v: renew: %v", by, err)
		}
		host.set(step(-2 * by))
		host.pass(29 * time.Second)
		if h, err := b.Get(t.Context(), "x"); err != nil || len(h.Live()) != 1 || h.Live()[0].ExpiresAt.Sub(h.Now) != 31*time.Second {
			t.Errorf("after another step of %v: %+v, %v", -2*by, h.Live(), err)
		}
		if _, err := b.Acquire(t.Context(), claim("y", "b")); !errors.Is(err, lokt.ErrFrozen) {
			t.Errorf("one second before the end of the freeze: %v", err)
		}
		host.pass(1*time.Second + time.Millisecond)
		if _, err := b.Acquire(t.Context(), claim("y", "b")); err != nil {
			t.Errorf("after the freeze: %v", err)
		}
		host.pass(30*time.Second - time.Millisecond)
		if snap, err := b.Get(t.Context(), "x"); err != nil || len(snap.Live()) != 1 {
			t.Errorf("at the very end: held by %+v, %v", snap.Live(), err)
		}
		host.pass(time.Millisecond)
		if snap, err := b.Get(t.Context(), "x"); err != nil || len(snap.Live()) != 0 {
			t.Errorf("when it is over: held by %+v, %v", snap.Live(), err)
		}
	}
}

// Promise S-29.
func TestAcrossBootsAndTimeNamespacesTheWallClockDecides(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(now *lockfile.Now){
		"another boot":           func(now *lockfile.Now) { now.BootID, now.Monotonic = "next boot", time.Second },
		"another time namespace": func(now *lockfile.Now) { now.TimeNS, now.Monotonic = "other", now.Monotonic+1000*time.Hour },
		"no monotonic clock":     func(now *lockfile.Now) { now.BootID, now.TimeNS, now.Monotonic = "", "", 0 },
	} {
		for _, over := range []bool{false, true} {
			host := newHostClock()
			m := lokt.NewManager(open(t, place(t), Options{clock: host.read}))
			c := by("a")
			c.TTL = time.Minute
			if _, err := m.Acquire(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			host.set(change)
			if over {
				host.set(step(time.Minute + time.Nanosecond))
			} else {
				host.set(step(time.Minute))
			}
			_, err := m.Acquire(t.Context(), by("b"))
			if over && err != nil || !over && !errors.Is(err, lokt.ErrHeld) {
				t.Errorf("%s, over by the wall clock %v: %v", what, over, err)
			}
		}
	}
}

func TestTheStoreReadsTheClocksOfTheHost(t *testing.T) {
	t.Parallel()
	read := systemClock()
	for range 3 {
		before, ok := process.Monotonic()
		now := read()
		after, _ := process.Monotonic()
		if off := time.Since(now.Wall); off < 0 || off > time.Minute {
			t.Errorf("the wall clock is %v off", off)
		}
		const slack = 100 * time.Microsecond // the clocks are tied to each other with that
		if ok && (now.Monotonic < before-slack || now.Monotonic > after+slack) {
			t.Errorf("%v is not between %v and %v", now.Monotonic, before, after)
		}
		if ok && now.BootID != process.BootID() {
			t.Errorf("the boot is %q", now.BootID)
		}
	}
}

// Promises S-4, S-5.
func TestAfterARestartOfTheHostTokensGoOnBehindThoseReserved(t *testing.T) {
	t.Parallel()
	s := open(t, place(t), Options{})
	m := lokt.NewManager(s)
	path := s.guardPath(shardOf("x"))
	grant := func() uint64 {
		t.Helper()
		h, err := m.Acquire(t.Context(), by("a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		return h.Token
	}
	first := grant()
	if second := grant(); second != first+1 {
		t.Errorf("token %d follows %d", second, first)
	}
	last := first + 1
	for range 3 {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(string(data), "\n")
		_, file, token, ceiling := parseHeaderLine(line)
		if token != last || ceiling <= last {
			t.Fatalf("%q: want token %d, and some reserved", line, last)
		}
		// What was not flushed is lost with the power: here, all tokens since the reservation.
		reboot := make([]byte, headerSize)
		copy(reboot, headerLine("an-earlier-boot", file, ceiling-tokenBlock, ceiling)+"\n")
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(reboot, 0)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		if snap, err := s.View(t.Context(), "x"); err != nil || snap.Lock.Token != ceiling {
			t.Errorf("seen with token %d, %v: up to %d may have been issued", snap.Lock.Token, err, ceiling)
		}
		if last = grant(); last != ceiling+1 {
			t.Errorf("token %d follows those up to %d", last, ceiling)
		}
	}
}

// Promise S-4.
func TestTokensThatNobodyCouldCountOnAreNotReached(t *testing.T) {
	t.Parallel()
	s := open(t, place(t), Options{})
	m := lokt.NewManager(s)
	put(t, s, dirLocks, []byte(`{"name":"x","owner":"o","token":18446744073709551615,"acquired_ts":"2026-01-01T00:00:00Z"}`))
	h, err := m.Acquire(t.Context(), by("a"))
	if err != nil || h.Token == 0 || h.Token > 1<<62 {
		t.Errorf("token %d, %v", h.Token, err)
	}
}
