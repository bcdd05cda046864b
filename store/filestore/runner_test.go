package filestore_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/filestore"
)

func TestRunnerIsThisProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	s, err := filestore.Open(dir, filestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	owner, err := s.Runner()
	if err != nil || owner.Process.PID != os.Getpid() || owner.Host != s.Host() || owner.ID != "" {
		t.Fatalf("%+v, error %v", owner, err)
	}
	k, err := lokt.NewLocker(lokt.NewManager(s), owner, lokt.LockerOptions{Defaults: lokt.Options{Process: &owner.Process}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := k.Acquire(t.Context(), "x", lokt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if h := l.Holder(); h.Owner.ID != lokt.RunnerID(os.Getpid()) || h.Metadata["pid"] == "" || h.Claim.Process == nil {
		t.Errorf("the holder is %+v", h)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	broken, err := filestore.Open(filepath.Join(dir, "audit.log", "no directory"), filestore.Options{})
	if err == nil {
		_, err = broken.Runner()
	}
	if err == nil {
		t.Error("a store that cannot be made has a runner")
	}
}
