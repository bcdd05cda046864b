package lokt_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
)

func TestRunnersAreOnePerProcessAndDescribeThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		runner := lokt.Owner{Host: "h.example", Process: lokt.Process{PID: 4711}}
		var lockers []*lokt.Locker
		for range 2 {
			k, err := lokt.NewLocker(s, runner, lokt.LockerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			lockers = append(lockers, k)
		}
		id := lockers[0].Owner().ID
		if !regexp.MustCompile(`^runner_[0-9]{12,}_[0-9a-f]{8}_4711$`).MatchString(id) || id != lockers[1].Owner().ID || id != lokt.RunnerID(4711) {
			t.Errorf("the runner IDs are %q and %q", id, lockers[1].Owner().ID)
		}
		l := acquire(t, lockers[0], "x", lokt.Options{Metadata: map[string]string{"source": "test", "platform": "mine"}})
		want := map[string]string{
			"pid": "4711", "hostname": "h.example", "platform": "mine", "timestamp": time.Now().UTC().Format(time.RFC3339Nano), "source": "test",
		}
		if got := l.Holder().Metadata; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the metadata is %v, not %v", got, want)
		}
		plain := acquire(t, newLocker(t, s, "somebody", lokt.Options{}), "y", lokt.Options{})
		if got := plain.Holder().Metadata; len(got) != 0 {
			t.Errorf("an owner with an ID of its own has metadata %v", got)
		}
		release(t, l, plain)
	})
}

func TestDefaultsHoldUnlessAnAcquisitionSaysOtherwise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		k := newLocker(t, s, "a", lokt.Options{
			TTL: time.Minute, Interval: 10 * time.Second, Margin: 5 * time.Second, Limit: 3, Priority: 4, MaxHold: time.Hour,
			ManualHeartbeat: true, Strict: true, Metadata: map[string]string{"a": "1", "b": "1"},
		})
		l := acquire(t, k, "x", lokt.Options{Metadata: map[string]string{"b": "2"}})
		h := l.Holder()
		if h.TTL != time.Minute || h.Limit != 3 || h.Priority != 4 || h.MaxHold != time.Hour || !h.Strict || fmt.Sprint(h.Metadata) != "map[a:1 b:2]" || l.Beating() {
			t.Errorf("with defaults: %+v, heartbeats on: %v", h, l.Beating())
		}
		if got, want := l.Remaining(), lokt.Usable(time.Minute, 5*time.Second); got != want {
			t.Errorf("%v left, not %v", got, want)
		}
		// The defaults' interval does not fit this TTL, and is not used.
		short := acquire(t, k, "y", lokt.Options{TTL: time.Second, Limit: 1})
		if h := short.Holder(); h.TTL != time.Second || h.Limit != 1 {
			t.Errorf("with options: %+v", h)
		}
		release(t, l, short)
	})
}

// Promise S-17.
func TestTimesThatCannotKeepALockAreRefused(t *testing.T) {
	s := newService()
	for _, o := range []lokt.Options{
		{Interval: lokt.DefaultTTL}, {Interval: time.Minute}, {TTL: time.Second, Interval: time.Second}, {TTL: time.Second, Margin: time.Second},
		{Interval: -1}, {Margin: -1}, {Interval: 1}, {TTL: lokt.NoTTL, Interval: time.Millisecond - 1}, {TTL: time.Second, Interval: 960 * time.Millisecond},
		{TTL: time.Minute, Margin: 10 * time.Second, MaxHold: 10 * time.Second}, {TTL: lokt.NoTTL, Margin: time.Second, MaxHold: time.Second},
	} {
		if _, err := lokt.NewLocker(s, lokt.Owner{}, lokt.LockerOptions{Defaults: o}); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("a locker with %+v: %v", o, err)
		}
		k := newLocker(t, s, "a", lokt.Options{})
		if _, err := k.Acquire(t.Context(), "x", o); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("acquire with %+v: %v", o, err)
		}
		if _, _, err := k.TryAcquire(t.Context(), "x", o); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("try with %+v: %v", o, err)
		}
		if _, err := k.AcquireAll(t.Context(), []string{"x", "y"}, o); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("acquire all with %+v: %v", o, err)
		}
	}
	k := newLocker(t, s, "a", lokt.Options{})
	if _, err := k.Acquire(t.Context(), "not/a/name", lokt.Options{}); !errors.Is(err, lokt.ErrInvalid) {
		t.Errorf("a bad name: %v", err)
	}
	if _, err := k.AcquireAll(t.Context(), nil, lokt.Options{}); !errors.Is(err, lokt.ErrInvalid) {
		t.Errorf("no names: %v", err)
	}
}

