package lokt_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lokt-dev/lokt"
)

func TestKeeperRenewsTenThousandLeasesWithFewGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leases = 10_000
		net := &link{Service: newService()}
		net.slow(func() time.Duration { return 100 * time.Microsecond }, nil)
		k := newLocker(t, net, "a", lokt.Options{TTL: time.Minute, Interval: 10 * time.Second})
		for i := range leases {
			acquire(t, k, fmt.Sprint("lock-", i), lokt.Options{ManualHeartbeat: true})
		}
		before := runtime.NumGoroutine()
		for _, l := range k.Leases() {
			l.StartHeartbeat()
		}
		most := 0
		for range 250 {
			time.Sleep(100 * time.Millisecond)
			most = max(most, runtime.NumGoroutine()-before)
		}
		if most > 120 {
			t.Errorf("%d goroutines keep %d leases", most, leases)
		}
		if n := net.renewed.Load(); n < 2*leases || n > 3*leases {
			t.Errorf("%d renewals of %d leases in 25 s, due every 10 s", n, leases)
		}
		if n, err := k.ReleaseAll(t.Context()); n != leases || err != nil {
			t.Errorf("%d of %d were still held, error %v", n, leases, err)
		}
	})
}

// Promise S-246.
func TestAThousandLeasesSurviveAServerThatIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &link{Service: newService()}
		net.slow(func() time.Duration { return 800 * time.Millisecond }, nil)
		k := newLocker(t, net, "a", lokt.Options{TTL: 6 * time.Second})
		for i := range 1000 {
			acquire(t, k, fmt.Sprint("lock-", i), lokt.Options{})
		}
		time.Sleep(time.Minute)
		if n, err := k.ReleaseAll(t.Context()); n != 1000 || err != nil {
			t.Errorf("%d of 1000 were still held, error %v", n, err)
		}
	})
}

func TestKeeperLeavesNothingRunning(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	net := &link{Service: newService()}
	k := newLocker(t, net, "a", lokt.Options{TTL: time.Hour, Interval: time.Minute})
	var leases []*lokt.Lease
	for i := range 100 {
		leases = append(leases, acquire(t, k, fmt.Sprint("lock-", i), lokt.Options{ManualHeartbeat: i%2 == 0}))
	}
	release(t, leases...)
	goleak.VerifyNone(t, leaks) // it looks for a while
}

// Leases whose time is up while they wait for a worker leave no timer behind either: in a bubble whose main goroutine is
// over no time passes in which one could go off.
func TestKeeperEndsThoughLeasesThatAreLostWaitForAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leases = 1100 // more than are renewed at once, however late they are
		k := &lokt.Keeper{}
		answer := make(chan struct{})
		var asked, lost atomic.Int64
		for range leases {
			k.Keep(&lokt.Heartbeat{
				Interval: time.Second,
				Renew: func(context.Context) (time.Duration, error) {
					asked.Add(1)
					<-answer
					return time.Minute, nil
				},
				Lost: func(error) { lost.Add(1) },
			}, 0, time.Minute)
		}
		time.Sleep(time.Minute)
		if asked.Load() >= leases || lost.Load() != leases {
			t.Errorf("of %d leases %d were asked for and %d lost", leases, asked.Load(), lost.Load())
		}
		close(answer)
	})
}

func TestExpiryOfOneLeaseIsNotDelayedByAListenerOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan struct{})
		k, err := lokt.NewLocker(newService(), lokt.Owner{ID: "a"}, lokt.LockerOptions{Observe: func(lokt.Event) { <-slow }})
		if err != nil {
			t.Fatal(err)
		}
		var leases []*lokt.Lease
		for i := range 100 {
			leases = append(leases, acquire(t, k, fmt.Sprint("lock-", i), lokt.Options{ManualHeartbeat: true}))
		}
		time.Sleep(lokt.DefaultTTL)
		synctest.Wait()
		for _, l := range leases {
			select {
			case <-l.Context().Done():
			default:
				t.Fatalf("%s is not told of its loss", l.Name())
			}
		}
		close(slow)
	})
}

// beats is a lease that a Keeper keeps without a Locker, as leases on other things than locks are.
type beats struct {
	keeper    lokt.Keeper
	b         lokt.Heartbeat
	answer    func(ctx context.Context) (time.Duration, error)
	mu        sync.Mutex
	sent      []time.Duration
	doubts    int
	lost      error
	lostAfter time.Duration
}

