package lokt_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
)

// link stands between a Locker and its service, like a network that can be slow or cut.
type link struct {
	lokt.Service
	cut     atomic.Bool
	renewed atomic.Int64 // requests that were sent
	active  atomic.Int64 // of them, those without an answer
	last    atomic.Int64 // when the last renewal that succeeded was sent, in nanoseconds since 1970

	mu       sync.Mutex
	there    func() time.Duration // delays of requests and replies; nil is none
	back     func() time.Duration
	releases error // what releases are answered with, if set
}

var errCut = fmt.Errorf("%w: the network is cut", lokt.ErrUnavailable)

func pause(ctx context.Context, d func() time.Duration) error {
	if d == nil {
		return nil
	}
	t := time.NewTimer(d())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *link) delays() (there, back func() time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.there, l.back
}

func (l *link) slow(there, back func() time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.there, l.back = there, back
}

func (l *link) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	l.renewed.Add(1)
	l.active.Add(1)
	defer l.active.Add(-1)
	sent := time.Now()
	there, back := l.delays()
	if err := pause(ctx, there); err != nil {
		return lokt.Holder{}, err
	}
	if l.cut.Load() {
		return lokt.Holder{}, errCut
	}
	h, err := l.Service.Renew(context.WithoutCancel(ctx), r)
	if err == nil {
		l.last.Store(sent.UnixNano())
	}
	if err := pause(ctx, back); err != nil {
		return lokt.Holder{}, err
	}
	return h, err
}

func (l *link) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	l.mu.Lock()
	err := l.releases
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return l.Service.Release(ctx, t)
}

// newLocker returns a Locker for an owner of that name, without a session.
func newLocker(t *testing.T, s lokt.Service, who string, o lokt.Options) *lokt.Locker {
	t.Helper()
	k, err := lokt.NewLocker(s, lokt.Owner{ID: who, AnySession: true}, lokt.LockerOptions{Defaults: o})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newService() lokt.Service { return lokt.NewManager(memstore.New()) }

func acquire(t *testing.T, k *lokt.Locker, name string, o lokt.Options) *lokt.Lease {
	t.Helper()
	l, err := k.Acquire(t.Context(), name, o)
	if err != nil {
		t.Fatalf("%v acquires %s: %v", k.Owner(), name, err)
	}
	return l
}

func release(t *testing.T, leases ...*lokt.Lease) {
	t.Helper()
	for _, l := range leases {
		if err := l.Release(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("release of %s: %v", l.Name(), err)
		}
	}
}

func wantState(t *testing.T, l *lokt.Lease, want lokt.State) {
	t.Helper()
	if got := l.State(); got != want {
		t.Errorf("the lease is %v, not %v", got, want)
	}
	err, ended := l.Err(), l.Context().Err()
	switch want {
	case lokt.Held, lokt.InDoubt:
		if err != nil || ended != nil || l.Remaining() <= 0 {
			t.Errorf("%v lease has error %v, context %v, %v left", want, err, ended, l.Remaining())
		}
	case lokt.Lost:
		if !errors.Is(err, lokt.ErrLost) || ended == nil || !errors.Is(context.Cause(l.Context()), lokt.ErrLost) || l.Remaining() != 0 {
			t.Errorf("lost lease has error %v, context %v because of %v, %v left", err, ended, context.Cause(l.Context()), l.Remaining())
		}
	case lokt.Released:
		if !errors.Is(err, context.Canceled) || ended == nil || errors.Is(context.Cause(l.Context()), lokt.ErrLost) || l.Remaining() != 0 {
			t.Errorf("released lease has error %v, context %v because of %v, %v left", err, ended, context.Cause(l.Context()), l.Remaining())
		}
	}
}

func wantRefused(t *testing.T, k *lokt.Locker, name, when string) {
	t.Helper()
	if l, ok, err := k.TryAcquire(t.Context(), name, lokt.Options{}); ok || err != nil {
		t.Errorf("%s %v was granted %s (%v, error %v)", when, k.Owner(), name, ok, err)
		if ok {
			release(t, l)
		}
	}
}

func wantGranted(t *testing.T, k *lokt.Locker, name, when string) {
	t.Helper()
	l, ok, err := k.TryAcquire(t.Context(), name, lokt.Options{})
	if !ok || err != nil {
		t.Errorf("%s %v was not granted %s (%v)", when, k.Owner(), name, err)
		return
	}
	release(t, l)
}

// after sleeps until d after begun, and lets everything that happens then happen.
func after(begun time.Time, d time.Duration) {
	time.Sleep(time.Until(begun.Add(d)))
	synctest.Wait()
}

// Promise S-14.
func TestLeaseIsInDoubtWhenARenewalFailsAndHeldAgainWhenOneSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService()}
		var failures []lokt.Event
		k, err := lokt.NewLocker(net, lokt.Owner{ID: "a"}, lokt.LockerOptions{Observe: func(e lokt.Event) { failures = append(failures, e) }})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		l := acquire(t, k, "x", lokt.Options{})
		wantState(t, l, lokt.Held)
		after(begun, 1500*time.Millisecond)
		wantState(t, l, lokt.Held)
		net.cut.Store(true)
		after(begun, 2001*time.Millisecond)
		wantState(t, l, lokt.InDoubt)
		if len(failures) == 0 || failures[0].Type != lokt.EventRenewFail || failures[0].Name != "x" || failures[0].LeaseID != l.ID() {
			t.Errorf("the observer was told %v", failures)
		}
		net.cut.Store(false)
		after(begun, 2300*time.Millisecond)
		wantState(t, l, lokt.Held)
		if l.Holder().Renewals < 2 {
			t.Errorf("after 2.3 s there were %d renewals", l.Holder().Renewals)
		}
		release(t, l)
		wantState(t, l, lokt.Released)
		if n := slices.IndexFunc(failures, func(e lokt.Event) bool { return e.Type == lokt.EventLost }); n >= 0 {
			t.Errorf("loss was told: %v", failures[n])
		}
	})
}

