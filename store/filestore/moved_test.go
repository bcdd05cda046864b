//go:build unix

package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/faultfs"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// Whoever has a guard file open when its directory is moved away, and another put in its place, must not take that one's
// exclusion for that of the new one.
func TestADirectoryThatIsMovedAwayBetweenOpeningAndLockingIsNoticed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	root := filepath.Join(place(t), "root")
	f := faultfs.New(vfs.OS())
	s, err := Open(root, Options{fs: f, noWatch: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := lokt.NewManager(open(t, root, Options{})).Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "old"}}); err != nil {
		t.Fatal(err)
	}
	f.Reset()
	moved := false
	f.Inject(faultfs.Fault{Op: 2, Before: func() {
		moved = true
		if err := os.Rename(root, root+"-moved"); err != nil {
			t.Error(err)
		}
	}})
	if _, err := lokt.NewManager(s).Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "new"}}); err != nil {
		t.Fatalf("in the new directory: %v", err)
	}
	if first := f.Trace()[0]; !moved || !strings.HasPrefix(first, "open") || !strings.Contains(first, dirGuards) {
		t.Fatalf("moved: %v; the first operation was %s: this test shows nothing", moved, first)
	}
	if got := holders(t, s); len(got) != 1 || got[0] != "new" {
		t.Errorf("the new directory's lock is held by %v", got)
	}
	old := open(t, root+"-moved", Options{})
	if got := holders(t, old); len(got) != 1 || got[0] != "old" {
		t.Errorf("the moved directory's lock is held by %v", got)
	}
}

// Promise S-48. A process that waits looks again, and a holder renews, in what the store's directories are by then.
func TestADirectoryThatIsSwappedForALinkIsNotFollowedByWhoIsThereAlready(t *testing.T) {
	t.Parallel()
	for _, dir := range subdirs {
		root, aside := filepath.Join(place(t), "root"), t.TempDir()
		s := open(t, root, Options{})
		m := lokt.NewManager(s)
		h, err := m.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Rename(filepath.Join(root, dir), filepath.Join(root, "was")), os.Symlink(aside, filepath.Join(root, dir))); err != nil {
			t.Fatal(err)
		}
		_, renewing := m.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID})
		_, acquiring := m.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "b"}})
		_, another := m.Acquire(t.Context(), lokt.Claim{Name: "y", Owner: lokt.Owner{ID: "b"}})
		for what, err := range map[string]error{"renewing": renewing, "acquiring": acquiring, "acquiring another": another} {
			if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "lokt does not follow it") {
				t.Errorf("%s, %s: %v", dir, what, err)
			}
		}
		if made, err := os.ReadDir(aside); err != nil || len(made) > 0 {
			t.Errorf("%s: in the link's place: %v, %v", dir, made, err)
		}
	}
}

func TestAStoreThatIsClosedWhileItIsUsedFailsCleanly(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		root := filepath.Join(place(t), "root")
		s, err := Open(root, Options{})
		if err != nil {
			t.Fatal(err)
		}
		m := lokt.NewManager(s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var users sync.WaitGroup
		var begun sync.WaitGroup
		for i := range 8 {
			begun.Add(1)
			users.Go(func() {
				for j := 0; ; j++ {
					c := lokt.Claim{Name: "x", LeaseID: fmt.Sprint("lease-", i, "-", j), Owner: lokt.Owner{ID: fmt.Sprint(i)}, TTL: time.Minute, Wait: -1}
					_, err := m.Acquire(ctx, c)
					if j == 0 {
						begun.Done()
					}
					if err == nil {
						_, err = m.Release(ctx, lokt.Target{Name: "x", LeaseID: c.LeaseID})
					}
					if err != nil {
						if !errors.Is(err, lokt.ErrUnavailable) || ctx.Err() != nil {
							t.Errorf("round %d: %v", round, err)
						}
						return
					}
				}
			})
		}
		begun.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		users.Wait()
		cancel()
		if _, err := open(t, root, Options{}).View(t.Context(), "x"); err != nil {
			t.Errorf("round %d: what is left cannot be read: %v", round, err)
		}
	}
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

// Promises S-5, S-8. Whoever changes, replaces or deletes the record finds the holder looking at what is there.
func TestARenewalSeesWhatOthersMadeOfTheRecord(t *testing.T) {
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
