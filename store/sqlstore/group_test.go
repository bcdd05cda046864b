package sqlstore

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
)

func TestRequestsThatWereStoredAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(func([]*request, func() []*request) error { return nil })
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := g.perform(t.Context(), &request{}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // all of them are stored together
		go g.loop()
		all.Wait()
		g.close()
		for _, r := range g.busy[:cap(g.busy)] {
			if r != nil {
				t.Fatal("a request is kept, and with it what it made of its lock")
			}
		}
	})
}

func TestWhoComesToWaitIsStoredWithWhatFollows(t *testing.T) {
	db := start(t, filepath.Join(t.TempDir(), "db"), Options{})
	lock := func(l *lokt.Lock, now time.Time) {
		l.Token++
		l.Queue, l.Holders = nil, []lokt.Holder{{Claim: lokt.Claim{Name: "x", LeaseID: "a"}, Token: l.Token, HeldSince: now, AcquiredAt: now}}
	}
	commits := func() (n uint64) {
		edit(t, db, "y", func(*lokt.Lock, time.Time) { n = db.state.Commits })
		return n
	}
	for range 1000 { // as a rule once is enough
		edit(t, db, "x", lock)
		before := commits()
		waits := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			edit(t, db, "x", func(l *lokt.Lock, now time.Time) {
				l.Queue = []*lokt.Waiter{{Claim: lokt.Claim{Name: "x", LeaseID: "b", Wait: -1}, Since: now, Until: now.Add(time.Hour)}}
				close(waits)
			})
		})
		<-waits
		edit(t, db, "x", func(l *lokt.Lock, _ time.Time) { l.Holders = nil })
		if all.Wait(); commits() == before+1 {
			return
		}
	}
	t.Error("each was stored by itself")
}

func TestTheTimeOfAGrantBeginsAfterItWasAskedFor(t *testing.T) {
	db := start(t, filepath.Join(t.TempDir(), "db"), Options{})
	db.group.close() // this goroutine is in its place
	queue := &request{name: "x", change: func(s lokt.Snapshot) lokt.Change {
		s.Lock.Queue = []*lokt.Waiter{{Claim: lokt.Claim{Name: "x", LeaseID: "b", Wait: -1}, Since: s.Now, Until: s.Now.Add(time.Hour)}}
		return lokt.Change{Lock: s.Lock}
	}}
	var asked, began time.Time
	late := &request{name: "y", change: func(s lokt.Snapshot) lokt.Change {
		began = s.Now
		return lokt.Change{Lock: s.Lock}
	}}
	if err := db.commit([]*request{queue}, func() []*request {
		time.Sleep(time.Millisecond) // the process is stopped while it waits for others
		asked = db.clock.now()
		return []*request{late}
	}); err != nil || queue.err != nil || late.err != nil {
		t.Fatal(err, queue.err, late.err)
	}
	if asked.IsZero() || began.Before(asked) {
		t.Errorf("asked for at %v, and judged by %v", asked, began)
	}
}

// Promise S-38.
func TestWhatBecameOfARequestIsNotForgottenThoughOthersCannotBeStored(t *testing.T) {
	wrong, elsewhere := errors.New("wrong"), errors.New("elsewhere")
	stored := map[string]int{}
	g := newGroup(func(rs []*request, _ func() []*request) error {
		for i, r := range rs {
			stored[r.name]++
			switch {
			case r.name == "refused" || r.name == "alone" && len(rs) == 1:
				r.err = elsewhere
			case len(rs) > 1 && i == 0:
				r.over = true
			case r.name == "later" && stored[r.name] == 1:
				r.later = true
			}
		}
		if len(rs) == 4 {
			return wrong // of one
		}
		return nil
	})
	got := map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range []string{"over", "alone", "refused", "later"} {
		r := &request{name: name, done: make(chan struct{})}
		g.queue = append(g.queue, r)
		all.Go(func() {
			<-r.done
			mu.Lock()
			defer mu.Unlock()
			got[name] = r.outcome()
		})
	}
	go g.loop()
	all.Wait()
	g.close()
	want := map[string]error{"over": nil, "alone": elsewhere, "refused": elsewhere, "later": nil}
	if !maps.Equal(got, want) {
		t.Errorf("told %v, not %v", got, want)
	}
	if want := map[string]int{"over": 1, "alone": 2, "refused": 1, "later": 2}; !maps.Equal(stored, want) {
		t.Errorf("stored %v, not %v", stored, want)
	}
}

// inParts has a crowd make changes that take long to judge, of which the last waits until another has been answered.
func inParts(t *testing.T, locks lokt.Store) {
	t.Helper()
	const crowd = 16
	update := func(change func(*lokt.Lock)) {
		if err := locks.Update(t.Context(), "x", func(s lokt.Snapshot) lokt.Change {
			s.Lock = s.Lock.Clone()
			change(&s.Lock)
			return lokt.Change{Lock: s.Lock}
		}); err != nil {
			t.Error(err)
		}
	}
	first := make(chan struct{})
	answered := sync.OnceFunc(func() { close(first) })
	runs, judged := 0, map[int]bool{} // of changes of one lock there is one at a time
	var all sync.WaitGroup
	come := sync.OnceFunc(func() {
		for i := range crowd {
			all.Go(func() {
				update(func(l *lokt.Lock) {
					runs++
					if judged[i] = true; len(judged) == crowd {
						select {
						case <-first:
						case <-time.After(30 * time.Second):
							t.Error("nobody was answered before the last was judged")
						}
					}
					time.Sleep(judging / 2)
					l.Holders = append(l.Holders, lokt.Holder{Claim: claim("x", fmt.Sprint("o", i), time.Hour), Token: 1, AcquiredAt: time.Now()})
				})
				answered()
			})
		}
	})
	update(func(*lokt.Lock) { // they come while somebody else is at it
		come()
		time.Sleep(judging)
	})
	all.Wait()
	if s, err := locks.View(t.Context(), "x"); err != nil || len(s.Lock.Holders) != crowd {
		t.Errorf("%d hold it after %d changes (%v)", len(s.Lock.Holders), crowd, err)
	}
	if runs > 3*crowd {
		t.Errorf("%d changes were judged %d times", crowd, runs)
	}
}

// Promises S-38, S-101.
func TestACrowdIsGrantedInPartsOnSQLite(t *testing.T) {
	t.Parallel()
	inParts(t, start(t, filepath.Join(t.TempDir(), "db"), Options{}).Locks())
}