// Promise S-14.
func TestRenewalsThatFailForNineTenthsOfTheTTLLoseNothing(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, lokt.DefaultTTL, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			net := &link{Service: newService()}
			k := newLocker(t, net, "a", lokt.Options{TTL: ttl})
			other := newLocker(t, net.Service, "b", lokt.Options{})
			l := acquire(t, k, "x", lokt.Options{})
			time.Sleep(2*ttl + time.Millisecond) // some renewals, the last of them just now
			renewed := time.Unix(0, net.last.Load())
			net.cut.Store(true)
			after(renewed, ttl*9/10)
			wantState(t, l, lokt.InDoubt)
			net.cut.Store(false)
			for range 30 {
				time.Sleep(ttl / 7)
				if l.Err() != nil {
					t.Fatalf("TTL %v: the lease was lost: %v", ttl, l.Err())
				}
				wantRefused(t, other, "x", "while the lease lasts")
			}
			wantState(t, l, lokt.Held)
			release(t, l)
		})
	}
}

// Promises S-12, S-14.
func TestRenewalsThatFailForLongerThanTheTTLLoseTheLockBeforeTheTTL(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, lokt.DefaultTTL, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			net := &link{Service: newService()}
			k := newLocker(t, net, "a", lokt.Options{TTL: ttl})
			other := newLocker(t, net.Service, "b", lokt.Options{})
			l := acquire(t, k, "x", lokt.Options{})
			time.Sleep(2*ttl + time.Millisecond)
			renewed := time.Unix(0, net.last.Load())
			net.cut.Store(true)
			var told atomic.Int64
			stop := context.AfterFunc(l.Context(), func() { told.Store(int64(time.Since(renewed))) })
			defer stop()
			after(renewed, ttl)
			wantState(t, l, lokt.Lost)
			if ended := time.Duration(told.Load()); ended == 0 || ended >= ttl*99/100 {
				t.Errorf("TTL %v: the context ended %v after the last renewal", ttl, ended)
			}
			wantRefused(t, other, "x", "a TTL after the last renewal, but not later,")
			after(renewed, ttl+time.Nanosecond)
			wantGranted(t, other, "x", "more than a TTL after the last renewal")
			net.cut.Store(false)
			sent := net.renewed.Load()
			time.Sleep(3 * ttl)
			if n := net.renewed.Load() - sent; n != 0 {
				t.Errorf("%d renewals were sent after the loss", n)
			}
			if err := l.Renew(t.Context()); !errors.Is(err, lokt.ErrLost) || net.renewed.Load() != sent {
				t.Errorf("a renewal after the loss gave %v and asked the service", err)
			}
			release(t, l)
			wantState(t, l, lokt.Lost)
		})
	}
}

// skewed is a store whose clock runs faster than the bubble's by one percent, the most that a holder must expect.
type skewed struct {
	*memstore.Store
	begun time.Time
}

func (s skewed) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	return s.Store.Update(ctx, name, func(snap lokt.Snapshot) lokt.Change {
		snap.Now = snap.Now.Add(snap.Now.Sub(s.begun) / 100)
		return change(snap)
	})
}

func (s skewed) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	snap, err := s.Store.View(ctx, name)
	snap.Now = snap.Now.Add(snap.Now.Sub(s.begun) / 100)
	return snap, err
}

// Promise S-12.
func TestContextEndsBeforeAnotherEntersWhateverTheDelays(t *testing.T) {
	losses, doubts := 0, 0
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			ttl := []time.Duration{300 * time.Millisecond, 2 * time.Second, lokt.DefaultTTL, time.Minute}[rnd.IntN(4)]
			var mu sync.Mutex
			delay := func(most time.Duration) func() time.Duration {
				return func() time.Duration {
					mu.Lock()
					defer mu.Unlock()
					return time.Duration(rnd.Int64N(int64(most) + 1))
				}
			}
			worst := []time.Duration{ttl / 10, ttl / 2, ttl, 2 * ttl}[rnd.IntN(4)]
			service := lokt.NewManager(skewed{memstore.New(), time.Now()})
			net := &link{Service: service}
			net.slow(delay(worst), delay(worst))
			k := newLocker(t, net, "a", lokt.Options{TTL: ttl})
			l := acquire(t, k, "x", lokt.Options{})
			var told atomic.Pointer[time.Time]
			stop := context.AfterFunc(l.Context(), func() { now := time.Now(); told.Store(&now) })
			defer stop()
			ctx, cancel := context.WithTimeout(t.Context(), 20*ttl)
			defer cancel()
			next, err := newLocker(t, service, "b", lokt.Options{}).Acquire(ctx, "x", lokt.Options{Wait: -1})
			switch {
			case err == nil:
				losses++
				if ended := told.Load(); ended == nil || !ended.Before(time.Now()) {
					t.Fatalf("seed %d: the next holder was granted the lock at %v; the lease's context ended at %v", seed, time.Now(), ended)
				}
				if next.Token() <= l.Token() {
					t.Errorf("seed %d: token %d follows %d", seed, next.Token(), l.Token())
				}
				release(t, next)
			case l.Err() == nil: // it survived 20 lifetimes
				doubts++
			}
			net.slow(nil, nil)
			release(t, l)
		})
	}
	if losses < 50 || doubts < 50 {
		t.Errorf("%d leases were lost and %d lasted: the delays do not try enough", losses, doubts)
	}
}

