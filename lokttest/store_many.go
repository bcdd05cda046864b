package lokttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// together runs n goroutines that start at the same moment, and waits for them.
func together(n int, run func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			run(i)
		})
	}
	close(start)
	wg.Wait()
}

func updatesLoseNothing(t *testing.T, s lokt.Store) {
	const goroutines, rounds = 16, 10
	var mu sync.Mutex
	tokens := map[uint64]int{}
	together(goroutines, func(i int) {
		for round := range rounds {
			var got uint64
			lease := id(i*rounds + round)
			if err := s.Update(within(t), "x", func(snap lokt.Snapshot) lokt.Change {
				held(lease)(&snap.Lock, snap.Now)
				got = snap.Lock.Token
				return lokt.Change{Lock: snap.Lock}
			}); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			tokens[got]++
			mu.Unlock()
		}
	})
	l := view(t, s, "x").Lock
	if len(l.Holders) != goroutines*rounds || len(tokens) != goroutines*rounds || l.Token != l.Holders[len(l.Holders)-1].Token {
		t.Errorf("after %d updates the token is %d, there are %d holders, and %d different tokens were given",
			goroutines*rounds, l.Token, len(l.Holders), len(tokens))
	}
	for i, h := range l.Holders[1:] {
		if h.Token != l.Holders[i].Token+1 {
			t.Fatalf("holder %d has token %d, and the next %d", i, l.Holders[i].Token, h.Token)
		}
	}
}

// names lists the names that the filter lets through.
func names(t *testing.T, s lokt.Store, f lokt.Filter) []string {
	t.Helper()
	got := []string{}
	for snap, err := range s.List(within(t), f) {
		if err != nil {
			t.Fatalf("list %+v: %v", f, err)
		}
		if snap.Now.IsZero() {
			t.Errorf("list %+v: %q has no time", f, snap.Lock.Name)
		}
		got = append(got, snap.Lock.Name)
	}
	return got
}

func expectNames(t *testing.T, s lokt.Store, f lokt.Filter, want ...string) {
	t.Helper()
	if got := names(t, s, f); !slices.Equal(got, want) {
		t.Errorf("list %+v: got %q, want %q", f, got, want)
	}
}

func listIsOrdered(t *testing.T, s lokt.Store) {
	for i, name := range []string{"m", "b", "a_b", "aXb", "a.b", "a-9", "a-10", "A_b", "free", "a_c"} {
		put(t, s, name, held(id(i)))
	}
	put(t, s, "free", queued(id(10)))
	put(t, s, "free", freed)
	put(t, s, "frozen", func(l *lokt.Lock, now time.Time) {
		l.Freeze = &lokt.Freeze{ID: id(9), Owner: lokt.Owner{ID: "o"}, At: now}
	})
	put(t, s, "only-awaited", queued(id(11)))
	put(t, s, "a_c", queued(id(12)))
	expectNames(t, s, lokt.Filter{}, "A_b", "a-10", "a-9", "a.b", "aXb", "a_b", "a_c", "b", "frozen", "m", "only-awaited")
	expectNames(t, s, lokt.Filter{Prefix: "a_"}, "a_b", "a_c")
	expectNames(t, s, lokt.Filter{Prefix: "a."}, "a.b")
	expectNames(t, s, lokt.Filter{Prefix: "A"}, "A_b")
	expectNames(t, s, lokt.Filter{Prefix: "c"})
	expectNames(t, s, lokt.Filter{Queued: true}, "a_c", "only-awaited")
	expectNames(t, s, lokt.Filter{Queued: true, Prefix: "o"}, "only-awaited")
}

