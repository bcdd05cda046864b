package lokt_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Promise S-71.
func TestPolledClaimStaysWhereItIsWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, TTL: time.Hour, Wait: -1}
		}
		h, err := m.Poll(t.Context(), new(claim("a")))
		if err != nil {
			t.Fatal(err)
		}
		poll := func(who string) (*lokt.Holder, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			return m.Poll(ctx, new(claim(who)))
		}
		queue := func() (all string) {
			s, err := m.Get(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range s.Lock.Queue {
				all += w.Owner.ID
			}
			return all
		}
		for range 3 {
			for _, who := range []string{"b", "c"} {
				if _, err := poll(who); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("%s: %v", who, err)
				}
			}
			if got := queue(); got != "bc" {
				t.Errorf("in the queue are %s", got)
			}
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		if h, err = poll("b"); err != nil || !h.Pending.IsZero() {
			t.Errorf("b was granted %+v, %v", h, err)
		}
		time.Sleep(lokt.ReturnTimeout + lokt.QueueTTL + time.Second) // nobody asks for c any more
		if _, err := m.Prune(t.Context(), "x"); err != nil || queue() != "" {
			t.Errorf("in the queue are %s, %v", queue(), err)
		}
	})
}

// Promise S-266.
func TestPolledClaimThatWasSentAwayIsNotNewerWhenItAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		poll := func(who string) error {
			_, err := m.Poll(t.Context(), &lokt.Claim{Name: "x", LeaseID: who, Owner: lokt.Owner{ID: who}, TTL: time.Hour, Newest: true, Wait: time.Minute})
			return err
		}
		if err := poll("a"); err != nil {
			t.Fatal(err)
		}
		var asked sync.WaitGroup
		defer asked.Wait()
		for _, who := range []string{"b", "c"} {
			asked.Go(func() {
				for range 2 { // as if the first answer had been lost
					blocked := (*lokt.BlockedError)(nil)
					if err := poll(who); !errors.As(err, &blocked) || (blocked.Ousted == "c") != (who == "b") {
						t.Errorf("%s is told %v", who, err)
					}
				}
			})
			synctest.Wait()
		}
		s, err := m.Get(t.Context(), "x")
		for l, failed := range m.List(t.Context(), lokt.Filter{}) {
			if err = errors.Join(err, failed); len(l.Lock.Queue) != 1 || len(s.Lock.Queue) != 1 || s.Lock.Queue[0].LeaseID != "c" {
				t.Errorf("in the queue are %+v, listed %+v", s.Lock.Queue, l.Lock.Queue)
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// lateStore runs something before each change.
type lateStore struct {
	lokt.Store
	before func()
}

func (s lateStore) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	s.before()
	return s.Store.Update(ctx, name, change)
}

// Promise S-266.
func TestWhoIsSentAwayWhenItsTimeIsUpHasNotTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, begun := memstore.New(), time.Now()
		claim := func(who string, wait time.Duration) lokt.Claim {
			return lokt.Claim{Name: "x", Owner: lokt.Owner{ID: who}, Newest: true, Wait: wait}
		}
		newer := sync.OnceFunc(func() {
			go func() { _, _ = lokt.NewManager(store).Acquire(t.Context(), claim("c", -1)) }()
			time.Sleep(time.Nanosecond)
		})
		m := lokt.NewManager(lateStore{store, func() {
			if time.Since(begun) == 5*time.Second {
				newer()
			}
		}})
		if _, err := m.Acquire(t.Context(), claim("a", 0)); err != nil {
			t.Fatal(err)
		}
		blocked := (*lokt.BlockedError)(nil)
		if _, err := m.Acquire(t.Context(), claim("b", 5*time.Second)); !errors.As(err, &blocked) || blocked.Ousted != "c" || blocked.TimedOut != 0 {
			t.Errorf("b is told %v", err)
		}
	})
}