// Promise S-15.
func TestNoRenewalIsSentAfterRelease(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			net := &link{Service: newService()}
			slow := func() time.Duration { return 400 * time.Millisecond }
			net.slow(slow, slow)
			var failed atomic.Int64
			k, err := lokt.NewLocker(net, lokt.Owner{ID: "a"}, lokt.LockerOptions{Observe: func(lokt.Event) { failed.Add(1) }})
			if err != nil {
				t.Fatal(err)
			}
			l := acquire(t, k, "x", lokt.Options{})
			time.Sleep(time.Duration(rnd.Int64N(int64(5 * time.Second))))
			if seed%3 == 0 {
				net.cut.Store(true)
				time.Sleep(time.Duration(rnd.Int64N(int64(2 * time.Second))))
				failed.Store(0)
			}
			release(t, l)
			told, sent := failed.Load(), net.renewed.Load()
			wantState(t, l, lokt.Released)
			if seed%3 != 0 && told != 0 {
				t.Errorf("seed %d: a heartbeat that release interrupted was told as a failure", seed)
			}
			l.StartHeartbeat()
			if err := l.Renew(t.Context()); !errors.Is(err, context.Canceled) {
				t.Errorf("seed %d: renewal after release gave %v", seed, err)
			}
			time.Sleep(time.Minute)
			if n := net.renewed.Load() - sent; n != 0 || l.Beating() {
				t.Errorf("seed %d: %d renewals were sent after release", seed, n)
			}
			release(t, l)
		})
	}
}

// Promises S-15, S-243.
func TestReleaseThatCannotBeAskedForLeavesTheLeaseToExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService(), releases: errCut}
		k := newLocker(t, net, "a", lokt.Options{})
		l := acquire(t, k, "x", lokt.Options{})
		if err := l.Release(t.Context()); !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("release gave %v", err)
		}
		if l.State() != lokt.InDoubt || !errors.Is(l.Err(), context.Canceled) || l.Context().Err() == nil || len(k.Leases()) != 1 {
			t.Errorf("the lease is %v with error %v, context %v, one of %d", l.State(), l.Err(), l.Context().Err(), len(k.Leases()))
		}
		net.mu.Lock()
		net.releases = nil
		net.mu.Unlock()
		release(t, l)
		wantState(t, l, lokt.Released)
		wantGranted(t, newLocker(t, net.Service, "b", lokt.Options{}), "x", "after the second try to release")

		net.releases = errCut
		y := acquire(t, k, "y", lokt.Options{})
		_ = y.Release(t.Context()) // fails
		if time.Sleep(lokt.DefaultTTL); len(k.Leases()) != 0 {
			t.Error("a lease whose time is up is still on the books")
		}
		if y.State() != lokt.InDoubt || !errors.Is(y.Err(), context.Canceled) {
			t.Errorf("a lease that was not released in time is %v, with error %v: no loss is told after a release", y.State(), y.Err())
		}
	})
}

// Promise S-243.
func TestALeaseThatIsBeingReleasedIsNotReliedOn(t *testing.T) {
	for _, own := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			slow := &tardyRelease{newService()}
			l := acquire(t, newLocker(t, slow, "a", lokt.Options{}), "x", lokt.Options{})
			ctx := t.Context()
			if own {
				ctx = context.WithValue(l.Context(), "key", "value") //nolint:staticcheck // to be one that comes from the lease's
			}
			released := make(chan error)
			go func() { released <- l.Release(ctx) }()
			synctest.Wait()
			other := acquire(t, newLocker(t, slow.Service, "b", lokt.Options{}), "x", lokt.Options{})
			if l.State() == lokt.Held || l.Context().Err() == nil || l.Err() == nil || l.Remaining() > 0 {
				t.Errorf("two hold the lock: one is %v, with %v left", l.State(), l.Remaining())
			}
			if err := <-released; err != nil {
				t.Error(err)
			}
			wantState(t, l, lokt.Released)
			release(t, other)
		})
	}
}

// Promise S-243.
func TestLeasesCanBeReleasedWithTheirOwnContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{Service: &tardyRelease{newService()}}
		k := newLocker(t, r, "a", lokt.Options{})
		all, err := k.AcquireAll(t.Context(), []string{"x", "y"}, lokt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := all.Context(t.Context())
		defer cancel()
		inner, err := k.Acquire(ctx, "z", lokt.Options{})
		if within := r.claims[len(r.claims)-1].Within; err != nil || !slices.Equal(within, []string{all[0].ID(), all[1].ID()}) {
			t.Fatalf("the inner lock was claimed within %v: %v", within, err)
		}
		release(t, inner)
		if err := all.Release(ctx); err != nil {
			t.Error(err)
		}
	})
}

