//go:build unix

package filestore

import (
	"context"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// readsFS counts how often a queue is read.
type readsFS struct {
	vfs.FS
	n atomic.Int64
}

func (f *readsFS) OpenFile(path string, flag int, perm fs.FileMode) (vfs.File, error) {
	if filepath.Base(filepath.Dir(path)) == dirQueue {
		f.n.Add(1)
	}
	return f.FS.OpenFile(path, flag, perm)
}

// Those who wait are many, and each look at the lock reads its whole queue.
func TestWhoWaitsSeldomReadsTheQueue(t *testing.T) {
	for _, tc := range []struct {
		name  string
		claim bool
		most  int64 // reads in a minute
	}{
		{"a claim without file events", true, 600},
		{"who is not queued", false, 300},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				f := &readsFS{FS: vfs.OS()}
				s, err := Open(root, Options{fs: f, noWatch: true, clock: bubbleClock()})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				m := lokt.NewManager(s)
				claim := func(id string, wait time.Duration) lokt.Claim {
					return lokt.Claim{Name: "x", LeaseID: id, Owner: lokt.Owner{ID: id, AnySession: true, Host: "h"}, Wait: wait}
				}
				if _, err := m.Acquire(t.Context(), claim("first", 0)); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if tc.claim {
					_, err = m.Acquire(ctx, claim("second", time.Hour))
				} else if snap, e := s.View(ctx, "x"); e == nil {
					err = s.Wait(ctx, lokt.Watch{Name: "x", Seen: snap.Lock.Revision})
				}
				if n := f.n.Load(); err == nil || n > tc.most {
					t.Errorf("it read the queue %d times in a minute, at most %d were needed: %v", n, tc.most, err)
				}
				wakeFilesAreGone(t, root)
			})
		})
	}
}

// Who is known to live asks rarely, but at once when it counts as away.
func TestWhoCountsAsAwayAsksAgainSoon(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(root, Options{noWatch: true, clock: bubbleClock()})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		self := shown(t, s)
		m := lokt.NewManager(s)
		if _, err := m.Acquire(t.Context(), by("holder")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waits := by("waiter")
		waits.Owner.Process, waits.Wait = self, -1
		go func() { _, _ = m.Acquire(ctx, waits) }()
		away := func(change func(w *lokt.Waiter, now time.Time)) (is bool) { // in one step: it may ask in the next
			if err := s.Update(ctx, "x", func(snap lokt.Snapshot) lokt.Change {
				if len(snap.Lock.Queue) != 1 {
					t.Errorf("%d wait", len(snap.Lock.Queue))
					return lokt.Change{Lock: snap.Lock}
				}
				w := *snap.Lock.Queue[0]
				change(&w, snap.Now)
				snap.Lock.Queue = []*lokt.Waiter{&w}
				is = snap.Away(&w)
				return lokt.Change{Lock: snap.Lock}
			}); err != nil {
				t.Error(err)
			}
			return is
		}
		time.Sleep(time.Second)
		if !away(func(w *lokt.Waiter, now time.Time) { w.Until = now.Add(lokt.QueueTTL) }) {
			t.Error("it cannot be told that it is away")
		}
		if time.Sleep(5 * time.Second); away(func(*lokt.Waiter, time.Time) {}) {
			t.Error("it has not asked again")
		}
	})
}