// Promise S-39.
func TestWaitersThatHungUpHoldUpNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, TTL: time.Hour, Wait: -1}
		}
		if _, err := m.Poll(t.Context(), &lokt.Claim{Name: "x", LeaseID: "short", Owner: lokt.Owner{ID: "a"}, TTL: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
		ctx, hangUp := context.WithCancel(t.Context())
		ended := make(chan error)
		for _, who := range []string{"b", "c", "d"} {
			go func() {
				_, err := m.Poll(ctx, new(claim(who)))
				ended <- err
			}()
			synctest.Wait()
		}
		hangUp()
		for range 3 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		again := make(chan error)
		go func() { // one of them asks again, and keeps its place
			time.Sleep(time.Second)
			h, err := m.Poll(t.Context(), new(claim("c")))
			if took := time.Since(begun); err == nil && (took > 4*time.Second || h.Token != 2) {
				t.Errorf("c was granted after %v, with token %d", took, h.Token)
			}
			_, left := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID})
			again <- errors.Join(err, left)
		}()
		h, err := m.Poll(t.Context(), new(claim("e")))
		if took := time.Since(begun); err != nil || took > 4*time.Second || h.Token != 3 {
			t.Errorf("e was granted after %v, with token %d: %v", took, h.Token, err)
		}
		if err := <-again; err != nil {
			t.Error(err)
		}
	})
}

// Promise S-125.
func TestAClientThatPollsInTimeIsNotPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, Wait: -1}
		}
		if _, err := m.Poll(t.Context(), new(claim("a"))); err != nil {
			t.Fatal(err)
		}
		for range 50 { // of short requests, with pauses between
			for _, who := range []string{"b", "c"} {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				_, err := m.Poll(ctx, new(claim(who)))
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
			}
		}
		_, _ = m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"})
		if s, err := m.Get(t.Context(), "x"); err != nil || len(s.Lock.Holders) != 1 || s.Lock.Holders[0].Owner.ID != "b" {
			t.Errorf("held by %+v, %v", s.Lock.Holders, err)
		}
		time.Sleep(lokt.OfferTTL)
		if h, err := m.Poll(t.Context(), new(claim("b"))); err != nil || h.Token != 2 || !h.Pending.IsZero() {
			t.Errorf("b comes in time, and is answered %+v, %v", h, err)
		}
		_, _ = m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of b"})
		if s, err := m.Get(t.Context(), "x"); err != nil || len(s.Lock.Holders) != 0 || len(s.Lock.Queue) != 1 {
			t.Errorf("who did not ask for so long was granted the lock: %+v, %v", s.Lock.Holders, err)
		}
		if h, err := m.Poll(t.Context(), new(claim("c"))); err != nil || h.Token != 3 {
			t.Errorf("c comes back, and is answered %+v, %v", h, err)
		}
	})
}

// Promises S-39, S-125.
func TestTheTimeOfAGrantBeginsThoughItsWaiterIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, TTL: 2 * time.Second, Wait: -1}
		}
		begun := time.Now()
		if _, err := m.Poll(t.Context(), new(claim("a"))); err != nil {
			t.Fatal(err)
		}
		for _, who := range []string{"b", "c"} { // whose connections are cut without a word
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := m.Poll(ctx, new(claim(who)))
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if _, err := m.Poll(t.Context(), new(claim("d"))); err != nil || time.Since(begun) > 5*time.Second {
			t.Errorf("the lock passed on after %v: %v", time.Since(begun), err)
		}
	})
}

// lateOnce is a store of which one Wait returns late.
type lateOnce struct {
	lokt.Store
	by   time.Duration
	once sync.Once
}

func (s *lateOnce) Wait(ctx context.Context, w lokt.Watch) error {
	err := s.Store.Wait(ctx, w)
	s.once.Do(func() { time.Sleep(s.by) })
	return err
}