// Promise S-243.
func TestAllLeasesCanBeReleasedWithTheContextOfOne(t *testing.T) {
	for what, release := range map[string]func(*lokt.Locker, lokt.Leases, context.Context) error{
		"Close": func(k *lokt.Locker, _ lokt.Leases, ctx context.Context) error { return k.Close(ctx) },
		"ReleaseAll": func(k *lokt.Locker, _ lokt.Leases, ctx context.Context) error {
			_, err := k.ReleaseAll(ctx)
			return err
		},
		"Release": func(_ *lokt.Locker, all lokt.Leases, ctx context.Context) error { return all.Release(ctx) },
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newLocker(t, &tardyRelease{newService()}, "a", lokt.Options{})
			all, err := k.AcquireAll(t.Context(), []string{"x", "y", "z"}, lokt.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := release(k, all, all[2].Context()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if held, err := k.All(t.Context()); len(held) != 0 || err != nil {
				t.Errorf("%s has left %v, %v", what, held, err)
			}
		})
	}
}

// Promise S-243.
func TestALeaseWhoseReleaseWasCarriedOutWithoutAnAnswerWasNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService(), releases: errCut}
		k, err := lokt.NewLocker(net, lokt.Owner{ID: "a"}, lokt.LockerOptions{Observe: func(e lokt.Event) { t.Errorf("told of %v", e.Type) }})
		if err != nil {
			t.Fatal(err)
		}
		l := acquire(t, k, "x", lokt.Options{})
		_, carriedOut := net.Service.Release(t.Context(), lokt.Target{Name: "x", LeaseID: l.ID()})
		if err := l.Release(t.Context()); !errors.Is(err, lokt.ErrUnavailable) || carriedOut != nil {
			t.Errorf("the first release: %v, %v", err, carriedOut)
		}
		net.releases = nil
		release(t, l)
		wantState(t, l, lokt.Released)
	})
}

// tardyRelease answers a release a second after it was made.
type tardyRelease struct{ lokt.Service }

func (s *tardyRelease) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	ended, err := s.Service.Release(ctx, t)
	return ended, errors.Join(err, pause(ctx, func() time.Duration { return time.Second }))
}

// Promise S-27.
func TestLeaseWhoseHeartbeatWasStoppedExpiresAfterItsTTLAndNotEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService()}
		k, other := newLocker(t, net, "a", lokt.Options{}), newLocker(t, net.Service, "b", lokt.Options{})
		l := acquire(t, k, "x", lokt.Options{})
		time.Sleep(12500 * time.Millisecond)
		l.StopHeartbeat()
		renewed := time.Unix(0, net.last.Load())
		if l.Beating() || l.Holder().Renewals != 12 {
			t.Errorf("after 12.5 s and StopHeartbeat there were %d renewals, and heartbeats are on: %v", l.Holder().Renewals, l.Beating())
		}
		wantState(t, l, lokt.Held)
		<-l.Context().Done()
		if d := time.Since(renewed); d >= 5*time.Second || d < 4500*time.Millisecond {
			t.Errorf("the context ended %v after the last renewal", d)
		}
		wantState(t, l, lokt.Lost)
		after(renewed, lokt.DefaultTTL)
		wantRefused(t, other, "x", "exactly a TTL after the last renewal")
		after(renewed, lokt.DefaultTTL+1)
		wantGranted(t, other, "x", "a nanosecond later")
		release(t, l)
	})
}

func TestStoppingHeartbeatsWaitsForTheOneUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService()}
		net.slow(func() time.Duration { return 300 * time.Millisecond }, nil)
		k := newLocker(t, net, "a", lokt.Options{})
		begun := time.Now()
		l := acquire(t, k, "x", lokt.Options{})
		after(begun, 1100*time.Millisecond)
		if net.active.Load() != 1 {
			t.Fatal("no renewal is under way")
		}
		l.StopHeartbeat()
		if n := net.active.Load(); n != 0 {
			t.Errorf("%d renewals are under way after StopHeartbeat", n)
		}
		wantState(t, l, lokt.Held)
		release(t, l)
	})
}

// An answer that was long on its way says how long the lock lasts from before it was decided, not from when it came.
func TestALeaseIsReliedOnFromWhenItsRenewalWasAskedFor(t *testing.T) {
	for name, o := range map[string]lokt.Options{
		"by hand":       {TTL: 20 * time.Second, ManualHeartbeat: true},
		"by heartbeats": {TTL: 20 * time.Second, Interval: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := &link{Service: newService()}
				l := acquire(t, newLocker(t, net, "a", lokt.Options{}), "x", o)
				net.slow(nil, func() time.Duration { return 3 * time.Second })
				if o.ManualHeartbeat {
					time.Sleep(10 * time.Second)
					if err := l.Renew(t.Context()); err != nil {
						t.Fatal(err)
					}
				} else {
					time.Sleep(13*time.Second + time.Millisecond)
				}
				if net.renewed.Load() != 1 || net.active.Load() != 0 {
					t.Fatalf("%d renewals were sent, %d are under way", net.renewed.Load(), net.active.Load())
				}
				net.cut.Store(true)
				if left, safe := l.Remaining(), lokt.Usable(o.TTL, 500*time.Millisecond)-3*time.Second; left > safe {
					t.Errorf("3 s after it was asked for, it is relied on for %v more, not %v", left, safe)
				}
				<-l.Context().Done()
				if since := time.Duration(time.Now().UnixNano() - net.last.Load()); since >= o.TTL {
					t.Errorf("its context ended %v after the renewal", since)
				}
			})
		})
	}
}

func TestHeartbeatsCanBeLeftToTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService()}
		k, other := newLocker(t, net, "a", lokt.Options{ManualHeartbeat: true}), newLocker(t, net.Service, "b", lokt.Options{})
		begun := time.Now()
		l := acquire(t, k, "x", lokt.Options{})
		after(begun, 4*time.Second)
		if net.renewed.Load() != 0 || l.Beating() {
			t.Error("a lease with manual heartbeats renewed itself")
		}
		if err := l.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		after(begun, 8*time.Second)
		wantState(t, l, lokt.Held)
		wantRefused(t, other, "x", "4 s after a renewal")
		l.StartHeartbeat()
		l.StartHeartbeat()
		after(begun, 30*time.Second)
		wantState(t, l, lokt.Held)
		if n := l.Holder().Renewals; n < 22 || n > 24 {
			t.Errorf("%d renewals in 22 s", n)
		}
		l.StopHeartbeat()
		l.StopHeartbeat()
		<-l.Context().Done()
		if d := time.Since(begun); d < 34*time.Second || d >= 35*time.Second {
			t.Errorf("the context ended after %v", d)
		}
		l.StartHeartbeat()
		if err := l.Renew(t.Context()); !errors.Is(err, lokt.ErrLost) || l.Beating() {
			t.Errorf("renewal after loss gave %v; heartbeats are on: %v", err, l.Beating())
		}
		release(t, l)
	})
}

func TestManualRenewalWhileTheNetworkIsCutPutsTheLeaseInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService()}
		k := newLocker(t, net, "a", lokt.Options{ManualHeartbeat: true})
		l := acquire(t, k, "x", lokt.Options{})
		net.cut.Store(true)
		if err := l.Renew(t.Context()); !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("renewal gave %v", err)
		}
		wantState(t, l, lokt.InDoubt)
		net.cut.Store(false)
		if err := l.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		wantState(t, l, lokt.Held)
		release(t, l)
	})
}

// Promise S-27.
func TestLockIsStaleStrictlyAfterTheThreshold(t *testing.T) {
	for _, ttl := range []time.Duration{lokt.MinTTL, time.Second, lokt.DefaultTTL, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := newService()
			k, other := newLocker(t, s, "a", lokt.Options{TTL: ttl, ManualHeartbeat: true}), newLocker(t, s, "b", lokt.Options{})
			begun := time.Now()
			l := acquire(t, k, "x", lokt.Options{})
			for _, d := range []time.Duration{ttl - 1, ttl} {
				after(begun, d)
				if held, err := other.Held(t.Context(), "x"); !held || err != nil {
					t.Errorf("TTL %v: after %v the lock is not held (%v)", ttl, d, err)
				}
				wantRefused(t, other, "x", fmt.Sprintf("after %v of %v", d, ttl))
			}
			after(begun, ttl+1)
			if held, err := other.Held(t.Context(), "x"); held || err != nil {
				t.Errorf("TTL %v: a nanosecond later the lock is held (%v)", ttl, err)
			}
			wantGranted(t, other, "x", "a nanosecond later")
			release(t, l)
		})
	}
}

// Promises S-6, S-16.
func TestHolderThatWasPassedOverChangesNothingOfAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		k, other := newLocker(t, s, "a", lokt.Options{}), newLocker(t, s, "b", lokt.Options{})
		l := acquire(t, k, "x", lokt.Options{ManualHeartbeat: true})
		time.Sleep(lokt.DefaultTTL + 1)
		next := acquire(t, other, "x", lokt.Options{ManualHeartbeat: true})
		before, err := s.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: l.ID()}); !errors.Is(err, lokt.ErrNotOwner) {
			t.Errorf("a late renewal gave %v", err)
		}
		l.StartHeartbeat()
		release(t, l, l)
		after, err := s.Get(t.Context(), "x")
		if err != nil || fmt.Sprint(before.Lock.Holders) != fmt.Sprint(after.Lock.Holders) {
			t.Errorf("what is on record went from %v to %v (error %v)", before.Lock.Holders, after.Lock.Holders, err)
		}
		wantState(t, l, lokt.Lost)
		wantState(t, next, lokt.Held)
		release(t, next)
	})
}

// Promise S-15.
func TestForcedReleaseIsToldAtTheNextHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		var told []lokt.Event
		k, err := lokt.NewLocker(s, lokt.Owner{ID: "a"}, lokt.LockerOptions{Observe: func(e lokt.Event) { told = append(told, e) }})
		if err != nil {
			t.Fatal(err)
		}
		l := acquire(t, k, "x", lokt.Options{})
		if _, err := s.Release(t.Context(), lokt.Target{Name: "x", Force: true, Owner: lokt.Owner{ID: "admin"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lokt.DefaultInterval)
		synctest.Wait()
		wantState(t, l, lokt.Lost)
		if !errors.Is(l.Err(), lokt.ErrNotFound) {
			t.Errorf("the cause is %v", l.Err())
		}
		if len(told) != 1 || told[0].Type != lokt.EventLost || told[0].Token != l.Token() || told[0].Extra[lokt.ExtraReason] == "" {
			t.Errorf("the observer was told %v", told)
		}
		release(t, l)
		if held, err := k.Held(t.Context(), "x"); held || err != nil {
			t.Errorf("the lock came back: %v, error %v", held, err)
		}
	})
}