func TestTryAcquireNeitherWaitsNorFailsOverWhoIsInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		l := acquire(t, newLocker(t, s, "a", lokt.Options{}), "x", lokt.Options{})
		b := newLocker(t, s, "b", lokt.Options{Wait: time.Hour})
		begun := time.Now()
		wantRefused(t, b, "x", "while another holds it")
		if d := time.Since(begun); d != 0 {
			t.Errorf("trying took %v", d)
		}
		release(t, l)
		if _, err := s.Freeze(t.Context(), "x", lokt.Freeze{Owner: lokt.Owner{ID: "admin"}, TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, b, "x", "while it is frozen")
	})
}

func TestBlockedErrorNamesTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		l := acquire(t, newLocker(t, s, "a", lokt.Options{}), "x", lokt.Options{})
		b := newLocker(t, s, "b", lokt.Options{})
		for _, wait := range []time.Duration{0, 3 * time.Second} {
			begun := time.Now()
			_, err := b.Acquire(t.Context(), "x", lokt.Options{Wait: wait})
			var blocked *lokt.BlockedError
			if !errors.Is(err, lokt.ErrHeld) || !errors.As(err, &blocked) || len(blocked.Holders) != 1 || blocked.Holders[0].Owner.ID != "a" {
				t.Errorf("waiting %v: %v", wait, err)
			} else if blocked.TimedOut != wait || time.Since(begun) != wait {
				t.Errorf("waiting %v gave up after %v and says %v", wait, time.Since(begun), blocked.TimedOut)
			}
		}
		release(t, l)
	})
}

// Promises S-40, S-53.
func TestAcquisitionThatIsCalledOffHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		l := acquire(t, newLocker(t, s, "a", lokt.Options{}), "x", lokt.Options{})
		b := newLocker(t, s, "b", lokt.Options{})
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, why)
		defer cancel()
		if _, err := b.Acquire(ctx, "x", lokt.Options{Wait: -1}); !errors.Is(err, why) {
			t.Errorf("acquire gave %v", err)
		}
		if _, err := b.Acquire(ctx, "x", lokt.Options{Wait: -1}); !errors.Is(err, why) {
			t.Errorf("called off before it began, acquire gave %v", err)
		}
		if info, _, err := b.Info(t.Context(), "x"); err != nil || len(info.Queue) != 0 || len(info.Holders) != 1 {
			t.Errorf("on record: %+v, error %v", info, err)
		}
		release(t, l)
		if held, err := b.Held(t.Context(), "x"); held || err != nil {
			t.Errorf("after the release: held %v, error %v", held, err)
		}
	})
}

func TestLeaseThatWaitedInTheQueueIsGoodFromTheMomentItIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		l := acquire(t, newLocker(t, s, "a", lokt.Options{}), "x", lokt.Options{})
		go func() {
			time.Sleep(time.Minute)
			release(t, l)
		}()
		next := acquire(t, newLocker(t, s, "b", lokt.Options{}), "x", lokt.Options{Wait: -1})
		wantState(t, next, lokt.Held)
		if got, want := next.Remaining(), lokt.Usable(lokt.DefaultTTL, lokt.DefaultTTL/20); got != want {
			t.Errorf("%v left, not %v", got, want)
		}
		release(t, next)
	})
}

// Promises S-12, S-30.
func TestAMaximumHoldBeginsWithTheGrantHoweverLongTheWait(t *testing.T) {
	for name, o := range map[string]lokt.Options{
		"with a long TTL": {TTL: 30 * time.Second, Interval: 15 * time.Second},
		"without a TTL":   {TTL: lokt.NoTTL, Interval: 15 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newService()
			l := acquire(t, newLocker(t, s, "a", lokt.Options{}), "x", lokt.Options{})
			time.AfterFunc(5*time.Second, func() { release(t, l) })
			o.MaxHold, o.Margin, o.Wait = 4*time.Second, time.Millisecond, -1
			next := acquire(t, newLocker(t, s, "b", lokt.Options{}), "x", o)
			wantState(t, next, lokt.Held)
			if got, want := next.Remaining(), lokt.Usable(o.MaxHold, o.Margin); got != want {
				t.Errorf("%s: %v left, not %v", name, got, want)
			}
			release(t, next)
		})
	}
}

