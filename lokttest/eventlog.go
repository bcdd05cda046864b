package lokttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// TestEventLog checks what lokt.EventLog promises, for a store that keeps at least the newest 2000 events. open returns
// a new, empty store that is one; the suite closes it. Subtests run on real time.
//
// Promise S-65.
func TestEventLog(t *testing.T, open func(t *testing.T) lokt.Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s lokt.Store, log lokt.EventLog)
	}{
		{"a new store has no events", noEvents},
		{"every field of an event comes back", eventFieldsComeBack},
		{"an event is there when the change is, and refusals leave one too", eventsBelongToChanges},
		{"queries let through what they say", eventQueries},
		{"one page has no more than the most", eventPageIsBounded},
		{"the events of a lock are in the order of its changes", eventsAreInOrder},
		{"a wait for events wakes, and none is lost", eventsWake},
		{"a wait for events ends with its context", eventWaitEnds},
		{"the events of a closed store are unavailable", closedEventLog},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() { _ = s.Close() })
			log, ok := s.(lokt.EventLog)
			if !ok {
				t.Fatalf("%T is no event log", s)
			}
			test.run(t, s, log)
		})
	}
}

// happen stores events with a change of the lock.
func happen(t *testing.T, s lokt.Store, name string, events ...lokt.Event) {
	t.Helper()
	if err := s.Update(within(t), name, func(snap lokt.Snapshot) lokt.Change {
		snap.Lock.Token++
		return lokt.Change{Lock: snap.Lock, Events: events}
	}); err != nil {
		t.Fatal(err)
	}
}

func readEvents(t *testing.T, log lokt.EventLog, q lokt.EventQuery) lokt.EventPage {
	t.Helper()
	page, err := log.ReadEvents(within(t), q)
	if err != nil {
		t.Fatalf("read %+v: %v", q, err)
	}
	last := q.After
	for _, e := range page.Events {
		if e.Seq <= last {
			t.Errorf("read %+v: number %d follows %d", q, e.Seq, last)
		}
		last = e.Seq
	}
	if len(page.Events) > 0 && (page.Oldest == 0 || page.Oldest > page.Events[0].Seq || page.Newest < last) {
		t.Errorf("read %+v: from %d to %d there are %d to %d", q, page.Oldest, page.Newest, page.Events[0].Seq, last)
	}
	return page
}

func noEvents(t *testing.T, _ lokt.Store, log lokt.EventLog) {
	for _, q := range []lokt.EventQuery{{}, {Latest: true}, {After: 100}} {
		if page := readEvents(t, log, q); len(page.Events) != 0 || page.Oldest != 0 || page.Newest != 0 || page.More {
			t.Errorf("read %+v: got %+v", q, page)
		}
	}
}

func eventFieldsComeBack(t *testing.T, s lokt.Store, log lokt.EventLog) {
	now := view(t, s, "x").Now
	all := []lokt.Event{
		{
			Time: now.Add(123456789), Type: lokt.EventAcquire, Name: "x", LeaseID: id(1), Token: 1<<62 + 3, TTL: 1500*time.Millisecond + 1, Expires: now.Add(time.Hour),
			Owner: lokt.Owner{
				ID: "ü", Session: "s", AnySession: true, Host: "h",
				Process: lokt.Process{PID: 1, Start: 2, Boot: "b", Namespace: "n", Liveness: "l", Child: 3, ChildStart: 4},
			},
			Extra: map[string]string{"k": "v\n\x00“”", lokt.ExtraReason: lokt.ReasonExpired},
		},
		{Time: now, Type: lokt.EventUnfreeze, Name: "x"},
	}
	happen(t, s, "x", all...)
	page := readEvents(t, log, lokt.EventQuery{})
	if len(page.Events) != len(all) {
		t.Fatalf("got %+v", page)
	}
	for i, e := range page.Events {
		if diff := differences(all[i], e.Event); diff != "" {
			t.Error(diff)
		}
	}
}