func TestTasksOfOneRunnerReenterAndTheLastReleaseFreesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		k, other := newLocker(t, s, "a", lokt.Options{}), newLocker(t, s, "b", lokt.Options{})
		first, second := acquire(t, k, "x", lokt.Options{}), acquire(t, k, "x", lokt.Options{})
		if first.ID() == second.ID() || second.Token() <= first.Token() {
			t.Errorf("two holds have leases %s and %s and tokens %d and %d", first.ID(), second.ID(), first.Token(), second.Token())
		}
		time.Sleep(time.Minute)
		wantRefused(t, other, "x", "while both tasks hold it")
		release(t, first, first)
		time.Sleep(time.Minute)
		wantState(t, second, lokt.Held)
		wantRefused(t, other, "x", "while one task holds it")
		release(t, second)
		wantGranted(t, other, "x", "after the second release")
		if strict, ok, err := k.TryAcquire(t.Context(), "x", lokt.Options{Strict: true}); !ok || err != nil {
			t.Fatal(ok, err)
		} else {
			if _, ok, err := k.TryAcquire(t.Context(), "x", lokt.Options{Strict: true}); ok || err != nil {
				t.Errorf("two strict tasks of one runner hold the lock (error %v)", err)
			}
			release(t, strict)
		}
	})
}

// Promise S-30.
func TestMaximumHoldEndsTheLeaseRenewedOrNot(t *testing.T) {
	for name, o := range map[string]lokt.Options{
		"renewed":       {MaxHold: 12 * time.Second},
		"without a TTL": {MaxHold: 12 * time.Second, TTL: lokt.NoTTL},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newService()
			k, other := newLocker(t, s, "a", lokt.Options{}), newLocker(t, s, "b", lokt.Options{})
			begun := time.Now()
			l := acquire(t, k, "x", o)
			next, err := other.Acquire(t.Context(), "x", lokt.Options{Wait: -1})
			if err != nil {
				t.Fatal(err)
			}
			if d := next.Holder().HeldSince.Sub(begun); d <= 12*time.Second || d > 12*time.Second+10*time.Millisecond {
				t.Errorf("%s: the next holder entered after %v", name, d)
			}
			wantState(t, l, lokt.Lost)
			if err := l.Err(); !strings.Contains(err.Error(), "its maximum hold is over") {
				t.Errorf("%s: it is lost for %v", name, err)
			}
			release(t, l)
			wantState(t, next, lokt.Held)
			release(t, next)
		})
	}
}

func TestPreemptedHolderIsToldAndGoneBeforeThePreemptorEnters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		low, high := newLocker(t, s, "low", lokt.Options{}), newLocker(t, s, "high", lokt.Options{})
		l := acquire(t, low, "x", lokt.Options{})
		begun := time.Now()
		var told, ended time.Duration
		go func() {
			<-l.Yield()
			told = time.Since(begun)
			<-l.Context().Done()
			ended = time.Since(begun)
		}()
		time.Sleep(59500 * time.Millisecond) // half a second after a heartbeat
		select {
		case <-l.Yield():
			t.Error("the holder was asked to leave though nobody wants the lock")
		default:
		}
		begun = time.Now()
		const grace = 3 * time.Second
		next, err := high.Acquire(t.Context(), "x", lokt.Options{Priority: 1, Preempt: grace, Wait: -1})
		if err != nil {
			t.Fatal(err)
		}
		entered := next.Holder().HeldSince.Sub(begun)
		synctest.Wait()
		if told == 0 || told > lokt.DefaultInterval {
			t.Errorf("the holder was told after %v", told)
		}
		if ended < told+grace*9/10 || ended >= entered {
			t.Errorf("told after %v with a grace of %v, the context ended after %v and the preemptor entered after %v", told, grace, ended, entered)
		}
		if entered < told+grace || entered > told+grace+100*time.Millisecond {
			t.Errorf("the preemptor entered %v after the holder was told; the grace is %v", entered-told, grace)
		}
		wantState(t, l, lokt.Lost)
		wantState(t, next, lokt.Held)
		release(t, l, next)
	})
}

func TestHolderThatLeavesWhenAskedIsFollowedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		low, high := newLocker(t, s, "low", lokt.Options{}), newLocker(t, s, "high", lokt.Options{})
		l := acquire(t, low, "x", lokt.Options{})
		begun := time.Now()
		var left time.Duration
		go func() {
			<-l.Yield()
			left = time.Since(begun)
			release(t, l)
		}()
		next, err := high.Acquire(t.Context(), "x", lokt.Options{Priority: 1, Preempt: time.Hour, Wait: -1})
		if err != nil {
			t.Fatal(err)
		}
		if entered := next.Holder().HeldSince.Sub(begun); entered != left || left > lokt.DefaultInterval {
			t.Errorf("the holder left after %v and the preemptor entered after %v", left, entered)
		}
		release(t, next)
	})
}

func TestLeaseEndsWithTheContextItWasAcquiredIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService()}
		k := newLocker(t, net, "a", lokt.Options{})
		why := errors.New("the program ends")
		ctx, cancel := context.WithCancelCause(t.Context())
		l, err := k.Acquire(ctx, "x", lokt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3500 * time.Millisecond)
		cancel(why)
		synctest.Wait()
		if !errors.Is(context.Cause(l.Context()), why) {
			t.Errorf("the lease's context ended because of %v", context.Cause(l.Context()))
		}
		sent := net.renewed.Load()
		time.Sleep(time.Minute)
		if n := net.renewed.Load() - sent; n != 0 {
			t.Errorf("%d heartbeats were sent after the context had ended", n)
		}
		release(t, l)
	})
}

