package care

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// contest runs the race of --prove with goroutines.
func contest(t *testing.T, lock, unlock func()) (entered, count int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "count")
	until := time.Now().Add(300 * time.Millisecond)
	var n atomic.Int64
	var running sync.WaitGroup
	for range racers {
		running.Go(func() {
			for time.Now().Before(until) {
				lock()
				if err := addOne(path, proofThinking); err != nil {
					t.Error(err)
				}
				unlock()
				n.Add(1)
			}
		})
	}
	running.Wait()
	count, err := readCount(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(n.Load()), count
}

func TestRaceShowsThatNothingExcludes(t *testing.T) {
	for range 20 { // on a busy machine they may come one after the other
		entered, count := contest(t, func() {}, func() {})
		if count < entered {
			return
		}
		t.Logf("entered %d times, counted %d", entered, count)
	}
	t.Error("nothing is found")
}

func TestRaceFindsNothingWrongWithAMutex(t *testing.T) {
	var mu sync.Mutex
	if entered, count := contest(t, mu.Lock, mu.Unlock); entered == 0 || count != entered {
		t.Errorf("entered %d times, counted %d", entered, count)
	}
}