// Promise S-125.
func TestAWaiterThatComesTooLateForItsGrantAsksAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		m, slow := lokt.NewManager(st), lokt.NewManager(&lateOnce{Store: st, by: lokt.OfferTTL + time.Second/2})
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, Wait: -1}
		}
		release := func(who string) {
			if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of " + who}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := m.Acquire(t.Context(), claim("a")); err != nil {
			t.Fatal(err)
		}
		granted := make(chan string)
		wait := func(m *lokt.Manager, who string) {
			go func() {
				if _, err := m.Acquire(t.Context(), claim(who)); err != nil {
					t.Error(err)
				}
				granted <- who
			}()
			synctest.Wait()
		}
		wait(slow, "b")
		wait(m, "c")
		wait(m, "d")
		release("a")
		if got := <-granted; got != "c" {
			t.Fatalf("%s was granted the lock", got)
		}
		time.Sleep(time.Second) // b is awake by now
		release("c")
		for _, want := range []string{"b", "d"} {
			got := <-granted
			if got != want {
				t.Errorf("%s was granted the lock before %s", got, want)
			}
			release(got)
		}
	})
}

// Promise S-125.
func TestARequestThatEndsLateDoesNotCountForTheOneThatFollowedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, Wait: -1}
		}
		for _, second := range []time.Duration{2 * time.Second, 9 * time.Second, 20 * time.Second} { // with 9 s both end together
			if _, err := m.Acquire(t.Context(), claim("a")); err != nil {
				t.Fatal(err)
			}
			over := make(chan error, 1)
			poll := func(wait time.Duration) (hangUp context.CancelFunc) {
				ctx, hangUp := context.WithCancel(t.Context())
				ctx, cancel := context.WithTimeout(ctx, wait)
				go func() {
					defer cancel()
					_, err := m.Poll(ctx, new(claim("b")))
					over <- err
				}()
				return hangUp
			}
			first := poll(10 * time.Second)
			time.Sleep(time.Second)
			defer poll(second)()
			time.Sleep(time.Second / 2)
			first() // the server hears of it late
			if err := <-over; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if s, err := m.Get(t.Context(), "x"); err != nil || len(s.Lock.Queue) != 1 || s.Away(s.Lock.Queue[0]) {
				t.Errorf("a request of %v waits: %+v, %v", second, s.Lock.Queue, err)
			}
			if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"}); err != nil {
				t.Fatal(err)
			}
			if err := <-over; err != nil {
				t.Fatal(err)
			}
			if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of b"}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Promise S-125.
func TestReadersEnterAtOnceWhenAWriterBeforeThemHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string, limit int) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, Wait: -1, Limit: limit}
		}
		if _, err := m.Acquire(t.Context(), claim("a", lokt.Shared)); err != nil {
			t.Fatal(err)
		}
		ctx, hangUp := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { _, err := m.Poll(ctx, new(claim("writer", lokt.Exclusive))); over <- err }()
		synctest.Wait()
		in := make(chan error)
		go func() { _, err := m.Acquire(t.Context(), claim("reader", lokt.Shared)); in <- err }()
		synctest.Wait()
		begun := time.Now()
		hangUp()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err := <-in; err != nil || time.Since(begun) > time.Second {
			t.Errorf("the reader entered after %v: %v", time.Since(begun), err)
		}
	})
}

// Promise S-125.
func TestWhoIsBehindAWaiterThatIsAwaySeesWhenAHoldExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(who string, ttl time.Duration) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: "lease of " + who, Owner: lokt.Owner{ID: who}, TTL: ttl, Wait: -1}
		}
		if _, err := m.Acquire(t.Context(), claim("a", 0)); err != nil {
			t.Fatal(err)
		}
		ctx, hangUp := context.WithCancel(t.Context())
		over, got := make(chan error), make(chan error, 2)
		go func() {
			_, err := m.Poll(ctx, new(claim("away", 0)))
			over <- err
		}()
		synctest.Wait()
		for _, c := range []lokt.Claim{claim("b", 3*time.Second), claim("c", 0)} {
			go func() {
				_, err := m.Acquire(t.Context(), c)
				got <- err
			}()
			synctest.Wait()
		}
		hangUp()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"}); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil { // b, which dies
			t.Fatal(err)
		}
		begun := time.Now()
		if err := <-got; err != nil || time.Since(begun) > 5*time.Second {
			t.Errorf("c was granted the lock %v after b, which had it for 3 s: %v", time.Since(begun), err)
		}
	})
}

