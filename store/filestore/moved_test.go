//go:build unix

package filestore

import (
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
	"github.com/lokt-dev/lokt/internal/faultfs"
)

// Whoever has a guard file open when its directory is moved away, and another put in its place, must not take that one's
// exclusion for that of the new one: neither if it was just opened, nor if it has been open since the last change.
func TestADirectoryThatIsMovedAwayBetweenOpeningAndLockingIsNoticed(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{false, true} {
		ctx := context.Background()
		root := filepath.Join(place(t), "root")
		f := faultfs.New(faultfs.OS())
		s, err := Open(root, Options{fs: f, noWatch: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		first := s
		if !kept {
			first = open(t, root, Options{})
		}
		renewed(t, first, 1, keepAfter)
		if _, err := lokt.NewManager(first).Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "old"}}); err != nil {
			t.Fatal(err)
		}
		f.Reset()
		before, op := 2, "open"
		if kept {
			before, op = 1, "lstat"
		}
		moved := false
		f.Before(before, func() {
			moved = true
			if err := os.Rename(root, root+"-moved"); err != nil {
				t.Error(err)
			}
		})
		if _, err := lokt.NewManager(s).Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "new"}}); err != nil {
			t.Fatalf("in the new directory: %v", err)
		}
		if first := f.Trace()[0]; !moved || !strings.HasPrefix(first, op) || !strings.Contains(first, dirGuards) {
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
