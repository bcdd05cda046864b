package lokttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// TestStore checks what lokt.Store promises. open returns a new, empty store; the suite closes it. Subtests run on real
// time, and take a few seconds together if an update takes a millisecond.
//
// Promises S-2, S-4, S-9.
func TestStore(t *testing.T, open func(t *testing.T) lokt.Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s lokt.Store)
	}{
		{"an unknown name is a free lock", unknownNameIsFree},
		{"every field comes back as it was stored", fieldsComeBack},
		{"a free lock keeps its token", freeLockKeepsToken},
		{"the revision differs after every change", revisionDiffers},
		{"the store's clock does not go back", clockAdvances},
		{"concurrent updates lose nothing", updatesLoseNothing},
		{"an ended context fails every call", endedContextFails},
		{"a list is in name order, and has what the filter lets through", listIsOrdered},
		{"names that file systems and queries trip over are kept apart", hostileNames},
		{"a list may be left early and used meanwhile", listIsInterruptible},
		{"a wait ends with its context", waitEndsWithContext},
		{"a wait wakes on a change", waitWakesOnChange},
		{"a queued claim's wait wakes when it is granted or leaves", waitWakesQueued},
		{"no wake-up is lost", noWakeupIsLost},
		{"a closed store says that it is unavailable", closedStoreIsUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() { _ = s.Close() })
			test.run(t, s)
		})
	}
}

// patience is how long the suites wait for what must happen, on real time.
const patience = 2 * time.Minute

// within returns a context for a test that waits for what must happen.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// put stores the lock that edit makes of what is there.
func put(t *testing.T, s lokt.Store, name string, edit func(l *lokt.Lock, now time.Time)) {
	t.Helper()
	err := s.Update(within(t), name, func(snap lokt.Snapshot) lokt.Change {
		snap.Lock = snap.Lock.Clone() // what a store hands out is not to be changed
		edit(&snap.Lock, snap.Now)
		return lokt.Change{Lock: snap.Lock}
	})
	if err != nil {
		t.Fatalf("update of %q: %v", name, err)
	}
}

func view(t *testing.T, s lokt.Store, name string) lokt.Snapshot {
	t.Helper()
	snap, err := s.View(within(t), name)
	if err != nil {
		t.Fatalf("view of %q: %v", name, err)
	}
	return snap
}

// held returns an edit that makes somebody hold the lock.
func held(leaseID string) func(l *lokt.Lock, now time.Time) {
	return func(l *lokt.Lock, now time.Time) {
		l.Token++
		l.Holders = append(slices.Clone(l.Holders), lokt.Holder{
			Claim: lokt.Claim{Name: l.Name, LeaseID: leaseID, Owner: lokt.Owner{ID: "somebody"}},
			Token: l.Token, HeldSince: now, AcquiredAt: now,
		})
	}
}

// queued returns an edit that puts somebody into the queue.
func queued(leaseID string) func(l *lokt.Lock, now time.Time) {
	return func(l *lokt.Lock, now time.Time) {
		l.Queue = append(slices.Clone(l.Queue), &lokt.Waiter{
			Claim: lokt.Claim{Name: l.Name, LeaseID: leaseID, Owner: lokt.Owner{ID: "waiting"}, Wait: time.Hour},
			Since: now, Until: now.Add(time.Hour),
		})
	}
}

// freed is an edit that leaves only the token.
func freed(l *lokt.Lock, _ time.Time) { *l = lokt.Lock{Name: l.Name, Token: l.Token} }

// id returns a lease ID as claimants make them, the same for the same n.
func id(n int) string { return fmt.Sprintf("%032x", n) }

func unknownNameIsFree(t *testing.T, s lokt.Store) {
	snap := view(t, s, "nobody-asked")
	if snap.Lock.Name != "nobody-asked" || !snap.Lock.Free() || snap.Now.IsZero() {
		t.Errorf("got %+v", snap)
	}
	for l, err := range s.List(within(t), lokt.Filter{}) {
		t.Errorf("an empty store lists %+v, %v", l, err)
	}
	if err := s.Update(within(t), "nobody-asked", func(snap lokt.Snapshot) lokt.Change {
		if snap.Lock.Name != "nobody-asked" || !snap.Lock.Free() || snap.Now.IsZero() {
			t.Errorf("a change is given %+v", snap)
		}
		return lokt.Change{Lock: snap.Lock}
	}); err != nil {
		t.Error(err)
	}
}

