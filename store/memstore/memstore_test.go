package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lokttest"
	"github.com/lokt-dev/lokt/store/memstore"
)

func TestMemoryStoreKeepsEveryPromise(t *testing.T) {
	lokttest.TestStore(t, func(*testing.T) lokt.Store { return memstore.New() })
}

func TestMemoryStoreTellsItsObserver(t *testing.T) {
	lokttest.TestObserver(t, func(_ *testing.T, observe func([]lokt.Event)) lokt.Store {
		return memstore.NewWith(memstore.Options{Observe: observe})
	})
}

func TestMemoryStoreLogsItsEvents(t *testing.T) {
	lokttest.TestEventLog(t, func(*testing.T) lokt.Store { return memstore.NewWith(memstore.Options{Keep: 2000}) })
}

func TestMemoryStoreForgetsItsOldestEvents(t *testing.T) {
	s := memstore.NewWith(memstore.Options{Keep: 10})
	for i := range 45 {
		update(t, s, func(*lokt.Lock) {}, lokt.Event{Token: uint64(i + 1)})
		page, err := s.ReadEvents(t.Context(), lokt.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		if n := min(i+1, 10); len(page.Events) != n || page.Newest != uint64(i+1) || page.Oldest != uint64(i+2-n) || page.Events[0].Token != page.Oldest {
			t.Fatalf("after %d events there are %d, from %d to %d", i+1, len(page.Events), page.Oldest, page.Newest)
		}
	}
	none := memstore.NewWith(memstore.Options{Keep: -1})
	update(t, none, func(*lokt.Lock) {}, lokt.Event{Token: 1})
	if page, err := none.ReadEvents(t.Context(), lokt.EventQuery{}); err != nil || len(page.Events) != 0 || page.Oldest != 0 || page.Newest != 1 {
		t.Errorf("a store that keeps none has %+v, %v", page, err)
	}
}

// update stores what edit makes of the lock, with the events.
func update(t *testing.T, s lokt.Store, edit func(l *lokt.Lock), events ...lokt.Event) {
	t.Helper()
	if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
		edit(&snap.Lock)
		return lokt.Change{Lock: snap.Lock, Events: events}
	}); err != nil {
		t.Fatal(err)
	}
}

func seen(t *testing.T, s lokt.Store) uint64 {
	t.Helper()
	snap, err := s.View(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	return snap.Lock.Revision
}

func TestQueuedWatcherIsWokenOnlyAtTheHeadOrOutOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		update(t, s, func(l *lokt.Lock) {
			for i := range 4 {
				l.Queue = append(l.Queue, &lokt.Waiter{Claim: lokt.Claim{LeaseID: fmt.Sprint(i)}})
			}
		})
		var mu sync.Mutex
		woken := map[string]bool{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		rev := seen(t, s)
		for _, who := range []string{"0", "1", "2", "3", "stranger", ""} {
			go func() {
				for rev := rev; s.Wait(ctx, lokt.Watch{Name: "x", Seen: rev, LeaseID: who}) == nil; rev = seen(t, s) {
					mu.Lock()
					woken[who] = true
					mu.Unlock()
				}
			}()
			synctest.Wait()
		}
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(woken) != len(want) {
				t.Errorf("%s %v were woken, not %q", when, woken, want)
			}
			for _, who := range want {
				if !woken[who] {
					t.Errorf("%s %q was not woken", when, who)
				}
			}
		}
		expect("before any change")
		update(t, s, func(*lokt.Lock) {})
		expect("after an update that changed nothing")
		update(t, s, func(l *lokt.Lock) { l.Token++ })
		expect("after a change that left the queue alone", "0", "stranger", "")
		update(t, s, func(l *lokt.Lock) { l.Queue = append(l.Queue[:2:2], l.Queue[3]) })
		expect("after one left the queue", "0", "stranger", "", "2")
		update(t, s, func(l *lokt.Lock) { l.Queue = l.Queue[1:] })
		expect("after the first one left the queue", "0", "stranger", "", "2", "1")
		cancel()
		synctest.Wait()
	})
}