// doubtful is a store that says of one change that nobody knows what became of it, although it was stored.
type doubtful struct {
	lokt.Store
	left *int
}

func (s doubtful) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	err := s.Store.Update(ctx, name, change)
	if *s.left--; *s.left == 0 && err == nil {
		return lokt.ErrUnavailable
	}
	return err
}

func TestAClaimOfWhichTheOutcomeIsUnknownLeavesNothingBehind(t *testing.T) {
	for name, wait := range map[string]time.Duration{"granted": 0, "queued": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, left := memstore.New(), 1
				m := lokt.NewManager(doubtful{store, &left})
				sound := lokt.NewManager(store)
				if wait > 0 {
					if _, err := sound.Acquire(t.Context(), lokt.Claim{Name: "x", LeaseID: "b", Owner: lokt.Owner{ID: "b"}}); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := m.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, Wait: wait}); !errors.Is(err, lokt.ErrUnavailable) {
					t.Fatalf("it was answered with %v", err)
				}
				s, err := sound.Get(t.Context(), "x")
				if _, in := s.Lock.Holder("b"); err != nil || len(s.Lock.Queue) > 0 || in != (wait > 0) || len(s.Lock.Holders) > 1 || !in && !s.Lock.Free() {
					t.Errorf("the lock is %+v, %v", s.Lock, err)
				}
			})
		})
	}
}

// Whoever gives up on purpose releases the lease, perhaps at another server than the one where the request still waits.
func TestAPolledClaimThatWasWithdrawnIsNotMadeAgain(t *testing.T) {
	for name, free := range map[string]bool{"while the lock is held": false, "as the lock becomes free": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				here, elsewhere := lokt.NewManager(store), lokt.NewManager(store)
				h, err := here.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}})
				if err != nil {
					t.Fatal(err)
				}
				answered := make(chan error, 1)
				go func() {
					_, err := here.Poll(t.Context(), &lokt.Claim{Name: "x", LeaseID: "b", Owner: lokt.Owner{ID: "b"}, Wait: -1})
					answered <- err
				}()
				synctest.Wait()
				targets := []lokt.Target{{Name: "x", LeaseID: "b"}}
				if free {
					targets = append(targets, lokt.Target{Name: "x", LeaseID: h.LeaseID})
				}
				for _, target := range targets {
					if _, err := elsewhere.Release(t.Context(), target); err != nil {
						t.Fatal(err)
					}
				}
				if err := <-answered; !errors.Is(err, lokt.ErrWithdrawn) {
					t.Errorf("it was answered with %v", err)
				}
				s, err := here.Get(t.Context(), "x")
				if _, in := s.Lock.Holder("b"); err != nil || in || len(s.Lock.Queue) > 0 {
					t.Errorf("the lock is %+v, %v", s.Lock, err)
				}
			})
		})
	}
}

func TestARequestWithADeadlineInTheFarFutureKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		h, err := m.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().AddDate(1000, 0, 0))
		defer cancel()
		answered := make(chan error, 1)
		go func() {
			_, err := m.Poll(ctx, &lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "b"}, Wait: -1})
			answered <- err
		}()
		synctest.Wait()
		if s, err := m.Get(t.Context(), "x"); err != nil || len(s.Lock.Queue) != 1 || s.Away(s.Lock.Queue[0]) {
			t.Errorf("the queue is %+v, %v", s.Lock.Queue, err)
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		if err := <-answered; err != nil {
			t.Error(err)
		}
	})
}

// counting counts the steps of a store, and may do something before it says that it has stored one.
type counting struct {
	lokt.Store
	steps atomic.Int64
	then  func()
}

func (c *counting) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	c.steps.Add(1)
	err := c.Store.Update(ctx, name, change)
	if then := c.then; then != nil {
		c.then = nil
		then()
	}
	return err
}

