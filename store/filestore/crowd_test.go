//go:build unix

package filestore

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/vfs"
	"github.com/lokt-dev/lokt/lockfile"
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

// A look of one who waits in a long queue must not cost much: all the others look, too.
func TestALookAtALongQueueOpensNoFileForEachWaiter(t *testing.T) {
	t.Parallel()
	dir, waiters := place(t), 40
	s := open(t, dir, Options{})
	self, err := s.Self()
	if err != nil || self.Liveness == "" {
		t.Skip("this kernel has no locks that show life: ", err)
	}
	m := lokt.NewManager(s)
	if _, err := m.Acquire(t.Context(), by("holder")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range waiters {
		c := by("waiter")
		c.LeaseID, c.Wait, c.Strict, c.Owner.Process = lokt.NewLeaseID(), -1, true, self
		go func() { _, _ = m.Acquire(ctx, c) }()
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

// writtenFS counts what is written, and how often a file of a queue is replaced.
type writtenFS struct {
	vfs.FS
	bytes, queues *atomic.Int64
}

type writtenFile struct {
	vfs.File
	bytes *atomic.Int64
}

func (w writtenFS) OpenFile(path string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := w.FS.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return writtenFile{f, w.bytes}, nil
}

func (w writtenFS) Rename(from, to string) error {
	if filepath.Base(filepath.Dir(to)) == dirQueue {
		w.queues.Add(1)
	}
	return w.FS.Rename(from, to)
}

func (w writtenFile) Write(b []byte) (int, error) {
	w.bytes.Add(int64(len(b)))
	return w.File.Write(b)
}

func (w writtenFile) WriteAt(b []byte, off int64) (int, error) {
	w.bytes.Add(int64(len(b)))
	return w.File.WriteAt(b, off)
}

// Promise S-289.
func TestManyWhoWaitDoNotWriteTheWholeQueueEachTimeThatTheyAskAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiters, minutes = 60, 2
		var written, queues atomic.Int64
		m := lokt.NewManager(open(t, memoryPlace(t), Options{
			noWatch: true, clock: bubbleClock(), lookBlind: 10 * time.Second, fs: writtenFS{vfs.OS(), &written, &queues},
		}))
		first, err := m.Acquire(t.Context(), by("holder"))
		if err != nil {
			t.Fatal(err)
		}
		granted := make(chan string, waiters)
		var want, got []string
		for i := range waiters {
			c := by(fmt.Sprint(i))
			c.Wait, c.Metadata = -1, map[string]string{"cmd": "make"}
			want = append(want, c.Owner.ID)
			go func() {
				h, err := m.Acquire(t.Context(), c)
				granted <- h.Owner.ID
				if _, gone := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil || gone != nil {
					t.Errorf("%s: %v, %v", c.Owner.ID, err, gone)
				}
			}()
			time.Sleep(100 * time.Millisecond) // they do not come all at once, nor ask again so
		}
		written.Store(0)
		queues.Store(0)
		time.Sleep(minutes * time.Minute)
		t.Logf("%d who wait wrote %d bytes in %d minutes, and the queue %d times", waiters, written.Load(), minutes, queues.Load())
		if n := queues.Load(); n > minutes*4 {
			t.Errorf("the queue was written %d times", n)
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: first.LeaseID}); err != nil {
			t.Fatal(err)
		}
		for range want {
			got = append(got, <-granted)
		}
		synctest.Wait()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("granted to %v", got)
		}
	})
}

// Promises S-125, S-289.
func TestWhoStopsAskingAgainIsAwayInTime(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{0, time.Hour, -time.Hour} {
		host, root := newHostClock(), memoryPlace(t)
		s, other := open(t, root, Options{clock: host.read, noWatch: true}), open(t, root, Options{clock: host.read, noWatch: true})
		ask := func() []byte {
			if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
				w := lokt.Waiter{Claim: by("waiter"), Since: snap.Now}
				if len(snap.Lock.Queue) > 0 {
					w = *snap.Lock.Queue[0]
				}
				w.Until = snap.Now.Add(lokt.PresenceTTL + lokt.QueueTTL)
				snap.Lock.Queue = []*lokt.Waiter{&w}
				return lokt.Change{Lock: snap.Lock}
			}); err != nil {
				t.Fatal(err)
			}
			queue, err := os.ReadFile(s.path(dirQueue, "x"))
			if err != nil {
				t.Fatal(err)
			}
			return queue
		}
		expect := func(when string, away bool) {
			t.Helper()
			snap, err := other.View(t.Context(), "x")
			if err != nil || len(snap.Lock.Queue) != 1 || snap.Away(snap.Lock.Queue[0]) != away {
				t.Errorf("%s: %+v, %v", when, snap.Lock.Queue, err)
			}
		}
		first := ask()
		host.pass(10 * time.Second)
		if !bytes.Equal(ask(), first) {
			t.Error("the whole queue was written")
		}
		host.set(func(now *lockfile.Now) { now.Wall = now.Wall.Add(step) })
		host.pass(14 * time.Second)
		expect("14 s later", false)
		host.pass(2 * time.Second)
		expect("16 s later", true)
		host.pass(28 * time.Second)
		expect("44 s later", true)
		if bytes.Equal(ask(), first) {
			t.Error("a place that was about to lapse was not written")
		}
		expect("asked again", false)
	}
}
