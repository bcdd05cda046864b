package filestore

import (
	"context"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/kernel"
)

// How often a waiter looks anyway: deaths cause no event, nor do programs that know nothing of wake files.
const (
	lookEvery    = 200 * time.Millisecond
	lookPerSlot  = 100 * time.Millisecond // later for every waiter ahead, who sees the same
	lookAtMost   = 3 * lokt.WaitRefresh
	lookPerPlace = time.Millisecond // of the queue, instead of lookPerSlot if that is longer: a look reads all of it

	// Without file events, or if who looks is not queued. A turn that comes meanwhile must not be missed.
	lookBlind        = 20 * time.Millisecond
	lookBlindPerSlot = 20 * time.Millisecond
	lookBlindAtMost  = lokt.OfferTTL / 2
)

// Wait implements lokt.Store. It sleeps through changes that leave a claim queued. A queued claim is woken by the
// removal of its wake file, or directly if this very process takes it out of the queue.
func (s *Store) Wait(ctx context.Context, w lokt.Watch) error {
	var woken <-chan struct{}
	events := false
	if w.LeaseID != "" {
		woken, events = s.waker.watch(s, w.LeaseID)
	}
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		snap, err := s.View(ctx, w.Name)
		at, queued := snap.Lock.Position(w.LeaseID)
		if woken != nil && !queued {
			s.waker.forget(s, w.LeaseID) // a claim that left the queue before it was watched would never be woken
			woken, events = nil, false
		}
		if err != nil || snap.Lock.Revision != w.Seen && !(queued && snap.Lock.Queue[at].Ousted == "" && settled(snap)) {
			return err
		}
		pause, slot, most := s.o.lookBlind, lookBlindPerSlot, max(lookBlindAtMost, s.o.lookBlind)
		if events {
			pause, slot, most = lookEvery, max(lookPerSlot, time.Duration(len(snap.Lock.Queue))*lookPerPlace), lookAtMost
		}
		t.Reset(min(pause+time.Duration(max(at, 0))*slot, most))
		select {
		case <-woken:
			return nil
		case <-t.C:
			if queued && !settled(snap) {
				return nil // which may show in no revision: the caller may not know yet
			}
		case <-s.done:
			return errClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// settled reports whether a queued claim has nothing to do: whoever ends a hold or a freeze sees to the queue, but
// nobody sees to what ends by itself.
func settled(s lokt.Snapshot) bool {
	f := s.Lock.Freeze
	thawed := f != nil && !f.ExpiresAt.IsZero() && s.Now.After(f.ExpiresAt)
	return len(s.Dead) == 0 && s.Lock.Corrupt == "" && (len(s.Lock.Holders) > 0 || f != nil) && !thawed && len(s.Live()) == len(s.Lock.Holders)
}

// waker tells waiting claims of this process that they left the queue.
type waker struct {
	mu      sync.Mutex
	w       kernel.Watcher
	waiting map[string]*waiting // by path of the wake file
	closed  bool
}

type waiting struct {
	c       chan struct{} // closed when it is over
	watched bool          // the wake file is there, and its removal will be noticed
}

// watch returns a channel that is closed once the lease has left the queue, and whether that will be noticed if another
// process does it.
func (k *waker) watch(s *Store, leaseID string) (woken <-chan struct{}, events bool) {
	path := s.wakePath(leaseID)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, false
	}
	w := k.waiting[path]
	if w == nil {
		w = &waiting{c: make(chan struct{})}
		if k.waiting == nil {
			k.waiting = map[string]*waiting{}
		}
		k.waiting[path] = w
	}
	if !w.watched && !s.o.noWatch {
		w.watched = k.add(s, path) == nil // without events it looks more often
	}
	return w.c, w.watched
}

// add makes the wake file and asks for the event of its removal.
func (k *waker) add(s *Store, path string) error {
	if k.w == nil {
		w, err := s.sys.Watch(k.wake)
		if err != nil {
			return err
		}
		k.w = w
	}
	f, err := s.create(path, os.O_WRONLY)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := k.w.Add(path); err != nil {
		return errors.Join(err, s.fs.Remove(path))
	}
	return nil
}

// watchFiles is the System's Watch on this one.
func watchFiles(gone func(path string)) (kernel.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	go dispatch(w, gone)
	return w, nil
}

func dispatch(w *fsnotify.Watcher, gone func(path string)) {
	for {
		select {
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			if e.Has(fsnotify.Remove) || e.Has(fsnotify.Chmod) { // the link count of an unlinked file changes first
				gone(e.Name)
			}
		case _, ok := <-w.Errors:
			if !ok {
				return
			}
		}
	}
}

// wake wakes whoever of this process waits for the removal of the wake file.
func (k *waker) wake(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.waiting[path]
	if w == nil {
		return
	}
	close(w.c)
	delete(k.waiting, path)
	if w.watched {
		_ = k.w.Remove(path) // gone already if the file is
	}
}

// forget ends the watch of the lease.
func (k *waker) forget(s *Store, leaseID string) {
	path := s.wakePath(leaseID)
	k.wake(path)
	_ = s.fs.Remove(path) // absent if somebody has woken it
}

func (k *waker) close(s *Store) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for path, w := range k.waiting {
		close(w.c)
		if w.watched {
			_ = s.fs.Remove(path)
		}
	}
	k.waiting = nil
	if k.w == nil {
		return nil
	}
	return k.w.Close()
}

// wakeLeft wakes whoever was in the queue before a change and is not after it, or was sent away.
func (s *Store) wakeLeft(before, after []*lokt.Waiter) {
	if len(before) == 0 {
		return
	}
	still := make(map[string]bool, len(after))
	for _, w := range after {
		still[w.LeaseID] = w.Ousted == ""
	}
	for _, w := range before {
		if !still[w.LeaseID] {
			path := s.wakePath(w.LeaseID)
			s.waker.wake(path)
			_ = s.fs.Remove(path) // absent if the waiter only looks from time to time
		}
	}
}

// forgetHolders ends the watches of claims that were granted and looked again before they were woken.
func (s *Store) forgetHolders(holders []lokt.Holder) {
	s.waker.mu.Lock()
	none := len(s.waker.waiting) == 0
	s.waker.mu.Unlock()
	if none {
		return
	}
	for _, h := range holders {
		s.waker.wake(s.wakePath(h.LeaseID))
	}
}

// wakePath returns the wake file of a lease. Lease IDs that are no plain names are hashed.
func (s *Store) wakePath(leaseID string) string {
	if lokt.ValidateName(leaseID) != nil || len(leaseID) > 64 || leaseID[0] == '.' {
		h := fnv.New128a()
		_, _ = h.Write([]byte(leaseID))
		leaseID = "h-" + hex.EncodeToString(h.Sum(nil))
	}
	return filepath.Join(s.root, dirWake, leaseID)
}
