//go:build unix

package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/faultfs"
)

// openFiles counts the open files of the given directories.
type openFiles struct {
	faultfs.FS
	dirs         []string
	opened, open *atomic.Int64
}

type countedFile struct {
	faultfs.File
	open *atomic.Int64
}

func countOpen(dirs ...string) openFiles {
	return openFiles{faultfs.OS(), dirs, &atomic.Int64{}, &atomic.Int64{}}
}

func (c openFiles) OpenFile(name string, flag int, perm fs.FileMode) (faultfs.File, error) {
	f, err := c.FS.OpenFile(name, flag, perm)
	in := func(dir string) bool { return strings.Contains(name, separator+dir+separator) }
	if err != nil || !slices.ContainsFunc(c.dirs, in) {
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
	c := countOpen(dirGuards)
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
	c := countOpen(dirGuards)
	s := open(t, memoryPlace(t), Options{fs: c})
	renewed(t, s, 600, 1) // in nearly all of the 256 shards
	most := min(maxKept, int64(openFileLimit()/keptShare))
	if n := c.open.Load(); n != most || most == 0 {
		t.Errorf("%d files are open, want %d", n, most)
	}
}

func TestRenewalsUseTheSameOpenRecordUntilTheReleaseOrTheStoreIsClosed(t *testing.T) {
	if !canKeepRecords {
		t.Skip("old records are used again on Linux only")
	}
	t.Parallel()
	for _, released := range []bool{false, true} {
		c := countOpen(dirLocks)
		s, err := Open(memoryPlace(t), Options{fs: c})
		if err != nil {
			t.Fatal(err)
		}
		renewed(t, s, 1, 20)
		before := c.opened.Load()
		m := lokt.NewManager(s)
		for range 20 {
			if _, err := m.Renew(t.Context(), lokt.Renewal{Name: "x0", LeaseID: "lease 0"}); err != nil {
				t.Fatal(err)
			}
		}
		if n := c.opened.Load() - before; n != 0 || c.open.Load() != 2 {
			t.Errorf("20 renewals opened %d files, and %d are open", n, c.open.Load())
		}
		if released {
			_, err = m.Release(t.Context(), lokt.Target{Name: "x0", LeaseID: "lease 0"})
			defer s.Close()
		} else {
			err = s.Close()
		}
		if n := c.open.Load(); n != 0 || err != nil {
			t.Errorf("released: %v: %d records are open, %v", released, n, err)
		}
	}
}

func TestAStoreKeepsABoundedNumberOfRecordsOpen(t *testing.T) {
	t.Parallel()
	c := countOpen(dirLocks)
	s := open(t, memoryPlace(t), Options{fs: c})
	renewed(t, s, 2*maxPairs, 4)
	if n := c.open.Load(); n > 2*maxPairs || canKeepRecords && n < min(maxPairs, int64(openFileLimit()/pairShare/2)) {
		t.Errorf("%d files are open", n)
	}
}

// canKeepRecords: old records are used again here, and so kept open.
const canKeepRecords = runtime.GOOS == "linux"

// Promises S-5, S-8. Whoever changes, replaces or deletes the record finds the holder looking at what is there.
func TestARecordLeftOpenIsNotTakenForWhatIsThere(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(path string) error{
		"replaced by another program": func(path string) error {
			data, err := os.ReadFile(path)
			data = bytes.ReplaceAll(data, []byte("lease 0"), []byte("lease 1"))
			return errors.Join(err, os.WriteFile(path+".x", data, 0o600), os.Rename(path+".x", path))
		},
		"edited where it stands": func(path string) error {
			data, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, bytes.ReplaceAll(data, []byte("lease 0"), []byte("lease 1")), 0o600))
		},
		"moved away": func(path string) error { return os.Rename(path, path+".moved") },
		"deleted":    os.Remove,
		"a link": func(path string) error {
			return errors.Join(os.Rename(path, path+".moved"), os.Symlink(path+".moved", path))
		},
	} {
		root := memoryPlace(t)
		s := open(t, root, Options{})
		renewed(t, s, 1, 20)
		path := s.path(dirLocks, "x0")
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		if _, err := lokt.NewManager(s).Renew(t.Context(), lokt.Renewal{Name: "x0", LeaseID: "lease 0"}); err == nil {
			t.Errorf("%s: it was renewed", what)
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte("lease 0")) && what != "a link" {
			t.Errorf("%s: the record is back", what)
		}
	}
}

// Promise S-8. The spare file, which the store has open, is replaced or deleted between two renewals.
func TestASpareLeftOpenIsNotTakenForTheOneThatReplacedIt(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(spare, other string) error{
		"deleted": func(spare, _ string) error { return os.Remove(spare) },
		"a link": func(spare, other string) error {
			return errors.Join(os.Remove(spare), os.Symlink(other, spare))
		},
		"given a second name": func(spare, other string) error { return errors.Join(os.Remove(other), os.Link(spare, other)) },
		"another's":           func(spare, _ string) error { return os.Chmod(spare, 0o644) },
	} {
		root := memoryPlace(t)
		s := open(t, root, Options{})
		renewed(t, s, 1, 20)
		other := filepath.Join(root, "other")
		if err := os.WriteFile(other, []byte("untouched"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := change(s.sparePath(dirLocks, "x0"), other); err != nil && canKeepRecords {
			t.Fatal(err)
		}
		want, err := os.ReadFile(other)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			h, err := lokt.NewManager(s).Renew(t.Context(), lokt.Renewal{Name: "x0", LeaseID: "lease 0"})
			if err != nil || h.Renewals != 21+i {
				t.Errorf("%s: %v, %+v", what, err, h)
			}
			snap, err := s.View(t.Context(), "x0")
			if err != nil || len(snap.Lock.Holders) != 1 || snap.Lock.Holders[0].Renewals != h.Renewals {
				t.Errorf("%s: %v, %+v", what, err, snap.Lock)
			}
		}
		if got, err := os.ReadFile(other); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the other file has %q, %v", what, got, err)
		}
	}
}

func TestAStoreThatIsClosedInTheMiddleOfChangesLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	for range 30 {
		c := countOpen(dirGuards, dirLocks)
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
			t.Fatalf("%d files are open", n)
		}
	}
}

// collect waits until what nobody refers to any more is closed.
func (c openFiles) collect(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); c.open.Load() > 0; runtime.Gosched() {
		if runtime.GC(); time.Now().After(deadline) {
			t.Fatalf("%d files are still open", c.open.Load())
		}
	}
}

func TestAStoreThatIsDroppedWithoutCloseLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	c := countOpen(dirGuards, dirLocks)
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
	c := countOpen(dirGuards, dirLocks)
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
