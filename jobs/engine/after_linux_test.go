package engine

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/jobs"
)

func TestJobsAfterOneCostLinearTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpu := func() time.Duration { // of this thread, which others do not lengthen
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
			t.Fatal(err)
		}
		return time.Duration(now.Nano())
	}
	for _, how := range []jobs.State{jobs.Completed, jobs.Failed} {
		took := func(n int) time.Duration {
			best := time.Hour
			for range 3 {
				w, _ := dependents(t, n)
				start := cpu()
				for w.e.Turn(w.now, []Call{end(how)}, nil); w.e.Next() <= w.now.Mono; {
					w.e.Turn(w.now, nil, nil)
				}
				best = min(best, cpu()-start)
				if how == jobs.Completed {
					w.want("what is first now", w.ask("v", "next"), "J000000")
				}
			}
			return best
		}
		if few, many := took(1000), took(16_000); many > 100*few { // square would be 256 times as much
			t.Errorf("%s with 1,000 jobs after it took %v, with 16,000 %v", how, few, many)
		}
	}
}