// Promise S-413.
func TestALeaseWhoseContextEndedIsForgottenWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newLocker(t, newService(), "a", lokt.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		l, err := k.Acquire(ctx, "x", lokt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if st, err := k.Stats(t.Context()); l.Beating() || st.ActiveHeartbeats != 0 || st.Mine != 1 || err != nil {
			t.Errorf("its context has ended: beating %v, %+v, %v", l.Beating(), st, err)
		}
		if held := k.Leases(); len(held) != 1 {
			t.Errorf("before its time is up, the locker holds %d", len(held))
		}
		time.Sleep(lokt.DefaultTTL)
		if held := k.Leases(); len(held) != 0 {
			t.Errorf("after its time the locker holds %v, %v", held[0].Name(), held[0].State())
		}
	})
}

// A program that was stopped runs again before any of its timers does.
//
// Promise S-13.
func TestContextLooksAtTheClockBeforeAnyTimerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asleep atomic.Int64
		begun := time.Now()
		keeper := &lokt.Keeper{Elapsed: func() time.Duration { return time.Since(begun) + time.Duration(asleep.Load()) }}
		k, err := lokt.NewLocker(newService(), lokt.Owner{ID: "a"}, lokt.LockerOptions{Keeper: keeper})
		if err != nil {
			t.Fatal(err)
		}
		l := acquire(t, k, "x", lokt.Options{})
		wantState(t, l, lokt.Held)
		asleep.Store(int64(time.Hour)) // the machine slept, which timers do not notice
		if l.Context().Err() == nil {
			t.Error("the context is live an hour later")
		}
		wantState(t, l, lokt.Lost)
		release(t, l)
	})
}

func TestLeaseWithoutATTLIsHeldUntilItIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService()}
		k, other := newLocker(t, net, "a", lokt.Options{}), newLocker(t, net.Service, "b", lokt.Options{})
		l := acquire(t, k, "x", lokt.Options{TTL: lokt.NoTTL})
		l.StartHeartbeat()
		l.StopHeartbeat()
		before := l.Remaining()
		time.Sleep(20 * time.Hour)
		wantState(t, l, lokt.Held)
		if l.Beating() || net.renewed.Load() != 0 || l.Remaining() != before || !l.Holder().ExpiresAt.IsZero() {
			t.Errorf("heartbeats are on: %v; %d renewals; %v left; %+v", l.Beating(), net.renewed.Load(), l.Remaining(), l.Holder())
		}
		if err := l.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		wantRefused(t, other, "x", "hours later")
		release(t, l)
		wantGranted(t, other, "x", "after the release")
	})
}

func TestManualRenewalThatComesTooLateTellsTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		l := acquire(t, newLocker(t, s, "a", lokt.Options{ManualHeartbeat: true}), "x", lokt.Options{})
		if _, err := s.Release(t.Context(), lokt.Target{Name: "x", Force: true, Owner: lokt.Owner{ID: "admin"}}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := l.Renew(t.Context()); !errors.Is(err, lokt.ErrLost) || !errors.Is(err, lokt.ErrNotFound) {
				t.Errorf("renewal gave %v", err)
			}
		}
		wantState(t, l, lokt.Lost)
		release(t, l)
	})
}

func TestStatesHaveNames(t *testing.T) {
	var names []string
	for s := lokt.Held; s <= lokt.Released+1; s++ {
		names = append(names, s.String())
	}
	if got := fmt.Sprint(names); got != "[held in doubt lost released State(4)]" {
		t.Error(got)
	}
}

// copied is a service at which the first grant comes too late, and a copy of each release after the next grant.
type copied struct {
	lokt.Service
	grants   *int
	released *[]lokt.Target
}

func (s copied) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	h, err := s.Service.Acquire(ctx, c)
	if *s.grants++; *s.grants == 1 {
		time.Sleep(2 * c.TTL)
	}
	for _, t := range *s.released {
		_, _ = s.Service.Release(ctx, t)
	}
	return h, err
}

func (s copied) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	*s.released = append(*s.released, t)
	return s.Service.Release(ctx, t)
}

// Promise S-1.
func TestALateCopyOfAReleaseDoesNotEndTheGrantThatCameInItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		k := newLocker(t, copied{s, new(int), new([]lokt.Target)}, "a", lokt.Options{})
		l := acquire(t, k, "x", lokt.Options{TTL: 10 * time.Second})
		if snap, err := s.Get(t.Context(), "x"); err != nil || len(snap.Lock.Holders) != 1 || snap.Lock.Holders[0].Token != l.Token() {
			t.Errorf("the lock is %+v, %v", snap.Lock, err)
		}
		release(t, l)
	})
}

// Promise S-1.
func TestALateCopyOfAReleaseDoesNotEndWhatIsReclaimedAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		k := newLocker(t, copied{s, new(1), new([]lokt.Target)}, "a", lokt.Options{})
		l := acquire(t, k, "x", lokt.Options{TTL: 10 * time.Second, ManualHeartbeat: true})
		time.Sleep(20 * time.Second)
		wantState(t, l, lokt.Lost)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		again, err := k.Reclaim(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		if snap, err := s.Get(t.Context(), "x"); err != nil || len(snap.Lock.Holders) != 1 || snap.Lock.Holders[0].Token != again.Token() {
			t.Errorf("the lock is %+v, %v", snap.Lock, err)
		}
		release(t, again)
	})
}