func eventsBelongToChanges(t *testing.T, s lokt.Store, log lokt.EventLog) {
	m := lokt.NewManager(s)
	if _, err := m.Acquire(within(t), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Acquire(within(t), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "b"}}); !errors.Is(err, lokt.ErrHeld) {
		t.Fatal(err)
	}
	if _, err := m.Release(within(t), lokt.Target{Name: "x", Owner: lokt.Owner{ID: "a"}}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range readEvents(t, log, lokt.EventQuery{}).Events {
		got = append(got, string(e.Type)+" "+e.Owner.ID)
	}
	if want := []string{"acquire a", "deny b", "release a"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func eventQueries(t *testing.T, s lokt.Store, log lokt.EventLog) {
	base := view(t, s, "a").Now
	types := []lokt.EventType{lokt.EventAcquire, lokt.EventRenew, lokt.EventRelease}
	names := []string{"a", "a_b", "aXb", "b", "a.b"}
	i := 0
	for change := range 20 { // with up to three events each
		name, some := names[change%5], []lokt.Event{}
		for range change % 4 {
			at, who := base.Add(time.Duration(i)*time.Second), lokt.Owner{ID: fmt.Sprint("o", i%2)}
			some = append(some, lokt.Event{Time: at, Type: types[i%3], Name: name, Owner: who, Token: uint64(i)})
			i++
		}
		happen(t, s, name, some...)
	}
	all := readEvents(t, log, lokt.EventQuery{}).Events
	if len(all) != 30 {
		t.Fatalf("there are %d events", len(all))
	}
	for _, q := range []lokt.EventQuery{
		{After: all[9].Seq}, {Before: all[20].Seq}, {After: all[9].Seq, Before: all[20].Seq}, {After: all[29].Seq}, {Before: all[0].Seq},
		{Name: "a"}, {Name: "b"}, {Name: "c"}, {Prefix: "a"}, {Prefix: "a_"}, {Prefix: "a."}, {Prefix: "b"}, {Prefix: "z"}, {Name: "a", Prefix: "b"},
		{Owner: "o1"}, {Owner: "nobody"}, {Types: types[:1]}, {Types: types[1:]}, {Types: []lokt.EventType{lokt.EventFreeze}},
		{Since: all[7].Time}, {Until: all[7].Time}, {Since: all[7].Time, Until: all[8].Time}, {Since: all[7].Time.Add(1)},
		{Prefix: "a", Owner: "o0", Types: types[:2], Since: all[3].Time, After: all[1].Seq},
	} {
		var through []uint64
		for _, e := range all {
			if q.Matches(&e) {
				through = append(through, e.Seq)
			}
		}
		for _, limit := range []int{0, 1, 4, len(through), 1 << 30} {
			for _, latest := range []bool{false, true} {
				q.Limit, q.Latest = limit, latest
				want := through
				if limit > 0 && limit < len(want) {
					if want = through[:limit]; latest {
						want = through[len(through)-limit:]
					}
				}
				page := readEvents(t, log, q)
				var got []uint64
				for _, e := range page.Events {
					got = append(got, e.Seq)
				}
				if !slices.Equal(got, want) || page.More != (len(want) < len(through)) || page.Newest != all[29].Seq || page.Oldest != all[0].Seq {
					t.Errorf("%+v lets %v through, not %v; %+v", q, got, want, page)
				}
			}
		}
	}
}

func eventPageIsBounded(t *testing.T, s lokt.Store, log lokt.EventLog) {
	const changes, each = 11, 100
	for i := range changes {
		some := make([]lokt.Event, each)
		for j := range some {
			some[j] = lokt.Event{Time: time.Now(), Type: lokt.EventRenew, Name: "x", Token: uint64(each*i + j)}
		}
		happen(t, s, "x", some...)
	}
	for _, limit := range []int{0, lokt.MaxEvents, lokt.MaxEvents + 1} {
		for _, latest := range []bool{false, true} {
			page := readEvents(t, log, lokt.EventQuery{Limit: limit, Latest: latest})
			first := uint64(0)
			if latest {
				first = changes*each - lokt.MaxEvents
			}
			if len(page.Events) != lokt.MaxEvents || !page.More || page.Events[0].Token != first {
				t.Errorf("limit %d, latest %v: %d events, more %v", limit, latest, len(page.Events), page.More)
			}
		}
	}
}

func eventsAreInOrder(t *testing.T, s lokt.Store, log lokt.EventLog) {
	const goroutines, rounds = 8, 10
	together(goroutines, func(i int) {
		for range rounds {
			name := fmt.Sprint("n", i%3)
			if err := s.Update(within(t), name, func(snap lokt.Snapshot) lokt.Change {
				snap.Lock.Token++
				return lokt.Change{Lock: snap.Lock, Events: []lokt.Event{{Time: snap.Now, Type: lokt.EventAcquire, Name: name, Token: snap.Lock.Token}}}
			}); err != nil {
				t.Error(err)
			}
		}
	})
	last, n := map[string]uint64{}, 0
	for _, e := range readEvents(t, log, lokt.EventQuery{}).Events {
		if e.Token <= last[e.Name] {
			t.Errorf("of %s, the event with token %d follows that with %d", e.Name, e.Token, last[e.Name])
		}
		last[e.Name] = e.Token
		n++
	}
	if n != goroutines*rounds {
		t.Errorf("%d events of %d", n, goroutines*rounds)
	}
}

func eventsWake(t *testing.T, s lokt.Store, log lokt.EventLog) {
	const n = 50
	ctx := within(t)
	read := make(chan error, 1)
	seen := make(chan uint64, n)
	go func() {
		read <- func() error {
			after := uint64(0)
			for want := uint64(0); want < n; {
				if err := log.WaitEvents(ctx, after); err != nil {
					return err
				}
				page, err := log.ReadEvents(ctx, lokt.EventQuery{After: after})
				if err != nil {
					return err
				}
				for _, e := range page.Events {
					if e.Token != want {
						return fmt.Errorf("event %d came as number %d", e.Token, want)
					}
					want, after = want+1, e.Seq
					seen <- e.Token
				}
			}
			return nil
		}()
	}()
	for i := range n {
		happen(t, s, "x", lokt.Event{Time: time.Now(), Type: lokt.EventRenew, Name: "x", Token: uint64(i)})
		if i%2 == 0 {
			select {
			case <-seen:
			case <-ctx.Done():
				t.Fatalf("event %d was not seen", i)
			}
		}
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
}

func eventWaitEnds(t *testing.T, s lokt.Store, log lokt.EventLog) {
	happen(t, s, "x", lokt.Event{Time: time.Now(), Type: lokt.EventRenew, Name: "x"})
	newest := readEvents(t, log, lokt.EventQuery{}).Newest
	ctx := waitOut(t, func(ctx context.Context) error { return log.WaitEvents(ctx, newest) })
	if _, err := log.ReadEvents(ctx, lokt.EventQuery{}); err == nil {
		t.Error("a read went on after its context had ended")
	}
}

func closedEventLog(t *testing.T, s lokt.Store, log lokt.EventLog) {
	happen(t, s, "x", lokt.Event{Time: time.Now(), Type: lokt.EventRenew, Name: "x"})
	newest := readEvents(t, log, lokt.EventQuery{}).Newest
	ctx := within(t)
	closeWhile(t, s, func() {
		for ctx.Err() == nil && log.WaitEvents(ctx, newest) == nil { // until it says that the store is closed
		}
	})
	if _, err := log.ReadEvents(ctx, lokt.EventQuery{}); !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("ReadEvents of a closed store: %v", err)
	}
	if err := log.WaitEvents(ctx, newest); !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("WaitEvents of a closed store: %v", err)
	}
}
