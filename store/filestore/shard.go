package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt/internal/vfs"
)

// shardSet is the part that goroutines of this process play in the exclusion: one of them at a time asks the kernel for
// a guard file, and a context can call the others back.
type shardSet struct {
	mu sync.Mutex
	in map[uint8]*shard
}

// shard is this process's side of one guard file.
type shard struct {
	free    chan struct{} // empty while somebody is inside, or asks the kernel
	entered atomic.Int64  // counts who got the kernel's lock
	parked  *parkedLock   // the lock that an impatient one left the kernel with; for whoever is inside
}

// guardFile is an open guard file.
type guardFile struct {
	vfs.File
	fileID
}

// fileID tells a file from every other that is there, and from those that were there before it as far as the file system
// says when files were made: inodes are used again, often at once.
type fileID struct {
	dev, inode uint64
	born       int64 // nanoseconds since 1970, or 0
	regular    bool
}

// identifyByStat is identify where nothing tells when a file was made.
func identifyByStat(f vfs.File) (fileID, error) {
	fi, err := f.Stat()
	if err != nil {
		return fileID{}, err
	}
	return fileID{dev: device(fi), inode: inode(fi), regular: fi.Mode().IsRegular()}, nil
}

// mark is what a guard file that is copied does not share with its copy.
func (id fileID) mark() uint64 { return id.inode ^ uint64(id.born) }

func (s *shardSet) of(n uint8) *shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in == nil {
		s.in = map[uint8]*shard{}
	}
	sh := s.in[n]
	if sh == nil {
		sh = &shard{free: make(chan struct{}, 1)}
		sh.leave()
		s.in[n] = sh
	}
	return sh
}

// patience is how long a change waits while nobody gets ahead.
type patience struct {
	ctx   context.Context
	limit time.Duration
}

// wait returns nil when c is ready, and otherwise why it waits no more. moved counts what others get done.
func wait[T any](p patience, c <-chan T, moved func() int64) (v T, err error) {
	t := time.NewTimer(p.limit)
	defer t.Stop()
	for was := moved(); ; {
		select {
		case v = <-c:
			return v, nil
		case <-p.ctx.Done():
			return v, context.Cause(p.ctx)
		case <-t.C:
			now := moved()
			if now == was {
				return v, fmt.Errorf("somebody has kept it locked for %v: a process may be stopped (see `lslocks`)", p.limit)
			}
			was = now
			t.Reset(p.limit)
		}
	}
}

// enter makes the calling goroutine the only one of this process that uses the shard.
func (sh *shard) enter(p patience) error {
	select {
	case <-sh.free:
		return nil
	default:
	}
	_, err := wait(p, sh.free, sh.entered.Load)
	return err
}

func (sh *shard) leave() { sh.free <- struct{}{} }

// parkedLock is a kernel lock that a goroutine waits for, in the kernel, where nothing can call it back. Whoever wanted it
// may leave; the next one joins the wait, so that there is never more than one thread per guard file.
type parkedLock struct {
	f   *guardFile
	got chan error // the kernel's answer, for who waits

	mu   sync.Mutex
	left bool // nobody waits
	over bool // the lock came when nobody waited, and was given back
}

func park(f *guardFile) *parkedLock {
	p := &parkedLock{f: f, got: make(chan error, 1)}
	go func() {
		err := blockingFlock(f)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.left {
			p.drop(err)
			return
		}
		p.got <- err
	}()
	return p
}

func (p *parkedLock) drop(err error) {
	p.over = true
	if err == nil {
		_ = funlock(p.f)
	}
	_ = p.f.Close()
}

func (p *parkedLock) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case err := <-p.got:
		p.drop(err)
	default:
		p.left = true
	}
}

// join reports whether the lock is still to be waited for.
func (p *parkedLock) join() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = false
	return !p.over
}

func (s *Store) guardPath(shard uint8) string {
	const hex = "0123456789abcdef"
	return filepath.Join(s.root, dirGuards, string([]byte{hex[shard>>4], hex[shard&15]}))
}

func (s *Store) openGuard(shard uint8) (*guardFile, error) {
	path := s.guardPath(shard)
	f, err := s.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|openNoFollow, filePerm)
	for range 3 { // somebody may be deleting the directory
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err := s.makeDirs(); err != nil {
			return nil, err
		}
		f, err = s.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|openNoFollow, filePerm)
	}
	if err != nil {
		return nil, err
	}
	id, err := identify(f)
	if err == nil && !id.regular {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &guardFile{File: f, fileID: id}, nil
}

// current returns what stands at the path of the locked guard file, or nil if that is another file or none: the directory
// was deleted, moved or replaced since the file was opened.
func (s *Store) current(f *guardFile) (fs.FileInfo, error) {
	fi, err := s.fs.Lstat(f.Name())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case device(fi) != f.dev || inode(fi) != f.inode:
		return nil, nil
	}
	return fi, nil
}

// replaced reports whether the file is known not to be the guard file any more: nobody is to wait for its lock.
func (s *Store) replaced(f *guardFile) bool {
	fi, err := s.current(f)
	return err == nil && fi == nil
}

// flockSpin is how long to look again for a kernel lock before sleeping in the kernel for it: changes are short.
const flockSpin = 2 * time.Millisecond

// lockGuard returns the guard file of the shard, open and locked. The calling goroutine is inside the shard.
func (s *Store) lockGuard(p patience, n uint8, sh *shard) (*guardFile, error) {
	if k := sh.parked; k != nil {
		sh.parked = nil
		if k.join() {
			if !s.replaced(k.f) {
				return s.await(p, sh, k)
			}
			k.leave()
		}
	}
	var f *guardFile
	for start := time.Now(); ; time.Sleep(50 * time.Microsecond) {
		if f == nil {
			var err error
			if f, err = s.openGuard(n); err != nil {
				return nil, err
			}
		}
		ok, err := tryFlock(f)
		if err != nil {
			_ = f.Close()
			return nil, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		if ok {
			return f, nil
		}
		if time.Since(start) > flockSpin {
			if !s.replaced(f) {
				return s.await(p, sh, park(f))
			}
			_ = f.Close() // whoever has it locked is in nobody's way
			f = nil
		}
	}
}

// await waits for a lock that was asked for.
func (s *Store) await(p patience, sh *shard, k *parkedLock) (*guardFile, error) {
	err, impatient := wait(p, k.got, func() int64 {
		seq, _ := readSeq(k.f)
		return int64(seq)
	})
	if impatient != nil {
		k.leave()
		sh.parked = k
		return nil, fmt.Errorf("lock %s: %w", k.f.Name(), impatient)
	}
	if err != nil {
		_ = k.f.Close()
		return nil, &fs.PathError{Op: "lock", Path: k.f.Name(), Err: err}
	}
	return k.f, nil
}