func TestDoHoldsTheLockWhileTheFunctionRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		a, b := newLocker(t, s, "a", lokt.Options{}), newLocker(t, s, "b", lokt.Options{})
		failure := errors.New("the work failed")
		var tokens []uint64
		for _, want := range []error{nil, failure} {
			err := a.Do(t.Context(), "x", lokt.Options{}, func(ctx context.Context, token uint64) error {
				time.Sleep(time.Minute)
				wantRefused(t, b, "x", "inside Do")
				tokens = append(tokens, token)
				if ctx.Err() != nil {
					t.Error("the context ended inside Do")
				}
				return want
			})
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("Do gave %v, not %v", err, want)
			}
			wantGranted(t, b, "x", "after Do")
		}
		if tokens[1] <= tokens[0] {
			t.Errorf("the tokens are %v", tokens)
		}
		func() {
			defer func() { _ = recover() }()
			_ = a.Do(t.Context(), "x", lokt.Options{}, func(context.Context, uint64) error { panic("the work panicked") })
		}()
		wantGranted(t, b, "x", "after a panic inside Do")
		if err := b.Do(t.Context(), "no good", lokt.Options{}, nil); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("a bad name: %v", err)
		}
	})
}

func TestDoReportsALossBesideTheFunctionsOwnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService()}
		a := newLocker(t, net, "a", lokt.Options{})
		failure := errors.New("the work failed")
		for _, own := range []error{nil, failure} {
			net.cut.Store(false)
			err := a.Do(t.Context(), "x", lokt.Options{}, func(ctx context.Context, _ uint64) error {
				net.cut.Store(true)
				<-ctx.Done()
				return own
			})
			if !errors.Is(err, lokt.ErrLost) || own != nil && !errors.Is(err, own) {
				t.Errorf("Do gave %v", err)
			}
		}
	})
}

// Promise S-44.
func TestAcquireAllTakesAllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		a, b := newLocker(t, s, "a", lokt.Options{}), newLocker(t, s, "b", lokt.Options{})
		all, err := a.AcquireAll(t.Context(), []string{"z", "x", "y", "x"}, lokt.Options{})
		if err != nil || len(all) != 3 || all[0].Name() != "x" || all[2].Name() != "z" || all.Err() != nil {
			t.Fatalf("%v, error %v", all, err)
		}
		for _, o := range []lokt.Options{{}, {Wait: 3 * time.Second}} {
			begun := time.Now()
			if _, err := b.AcquireAll(t.Context(), []string{"v", "w", "x"}, o); !errors.Is(err, lokt.ErrHeld) || time.Since(begun) != o.Wait {
				t.Errorf("after %v: %v", time.Since(begun), err)
			}
			for _, name := range []string{"v", "w"} {
				if held, err := b.Held(t.Context(), name); held || err != nil {
					t.Errorf("%s is held after all were refused (error %v)", name, err)
				}
			}
		}
		ctx, cancel := all.Context(t.Context())
		defer cancel()
		if _, err := s.Release(t.Context(), lokt.Target{Name: "y", Force: true, Owner: lokt.Owner{ID: "admin"}}); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), lokt.ErrLost) || !errors.Is(all.Err(), lokt.ErrLost) {
			t.Errorf("one was lost: context %v, error %v", context.Cause(ctx), all.Err())
		}
		if err := all.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if locks, err := a.All(t.Context()); len(locks) != 0 || err != nil {
			t.Errorf("left on record: %v, error %v", locks, err)
		}
	})
}

// Promises S-44 and S-411.
func TestASetOfWhichALockWasLostMeanwhileIsNotHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		a, b := newLocker(t, s, "a", lokt.Options{}), newLocker(t, s, "b", lokt.Options{})
		y := acquire(t, b, "y", lokt.Options{})
		done := make(chan error)
		go func() {
			_, err := a.AcquireAll(t.Context(), []string{"x", "y", "z"}, lokt.Options{Wait: time.Hour})
			done <- err
		}()
		synctest.Wait()
		if _, err := s.Release(t.Context(), lokt.Target{Name: "x", Force: true, Owner: lokt.Owner{ID: "admin"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lokt.DefaultTTL)
		release(t, y)
		if err := <-done; !errors.Is(err, lokt.ErrLost) {
			t.Errorf("x was lost while it waited for y, and all was had: %v", err)
		}
		if locks, err := a.All(t.Context()); len(locks) != 0 || err != nil {
			t.Errorf("left on record: %v, error %v", locks, err)
		}
	})
}

