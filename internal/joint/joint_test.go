package joint

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Promise S-101.
func TestWhoComesDuringAReadSharesTheNextWithAllOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Reads[int]
		reads := 0
		read := func() (int, error) {
			reads++
			n := reads
			time.Sleep(time.Second)
			return n, nil
		}
		var wg sync.WaitGroup
		look := func(ctx context.Context, key string, want int, wrong error) {
			wg.Go(func() {
				if n, err := r.Do(ctx, key, 1500*time.Millisecond, read); n != want || !errors.Is(err, wrong) {
					t.Errorf("a look sees read %d (%v), not %d (%v)", n, err, want, wrong)
				}
			})
		}
		look(t.Context(), "x", 1, nil)
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		look(gone, "x", 0, context.Canceled)
		look(t.Context(), "x", 0, context.DeadlineExceeded) // the end of the second is too late for it
		synctest.Wait()
		leave()
		time.Sleep(500 * time.Millisecond)
		for range 100 {
			look(t.Context(), "x", 2, nil)
		}
		time.Sleep(time.Second)
		for range 100 {
			look(t.Context(), "x", 3, nil)
		}
		wg.Wait()
		look(t.Context(), "y", 4, nil)
		wg.Wait()
		synctest.Wait()
		if reads != 4 || len(r.next) != 0 {
			t.Errorf("%d reads, and %d are still to come", reads, len(r.next))
		}
	})
}

func TestAReadThatPanicsDoesSoForAllThatShareItAndForNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Reads[int]
		go func() {
			_, _ = r.Do(t.Context(), "x", time.Minute, func() (int, error) { time.Sleep(time.Second); return 1, nil })
		}()
		synctest.Wait()
		var wg sync.WaitGroup
		panicked := make(chan any, 3)
		for range 3 {
			wg.Go(func() {
				defer func() { panicked <- recover() }()
				_, err := r.Do(t.Context(), "x", time.Minute, func() (int, error) { panic("on cue") })
				t.Error("it returns", err)
			})
		}
		wg.Wait()
		for range 3 {
			if p := fmt.Sprint(<-panicked); !strings.HasPrefix(p, "on cue") || !strings.Contains(p, "joint_test.go") {
				t.Errorf("it panics with %s", p)
			}
		}
		if n, err := r.Do(t.Context(), "x", time.Minute, func() (int, error) { return 2, nil }); n != 2 || err != nil {
			t.Errorf("the next is %d, %v", n, err)
		}
	})
}

func TestAReadThatEndsItsGoroutineIsAnErrorAndKeepsNobodyFromReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Reads[int]
		if n, err := r.Do(t.Context(), "x", time.Minute, func() (int, error) { runtime.Goexit(); return 1, nil }); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it is %d, %v", n, err)
		}
		if n, err := r.Do(t.Context(), "x", time.Minute, func() (int, error) { return 2, nil }); n != 2 || err != nil {
			t.Errorf("the next is %d, %v", n, err)
		}
	})
}
