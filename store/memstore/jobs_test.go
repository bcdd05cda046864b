package memstore_test

import (
	"testing"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/store/memstore"
)

func TestMemoryStoreOfJobsKeepsEveryPromise(t *testing.T) {
	jobstest.TestStore(t, func(*testing.T) jobs.Store { return memstore.NewJobs() })
	jobstest.TestStore(t, func(*testing.T) jobs.Store { return memstore.New().Jobs() })
}

func TestManagersOverMemorySurviveTheirDeath(t *testing.T) {
	jobstest.TestRestart(t, func(*testing.T) jobs.Store { return memstore.NewJobs() })
}

// separate and together open stores for jobs and locks: two, and one.
func separate(*testing.T) (jobs.Store, lokt.Service) {
	return memstore.New().Jobs(), lokt.NewManager(memstore.New())
}

func together(*testing.T) (jobs.Store, lokt.Service) {
	locks := memstore.New()
	return locks.Jobs(), lokt.NewManager(locks)
}

// Promise S-140.
func TestManagersOverMemoryTellTheTokensOfLocks(t *testing.T) {
	t.Run("separate", func(t *testing.T) { jobstest.TestLockTokens(t, false, separate) })
	t.Run("together", func(t *testing.T) { jobstest.TestLockTokens(t, true, together) })
}

func TestLocksOfJobsInMemoryCanBeHadAtOnce(t *testing.T) {
	t.Run("separate", func(t *testing.T) { jobstest.TestLocks(t, false, separate) })
	t.Run("together", func(t *testing.T) { jobstest.TestLocks(t, true, together) })
}
