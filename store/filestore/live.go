package filestore

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/jitter"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// A process locks one byte of a liveness file, at a random offset, with a lock of its open file description. Children
// that inherit the descriptor keep the lock, and the kernel drops it with the last of them. Records say
// "FILE:OFFSET:INODE": in a file with another inode, because somebody deleted the first, a missing lock proves nothing.

const (
	liveFiles   = 16
	liveOffsets = 1 << 53
)

// selfProcess is this process as the store's records show it.
type selfProcess struct {
	mu   sync.Mutex
	p    lokt.Process
	file vfs.File
}

// Self returns this process, with a kernel lock in the store that lasts until the store is closed and every child that
// inherited LiveFile is gone. Liveness is empty where there are no such locks.
func (s *Store) Self() (lokt.Process, error) {
	s.self.mu.Lock()
	defer s.self.mu.Unlock()
	if s.closed.Load() {
		return lokt.Process{}, errClosed
	}
	if s.self.p.PID != 0 {
		return s.self.p, nil
	}
	p := s.sys.Self()
	if process.KernelLiveness {
		offset := int64(jitter.Float64() * liveOffsets)
		name := strconv.FormatInt(offset%liveFiles, 16)
		f, node, err := s.openLive(name)
		if err != nil {
			return p, unavailable(err)
		}
		if err := s.sys.LockByte(f, offset); err == nil {
			p.Liveness = name + ":" + strconv.FormatInt(offset, 10) + ":" + strconv.FormatUint(node, 10)
			s.self.file = f
		} else if err := f.Close(); err != nil {
			return p, unavailable(err)
		}
	}
	s.self.p = p
	return p, nil
}

// Runner returns this process as an owner for lokt.NewLocker, which gives it a runner ID. What it acquires with Process
// among the options is free the moment that the process dies, or the store is closed (after the Locker), instead of after the time to live:
//
//	owner, err := store.Runner()
//	locker, err := lokt.NewLocker(lokt.NewManager(store), owner, lokt.LockerOptions{
//		Defaults: lokt.Options{Process: &owner.Process},
//	})
func (s *Store) Runner() (lokt.Owner, error) {
	self, err := s.Self()
	return lokt.Owner{Host: s.Host(), Process: self}, err
}

// openLive opens a liveness file to lock a byte of it.
func (s *Store) openLive(name string) (f vfs.File, node uint64, err error) {
	path := filepath.Join(s.root, dirLive, name)
	if f, err = s.create(path, os.O_RDWR); err != nil {
		return nil, 0, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err == nil && vfs.Links(fi) > 1 {
		err = linked(path)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, inode(fi), nil
}

// LiveFile returns a descriptor for a child to inherit, so that the child's life counts as this process's; nil if there
// is none. It stays the store's to close.
func (s *Store) LiveFile() *os.File {
	s.self.mu.Lock()
	defer s.self.mu.Unlock()
	f, _ := s.self.file.(*os.File)
	return f
}

// openLive has the liveness files that one look at a lock has opened, by name: a queue has many waiters, and few files.
type openLive map[string]*liveFile

type liveFile struct {
	vfs.File
	node uint64
}

// file returns the named file, or nil if it cannot be read.
func (l openLive) file(s *Store, name string) *liveFile {
	if f, ok := l[name]; ok {
		return f
	}
	l[name] = nil
	f, err := s.fs.OpenFile(filepath.Join(s.root, dirLive, name), os.O_RDONLY|openNoFollow, 0)
	if err != nil {
		return nil
	}
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		_ = f.Close()
		return nil
	}
	l[name] = &liveFile{f, inode(fi)}
	return l[name]
}

func (l openLive) close() {
	for _, f := range l {
		if f != nil {
			_ = f.Close()
		}
	}
}

// alive reports whether a kernel lock covers the byte that liveness names, and whether that can be known.
func (p *selfProcess) alive(s *Store, files openLive, liveness string) (alive, known bool) {
	name, rest, _ := strings.Cut(liveness, ":")
	at, node, _ := strings.Cut(rest, ":")
	offset, err := strconv.ParseInt(at, 10, 64)
	if err != nil || offset < 0 || len(name) != 1 || !strings.Contains("0123456789abcdef", name) {
		return false, false
	}
	want, err := strconv.ParseUint(node, 10, 64)
	if err != nil {
		return false, false
	}
	p.mu.Lock()
	own := liveness == p.p.Liveness
	p.mu.Unlock()
	if own {
		return true, true
	}
	f := files.file(s, name)
	if f == nil || f.node != want {
		return false, false // somebody deleted the file: its locks cannot be seen any more
	}
	locked, err := s.sys.ByteLocked(f.File, offset)
	return locked, err == nil
}

func (p *selfProcess) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if p.file != nil {
		err = p.file.Close()
	}
	p.file, p.p = nil, lokt.Process{}
	return err
}
