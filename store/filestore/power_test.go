//go:build unix

package filestore

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/faultfs"
)

// Promises S-4, S-5.
func TestTokensWhoseReservationWasNotFlushedAreReservedAgain(t *testing.T) {
	for _, cut := range []string{"sync", "syncdir"} {
		for _, killed := range []bool{false, true} {
			dir := filepath.Join(t.TempDir(), "root")
			guards := filepath.Join(dir, dirGuards)
			s, f := openFaulty(t, dir)
			if _, err := s.Self(); err != nil { // makes the directories
				t.Fatal(err)
			}
			at := 0
			try := func() error {
				f.Reset()
				if at > 0 {
					fault := faultfs.Fault{Op: at, Err: syscall.EIO}
					if killed {
						fault.Err = nil
					}
					f.Inject(fault)
				}
				_, err := lokt.NewManager(s).Acquire(t.Context(), leaseOf("a", "lease-a"))
				return err
			}
			other, g := openFaulty(t, filepath.Join(t.TempDir(), "root"))
			if _, err := other.Self(); err != nil {
				t.Fatal(err)
			}
			g.Reset()
			if _, err := lokt.NewManager(other).Acquire(t.Context(), leaseOf("a", "lease-a")); err != nil {
				t.Fatal(err)
			}
			at = 1 + slices.IndexFunc(g.Trace(), func(op string) bool {
				kind, path, _ := strings.Cut(op, " ")
				return kind == cut && strings.Contains(path, dirGuards)
			})
			if err := try(); at == 0 || err == nil {
				t.Fatalf("%s, killed %t: operation %d of %q; %v", cut, killed, at, g.Trace(), err)
			}
			f.Reset()
			if killed {
				s, f = openFaulty(t, dir)
			}
			at = 0
			if err := try(); err != nil {
				t.Fatal(err)
			}
			got := f.Trace()
			if !slices.Contains(got, "sync "+s.guardPath(shardOf("x"))) || !slices.Contains(got, "syncdir "+guards) {
				t.Errorf("%s, killed %t: it is not made good: %q", cut, killed, got)
			}
		}
	}
}

// Promise S-52.
func TestAChangeThatThePowerBringsBackIsNotMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	s, _ := openFaulty(t, dir)
	m := lokt.NewManager(s)
	{
		first, second := leaseOf("a", "lease-a"), leaseOf("b", "lease-b")
		if _, err := m.Acquire(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		second.Wait = time.Minute
		granted := make(chan error, 1)
		go func() { _, err := m.Acquire(t.Context(), second); granted <- err }()
		eventually(t, "it is queued", func() bool {
			snap, err := s.View(t.Context(), "x")
			return err == nil && len(snap.Lock.Queue) == 1
		})
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease-a", Owner: first.Owner}); err != nil {
			t.Fatal(err)
		}
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
	}
	st, err := s.load("x", s.o.clock(), guardPage{})
	if err != nil {
		t.Fatal(err)
	}
	grant := &entry{Name: "x", Boot: "another", Files: []entryFile{
		{File: fileLock, Before: contentAbsent, Data: st.data[fileLock], How: durableDir, Redo: true},
		{File: fileQueue, Before: 3, Gone: true, Redo: true},
	}}
	if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease-b", Owner: leaseOf("b", "lease-b").Owner}); err != nil {
		t.Fatal(err)
	}
	for _, boot := range []string{"another", s.sys.Boot()} {
		grant.Boot = boot
		there := boot != "another"
		g, err := s.enter(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		err = g.journal(grant)
		g.leave()
		if err != nil {
			t.Fatal(err)
		}
		snap, err := s.View(t.Context(), "x")
		if _, seen := snap.Lock.Holder("lease-b"); err != nil || seen != there {
			t.Errorf("an entry of boot %q: the lease that was given back is there: %t, %v", boot, seen, err)
		}
		if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change { return lokt.Change{Lock: snap.Lock} }); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(s.path(dirLocks, "x")); errors.Is(err, os.ErrNotExist) == there {
			t.Errorf("an entry of boot %q: %v", boot, err)
		}
	}
}

// Promise S-52.
func TestThatALargeChangeIsDoneIsOnTheDiskBeforeItIsReported(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	s, f := openFaulty(t, dir)
	m, ctx := lokt.NewManager(s), t.Context()
	if _, err := m.Freeze(ctx, "x", lokt.Freeze{Owner: leaseOf("a", "").Owner, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	claim := leaseOf("b", "lease-b")
	claim.Wait = time.Minute
	granted := make(chan error, 1)
	go func() { _, err := m.Acquire(ctx, claim); granted <- err }()
	eventually(t, "it is queued", func() bool {
		snap, err := s.View(ctx, "x")
		return err == nil && len(snap.Lock.Queue) == 1
	})
	f.Reset()
	if _, err := m.Unfreeze(ctx, lokt.Target{Name: "x", Owner: leaseOf("a", "").Owner}); err != nil {
		t.Fatal(err)
	}
	trace := f.Trace()
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	var did []string
	for _, op := range trace {
		kind, path, _ := strings.Cut(op, " ")
		if strings.Contains(path, "/"+dirGuards+"/") && (kind == "sync" || kind == "write") {
			did = append(did, kind)
		}
	}
	if want := []string{"write", "sync", "write", "sync"}; len(did) < len(want) || !slices.Equal(did[:len(want)], want) {
		t.Errorf("%q, not %q", did, want)
	}
}