func newBeats(interval, margin time.Duration, answer func(ctx context.Context) (time.Duration, error)) *beats {
	begun := time.Now()
	b := &beats{answer: answer}
	b.keeper.Elapsed = func() time.Duration { return time.Since(begun) }
	b.b = lokt.Heartbeat{
		Interval: interval, Margin: margin,
		Renew: func(ctx context.Context) (time.Duration, error) {
			b.mu.Lock()
			b.sent = append(b.sent, time.Since(begun))
			b.mu.Unlock()
			life, err := b.answer(ctx)
			if err != nil && !errors.Is(err, lokt.ErrNotOwner) && !errors.Is(err, lokt.ErrNotFound) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.doubts++
			}
			return life, err
		},
		Lost: func(cause error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.lost, b.lostAfter = cause, time.Since(begun)
		},
	}
	return b
}

// seen waits until everything that happens now has happened, and returns what did so far.
func (b *beats) seen() (sent, doubts int, after time.Duration, lost error) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sent), b.doubts, b.lostAfter, b.lost
}

func TestKeeperRenewsAtTheIntervalCountedFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeats(time.Second, 100*time.Millisecond, func(context.Context) (time.Duration, error) {
			time.Sleep(300 * time.Millisecond)
			return 5 * time.Second, nil
		})
		b.keeper.Keep(&b.b, 0, 5*time.Second)
		time.Sleep(4500 * time.Millisecond)
		sent, doubts, _, lost := b.seen()
		b.b.Stop()
		if sent != 4 || doubts != 0 || lost != nil {
			t.Errorf("%d sent, %d doubts, %v", sent, doubts, lost)
		}
		for i, at := range b.sent {
			if at != time.Duration(i+1)*time.Second {
				t.Errorf("renewals were sent at %v", b.sent)
			}
		}
	})
}

// Promises S-14, S-15.
func TestKeeperRetriesSoonAndThenTellsTheLossOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeats(time.Second, 100*time.Millisecond, func(context.Context) (time.Duration, error) { return 0, errCut })
		b.keeper.Keep(&b.b, 0, 5*time.Second)
		time.Sleep(time.Minute)
		sent, doubts, after, lost := b.seen()
		if sent < 10 || sent > 60 || sent != doubts {
			t.Errorf("%d renewals were tried, of which %d failed", sent, doubts)
		}
		if want := lokt.Usable(5*time.Second, 100*time.Millisecond); !errors.Is(lost, lokt.ErrLost) || !errors.Is(lost, lokt.ErrUnavailable) || after != want {
			t.Errorf("after %v, not %v: %v", after, want, lost)
		}
		for i := range b.sent[1:] {
			if gap := b.sent[i+1] - b.sent[i]; gap > 250*time.Millisecond || gap < 20*time.Millisecond {
				t.Errorf("renewals were tried at %v", b.sent)
			}
		}
		b.b.Stop()
		b.b.Stop()
	})
}

func TestKeeperRepeatsARenewalThatHangsAndGivesUpWhenTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeats(time.Second, 100*time.Millisecond, func(ctx context.Context) (time.Duration, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		b.keeper.Keep(&b.b, 0, 5*time.Second)
		time.Sleep(time.Minute)
		sent, _, after, lost := b.seen()
		if sent < 4 || sent > 10 || !errors.Is(lost, lokt.ErrLost) || after != lokt.Usable(5*time.Second, 100*time.Millisecond) {
			t.Errorf("%d sent, and after %v: %v", sent, after, lost)
		}
		b.b.Stop()
	})
}

func TestOneRequestThatWentAstrayLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		b := newBeats(time.Second, 100*time.Millisecond, func(ctx context.Context) (time.Duration, error) {
			if asked.Add(1)%3 == 1 {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return 5 * time.Second, nil
		})
		b.keeper.Keep(&b.b, 0, 5*time.Second)
		time.Sleep(time.Minute)
		if sent, doubts, _, lost := b.seen(); lost != nil || doubts < 10 || sent < 30 {
			t.Errorf("%d sent, %d failed: %v", sent, doubts, lost)
		}
		b.b.Stop()
	})
}

func TestKeeperTellsAFinalAnswerAtOnce(t *testing.T) {
	for _, gone := range []error{lokt.ErrNotOwner, lokt.ErrNotFound} {
		synctest.Test(t, func(t *testing.T) {
			b := newBeats(time.Second, 100*time.Millisecond, func(context.Context) (time.Duration, error) { return 0, gone })
			b.keeper.Keep(&b.b, 0, 5*time.Second)
			time.Sleep(time.Minute)
			sent, doubts, after, lost := b.seen()
			if sent != 1 || doubts != 0 || !errors.Is(lost, lokt.ErrLost) || !errors.Is(lost, gone) || after != time.Second {
				t.Errorf("%d sent, %d doubts, and after %v: %v", sent, doubts, after, lost)
			}
			b.b.Stop()
		})
	}
}