// putOff is a service whose store has put off the end of what it granted, as after a restart, before anybody was told.
type putOff struct{ lokt.Service }

func (s putOff) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	h, err := s.Service.Acquire(ctx, c)
	h.ExpiresAt = h.ExpiresAt.Add(time.Hour)
	return h, err
}

// Promise S-12.
func TestALeaseIsReliedOnForItsTTLAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := acquire(t, newLocker(t, putOff{newService()}, "a", lokt.Options{}), "x", lokt.Options{TTL: 10 * time.Second, ManualHeartbeat: true})
		if left := l.Remaining(); left > 10*time.Second {
			t.Errorf("it is relied on for %v", left)
		}
		time.Sleep(10 * time.Second)
		wantState(t, l, lokt.Lost)
		release(t, l)
	})
}

// copying is a service at which, after the first grant, the hold ends, another has the lock meanwhile, and then a copy of the claim comes.
type copying struct {
	lokt.Service
	t      *testing.T
	claims *[]lokt.Claim
	slow   time.Duration
}

func (s copying) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	h, err := s.Service.Acquire(ctx, c)
	if *s.claims = append(*s.claims, c); len(*s.claims) == 1 {
		s.another(c)
		time.Sleep(s.slow)
	}
	return h, err
}

func (s copying) another(c lokt.Claim) {
	theirs := lokt.Claim{Name: c.Name, LeaseID: "theirs", Owner: lokt.Owner{ID: "they"}, Strict: true}
	_, ended := s.Release(s.t.Context(), lokt.Target{Name: c.Name, LeaseID: c.LeaseID, Owner: c.Owner})
	_, granted := s.Service.Acquire(s.t.Context(), theirs)
	_, left := s.Release(s.t.Context(), lokt.Target{Name: c.Name, LeaseID: theirs.LeaseID, Owner: theirs.Owner})
	_, copied := s.Service.Acquire(s.t.Context(), c)
	if err := errors.Join(ended, granted, left, copied); err != nil {
		s.t.Error(err)
	}
}

// Promises S-1, S-282.
func TestALeaseEndsWithItsGrantThoughACopyOfItsClaimIsGrantedLater(t *testing.T) {
	regranted := func(t *testing.T, slow time.Duration) (lokt.Service, *lokt.Lease, lokt.Holder) {
		s := newService()
		k := newLocker(t, copying{s, t, new([]lokt.Claim), slow}, "a", lokt.Options{})
		l := acquire(t, k, "x", lokt.Options{TTL: 10 * time.Second, ManualHeartbeat: true})
		snap, err := s.Get(t.Context(), "x")
		if err != nil || len(snap.Lock.Holders) != 1 {
			t.Fatalf("the lock is %+v, %v", snap.Lock, err)
		}
		return s, l, snap.Lock.Holders[0]
	}
	t.Run("which the next renewal finds out", synctested(func(t *testing.T) {
		s, l, _ := regranted(t, 0)
		if err := l.Renew(t.Context()); !errors.Is(err, lokt.ErrLost) || l.State() != lokt.Lost {
			t.Errorf("it was renewed: %v, and is %v", err, l.State())
		}
		release(t, l)
		if snap, err := s.Get(t.Context(), "x"); err != nil || len(snap.Lock.Holders) != 0 {
			t.Errorf("the lock is %+v, %v", snap.Lock, err)
		}
	}))
	t.Run("before it is handed out", synctested(func(t *testing.T) {
		_, l, h := regranted(t, 4*time.Second)
		if h.Token != l.Token() || h.LeaseID != l.ID() {
			t.Errorf("it has token %d, and on record is %d", l.Token(), h.Token)
		}
	}))
}

func synctested(test func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// sleeper is a service on another machine, whose clock goes on while this one sleeps.
type sleeper struct {
	lokt.Service
	start time.Time
	slept atomic.Int64
}

func (s *sleeper) Elapsed() time.Duration {
	return time.Since(s.start) + time.Duration(s.slept.Load())
}

// Promise S-298. Timers stand still while the machine sleeps: in a bubble only those of the sleeper go on.
func TestLeaseOnAServerIsOverWhenTheMachineHasSleptForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sleeper{Service: newService(), start: time.Now()}
		k := newLocker(t, s, "a", lokt.Options{TTL: 10 * time.Minute, Interval: 4 * time.Minute})
		l := acquire(t, k, "x", lokt.Options{})
		told := acquire(t, k, "y", lokt.Options{})
		time.Sleep(time.Second)
		s.slept.Store(int64(9*time.Minute + 50*time.Second))
		if err := l.Err(); err != nil {
			t.Errorf("after a sleep that was shorter: %v", err)
		}
		if got := l.Remaining(); got > 10*time.Second {
			t.Errorf("after a sleep of 9:50 of 10 minutes %v are left", got)
		}
		s.slept.Store(int64(10 * time.Minute))
		if err := l.Err(); !errors.Is(err, lokt.ErrLost) {
			t.Errorf("after a sleep as long as the time to live: %v", err)
		}
		select {
		case <-told.Context().Done():
		case <-time.After(2 * time.Second):
			t.Error("the loss is not told soon after the sleep")
		}
	})
}
