package care

import (
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// contest runs the race of --prove with goroutines.
func contest(t *testing.T, lock, unlock func()) (entered, overlaps, count int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "count")
	until := time.Now().Add(300 * time.Millisecond)
	var mu sync.Mutex
	var running sync.WaitGroup
	for range racers {
		running.Go(func() {
			for time.Now().Before(until) {
				lock()
				overlap, _ := addOne(path, proofThinking) // fails if another removes the marker
				unlock()
				mu.Lock()
				entered++
				if overlap {
					overlaps++
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	count, err := readCount(path)
	if err != nil {
		t.Fatal(err)
	}
	return entered, overlaps, count
}

func TestRaceShowsThatNothingExcludes(t *testing.T) {
	for range 20 { // on a busy machine they may come one after the other
		entered, overlaps, count := contest(t, func() {}, func() {})
		if overlaps > 0 && count < entered {
			return
		}
		t.Logf("entered %d times, %d overlaps, counted %d", entered, overlaps, count)
	}
	t.Error("nothing is found")
}

func TestRaceFindsNothingWrongWithAMutex(t *testing.T) {
	var mu sync.Mutex
	if entered, overlaps, count := contest(t, mu.Lock, mu.Unlock); entered == 0 || overlaps != 0 || count != entered {
		t.Errorf("entered %d times, %d overlaps, counted %d", entered, overlaps, count)
	}
}