func TestLatecomerInTheQueueSleepsThoughTheRevisionIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		update(t, s, func(l *lokt.Lock) {
			l.Queue = []*lokt.Waiter{{Claim: lokt.Claim{LeaseID: "first"}}, {Claim: lokt.Claim{LeaseID: "second"}}}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for _, who := range []string{"first", "second"} {
			if err := s.Wait(ctx, lokt.Watch{Name: "x", LeaseID: who}); err != nil {
				t.Errorf("%s while nobody waits before: %v", who, err)
			}
		}
		over := make(chan error, 1)
		rev := seen(t, s)
		go func() { over <- s.Wait(ctx, lokt.Watch{Name: "x", Seen: rev, LeaseID: "first"}) }()
		synctest.Wait()
		if err := s.Wait(ctx, lokt.Watch{Name: "x", LeaseID: "second"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the second in the queue: %v", err)
		}
		if err := <-over; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the first in the queue: %v", err)
		}
	})
}

func TestUpdateThatChangesNothingKeepsTheRevisionAndItsEvents(t *testing.T) {
	s := memstore.New()
	update(t, s, func(l *lokt.Lock) { l.Token = 1 })
	before := seen(t, s)
	update(t, s, func(l *lokt.Lock) { l.Holders = []lokt.Holder{} }, lokt.Event{Type: lokt.EventDeny})
	if seen(t, s) != before {
		t.Error("the revision changed")
	}
	if e := s.Events(); len(e) != 1 || e[0].Type != lokt.EventDeny {
		t.Errorf("events are %+v", e)
	}
}

func TestOnlyTheNewestEventsAreKept(t *testing.T) {
	for _, c := range []struct{ keep, stored, want int }{{3, 10, 3}, {3, 2, 2}, {-1, 5, 0}, {0, 2500, 1000}} {
		s := memstore.NewWith(memstore.Options{Keep: c.keep})
		for i := range c.stored {
			update(t, s, func(*lokt.Lock) {}, lokt.Event{Token: uint64(i)})
		}
		got := s.Events()
		if len(got) != c.want || c.want > 0 && got[c.want-1].Token != uint64(c.stored-1) {
			t.Errorf("of %d events with Keep %d there are %d", c.stored, c.keep, len(got))
		}
	}
}

func TestObserverMayUseTheStore(t *testing.T) {
	var s *memstore.Store
	var order []uint64
	s = memstore.NewWith(memstore.Options{Observe: func(events []lokt.Event) {
		for _, e := range events {
			order = append(order, e.Token)
			if e.Token < 5 {
				update(t, s, func(*lokt.Lock) {}, lokt.Event{Token: e.Token + 1})
			}
		}
	}})
	update(t, s, func(*lokt.Lock) {}, lokt.Event{Token: 1})
	if fmt.Sprint(order) != "[1 2 3 4 5]" {
		t.Errorf("observed %v", order)
	}
}

func TestWatchingUnknownNamesLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Wait(ctx, lokt.Watch{Name: "never-used"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if n := memstore.Remembered(s); n != 0 {
			t.Errorf("%d names are remembered", n)
		}
	})
}

// Promise S-4.
func TestOfLocksThatAreFreeAgainOnlyThatTokensRiseIsRemembered(t *testing.T) {
	s := memstore.New()
	m := lokt.NewManager(s)
	last := map[string]uint64{}
	for i := range 200 {
		name := "n" + strconv.Itoa(i%100)
		granted := make(chan lokt.Holder)
		for range 2 { // of whom one waits for the other
			go func() {
				h, _ := m.Acquire(t.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "a"}, Strict: true, Wait: -1})
				granted <- h
			}()
		}
		for range 2 {
			h := <-granted
			if h.Token <= last[name] {
				t.Fatalf("%s was granted with token %d after %d", name, h.Token, last[name])
			}
			last[name] = h.Token
			if _, err := m.Release(t.Context(), lokt.Target{Name: name, LeaseID: h.LeaseID, Owner: h.Owner}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := memstore.Remembered(s); n != 0 {
		t.Errorf("%d names are remembered", n)
	}
}

func TestAnObserverThatPanicsOnceIsToldTheNextEvents(t *testing.T) {
	told, panics := 0, true
	s := memstore.NewWith(memstore.Options{Observe: func([]lokt.Event) {
		if told++; panics {
			panics = false
			panic("no")
		}
	}})
	change := func() {
		defer func() { _ = recover() }()
		_ = s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
			return lokt.Change{Lock: snap.Lock, Events: []lokt.Event{{Name: "x"}}}
		})
	}
	if change(); told != 1 {
		t.Fatalf("told %d", told)
	}
	if change(); told != 2 {
		t.Errorf("after a panic the observer was told %d of 2 changes", told)
	}
}