func TestKeeperKeepsWhatNeverExpiresForTheSakeOfTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone atomic.Bool
		b := newBeats(time.Second, 0, func(context.Context) (time.Duration, error) {
			if gone.Load() {
				return 0, lokt.ErrNotFound
			}
			return 0, nil
		})
		b.keeper.Keep(&b.b, 0, 0)
		time.Sleep(10500 * time.Millisecond)
		if sent, _, _, lost := b.seen(); sent != 10 || lost != nil {
			t.Errorf("%d sent, %v", sent, lost)
		}
		gone.Store(true)
		time.Sleep(time.Second)
		if _, _, _, lost := b.seen(); !errors.Is(lost, lokt.ErrNotFound) {
			t.Errorf("lost: %v", lost)
		}
		b.b.Stop()
	})
}

func TestKeeperWatchesWhatItDoesNotRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBeats(0, 100*time.Millisecond, nil)
		b.keeper.Keep(&b.b, 0, 5*time.Second)
		time.Sleep(time.Minute)
		sent, _, after, lost := b.seen()
		if sent != 0 || !errors.Is(lost, lokt.ErrLost) || after != lokt.Usable(5*time.Second, 100*time.Millisecond) {
			t.Errorf("%d sent, and after %v: %v", sent, after, lost)
		}
		b.b.Stop()
	})
}

func TestHeartbeatOfOneLeaseIsStoppedWithoutTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keeper lokt.Keeper
		var sent [10]atomic.Int64
		var all [10]lokt.Heartbeat
		for i := range all {
			all[i] = lokt.Heartbeat{
				Interval: time.Second,
				Renew:    func(context.Context) (time.Duration, error) { sent[i].Add(1); return 5 * time.Second, nil },
				Lost:     func(cause error) { t.Errorf("%d: %v", i, cause) },
			}
			keeper.Keep(&all[i], 0, 5*time.Second)
		}
		for i := range all {
			time.Sleep(time.Second)
			synctest.Wait()
			all[i].Stop()
		}
		var got []string
		for i := range sent {
			got = append(got, fmt.Sprint(sent[i].Load()))
		}
		if s := strings.Join(got, " "); s != "1 2 3 4 5 6 7 8 9 10" {
			t.Errorf("renewals per lease: %s", s)
		}
	})
}

func TestRenewalsThatAreNearlyDueAreMadeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		k := &lokt.Keeper{Elapsed: func() time.Duration { return time.Since(begun) }}
		var mu sync.Mutex
		at := map[time.Duration]int{}
		var kept []*lokt.Heartbeat
		for i := range 50 {
			b := &lokt.Heartbeat{
				Interval: time.Second, Margin: time.Millisecond, Lost: func(cause error) { t.Error(cause) },
				Renew: func(context.Context) (time.Duration, error) {
					mu.Lock()
					defer mu.Unlock()
					at[time.Since(begun)]++
					return 5 * time.Second, nil
				},
			}
			k.Keep(b, time.Duration(i)*2*time.Millisecond, 5*time.Second)
			kept = append(kept, b)
		}
		time.Sleep(3500 * time.Millisecond)
		for _, b := range kept {
			b.Stop()
		}
		if len(at) != 3 || at[time.Second] != 50 || at[2*time.Second] != 50 {
			t.Errorf("renewals were made at %v", at)
		}
	})
}

func TestRenewalsThatTakeLongAreMadeSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		k := &lokt.Keeper{Elapsed: func() time.Duration { return time.Since(begun) }}
		var now, most, made atomic.Int32
		var kept []*lokt.Heartbeat
		for range 1000 {
			b := &lokt.Heartbeat{
				Interval: time.Second, Margin: time.Millisecond, Lost: func(cause error) { t.Error(cause) },
				Renew: func(context.Context) (time.Duration, error) {
					for n, m := now.Add(1), most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					time.Sleep(50 * time.Millisecond)
					now.Add(-1)
					made.Add(1)
					return 5 * time.Second, nil
				},
			}
			k.Keep(b, 0, 5*time.Second)
			kept = append(kept, b)
		}
		time.Sleep(1800 * time.Millisecond)
		for _, b := range kept {
			b.Stop()
		}
		if most.Load() != 100 || made.Load() != 1000 { // one after the other they would take 50 s
			t.Errorf("%d renewals of 1,000 in 0.8 s, at most %d at once", made.Load(), most.Load())
		}
	})
}
