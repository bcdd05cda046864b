//go:build unix

package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/faultfs"
)

// openGuards counts the guard files that are open.
type openGuards struct {
	faultfs.FS
	opened, open *atomic.Int64
}

type countedFile struct {
	faultfs.File
	open *atomic.Int64
}

func countGuards() openGuards { return openGuards{faultfs.OS(), &atomic.Int64{}, &atomic.Int64{}} }

func (c openGuards) OpenFile(name string, flag int, perm fs.FileMode) (faultfs.File, error) {
	f, err := c.FS.OpenFile(name, flag, perm)
	if err != nil || !strings.Contains(name, dirGuards+separator) {
		return f, err
	}
	c.opened.Add(1)
	c.open.Add(1)
	return countedFile{f, c.open}, nil
}

func (f countedFile) Close() error {
	f.open.Add(-1)
	return f.File.Close()
}

// renewed acquires a lock of each name and renews it some times.
func renewed(t *testing.T, s *Store, names, times int) {
	t.Helper()
	m := lokt.NewManager(s)
	for i := range names {
		c := lokt.Claim{Name: fmt.Sprint("x", i), LeaseID: fmt.Sprint("lease ", i), Owner: lokt.Owner{ID: "a"}, TTL: time.Minute, Attended: true}
		if _, err := m.Acquire(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		for range times {
			if _, err := m.Renew(t.Context(), lokt.Renewal{Name: c.Name, LeaseID: c.LeaseID}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestRenewalsUseTheSameOpenGuardFileUntilTheStoreIsClosed(t *testing.T) {
	t.Parallel()
	c := countGuards()
	s, err := Open(memoryPlace(t), Options{fs: c})
	if err != nil {
		t.Fatal(err)
	}
	renewed(t, s, 1, 50)
	if n := c.opened.Load(); n != keepAfter {
		t.Errorf("the guard file was opened %d times", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := c.open.Load(); n != 0 {
		t.Errorf("a closed store has %d guard files open", n)
	}
}

func TestAStoreKeepsABoundedNumberOfFilesOpen(t *testing.T) {
	t.Parallel()
	c := countGuards()
	s := open(t, memoryPlace(t), Options{fs: c})
	renewed(t, s, 600, 1) // in nearly all of the 256 shards
	most := min(maxKept, int64(openFileLimit()/keptShare))
	if n := c.open.Load(); n != most || most == 0 {
		t.Errorf("%d guard files are open, want %d", n, most)
	}
}

func TestAStoreThatIsClosedInTheMiddleOfChangesLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	for range 30 {
		c := countGuards()
		s, err := Open(memoryPlace(t), Options{fs: c})
		if err != nil {
			t.Fatal(err)
		}
		renewed(t, s, 4, 4)
		var users sync.WaitGroup
		for i := range 4 {
			users.Go(func() {
				for {
					if _, err := lokt.NewManager(s).Renew(t.Context(), lokt.Renewal{Name: fmt.Sprint("x", i), LeaseID: fmt.Sprint("lease ", i)}); err != nil {
						return
					}
				}
			})
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		users.Wait()
		if n := c.open.Load(); n != 0 {
			t.Fatalf("%d guard files are open", n)
		}
	}
}

// collect waits until what nobody refers to any more is closed.
func (c openGuards) collect(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); c.open.Load() > 0; runtime.Gosched() {
		if runtime.GC(); time.Now().After(deadline) {
			t.Fatalf("%d guard files are still open", c.open.Load())
		}
	}
}

func TestAStoreThatIsDroppedWithoutCloseLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	c := countGuards()
	func() {
		s, err := Open(memoryPlace(t), Options{fs: c})
		if err != nil {
			t.Fatal(err)
		}
		renewed(t, s, 3, 4)
	}()
	c.collect(t)
}

// Promises S-1, S-5. The guard files are replaced by copies between two changes of a store that has the first ones open.
func TestAGuardFileLeftOpenIsNotTakenForTheOneThatReplacedIt(t *testing.T) {
	t.Parallel()
	root := memoryPlace(t)
	s := open(t, root, Options{})
	renewed(t, s, 1, keepAfter)
	m := lokt.NewManager(s)
	first, err := m.Acquire(t.Context(), by("a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: first.LeaseID}); err != nil {
		t.Fatal(err)
	}
	if s.shards.of(shardOf("x")).kept.Load() == nil {
		t.Fatal("no guard file is open: this test shows nothing")
	}
	guards := filepath.Join(root, dirGuards)
	if err := errors.Join(os.Rename(guards, guards+"-old"), os.CopyFS(guards, os.DirFS(guards+"-old"))); err != nil {
		t.Fatal(err)
	}
	again, err := m.Acquire(t.Context(), by("b"))
	if err != nil || again.Token <= first.Token {
		t.Errorf("token %d after %d, %v", again.Token, first.Token, err)
	}
	f, err := os.OpenFile(s.guardPath(shardOf("x")), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if free, err := tryFlock(f); !free || err != nil { // as somebody else who is inside
		t.Fatal(free, err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := m.Renew(soon, lokt.Renewal{Name: "x", LeaseID: again.LeaseID}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside somebody who is inside: %v", err)
	}
}

func TestAStoreThatWasUsedInABubbleMayBeDropped(t *testing.T) {
	c := countGuards()
	root := memoryPlace(t)
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(root, Options{fs: c})
		if err != nil {
			t.Fatal(err)
		}
		renewed(t, s, 3, 4)
	})
	c.collect(t)
}

// Somebody stands still inside a change in a directory that was moved away.
func TestAGuardFileLeftOpenThatWasMovedAwayIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{false, true} {
		root := memoryPlace(t)
		s := open(t, root, Options{LockTimeout: 200 * time.Millisecond})
		renewed(t, s, 1, keepAfter)
		m := lokt.NewManager(s)
		first, err := m.Acquire(t.Context(), by("a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: first.LeaseID}); err != nil {
			t.Fatal(err)
		}
		guards := filepath.Join(root, dirGuards)
		f, err := os.OpenFile(s.guardPath(shardOf("x")), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if free, err := tryFlock(f); !free || err != nil {
			t.Fatal(free, err)
		}
		if removed {
			err = os.RemoveAll(guards)
		} else {
			err = errors.Join(os.Rename(guards, guards+"-old"), os.CopyFS(guards, os.DirFS(guards+"-old")))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Acquire(t.Context(), by("b")); err != nil {
			t.Errorf("removed: %v: %v", removed, err)
		}
	}
}
