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
)

// looking is a service that counts looks, and can be cut off from them.
type looking struct {
	lokt.Service
	looks atomic.Int64
	cut   bool
}

func (l *looking) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	l.looks.Add(1)
	if l.cut {
		return lokt.Snapshot{}, errCut
	}
	return l.Service.Get(ctx, name)
}

func TestALeaseWithoutATTLIsToldThatItIsWantedAndEndsBeforeTheOtherEnters(t *testing.T) {
	for what, o := range map[string]lokt.Options{
		"looked at":          {TTL: lokt.NoTTL},
		"looked at seldom":   {TTL: lokt.NoTTL, Interval: 4 * time.Second},
		"with maximum hold":  {TTL: lokt.NoTTL, MaxHold: time.Hour},
		"renewed by hand":    {TTL: lokt.NoTTL, ManualHeartbeat: true},
		"with a TTL as well": {TTL: 5 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService()
				l := acquire(t, newLocker(t, s, "low", lokt.Options{}), "x", o)
				time.Sleep(time.Minute)
				wantState(t, l, lokt.Held)
				entered := make(chan time.Time, 1)
				go func() {
					high := newLocker(t, s, "high", lokt.Options{})
					_, err := high.Acquire(t.Context(), "x", lokt.Options{Wait: time.Minute, Priority: 1, Preempt: 2 * time.Second})
					if err != nil {
						t.Error(err)
					}
					entered <- time.Now()
				}()
				synctest.Wait()
				asked := time.Now()
				if o.ManualHeartbeat {
					if err := l.Renew(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				<-l.Yield()
				if told := time.Since(asked); told > 4*time.Second {
					t.Errorf("told after %v", told)
				}
				<-l.Context().Done()
				ended := time.Now()
				wantState(t, l, lokt.Lost)
				if kept := ended.Sub(asked); kept < 1400*time.Millisecond {
					t.Errorf("the lease ended %v after it was asked for, with a grace of 2 s", kept)
				}
				if at := <-entered; !at.After(ended) || at.Sub(asked) > 2*time.Second+lokt.DefaultTTL+time.Second {
					t.Errorf("the other entered %v after it asked, %v after the lease had ended", at.Sub(asked), at.Sub(ended))
				}
			})
		})
	}
}

// tardyLooks is a service whose answers about locks are long on their way.
type tardyLooks struct {
	lokt.Service
	by time.Duration
}

func (s tardyLooks) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	snap, err := s.Service.Get(ctx, name)
	return snap, errors.Join(err, pause(ctx, func() time.Duration { return s.by }))
}

func TestALeaseWithoutATTLIsReliedOnFromWhenItWasLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		l := acquire(t, newLocker(t, tardyLooks{s, 2 * time.Second}, "low", lokt.Options{}), "x", lokt.Options{TTL: lokt.NoTTL})
		go func() {
			_, _ = newLocker(t, s, "high", lokt.Options{}).Acquire(t.Context(), "x", lokt.Options{Wait: time.Minute, Priority: 1, Preempt: 10 * time.Second})
		}()
		<-l.Yield()
		snap, err := s.Get(t.Context(), "x")
		if err != nil || len(snap.Lock.Holders) != 1 || snap.Lock.Holders[0].Yield == nil {
			t.Fatalf("the lock is %+v, %v", snap.Lock, err)
		}
		if until, ends := time.Now().Add(l.Remaining()), snap.Lock.Holders[0].Yield.Deadline; !until.Before(ends) {
			t.Errorf("it is relied on until %v, and ends %v", until, ends)
		}
		release(t, l)
	})
}

// lostRenewal is a service of which the answer to the first renewal is lost, after a while. All others take a moment.
type lostRenewal struct {
	lokt.Service
	after time.Duration
	once  *sync.Once
}

