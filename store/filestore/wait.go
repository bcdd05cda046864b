package filestore

import (
	"context"
	"encoding/hex"
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

	// How often, without file events, a waiter looks whether its wake file is there: a turn that comes meanwhile must not be missed. Who is
	// not queued looks at the lock, and less often the longer it has waited.
	lookBlind        = 20 * time.Millisecond
	lookBlindPerSlot = 5 * time.Millisecond
	lookBlindAtMost  = lokt.OfferTTL / 2
	lookBlindShare   = 10 // of the time waited
)

// Wait implements lokt.Store. It sleeps through changes that leave a claim queued. A queued claim is woken by the
// removal of its wake file, or directly if this very process takes it out of the queue.
func (s *Store) Wait(ctx context.Context, w lokt.Watch) error {
	var woken <-chan struct{}
	made, events, began := false, false, time.Now()
	if w.LeaseID != "" {
		woken, made, events = s.waker.watch(s, w.LeaseID)
	}
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		snap, err := s.View(ctx, w.Name)
		at, queued := snap.Lock.Position(w.LeaseID)
		if woken != nil && !queued {
			s.waker.forget(s, w.LeaseID) // a claim that left the queue before it was watched would never be woken
			woken, made, events = nil, false, false
		}
		if err != nil || snap.Lock.Revision != w.Seen && !(queued && settled(snap) && !unasked(snap, at)) {
			return err
		}
		pause := s.o.lookBlind + time.Duration(max(at, 0))*lookBlindPerSlot
		if !queued {
			pause += time.Since(began) / lookBlindShare
		}
		pause = min(pause, max(lookBlindAtMost, s.o.lookBlind))
		look := pause // until it reads the queue again; pause is until it looks for its wake file
		if made {
			slot := lookPerSlot / 2 // it has to know when its turn comes near
			if events {
				slot = max(lookPerSlot, time.Duration(len(snap.Lock.Queue))*lookPerPlace)
			}
			look = min(lookEvery+time.Duration(at)*slot, lookAtMost)
		}
		if events {
			pause = look
		}
		end := time.Now().Add(look)
		for there := true; there && time.Now().Before(end); there = made && s.there(s.wakePath(w.LeaseID)) {
			t.Reset(min(pause, time.Until(end)))
			select {
			case <-woken:
				return nil
			case <-t.C:
			case <-s.done:
				return errClosed
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if queued && !settled(snap) {
			return nil // which may show in no revision: the caller may not know yet
		}
	}
}

// unasked reports whether a queued claim is away, or was sent away, and its claimant, who is there, has to ask again.
func unasked(s lokt.Snapshot, at int) bool {
	w := s.Lock.Queue[at]
	return w.Ousted != "" || !s.Dead[w.LeaseID] && s.Away(w)
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
	made    bool          // the wake file was there
	watched bool          // its removal will be noticed
}

// watch returns a channel that is closed once the lease has left the queue, whether its wake file shows that, too, and whether the
// channel is closed if another process does it.
func (k *waker) watch(s *Store, leaseID string) (woken <-chan struct{}, made, events bool) {
	path := s.wakePath(leaseID)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, false, false
	}
	w := k.waiting[path]
	if w == nil {
		w = &waiting{c: make(chan struct{})}
		if k.waiting == nil {
			k.waiting = map[string]*waiting{}
		}
		k.waiting[path] = w
	}
	if !w.made {
		f, err := s.create(path, os.O_WRONLY)
		w.made = err == nil && f.Close() == nil
	}
	if w.made && !w.watched && !s.o.noWatch {
		w.watched = k.add(s, path) == nil // the system may have no more events to give
	}
	return w.c, w.made, w.watched
}

// add asks for the event of the wake file's removal.
func (k *waker) add(s *Store, path string) error {
	if k.w == nil {
		w, err := s.sys.Watch(k.wake)
		if err != nil {
			return err
		}
		k.w = w
	}
	return k.w.Add(path)
}

// there reports whether nobody has removed the file.
func (s *Store) there(path string) bool {
	_, err := s.fs.Lstat(path)
	return err == nil
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
		if w.made {
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
