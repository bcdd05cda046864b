package memstore_test

import (
	"testing"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/store/memstore"
)

func TestMemoryStoreOfJobsKeepsEveryPromise(t *testing.T) {
	jobstest.TestStore(t, func(*testing.T) jobs.Store { return memstore.NewJobs() })
}