// Promise S-44.
func TestSetsTakenInOppositeOrdersNeverWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		const rounds = 1000
		var inside [2]atomic.Int64 // by lock
		var working sync.WaitGroup
		for i, names := range [][]string{{"x", "y"}, {"y", "x"}} {
			k := newLocker(t, s, fmt.Sprint("owner-", i), lokt.Options{Wait: time.Minute})
			working.Go(func() {
				for range rounds {
					all, err := k.AcquireAll(t.Context(), names, lokt.Options{})
					if err != nil {
						t.Errorf("%v: %v", names, err)
						return
					}
					for n := range inside {
						if inside[n].Add(1) != 1 {
							t.Error("two hold the same lock")
						}
					}
					runtime.Gosched()
					for n := range inside {
						inside[n].Add(-1)
					}
					if err := all.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		working.Wait()
	})
}

// Promise S-45.
func TestCircleThroughASetIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		set, nested := newLocker(t, s, "set", lokt.Options{}), newLocker(t, s, "nested", lokt.Options{})
		y := acquire(t, nested, "y", lokt.Options{})
		done := make(chan error)
		go func() { // holds x, waits for y
			all, err := set.AcquireAll(t.Context(), []string{"x", "y"}, lokt.Options{Wait: time.Hour})
			done <- errors.Join(err, all.Release(t.Context()))
		}()
		synctest.Wait()
		x, err := nested.Acquire(y.Context(), "x", lokt.Options{Wait: time.Hour}) // holds y, waits for x
		if err == nil {
			release(t, x)
		}
		release(t, y)
		other := <-done
		if errors.Is(err, lokt.ErrDeadlock) == errors.Is(other, lokt.ErrDeadlock) {
			t.Errorf("one of them should have given way: %v, and %v", err, other)
		}
	})
}

func TestLeaderIsElectedAgainAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		nets := []*link{{Service: s}, {Service: s}}
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		var mu sync.Mutex
		var terms []string
		var tokens []uint64
		leading := 0
		var running sync.WaitGroup
		for i, net := range nets {
			who := string(rune('a' + i))
			k := newLocker(t, net, who, lokt.Options{})
			running.Go(func() {
				err := k.Lead(ctx, "leader", lokt.Options{}, func(term context.Context, token uint64) error {
					mu.Lock()
					leading++
					if leading != 1 {
						t.Errorf("%d lead", leading)
					}
					terms, tokens = append(terms, who), append(tokens, token)
					mu.Unlock()
					<-term.Done()
					mu.Lock()
					leading--
					mu.Unlock()
					return term.Err()
				})
				if !errors.Is(err, enough) {
					t.Errorf("%s led until %v", who, err)
				}
			})
			synctest.Wait()
		}
		for range 4 { // whoever leads is cut off for a while
			time.Sleep(7 * time.Second)
			mu.Lock()
			net := nets[terms[len(terms)-1][0]-'a']
			mu.Unlock()
			net.cut.Store(true)
			time.Sleep(7 * time.Second)
			net.cut.Store(false)
		}
		time.Sleep(time.Minute)
		cancel(enough)
		running.Wait()
		if got := fmt.Sprint(terms); got != "[a b a b a]" || !slices.IsSorted(tokens) {
			t.Errorf("the terms were %v with tokens %v", got, tokens)
		}
	})
}

func TestLeadEndsWithWhatTheFunctionReturnsWhileItLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newLocker(t, newService(), "a", lokt.Options{})
		failure := errors.New("the work failed")
		for _, want := range []error{nil, failure} {
			if err := k.Lead(t.Context(), "leader", lokt.Options{}, func(context.Context, uint64) error { return want }); !errors.Is(err, want) {
				t.Errorf("Lead gave %v, not %v", err, want)
			}
		}
		if held, err := k.Held(t.Context(), "leader"); held || err != nil {
			t.Errorf("the lead is held after its end: %v, error %v", held, err)
		}
	})
}

func TestLostLeaseCanBeReclaimedUnlessAnotherWasFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		k, other := newLocker(t, s, "a", lokt.Options{ManualHeartbeat: true}), newLocker(t, s, "b", lokt.Options{})
		old := acquire(t, k, "x", lokt.Options{})
		if _, err := k.Reclaim(t.Context(), old); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("a lease that is held was reclaimed: %v", err)
		}
		<-old.Context().Done() // the store still has it for a moment
		same, err := k.Reclaim(t.Context(), old)
		if err != nil || same.ID() != old.ID() || same.Token() != old.Token() {
			t.Fatalf("%v, error %v", same, err)
		}
		if _, err := k.Reclaim(t.Context(), old); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("it was reclaimed twice: %v", err)
		}
		release(t, old)
		wantState(t, same, lokt.Held)
		wantRefused(t, other, "x", "after the release of the lease that was reclaimed")

		time.Sleep(time.Minute)
		wantState(t, same, lokt.Lost)
		again, err := k.Reclaim(t.Context(), same)
		if err != nil || again.ID() != old.ID() || again.Token() <= old.Token() {
			t.Fatalf("%v, error %v", again, err)
		}
		if got := k.Leases(); len(got) != 1 || got[0] != again {
			t.Errorf("the locker has the leases %v", got)
		}

		time.Sleep(time.Minute)
		next := acquire(t, other, "x", lokt.Options{})
		if _, err := k.Reclaim(t.Context(), again); !errors.Is(err, lokt.ErrHeld) {
			t.Errorf("a lock that another has was reclaimed: %v", err)
		}
		release(t, again)
		wantState(t, next, lokt.Held)
		release(t, next)
	})
}