// hostile are valid names that are easily taken for something else.
func hostile() []string {
	all := []string{
		"-", "_", ".-", "-rf", "--help", ".lock", ".git", "a", "A", "aA", "Aa", "a.json", "a.json.json", "a.lock", "a.tmp",
		"con", "CON", "nul", "aux.txt", "com1", "lpt9.json", "a.", "a_", "a-", "0", "00", "1e3", "null", "true", "lock", "locks", "token",
		"x.20060102", "_x", "41", "index", "state", "queue", "holders", "audit.log", "LOCK", "Lock",
		strings.Repeat("n", lokt.MaxNameLen), strings.Repeat("n", lokt.MaxNameLen-1) + "N", strings.Repeat("n", lokt.MaxNameLen-1),
	}
	for i := range 60 {
		all = append(all, fmt.Sprintf("many-%x", i*i))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func hostileNames(t *testing.T, s lokt.Store) {
	all := hostile()
	for i, name := range all {
		if err := lokt.ValidateName(name); err != nil {
			t.Fatal(err)
		}
		put(t, s, name, held(id(i)))
	}
	tokens := map[string]uint64{}
	for i, name := range all {
		l := view(t, s, name).Lock
		tokens[name] = l.Token
		if l.Name != name || len(l.Holders) != 1 || l.Holders[0].LeaseID != id(i) {
			t.Errorf("%q: got %+v", name, l)
		}
	}
	expectNames(t, s, lokt.Filter{}, all...)
	for i, name := range all {
		if i%2 == 0 {
			put(t, s, name, freed)
		}
	}
	for i, name := range all {
		if l := view(t, s, name).Lock; l.Free() != (i%2 == 0) || l.Token < tokens[name] {
			t.Errorf("%q: got %+v", name, l)
		}
	}
}

func listIsInterruptible(t *testing.T, s lokt.Store) {
	for i := range 5 {
		put(t, s, fmt.Sprintf("n%d", i), held(id(i)))
	}
	seen := 0
	for snap, err := range s.List(within(t), lokt.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, snap.Lock.Name, queued(id(100)))
		if l := view(t, s, snap.Lock.Name).Lock; len(l.Queue) != 1 {
			t.Errorf("in a list: %+v", l)
		}
		if seen++; seen == 3 {
			break
		}
	}
	expectNames(t, s, lokt.Filter{Queued: true}, "n0", "n1", "n2")
}

// waitOut waits again and again, because waits may return early, until the context ends, which it returns.
func waitOut(t *testing.T, wait func(ctx context.Context) error) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	t.Cleanup(cancel)
	var err error
	for err == nil && ctx.Err() == nil {
		err = wait(ctx)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait ended with %v", err)
	}
	return ctx
}

func waitEndsWithContext(t *testing.T, s lokt.Store) {
	put(t, s, "x", held(id(1)))
	for _, name := range []string{"x", "unknown"} {
		waitOut(t, func(ctx context.Context) error {
			return s.Wait(ctx, lokt.Watch{Name: name, Seen: view(t, s, name).Lock.Revision})
		})
	}
}

// until looks at the lock again and again, waiting in between, until done says so.
func until(ctx context.Context, s lokt.Store, name, leaseID string, done func(l lokt.Lock) bool) error {
	for {
		snap, err := s.View(ctx, name)
		if err != nil || done(snap.Lock) {
			return err
		}
		if err := s.Wait(ctx, lokt.Watch{Name: name, Seen: snap.Lock.Revision, LeaseID: leaseID}); err != nil {
			return err
		}
	}
}

func waitWakesOnChange(t *testing.T, s lokt.Store) {
	ctx := within(t)
	const watchers = 10
	var wg sync.WaitGroup
	for range watchers {
		wg.Go(func() {
			if err := until(ctx, s, "x", "", func(l lokt.Lock) bool { return len(l.Holders) == 3 }); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 3 {
		put(t, s, "x", held(id(i)))
	}
	wg.Wait()
}

func waitWakesQueued(t *testing.T, s lokt.Store) {
	ctx := within(t)
	put(t, s, "x", held(id(0)))
	for i := range 4 {
		put(t, s, "x", queued(id(1+i)))
	}
	woken := make(chan error)
	for i := range 4 {
		go func() {
			woken <- until(ctx, s, "x", id(1+i), func(l lokt.Lock) bool {
				_, waiting := l.Position(id(1 + i))
				return !waiting
			})
		}()
	}
	for i := range 4 { // the last in the queue first; every other one is granted
		put(t, s, "x", func(l *lokt.Lock, now time.Time) {
			if i%2 == 0 {
				held(id(4-i))(l, now)
			}
			l.Queue = l.Queue[:len(l.Queue)-1]
		})
		if err := <-woken; err != nil {
			t.Error(err)
		}
	}
}

// noWakeupIsLost lets two goroutines take turns; a store that relies on its safety net takes too long.
func noWakeupIsLost(t *testing.T, s lokt.Store) {
	const turns = 100
	ctx, cancel := context.WithTimeout(t.Context(), turns*600*time.Millisecond) // such nets are a second wide, and more
	defer cancel()
	together(2, func(me int) {
		for turn := me; turn < turns; turn += 2 {
			if err := until(ctx, s, "x", "", func(l lokt.Lock) bool { return len(l.Holders) == turn }); err != nil {
				t.Errorf("turn %d: %v", turn, err)
				return
			}
			put(t, s, "x", held(id(turn)))
		}
	})
}
