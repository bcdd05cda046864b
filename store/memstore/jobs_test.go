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

func TestMemoryStoreOfJobsKeepsWhatAManagerDoes(t *testing.T) {
	jobstest.TestGame(t, func(*testing.T) jobs.Store { return memstore.NewJobs() })
}

func TestManagersOverMemorySurviveTheirDeath(t *testing.T) {
	jobstest.TestRestart(t, func(*testing.T) jobs.Store { return memstore.NewJobs() })
}

// Promise S-140.
func TestManagersOverMemoryTellTheTokensOfLocks(t *testing.T) {
	jobstest.TestLockTokens(t, func(*testing.T) (jobs.Store, lokt.Service) {
		return memstore.NewJobs(), lokt.NewManager(memstore.New())
	})
	jobstest.TestLockTokens(t, func(*testing.T) (jobs.Store, lokt.Service) {
		locks := memstore.New()
		return locks.Jobs(), lokt.NewManager(locks)
	})
}
