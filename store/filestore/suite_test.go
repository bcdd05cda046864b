package filestore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/lockfile"
	"github.com/lokt-dev/lokt/lokttest"
)

// open returns a store in the directory, which it need not outlive.
func open(t testing.TB, root string, o Options) *Store {
	t.Helper()
	s, err := Open(root, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// place returns a directory that does not exist yet.
func place(t testing.TB) string { return filepath.Join(t.TempDir(), "root") }

// memoryPlace is place in memory, where the system has that: flushing costs nothing there.
func memoryPlace(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "lokt-test-")
	if err != nil {
		return place(t)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "root")
}

func TestTheStoreKeepsWhatStoresPromise(t *testing.T) {
	t.Parallel()
	lokttest.TestStore(t, func(t *testing.T) lokt.Store { return open(t, place(t), Options{}) })
}

func TestWithoutFileEventsTheStoreKeepsWhatStoresPromise(t *testing.T) {
	t.Parallel()
	lokttest.TestStore(t, func(t *testing.T) lokt.Store { return open(t, memoryPlace(t), Options{noWatch: true}) })
}

func TestTheStoreOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	lokttest.TestReopen(t, func(t *testing.T) func() lokt.Store {
		root := place(t)
		return func() lokt.Store { return open(t, root, Options{}) }
	})
}

func TestAnObserverSeesEveryChange(t *testing.T) {
	t.Parallel()
	lokttest.TestObserver(t, func(t *testing.T, observe func([]lokt.Event)) lokt.Store {
		return open(t, place(t), Options{Observe: func(e lokt.Event) { observe([]lokt.Event{e}) }})
	})
}

func TestTheRulesHoldOverFiles(t *testing.T) {
	t.Parallel()
	lokttest.TestServiceInRealTime(t, func(t *testing.T) lokt.Service { return lokt.NewManager(open(t, memoryPlace(t), Options{})) })
}

func TestTheRulesHoldOverFilesToTheMoment(t *testing.T) {
	t.Parallel()
	lokttest.TestService(t, func(t *testing.T) lokt.Service {
		return lokt.NewManager(open(t, memoryPlace(t), Options{
			noWatch: true, clock: bubbleClock(), lookBlind: 10 * time.Second,
		}))
	})
}

// bubbleClock returns the clock of a bubble of testing/synctest, in which that of the host does not exist.
func bubbleClock() func() lockfile.Now {
	start := time.Now()
	return func() lockfile.Now {
		now := time.Now()
		return lockfile.Now{Wall: now.Round(0), Monotonic: now.Sub(start), BootID: process.BootID(), TimeNS: process.TimeNamespace()}
	}
}