// Promise S-16.
func TestReleaseAllGivesBackEverythingAndCountsWhatWasStillHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		k := newLocker(t, s, "a", lokt.Options{})
		var leases []*lokt.Lease
		for i := range 5 {
			leases = append(leases, acquire(t, k, fmt.Sprint("lock-", i), lokt.Options{}))
		}
		mine := acquire(t, newLocker(t, s, "b", lokt.Options{}), "other", lokt.Options{})
		release(t, leases[0])
		if _, err := s.Release(t.Context(), lokt.Target{Name: "lock-1", Force: true, Owner: lokt.Owner{ID: "admin"}}); err != nil {
			t.Fatal(err)
		}
		if n, err := k.ReleaseAll(t.Context()); n != 3 || err != nil {
			t.Errorf("%d released, error %v", n, err)
		}
		if n, err := k.ReleaseAll(t.Context()); n != 0 || err != nil || len(k.Leases()) != 0 {
			t.Errorf("again: %d released, error %v, %d left", n, err, len(k.Leases()))
		}
		all, err := k.All(t.Context())
		if len(all) != 1 || len(all["other"].Holders) != 1 || err != nil {
			t.Errorf("on record: %v, error %v", all, err)
		}
		release(t, mine)
	})
}

// Promise S-244.
func TestACloseLeavesNothingHeldWhateverIsUnderWay(t *testing.T) {
	var held, refused int
	for range 300 {
		s := newService()
		k := newLocker(t, s, "a", lokt.Options{})
		var all sync.WaitGroup
		results := make(chan *lokt.Lease, 8)
		for i := range cap(results) {
			all.Go(func() {
				l, err := k.Acquire(t.Context(), fmt.Sprint("lock-", i%3), lokt.Options{Strict: i%2 == 0, Wait: time.Minute})
				if err != nil && !errors.Is(err, lokt.ErrClosed) {
					t.Errorf("acquisition beside Close: %v", err)
				}
				results <- l
			})
		}
		for len(k.Leases()) == 0 {
			runtime.Gosched()
		}
		if err := k.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			wantGranted(t, newLocker(t, s, "b", lokt.Options{Strict: true}), fmt.Sprint("lock-", i), "after Close")
		}
		all.Wait()
		close(results)
		for l := range results {
			if l == nil {
				refused++
				continue
			}
			held++
			wantState(t, l, lokt.Released)
		}
		if _, err := k.Acquire(t.Context(), "x", lokt.Options{}); !errors.Is(err, lokt.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	if held == 0 || refused == 0 {
		t.Errorf("%d acquisitions succeeded and %d were given up: nothing is shown", held, refused)
	}
}

// Promise S-244.
func TestAGrantThatComesAfterCloseIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		k := newLocker(t, &deaf{s}, "a", lokt.Options{})
		acquired := make(chan error)
		go func() {
			_, err := k.Acquire(t.Context(), "x", lokt.Options{})
			acquired <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := k.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a close that could not wait: %v", err)
		}
		if err := <-acquired; !errors.Is(err, lokt.ErrClosed) {
			t.Errorf("the acquisition: %v", err)
		}
		wantGranted(t, newLocker(t, s, "b", lokt.Options{}), "x", "after the late grant")
	})
}

// deaf grants after three seconds, whether or not anybody waits.
type deaf struct{ lokt.Service }

func (s *deaf) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	time.Sleep(3 * time.Second)
	return s.Service.Acquire(context.WithoutCancel(ctx), c)
}

func TestAThousandLeasesAreReleasedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newLocker(t, &tardyRelease{newService()}, "a", lokt.Options{TTL: time.Minute})
		for i := range 1000 {
			acquire(t, k, fmt.Sprint("lock-", i), lokt.Options{})
		}
		begun := time.Now()
		if n, err := k.ReleaseAll(t.Context()); n != 1000 || err != nil || time.Since(begun) > 20*time.Second {
			t.Errorf("%d released in %v, error %v", n, time.Since(begun), err)
		}
	})
}

func TestLocksCanBeAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		a, b := newLocker(t, s, "a", lokt.Options{}), newLocker(t, s, "b", lokt.Options{})
		beating := acquire(t, a, "beating", lokt.Options{})
		shared := []*lokt.Lease{
			acquire(t, a, "shared", lokt.Options{Limit: lokt.Shared}), acquire(t, b, "shared", lokt.Options{Limit: lokt.Shared}),
		}
		acquire(t, a, "stale", lokt.Options{ManualHeartbeat: true})
		waiting := make(chan error)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			_, err := b.Acquire(ctx, "beating", lokt.Options{Wait: -1})
			waiting <- err
		}()
		time.Sleep(10500 * time.Millisecond)

		type answer struct{ held, mine, known, stale bool }
		for name, want := range map[string]struct{ a, b answer }{
			"beating": {answer{true, true, true, false}, answer{true, false, true, false}},
			"shared":  {answer{true, true, true, false}, answer{true, true, true, false}},
			"stale":   {answer{false, false, true, true}, answer{false, false, true, true}},
			"unknown": {answer{false, false, false, true}, answer{false, false, false, true}},
		} {
			for k, want := range map[*lokt.Locker]answer{a: want.a, b: want.b} {
				held, err1 := k.Held(t.Context(), name)
				mine, err2 := k.HeldByMe(t.Context(), name)
				info, known, err3 := k.Info(t.Context(), name)
				if got := (answer{held, mine, known, info.Stale}); got != want || info.Mine != mine || errors.Join(err1, err2, err3) != nil {
					t.Errorf("%v asks about %s: %+v, not %+v; %+v; %v", k.Owner(), name, got, want, info, errors.Join(err1, err2, err3))
				}
			}
		}
		if info, _, err := a.Info(t.Context(), "beating"); err != nil || len(info.Queue) != 1 || info.Queue[0].Owner.ID != "b" || info.Holders[0].Renewals != 10 {
			t.Errorf("beating: %+v, error %v", info, err)
		}
		all, err := a.All(t.Context())
		if err != nil || len(all) != 3 || len(all["shared"].Holders) != 2 {
			t.Errorf("all: %v, error %v", all, err)
		}

		st, err := a.Stats(t.Context())
		if err != nil || st.Total != 4 || st.Mine != 2 || st.Active != 3 || st.Stale != 1 || st.Waiting != 1 || st.ActiveHeartbeats != 2 || len(st.Locks) != 4 {
			t.Errorf("stats: %+v, error %v", st, err)
		}
		for _, l := range st.Locks {
			wantBeat, wantRenewals := 500*time.Millisecond, 10
			if l.Name == "stale" {
				wantBeat, wantRenewals = 10500*time.Millisecond, 0
			}
			if l.Age != 10500*time.Millisecond || l.HeartbeatAge != wantBeat || l.Renewals != wantRenewals || l.Stale != (l.Name == "stale") {
				t.Errorf("stats of %s: %+v", l.Name, l)
			}
		}

		if n, err := b.CleanupStale(t.Context()); n != 1 || err != nil {
			t.Errorf("%d cleaned up, error %v", n, err)
		}
		if n, err := b.CleanupStale(t.Context()); n != 0 || err != nil {
			t.Errorf("again: %d cleaned up, error %v", n, err)
		}
		wantState(t, beating, lokt.Held)
		stop()
		if err := <-waiting; !errors.Is(err, context.Canceled) {
			t.Errorf("the waiter got %v", err)
		}
		release(t, append(shared, beating)...)
		if _, err := a.ReleaseAll(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestQuestionsSayWhenTheStoreCannotAnswer(t *testing.T) {
	store := memstore.New()
	k := newLocker(t, lokt.NewManager(store), "a", lokt.Options{})
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err1 := k.Held(t.Context(), "x")
	_, err2 := k.HeldByMe(t.Context(), "x")
	_, _, err3 := k.Info(t.Context(), "x")
	_, err4 := k.All(t.Context())
	_, err5 := k.Stats(t.Context())
	_, err6 := k.CleanupStale(t.Context())
	_, err7 := k.Acquire(t.Context(), "x", lokt.Options{})
	_, _, err8 := k.TryAcquire(t.Context(), "x", lokt.Options{})
	_, err9 := k.AcquireAll(t.Context(), []string{"x", "y"}, lokt.Options{})
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7, err8, err9} {
		if !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("%d: %v", i+1, err)
		}
	}
}

