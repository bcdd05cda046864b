package wait

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/store/memstore"
)

// zoeHoldsAndBobWaits returns a lock in a bubble, and what makes claims to it.
func zoeHoldsAndBobWaits(t *testing.T) (*lokt.Manager, func(id string, wait time.Duration) lokt.Claim) {
	t.Helper()
	m := lokt.NewManager(memstore.New())
	claim := func(id string, wait time.Duration) lokt.Claim {
		return lokt.Claim{Name: "x", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: id}, Wait: wait}
	}
	if _, err := m.Acquire(t.Context(), claim("zoe", 0)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = m.Acquire(t.Context(), claim("bob", time.Hour)) }()
	synctest.Wait()
	return m, claim
}

func TestAClaimThatWaitsSaysForWhatAtOnceAndEvery30Seconds(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		m, claim := zoeHoldsAndBobWaits(t)
		var said bytes.Buffer
		a := &app.App{Streams: app.Streams{Err: &said, Getenv: func(name string) string { return map[string]string{"LOKT_AGENT_ID": "a-1"}[name] }}, Words: []string{"lock", "x"}}
		f := &Flags{Wait: true}
		waits := f.Service(a, &app.Backend{Service: m}, func(e *lokt.BlockedError) string { return "it is held by " + e.Holders[0].Owner.ID })
		if _, err := waits.Acquire(t.Context(), claim("ann", 95*time.Second)); err == nil {
			t.Error("it was granted")
		}
		id, line := f.Ticket()
		if id == "" || line != "lokt wait --ticket "+id {
			t.Errorf("the ticket is %q, to go on with %q", id, line)
		}
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		if len(lines) != 4 {
			t.Errorf("in 95 s it said %q", lines)
		}
		for _, said := range lines {
			if !strings.HasPrefix(said, `lokt: waiting, 2nd in the queue: it is held by zoe`) || !strings.HasSuffix(said, line) {
				t.Errorf("it said %q", said)
			}
		}
	})
}

func TestNoPlaceIsToldBeforeAServerHasSaidThatItQueuesTheClaim(t *testing.T) {
	far, err := httpapi.New("http://127.0.0.1:1", httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = far.Close() }()
	synctest.Test(t, func(t *testing.T) {
		m, claim := zoeHoldsAndBobWaits(t)
		var said bytes.Buffer
		a := &app.App{Streams: app.Streams{Err: &said, Getenv: func(string) string { return "" }}}
		waits := (&Flags{}).Service(a, &app.Backend{Service: m, Far: far}, func(*lokt.BlockedError) string { return "it is held" }).(*waiting)
		waits.history = []time.Duration{}
		if _, err := waits.Acquire(t.Context(), claim("ann", 35*time.Second)); err == nil {
			t.Error("it was granted")
		}
		if said.String() != "lokt: waiting, would be 2nd in the queue: it is held\nlokt: waiting, 2nd in the queue: it is held\n" {
			t.Errorf("it said %q", said.String())
		}
	})
}

func TestATicketThatCannotBeLockedIsNotSaidToBeAnothers(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	ticket, err := newTicket(&app.App{Streams: app.Streams{Getenv: func(string) string { return "" }}, Words: []string{"lock", "x"}})
	if err != nil || !ticket.save() {
		t.Fatalf("no ticket: %v", err)
	}
	if err := errors.Join(ticket.turn.Close(), os.Remove(ticket.turn.Path()), os.Mkdir(ticket.turn.Path(), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := take(filepath.Base(ticket.file)); err == nil || strings.Contains(err.Error(), "still waits") || !errors.Is(err, syscall.EISDIR) {
		t.Errorf("it is told %v", err)
	}
}

// busy is a store that is told nothing new for a while, as files are when too many ask at once.
type busy struct {
	lokt.Store
	until time.Time
}

func (b busy) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if time.Now().Before(b.until) {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", lokt.ErrUnavailable, ctx.Err())
	}
	return b.Store.Update(ctx, name, change)
}

func TestAClaimThatWaitsOnBusyFilesAsksUntilItsTimeIsOver(t *testing.T) { // Promise S-273.
	for _, test := range []struct {
		busy, wait time.Duration
		granted    bool
		over       time.Duration
	}{{time.Minute, time.Hour, true, 70 * time.Second}, {time.Hour, time.Minute, false, 80 * time.Second}, {time.Minute, 0, false, 10 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			var said bytes.Buffer
			began := time.Now()
			m := lokt.NewManager(busy{memstore.New(), began.Add(test.busy)})
			a := &app.App{Streams: app.Streams{Err: &said, Getenv: func(string) string { return "" }}}
			waits := (&Flags{}).Service(a, &app.Backend{Service: m}, func(*lokt.BlockedError) string { return "" })
			_, err := waits.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "ann"}, Wait: test.wait})
			if test.granted != (err == nil) || err != nil && !errors.Is(err, lokt.ErrUnavailable) || time.Since(began) > test.over {
				t.Errorf("%+v: %v after %v", test, err, time.Since(began))
			}
			if want := int(min(test.wait, 1)); strings.Count(said.String(), "it has not said in time that the claim is on record; trying again") != want {
				t.Errorf("%+v: it said %q", test, said.String())
			}
		})
	}
}

