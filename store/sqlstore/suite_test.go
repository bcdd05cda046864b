package sqlstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/lokttest"
)

// spot returns the path of a database that does not exist yet, where flushing costs nothing if the system has that.
func spot(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "lokt-test-")
	if err != nil {
		return filepath.Join(t.TempDir(), "lokt.db")
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "lokt.db")
}

// start opens a database; the test closes it.
func start(t testing.TB, path string, o Options) *fileDB {
	t.Helper()
	opened, err := Open(t.Context(), "sqlite:"+path, o)
	if err != nil {
		t.Fatal(err)
	}
	db := opened.backend.(*fileDB)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

// onlyLocks are locks that close their database.
type onlyLocks struct {
	LockStore
	db *fileDB
}

func (s onlyLocks) Close() error { return s.db.Close() }

func locksAt(t testing.TB, path string, o Options) onlyLocks {
	db := start(t, path, o)
	return onlyLocks{db.Locks(), db}
}

func TestLocksInADatabaseKeepWhatStoresPromise(t *testing.T) {
	t.Parallel()
	lokttest.TestStore(t, func(t *testing.T) lokt.Store { return locksAt(t, spot(t), Options{}) })
}

// Promise S-61.
func TestLocksOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	lokttest.TestReopen(t, func(t *testing.T) func() lokt.Store {
		path := spot(t)
		return func() lokt.Store { return locksAt(t, path, Options{}) }
	})
}

func TestEventsOfLocksAreKept(t *testing.T) {
	t.Parallel()
	lokttest.TestEventLog(t, func(t *testing.T) lokt.Store { return locksAt(t, spot(t), Options{}) })
}

func TestTheRulesHoldOverADatabase(t *testing.T) {
	t.Parallel()
	lokttest.TestServiceInRealTime(t, func(t *testing.T) lokt.Service { return lokt.NewManager(locksAt(t, spot(t), Options{})) })
}

func TestTheRulesHoldOverADatabaseToTheMoment(t *testing.T) {
	t.Parallel()
	lokttest.TestService(t, func(t *testing.T) lokt.Service { return lokt.NewManager(locksAt(t, spot(t), Options{})) })
}

// onlyJobs are jobs that close their database.
type onlyJobs struct {
	jobs.Store
	db *fileDB
}

func (s onlyJobs) Close() error { return s.db.Close() }

func jobsAt(t testing.TB, path string) jobs.Store {
	db := start(t, path, Options{})
	return onlyJobs{db.Jobs(), db}
}

func TestJobsInADatabaseKeepWhatStoresPromise(t *testing.T) {
	t.Parallel()
	jobstest.TestStore(t, func(t *testing.T) jobs.Store { return jobsAt(t, spot(t)) })
}

func TestJobsOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	jobstest.TestReopen(t, func(t *testing.T, dir string) jobs.Store { return jobsAt(t, filepath.Join(dir, "lokt.db")) })
}

func TestManagersOverADatabaseSurviveTheirDeath(t *testing.T) {
	t.Parallel()
	jobstest.TestRestart(t, func(t *testing.T) jobs.Store { return jobsAt(t, spot(t)) })
}

// separate and together open stores for jobs and locks: two databases, and one.
func separate(t *testing.T) (jobs.Store, lokt.Service) {
	db := start(t, spot(t), Options{})
	return onlyJobs{db.Jobs(), db}, lokt.NewManager(start(t, spot(t), Options{}).Locks())
}

func together(t *testing.T) (jobs.Store, lokt.Service) {
	db := start(t, spot(t), Options{})
	return onlyJobs{db.Jobs(), db}, lokt.NewManager(db.Locks())
}

// Promise S-140.
func TestManagersOverADatabaseTellTheTokensOfLocks(t *testing.T) {
	t.Run("separate", func(t *testing.T) { jobstest.TestLockTokens(t, false, separate) })
	t.Run("together", func(t *testing.T) { jobstest.TestLockTokens(t, true, together) })
}

func TestLocksOfJobsInADatabaseCanBeHadAtOnce(t *testing.T) {
	t.Run("separate", func(t *testing.T) { jobstest.TestLocks(t, false, separate) })
	t.Run("together", func(t *testing.T) { jobstest.TestLocks(t, true, together) })
}