// The renewal comes just before or just after the cleaning, around the very moment at which the lock goes stale.
func TestCleanupNeverRemovesWhatWasRenewedMeanwhile(t *testing.T) {
	kept, cleaned := 0, 0
	for seed := range uint64(500) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			s := newService()
			k, cleaner := newLocker(t, s, "a", lokt.Options{}), newLocker(t, s, "b", lokt.Options{})
			l := acquire(t, k, "x", lokt.Options{ManualHeartbeat: true})
			near := func() time.Duration { return lokt.DefaultTTL + time.Duration(rnd.IntN(3)) }
			renewAt, cleanAt := near(), near()
			var renewal error
			var working sync.WaitGroup
			working.Go(func() {
				time.Sleep(renewAt)
				_, renewal = s.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: l.ID()})
			})
			n := 0
			working.Go(func() {
				time.Sleep(cleanAt)
				var err error
				if n, err = cleaner.CleanupStale(t.Context()); err != nil {
					t.Error(err)
				}
			})
			working.Wait()
			info, known, err := k.Info(t.Context(), "x")
			switch {
			case err != nil:
				t.Error(err)
			case renewal == nil && (n != 0 || !known || info.Stale):
				t.Errorf("seed %d: renewed, and %d cleaned up; on record: %+v", seed, n, info)
			case renewal != nil && known:
				t.Errorf("seed %d: the renewal failed with %v, and the lock is on record", seed, renewal)
			case n > 0 && cleanAt <= lokt.DefaultTTL:
				t.Errorf("seed %d: cleaned up after %v, when it was not stale", seed, cleanAt)
			}
			if renewal == nil {
				kept++
			} else {
				cleaned++
			}
		})
	}
	if kept < 50 || cleaned < 50 {
		t.Errorf("%d locks were renewed and %d were cleaned up: the race is not tried enough", kept, cleaned)
	}
}

func TestConcurrentAcquisitionsOfManyRunnersLeaveOneHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		var won atomic.Int64
		var working sync.WaitGroup
		for i := range 64 {
			k := newLocker(t, s, fmt.Sprint("runner-", i), lokt.Options{})
			working.Go(func() {
				if _, ok, err := k.TryAcquire(t.Context(), "x", lokt.Options{}); err != nil {
					t.Error(err)
				} else if ok {
					won.Add(1)
				}
			})
		}
		working.Wait()
		if won.Load() != 1 {
			t.Errorf("%d of 64 were granted the lock", won.Load())
		}
	})
}

// hideRenewals is a service whose renewals fail.
type hideRenewals struct{ lokt.Service }

func (hideRenewals) Renew(context.Context, lokt.Renewal) (lokt.Holder, error) {
	return lokt.Holder{}, errCut
}

func TestGrantFromTheQueueThatCannotBeConfirmedIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		l := acquire(t, newLocker(t, s, "a", lokt.Options{}), "x", lokt.Options{})
		go func() {
			time.Sleep(10 * time.Second)
			release(t, l)
		}()
		b := newLocker(t, hideRenewals{s}, "b", lokt.Options{Wait: -1})
		if _, err := b.Acquire(t.Context(), "x", lokt.Options{}); !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("acquire gave %v", err)
		}
		if held, err := b.Held(t.Context(), "x"); held || err != nil || len(b.Leases()) != 0 {
			t.Errorf("afterwards: held %v, error %v, leases %v", held, err, b.Leases())
		}
	})
}

// away is a service that is out of reach for a while.
type away struct {
	lokt.Service
	until time.Time
	asked atomic.Int64
}

func (a *away) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	a.asked.Add(1)
	if time.Now().Before(a.until) {
		return lokt.Holder{}, errCut
	}
	return a.Service.Acquire(ctx, c)
}

func TestCandidatesOutlastAServiceThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &away{Service: newService(), until: time.Now().Add(time.Minute)}
		k := newLocker(t, a, "a", lokt.Options{})
		begun := time.Now()
		var led time.Duration
		err := k.Lead(t.Context(), "leader", lokt.Options{}, func(context.Context, uint64) error {
			led = time.Since(begun)
			return nil
		})
		if err != nil || led < time.Minute || led > 66*time.Second || a.asked.Load() > 30 {
			t.Errorf("led after %v and %d tries, error %v", led, a.asked.Load(), err)
		}
		a.until = time.Now().Add(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := k.Lead(ctx, "leader", lokt.Options{}, nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 2*time.Minute {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}

// tardy is a service whose first answer to a claim comes after the grant has passed to another.
type tardy struct {
	lokt.Service
	between func()
}

func (s *tardy) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	h, err := s.Service.Acquire(ctx, c)
	if between := s.between; between != nil {
		s.between = nil
		between()
	}
	return h, err
}

func TestAGrantThatPassedToAnotherBeforeItsAnswerCameIsAskedForAgain(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := newService()
			other := newLocker(t, s, "b", lokt.Options{})
			var theirs *lokt.Lease
			late := &tardy{Service: s, between: func() {
				time.Sleep(lokt.DefaultTTL + time.Second)
				theirs = acquire(t, other, "x", lokt.Options{})
				time.AfterFunc(time.Minute, func() { release(t, theirs) })
			}}
			l, err := newLocker(t, late, "a", lokt.Options{}).Acquire(t.Context(), "x", lokt.Options{Wait: wait})
			switch {
			case wait == 0 && !errors.Is(err, lokt.ErrHeld):
				t.Errorf("without waiting: %v", err)
			case wait > 0 && err != nil:
				t.Errorf("with waiting: %v", err)
			case wait > 0:
				synctest.Wait() // the release has passed the lock on, and may not have returned
				wantState(t, theirs, lokt.Released)
				release(t, l)
			}
			time.Sleep(2 * time.Minute)
		})
	}
}