// Promise S-125. To ask is to write the whole queue, on files.
func TestWhoWaitsAndIsKnownToLiveAsksRarelyAndIsNeverAway(t *testing.T) {
	for liveness, most := range map[string]int64{"": 63, "live:1": 13} {
		synctest.Test(t, func(t *testing.T) {
			s := &counting{Store: memstore.New()}
			m := lokt.NewManager(s)
			if _, err := m.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}}); err != nil {
				t.Fatal(err)
			}
			waits := lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "b", Process: lokt.Process{PID: 1, Liveness: liveness}}, Wait: 10 * time.Minute}
			over := make(chan error)
			go func() {
				_, err := m.Acquire(t.Context(), waits)
				over <- err
			}()
			for range 10 * 60 * 2 {
				synctest.Wait()
				if snap, err := m.Get(t.Context(), "x"); err != nil || len(snap.Lock.Queue) != 1 || snap.Away(snap.Lock.Queue[0]) {
					t.Fatalf("%q: %+v, %v", liveness, snap.Lock.Queue, err)
				}
				time.Sleep(500*time.Millisecond - time.Nanosecond)
			}
			if err := <-over; !errors.Is(err, lokt.ErrHeld) {
				t.Errorf("%q: %v", liveness, err)
			}
			if n := s.steps.Load(); n > most {
				t.Errorf("%q: %d steps in ten minutes", liveness, n)
			}
		})
	}
}

// Promise S-39.
func TestAGrantToWhoWaitsAtTheSameServerIsTakenUpAtOnce(t *testing.T) {
	for _, test := range []struct {
		name    string
		ttl     time.Duration
		another bool // it waits at another server
		during  bool // the lock is released before it is known to wait
		steps   int64
	}{
		{"same server", time.Hour, false, false, 1},
		{"same server, in the step after the one that queues it", time.Hour, false, true, 1},
		{"without a time to live", 0, false, false, 2},
		{"another server", time.Hour, true, false, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &counting{Store: memstore.New()}
				here := lokt.NewManager(s)
				there := here
				if test.another {
					there = lokt.NewManager(s)
				}
				h, err := here.Poll(t.Context(), &lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				release := func() {
					s.steps.Store(0)
					if _, err := here.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
						t.Error(err)
					}
				}
				b := lokt.Claim{Name: "x", LeaseID: "b", Owner: lokt.Owner{ID: "b"}, TTL: test.ttl, Wait: -1}
				granted := make(chan *lokt.Holder)
				if test.during {
					s.then = release
				}
				go func() {
					h, err := there.Poll(t.Context(), &b)
					if err != nil {
						t.Error(err)
					}
					granted <- h
				}()
				synctest.Wait()
				if !test.during {
					release()
				}
				if h := <-granted; h.Token != 2 || !h.Pending.IsZero() {
					t.Errorf("granted is %+v", h)
				}
				if n := s.steps.Load(); n != test.steps {
					t.Errorf("it took %d steps, not %d", n, test.steps)
				}
				time.Sleep(2 * lokt.OfferTTL)
				if s, err := here.Get(t.Context(), "x"); err != nil || len(s.Live()) != 1 {
					t.Errorf("the holders are %+v, %v", s.Lock.Holders, err)
				}
			})
		})
	}
}

// Promise S-39.
func TestAGrantAfterTheRequestHasEndedIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		h, err := m.Poll(t.Context(), &lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.Poll(ctx, &lokt.Claim{Name: "x", LeaseID: "b", Owner: lokt.Owner{ID: "b"}, TTL: time.Hour, Wait: -1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		if s, err := m.Get(t.Context(), "x"); err != nil || len(s.Lock.Holders) != 1 || s.Lock.Holders[0].Pending.IsZero() {
			t.Fatalf("the holders are %+v, %v", s.Lock.Holders, err)
		}
		if h, err := m.Poll(t.Context(), &lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "c"}, TTL: time.Hour, Wait: -1}); err != nil || h.Owner.ID != "c" {
			t.Errorf("granted is %+v, %v", h, err)
		}
	})
}
