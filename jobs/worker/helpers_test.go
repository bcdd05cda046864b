package worker_test

import (
	"testing"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

func openWith(t *testing.T, o manager.Options) *manager.Manager {
	t.Helper()
	m, err := manager.Open(t.Context(), memstore.NewJobs(), o)
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
func submit(t *testing.T, m jobs.Service, edits ...func(*jobs.Spec)) string {
	t.Helper()
	s := jobs.NewSpec()
	for _, edit := range edits {
		edit(&s)
	}
	r, err := m.Submit(t.Context(), []jobs.Spec{s})
	if err != nil {
		t.Fatal(err)
	}
	return r[0].JobID
}
