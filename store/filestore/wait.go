package filestore

import (
	"context"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/lokt-dev/lokt"
)

// How often a waiter looks, whether or not it was woken: deaths cause no event, nor do programs that know nothing of
// wake files.
const (
	lookEvery   = 200 * time.Millisecond
	lookPerSlot = 20 * time.Millisecond // later for every waiter ahead
	lookAtMost  = 2 * time.Second
	lookBlind   = 20 * time.Millisecond // without file events
	lookWatch   = 20 * time.Millisecond // of who is not queued
)

// Wait implements lokt.Store. A queued claim is woken by the removal of its wake file.
func (s *Store) Wait(ctx context.Context, w lokt.Watch) error {
	var woken <-chan struct{}
	if w.LeaseID != "" && !s.o.noWatch {
		woken, _ = s.waker.watch(s, w.LeaseID) // without events it looks more often
	}
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		snap, err := s.View(ctx, w.Name)
		at, queued := snap.Lock.Position(w.LeaseID)
		if woken != nil && !queued {
			s.waker.forget(s, w.LeaseID) // who left the queue before the wake file was made wakes nobody
		}
		if err != nil || snap.Lock.Revision != w.Seen {
			return err
		}
		switch {
		case w.LeaseID == "":
			t.Reset(lookWatch)
		case woken == nil:
			t.Reset(min(lookBlind+time.Duration(max(at, 0))*lookPerSlot, lookAtMost))
		default:
			t.Reset(min(lookEvery+time.Duration(max(at, 0))*lookPerSlot, lookAtMost))
		}
		select {
		case <-woken:
			return nil
		case <-t.C:
			if w.LeaseID != "" {
				return nil // who died meanwhile shows in no revision
			}
		case <-s.done:
			return errClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// waker tells waiting claims of this process that their wake files were removed.
type waker struct {
	mu      sync.Mutex
	w       *fsnotify.Watcher
	waiting map[string]chan struct{} // by path
	closed  bool
}

// watch makes the wake file of the lease and returns a channel that is closed once somebody removed it.
func (k *waker) watch(s *Store, leaseID string) (<-chan struct{}, error) {
	path := s.wakePath(leaseID)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, errClosed
	}
	if c, ok := k.waiting[path]; ok {
		return c, nil
	}
	if k.w == nil {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, err
		}
		k.w, k.waiting = w, map[string]chan struct{}{}
		go k.dispatch(w)
	}
	const flags = os.O_CREATE | os.O_WRONLY | openNoFollow
	f, err := s.fs.OpenFile(path, flags, filePerm)
	if errors.Is(err, fs.ErrNotExist) { // somebody has deleted the directory
		if err = s.makeDirs(); err == nil {
			f, err = s.fs.OpenFile(path, flags, filePerm)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	if err := k.w.Add(path); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	c := make(chan struct{})
	k.waiting[path] = c
	return c, nil
}

func (k *waker) dispatch(w *fsnotify.Watcher) {
	for {
		select {
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			if e.Has(fsnotify.Remove) || e.Has(fsnotify.Chmod) { // the link count of an unlinked file changes first
				k.wake(e.Name)
			}
		case _, ok := <-w.Errors:
			if !ok {
				return
			}
		}
	}
}

func (k *waker) wake(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c, ok := k.waiting[path]; ok {
		close(c)
		delete(k.waiting, path)
		_ = k.w.Remove(path) // gone already if the file is
	}
}

// forget ends the watch of the lease.
func (k *waker) forget(s *Store, leaseID string) {
	path := s.wakePath(leaseID)
	k.wake(path)
	_ = s.fs.Remove(path) // absent if somebody has woken it
}

func (k *waker) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for path, c := range k.waiting {
		close(c)
		_ = os.Remove(path)
	}
	k.waiting = nil
	if k.w == nil {
		return nil
	}
	return k.w.Close()
}

// wakeLeft wakes whoever was in the queue before a change and is not after it.
func (s *Store) wakeLeft(before, after []lokt.Waiter) {
	if len(before) == 0 {
		return
	}
	still := make(map[string]bool, len(after))
	for _, w := range after {
		still[w.LeaseID] = true
	}
	for _, w := range before {
		if !still[w.LeaseID] {
			_ = s.fs.Remove(s.wakePath(w.LeaseID)) // absent if the waiter only looks from time to time
		}
	}
}

// wakePath returns the wake file of a lease. Lease IDs that are no plain names are hashed.
func (s *Store) wakePath(leaseID string) string {
	if lokt.ValidateName(leaseID) != nil || len(leaseID) > 64 {
		h := fnv.New128a()
		_, _ = h.Write([]byte(leaseID))
		leaseID = "h-" + hex.EncodeToString(h.Sum(nil))
	}
	return filepath.Join(s.root, dirWake, leaseID)
}