// gone is a service that does not answer for some time after its first answer.
type gone struct {
	lokt.Service
	from, until time.Time
}

func (g gone) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	if now := time.Now(); now.After(g.from) && now.Before(g.until) {
		return lokt.Snapshot{}, lokt.ErrUnavailable
	}
	return g.Service.Get(ctx, name)
}

// Promise S-267.
func TestAWaitForLocksRidesOutAServerThatIsAway(t *testing.T) {
	guard.Notify().Stop() // which begins what does not end
	for away, want := range map[time.Duration]error{20 * time.Second: nil, time.Minute: lokt.ErrUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			m, _ := zoeHoldsAndBobWaits(t)
			begun := time.Now()
			var said bytes.Buffer
			a := &app.App{Streams: app.Streams{Out: &said, Err: &said, Getenv: func(string) string { return "" }}}
			var ends sync.WaitGroup
			defer ends.Wait()
			ends.Go(func() {
				for _, who := range []string{"zoe", "bob"} {
					time.Sleep(5 * time.Second)
					_, _ = m.Release(t.Context(), lokt.Target{Name: "x", Owner: lokt.Owner{ID: who}})
				}
			})
			b := &app.Backend{Service: gone{m, begun.Add(time.Second), begun.Add(away)}}
			err := until(a, b, []string{"x"}, false, time.Hour)
			if took := time.Since(begun); !errors.Is(err, want) || took > away+lokt.WaitRefresh+time.Second {
				t.Errorf("away for %v, it said %q, %v after %v", away, said.String(), err, took)
			}
			b = &app.Backend{Service: gone{m, begun, begun.Add(time.Hour)}}
			if again := time.Now(); !errors.Is(until(a, b, []string{"x"}, false, time.Hour), lokt.ErrUnavailable) || time.Since(again) > time.Second {
				t.Errorf("it has gone on without a first answer")
			}
		})
	}
}

// slow is a service that answers once at once, and then not in time.
type slow struct {
	lokt.Service
	answered *bool
}

func (s slow) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	if *s.answered {
		<-ctx.Done()
		return lokt.Snapshot{}, fmt.Errorf("%w: %w", lokt.ErrUnavailable, context.Cause(ctx))
	}
	*s.answered = true
	return s.Service.Get(ctx, name)
}

// Promise S-222.
func TestAWaitThatEndsWhileItAsksSaysWhatIsNotFree(t *testing.T) {
	guard.Notify().Stop() // which begins what does not end
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		if _, err := m.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "ann"}}); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		a := &app.App{Streams: app.Streams{Out: &out, Getenv: func(string) string { return "" }}}
		err := until(a, &app.Backend{Service: slow{m, new(bool)}}, []string{"x"}, false, 15*time.Second)
		if errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(out.String(), "not free: x") {
			t.Errorf("it said %q, %v", out.String(), err)
		}
		answered := true // before
		err = until(a, &app.Backend{Service: slow{m, &answered}}, []string{"x"}, false, 15*time.Second)
		if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "no answer within 15s") {
			t.Errorf("without an answer it says %v", err)
		}
	})
}

// tardy is a service whose first grant is over when it is told of. It keeps the lease IDs of claims and releases.
type tardy struct {
	lokt.Service
	claimed, released []string
}

func (s *tardy) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	h, err := s.Service.Acquire(ctx, c)
	if s.claimed = append(s.claimed, c.LeaseID); len(s.claimed) == 1 {
		time.Sleep(2 * c.TTL)
	}
	return h, err
}

func (s *tardy) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	s.released = append(s.released, t.LeaseID)
	return s.Service.Release(ctx, t)
}

// Promise S-1.
func TestAClaimWithATicketIsNotMadeAgainUnderALeaseThatWasReleased(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		s := &tardy{Service: lokt.NewManager(memstore.New())}
		a := &app.App{Streams: app.Streams{Err: &bytes.Buffer{}, Getenv: func(name string) string { return map[string]string{TicketVar: anew}[name] }}, Words: []string{"guard", "x"}}
		waits := (&Flags{Wait: true}).Service(a, &app.Backend{Service: s}, func(*lokt.BlockedError) string { return "it is held" })
		k, err := lokt.NewLocker(waits, lokt.Owner{ID: "ann"}, lokt.LockerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := k.Acquire(t.Context(), "x", lokt.Options{TTL: 10 * time.Second, Wait: time.Hour})
		if err != nil || len(s.claimed) != 2 || len(s.released) != 1 || l.ID() == s.released[0] {
			t.Errorf("claimed were %v, released %v, %v", s.claimed, s.released, err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
