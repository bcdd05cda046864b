package jobs_test

import (
	"testing"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/store/memstore"
)

// open returns a manager over memory.
func open(t *testing.T, c jobs.Config) jobs.Service { return openWith(t, jobs.Options{Config: c}) }

func openWith(t *testing.T, o jobs.Options) *jobs.Manager {
	t.Helper()
	m, err := jobs.Open(t.Context(), memstore.NewJobs(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

func TestManagerOverMemoryKeepsEveryPromise(t *testing.T) { jobstest.TestService(t, open) }

func TestManagerOverMemoryKeepsItsPromisesInRealTime(t *testing.T) {
	jobstest.TestServiceInRealTime(t, open)
}