// full is a lock with every field set that means something there: only a holder that has not taken its grant up has
// waited for so long. Its processes run on another host, so that nobody here can tell them dead, and nothing ends so
// soon that a store which gives everybody a full time when it is opened would change it.
func full(name string, now time.Time) lokt.Lock {
	at := func(d time.Duration) time.Time { return now.Add(d + 123456789*time.Nanosecond) }
	owner := func(id string) lokt.Owner {
		return lokt.Owner{
			ID: id, Session: "session of " + id, AnySession: id == "any", Host: "elsewhere.example",
			Process: lokt.Process{PID: 4242, Start: 1 << 40, Boot: "boot", Namespace: "pid:[4026531836]", Liveness: "live-1"},
		}
	}
	claim := func(n int, who string) lokt.Claim {
		return lokt.Claim{
			Name: name, LeaseID: id(n), Owner: owner(who),
			Process: &lokt.Process{PID: 4243, Start: 2, Boot: "boot", Namespace: "pid:[4026531836]", Liveness: "live-2", Child: 4245, ChildStart: 3},
			Limit:   7, Weight: lokt.Weight{Takes: 3, Of: 1 << 50}, Strict: true, TTL: 1500*time.Millisecond + 1, MaxHold: time.Hour + 1, Priority: -3,
			Metadata: map[string]string{"why": "“because”\n\x00\t", "größe": strings.Repeat("x", 500)},
		}
	}
	waiter := func(n int, who string, priority int) *lokt.Waiter {
		w := &lokt.Waiter{Claim: claim(n, who), Since: at(-time.Second), Until: at(time.Hour), Passed: 1 << 62, Messages: []lokt.Message{{ID: "2", From: owner("y"), At: at(-1), Text: "note"}}}
		w.Newest, w.Ousted, w.Priority, w.Wait, w.Refresh, w.Preempt, w.Within, w.Paths = true, "größe@elsewhere", priority, -1, true, 5*time.Second, []string{id(100), id(101)}, []string{"*.c"}
		return w
	}
	lease := lokt.Holder{
		Claim: lokt.Claim{Name: name, LeaseID: id(2), Owner: lokt.Owner{ID: "any", AnySession: true, Host: "elsewhere.example"}, Limit: lokt.Shared, Attended: true, Paths: []string{"src/**", "größe"}},
		Token: 1 << 62, HeldSince: at(-2 * time.Hour), AcquiredAt: at(-time.Hour), Messages: []lokt.Message{{ID: "1", From: owner("x"), At: at(-2), Text: "“?”", Answer: "ä"}},
	}
	guard := lokt.Holder{
		Claim: claim(1, "guard"), Token: 1<<62 - 1, HeldSince: at(-3 * time.Hour), AcquiredAt: at(-time.Millisecond), ExpiresAt: at(time.Hour),
		Slot: 7, Renewals: 12, Pending: at(time.Hour + 1),
		Yield: &lokt.Yield{To: owner("first"), AskedAt: at(-time.Minute), Grace: 3 * time.Second, Deadline: at(2 * time.Hour), Heard: true},
	}
	guard.Wait = 90*time.Second + 1
	return lokt.Lock{
		Name: name, Token: 1<<62 + 1,
		Holders: []lokt.Holder{guard, lease},
		Queue:   []*lokt.Waiter{waiter(9, "first", 5), waiter(4, "second", 1), waiter(8, "third", 1), waiter(3, "fourth", -1)},
		Freeze: &lokt.Freeze{
			ID: id(77), Owner: owner("freezer"), Reason: "release\nday", At: at(-time.Minute), TTL: time.Hour, ExpiresAt: at(2 * time.Hour),
		},
	}
}

func fieldsComeBack(t *testing.T, s lokt.Store) {
	var want lokt.Lock
	put(t, s, "full", func(l *lokt.Lock, now time.Time) {
		want = full("full", now)
		*l = want.Clone()
	})
	check := func(how string, got lokt.Lock) {
		t.Helper()
		if diff := differences(want, got); diff != "" {
			t.Errorf("%s:\n%s", how, diff)
		}
	}
	check("view", view(t, s, "full").Lock)
	for snap, err := range s.List(within(t), lokt.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		check("list", snap.Lock)
	}
	put(t, s, "full", func(l *lokt.Lock, _ time.Time) {
		check("update", *l)
		l.Holders, l.Freeze = l.Holders[1:], nil
		l.Queue = slices.Delete(l.Queue, 1, 2)
		l.Holders[0].Metadata = map[string]string{"k": "v"}
	})
	want.Holders, want.Freeze = want.Holders[1:], nil
	want.Queue = slices.Delete(want.Queue, 1, 2)
	want.Holders[0].Metadata = map[string]string{"k": "v"}
	check("view of a change", view(t, s, "full").Lock)
}

