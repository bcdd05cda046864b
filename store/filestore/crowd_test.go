//go:build unix

package filestore

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// countingFS counts how often a liveness file is opened.
type countingFS struct {
	vfs.FS
	lives *atomic.Int64
}

func (c countingFS) OpenFile(path string, flag int, perm os.FileMode) (vfs.File, error) {
	if filepath.Base(filepath.Dir(path)) == dirLive {
		c.lives.Add(1)
	}
	return c.FS.OpenFile(path, flag, perm)
}

// shown returns this process, whose life the kernel shows.
func shown(t *testing.T, s *Store) lokt.Process {
	t.Helper()
	self, err := s.Self()
	if err != nil || self.Liveness == "" {
		t.Skip("this kernel has no locks that show life: ", err)
	}
	return self
}

// A look of one who waits in a long queue must not cost much: all the others look, too.
func TestALookAtALongQueueOpensNoFileForEachWaiter(t *testing.T) {
	t.Parallel()
	dir, waiters := place(t), 40
	s := open(t, dir, Options{})
	self := shown(t, s)
	m := lokt.NewManager(s)
	if _, err := m.Acquire(t.Context(), by("holder")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait() // who leaves the queue writes where the test is to leave nothing
	defer cancel()
	for range waiters {
		c := by("waiter")
		c.LeaseID, c.Wait, c.Strict, c.Owner.Process = lokt.NewLeaseID(), -1, true, self
		waiting.Go(func() { _, _ = m.Acquire(ctx, c) })
	}
	var lives atomic.Int64
	other := open(t, dir, Options{fs: countingFS{vfs.OS(), &lives}})
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		lives.Store(0)
		snap, err := other.View(t.Context(), "x")
		if err != nil || time.Now().After(end) {
			t.Fatalf("%d in the queue; %v", len(snap.Lock.Queue), err)
		}
		if len(snap.Lock.Queue) == waiters {
			break
		}
	}
	if n := lives.Load(); n < 1 || n > 2 { // one for the holder, one for the waiters, whose process is the same
		t.Errorf("a look opened liveness files %d times", n)
	}
}