// belated is a service that carries a release out a second after it has said that it does not answer.
type belated struct{ tardy }

func (s *belated) Release(_ context.Context, target lokt.Target) ([]lokt.Holder, error) {
	time.AfterFunc(time.Second, func() { _, _ = s.Service.Release(context.Background(), target) })
	return nil, errCut
}

func TestALeaseIsNotClaimedAgainWhileItsReleaseIsInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		late := &belated{tardy{Service: s, between: func() { time.Sleep(lokt.DefaultTTL + time.Second) }}}
		l, err := newLocker(t, late, "a", lokt.Options{}).Acquire(t.Context(), "x", lokt.Options{})
		if err == nil {
			time.Sleep(1500 * time.Millisecond)
			if snap, err := s.Get(t.Context(), "x"); err != nil || l.Err() == nil && len(snap.Lock.Holders) == 0 {
				t.Errorf("the release of the first grant has ended the second, and its holder does not know: %v", err)
			}
			t.Fatal("the lease was claimed again")
		}
		if !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		time.Sleep(2 * time.Second)
	})
}

// lateRelease is a way on which releases take long, and their answers are lost.
type lateRelease struct {
	lokt.Service
	arrive func()
}

func (s *lateRelease) Release(_ context.Context, t lokt.Target) ([]lokt.Holder, error) {
	s.arrive = func() { _, _ = s.Service.Release(context.Background(), t) }
	return nil, errCut
}

func TestALeaseIsNotReclaimedWhileItsReleaseIsInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &lateRelease{Service: newService()}
		k := newLocker(t, s, "a", lokt.Options{})
		l := acquire(t, k, "x", lokt.Options{ManualHeartbeat: true})
		time.Sleep(lokt.DefaultTTL + time.Second)
		if err := l.Release(t.Context()); l.State() != lokt.Lost || !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("the lease is %v, its release %v", l.State(), err)
		}
		again, err := k.Reclaim(t.Context(), l)
		if s.arrive(); err == nil {
			t.Fatalf("the late release has ended what is %v", again.State())
		}
		if !errors.Is(err, lokt.ErrInvalid) {
			t.Error(err)
		}
	})
}

func TestLeadEndsWithItsFunctionThoughTheReleaseHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		terms := 0
		err := newLocker(t, &lateRelease{Service: newService()}, "a", lokt.Options{}).Lead(t.Context(), "x", lokt.Options{}, func(context.Context, uint64) error {
			terms++
			return nil
		})
		if terms != 1 || !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("%d terms, %v", terms, err)
		}
	})
}

func TestAnObserverMayLookAtTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		var l *lokt.Lease
		var left []time.Duration
		k, err := lokt.NewLocker(s, lokt.Owner{ID: "a"}, lokt.LockerOptions{Observe: func(lokt.Event) { left = append(left, l.Remaining()) }})
		if err != nil {
			t.Fatal(err)
		}
		l = acquire(t, k, "x", lokt.Options{})
		if _, err := s.Tell(t.Context(), lokt.Target{Name: "x"}, lokt.Message{From: lokt.Owner{ID: "b"}, Text: "how long?"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lokt.DefaultTTL)
		if release(t, l); len(left) != 1 || left[0] <= 0 {
			t.Errorf("it had %v left", left)
		}
	})
}

// recorder keeps the claims that were made.
type recorder struct {
	lokt.Service
	claims []lokt.Claim
}

func (r *recorder) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	r.claims = append(r.claims, c)
	return r.Service.Acquire(ctx, c)
}

func TestClaimsSayInWhichLeasesTheyAreMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{Service: newService()}
		k := newLocker(t, r, "a", lokt.Options{})
		type mine struct{}
		ctx := context.WithValue(t.Context(), mine{}, "the caller's")
		var ids []string
		var leases []*lokt.Lease
		for _, name := range []string{"x", "y", "z"} {
			l, err := k.Acquire(ctx, name, lokt.Options{Within: []string{"given"}})
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, l)
			if got := r.claims[len(r.claims)-1].Within; !slices.Equal(got, append([]string{"given"}, ids...)) {
				t.Errorf("%s is claimed within %v, not within %v", name, got, ids)
			}
			ids = append(ids, l.ID())
			ctx = context.WithValue(l.Context(), mine{}, l.Context().Value(mine{}))
		}
		if ctx.Value(mine{}) != "the caller's" {
			t.Error("values of the context are lost on the way")
		}
		release(t, leases...)
	})
}
