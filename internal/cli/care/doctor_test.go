package care

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// racers runs the race of --prove with goroutines.
func racers(t *testing.T, n int, enter func() (func() error, error)) (sum raceResult, count int) {
	t.Helper()
	dir := t.TempDir()
	until := time.Now().Add(300 * time.Millisecond)
	var mu sync.Mutex
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			r, err := race(dir, until, enter)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && !os.IsNotExist(err) { // without exclusion others remove the marker
				t.Error(err)
			}
			sum.Entered += r.Entered
			sum.Overlaps += r.Overlaps
		})
	}
	running.Wait()
	count, err := readCount(filepath.Join(dir, "count"))
	if err != nil {
		t.Fatal(err)
	}
	return sum, count
}

func TestRaceShowsThatNothingExcludes(t *testing.T) {
	for range 20 { // on a busy machine they may come one after the other
		sum, count := racers(t, 4, func() (func() error, error) { return func() error { return nil }, nil })
		if sum.Overlaps > 0 && count < sum.Entered {
			return
		}
		t.Logf("entered %d times, %d overlaps, counted %d", sum.Entered, sum.Overlaps, count)
	}
	t.Error("nothing is found")
}

func TestRaceFindsNothingWrongWithAMutex(t *testing.T) {
	var mu sync.Mutex
	sum, count := racers(t, 4, func() (func() error, error) {
		mu.Lock()
		return func() error { mu.Unlock(); return nil }, nil
	})
	if sum.Entered == 0 || sum.Overlaps != 0 || count != sum.Entered {
		t.Errorf("entered %d times, %d overlaps, counted %d", sum.Entered, sum.Overlaps, count)
	}
}