func (s lostRenewal) Renew(ctx context.Context, r lokt.Renewal) (h lokt.Holder, err error) {
	h, err = s.Service.Renew(ctx, r)
	s.once.Do(func() {
		time.Sleep(s.after)
		h, err = lokt.Holder{}, lokt.ErrUnavailable
	})
	time.Sleep(time.Millisecond)
	return h, err
}

// Promise S-235.
func TestALeaseWithoutATTLThatHearsTooLateThatItIsWantedIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		k := newLocker(t, lostRenewal{s, 4 * time.Second, new(sync.Once)}, "low", lokt.Options{})
		l := acquire(t, k, "x", lokt.Options{TTL: lokt.NoTTL})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		next, err := newLocker(t, s, "high", lokt.Options{}).Acquire(ctx, "x", lokt.Options{Wait: -1, Priority: 1, Preempt: 2 * time.Second})
		if err != nil {
			t.Fatalf("the other: %v", err)
		}
		<-l.Context().Done()
		time.Sleep(time.Second) // its renewal ends
		wantState(t, l, lokt.Lost)
		release(t, next)
	})
}

func TestALeaseWithoutATTLThatIsNotWantedAnyMoreStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		l := acquire(t, newLocker(t, s, "low", lokt.Options{}), "x", lokt.Options{TTL: lokt.NoTTL})
		_, err := newLocker(t, s, "high", lokt.Options{}).Acquire(t.Context(), "x", lokt.Options{Wait: 3 * time.Second, Priority: 1, Preempt: 10 * time.Second})
		if !errors.Is(err, lokt.ErrHeld) {
			t.Fatalf("the other: %v", err)
		}
		time.Sleep(time.Hour)
		wantState(t, l, lokt.Held)
		if l.Remaining() < 1000*time.Hour {
			t.Errorf("%v left", l.Remaining())
		}
		release(t, l)
	})
}

func TestALeaseWithoutATTLNoticesThatItWasEndedByForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		l := acquire(t, newLocker(t, s, "a", lokt.Options{}), "x", lokt.Options{TTL: lokt.NoTTL})
		time.Sleep(10 * time.Second)
		synctest.Wait() // no look falls between the end of the first lease and the second one
		if _, err := s.Release(t.Context(), lokt.Target{Name: "x", Force: true, Owner: lokt.Owner{ID: "admin"}}); err != nil {
			t.Fatal(err)
		}
		ended := time.Now()
		other := acquire(t, newLocker(t, s, "b", lokt.Options{}), "x", lokt.Options{TTL: lokt.NoTTL})
		<-l.Context().Done()
		if after := time.Since(ended); after > lokt.DefaultInterval {
			t.Errorf("noticed after %v", after)
		}
		wantState(t, l, lokt.Lost)
		if !errors.Is(l.Err(), lokt.ErrNotOwner) {
			t.Errorf("lost because of %v", l.Err())
		}
		release(t, l)
		wantState(t, other, lokt.Held)
		release(t, other)
	})
}

func TestALeaseWithoutATTLOutlivesEveryOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &looking{Service: newService(), cut: true}
		l := acquire(t, newLocker(t, s, "a", lokt.Options{}), "x", lokt.Options{TTL: lokt.NoTTL})
		time.Sleep(time.Hour)
		wantState(t, l, lokt.Held)
		if looks := s.looks.Load(); looks < 3600 {
			t.Errorf("looked %d times in an hour", looks)
		}
		release(t, l)
		synctest.Wait()
		looks := s.looks.Load()
		time.Sleep(time.Hour)
		if s.looks.Load() != looks {
			t.Error("a released lease is looked at")
		}
	})
}

func TestHeartbeatsByHandAreNotLookedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &looking{Service: newService()}
		l := acquire(t, newLocker(t, s, "a", lokt.Options{}), "x", lokt.Options{TTL: lokt.NoTTL, ManualHeartbeat: true})
		time.Sleep(time.Hour)
		wantState(t, l, lokt.Held)
		if looks := s.looks.Load(); looks != 0 {
			t.Errorf("looked %d times", looks)
		}
		release(t, l)
	})
}