func freeLockKeepsToken(t *testing.T, s lokt.Store) {
	last := uint64(0)
	for round := range 3 {
		put(t, s, "x", held(id(1)))
		if l := view(t, s, "x").Lock; l.Token <= last || l.Holders[0].Token != l.Token {
			t.Fatalf("after token %d: %+v", last, l)
		} else {
			last = l.Token
		}
		put(t, s, "x", freed)
		if l := view(t, s, "x").Lock; !l.Free() || l.Token != last {
			t.Fatalf("after %d grants, the last with token %d, the free lock is %+v", round+1, last, l)
		}
		for l, err := range s.List(within(t), lokt.Filter{}) {
			t.Errorf("a free lock is listed: %+v, %v", l, err)
		}
	}
}

func revisionDiffers(t *testing.T, s lokt.Store) {
	seen := map[uint64]bool{view(t, s, "x").Lock.Revision: true}
	for range 5 { // the lock is alike again and again, its revision is not
		for _, edit := range []func(l *lokt.Lock, now time.Time){
			func(l *lokt.Lock, _ time.Time) { l.Freeze = &lokt.Freeze{ID: id(1), Owner: lokt.Owner{ID: "o"}} },
			func(l *lokt.Lock, _ time.Time) { l.Freeze = nil },
		} {
			put(t, s, "x", edit)
			r := view(t, s, "x").Lock.Revision
			if seen[r] {
				t.Fatalf("revision %d came back", r)
			}
			seen[r] = true
		}
	}
}

func clockAdvances(t *testing.T, s lokt.Store) {
	var last time.Time
	for range 20 {
		put(t, s, "x", func(_ *lokt.Lock, now time.Time) {
			if now.Before(last) {
				t.Errorf("the clock went back from %v to %v", last, now)
			}
			last = now
		})
		if now := view(t, s, "x").Now; now.Before(last) {
			t.Errorf("the clock went back from %v to %v", last, now)
		} else {
			last = now
		}
	}
	if off := time.Since(last).Abs(); off > 24*time.Hour {
		t.Errorf("the store's clock is %v off", off)
	}
}

func endedContextFails(t *testing.T, s lokt.Store) {
	put(t, s, "x", held(id(1)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Update(ctx, "x", func(snap lokt.Snapshot) lokt.Change {
		freed(&snap.Lock, snap.Now)
		return lokt.Change{Lock: snap.Lock}
	}); err == nil {
		t.Error("Update went on")
	}
	if l := view(t, s, "x").Lock; len(l.Holders) != 1 {
		t.Errorf("a failed update that had not begun was stored: %+v", l)
	}
	if err := s.Wait(ctx, lokt.Watch{Name: "x", Seen: view(t, s, "x").Lock.Revision}); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait returned %v", err)
	}
}

// closeWhile closes the store while somebody waits, which has to end then.
func closeWhile(t *testing.T, s lokt.Store, wait func()) {
	t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		wait()
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-over:
	case <-time.After(patience):
		t.Error("a wait went on after Close")
	}
}

func closedStoreIsUnavailable(t *testing.T, s lokt.Store) {
	put(t, s, "x", held(id(1)))
	seen := view(t, s, "x").Lock.Revision
	ctx := within(t)
	closeWhile(t, s, func() { _ = s.Wait(ctx, lokt.Watch{Name: "x", Seen: seen}) }) // what it returns depends on how far it was
	unavailable := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("%s of a closed store: %v", what, err)
		}
	}
	unavailable("Update", s.Update(ctx, "x", func(s lokt.Snapshot) lokt.Change { return lokt.Change{Lock: s.Lock} }))
	_, err := s.View(ctx, "x")
	unavailable("View", err)
	err = nil
	for _, e := range s.List(ctx, lokt.Filter{}) {
		err = e
	}
	unavailable("List", err)
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}
