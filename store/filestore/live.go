package filestore

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/faultfs"
	"github.com/lokt-dev/lokt/internal/process"
)

// Liveness files: a process covers one byte of one of them, at an offset chosen at random, with a kernel lock of its open
// file description. Whoever inherits the descriptor keeps the lock too, and the kernel drops it with the last of them,
// whatever becomes of PIDs. A record names the file and the byte as "FILE:OFFSET".

const (
	liveFiles   = 16
	liveOffsets = 1 << 62
)

// selfProcess is this process as the store's records show it.
type selfProcess struct {
	mu   sync.Mutex
	p    lokt.Process
	file faultfs.File
	seen map[string]faultfs.File // liveness files open for looking
}

// Self returns this process, with a kernel lock in the store that lasts until the store is closed and every child
// that inherited LiveFile is gone. Where the kernel or the file system has no such locks, Liveness is empty.
func (s *Store) Self() (lokt.Process, error) {
	s.self.mu.Lock()
	defer s.self.mu.Unlock()
	if s.self.p.PID != 0 {
		return s.self.p, nil
	}
	p := process.Self()
	if process.KernelLiveness {
		if err := s.makeDirsOnce(); err != nil {
			return p, unavailable(err)
		}
		offset := rand.Int64N(liveOffsets)
		name := strconv.FormatInt(offset%liveFiles, 16)
		f, err := s.fs.OpenFile(filepath.Join(s.root, dirLive, name), os.O_RDWR|os.O_CREATE|openNoFollow, filePerm)
		if err != nil {
			return p, unavailable(err)
		}
		if err := process.LockByte(f, offset); err == nil {
			p.Liveness = name + ":" + strconv.FormatInt(offset, 10)
			s.self.file = f
		} else if err := f.Close(); err != nil {
			return p, unavailable(err)
		}
	}
	s.self.p = p
	return p, nil
}

// makeDirsOnce creates the store's directories if the one for liveness is missing.
func (s *Store) makeDirsOnce() error {
	_, err := s.fs.Lstat(filepath.Join(s.root, dirLive))
	if errors.Is(err, fs.ErrNotExist) {
		return s.makeDirs()
	}
	return err
}

// LiveFile returns a descriptor for a child to inherit, so that the child's life counts as this process's; nil if there is
// none. It stays the store's to close.
func (s *Store) LiveFile() *os.File {
	s.self.mu.Lock()
	defer s.self.mu.Unlock()
	f, _ := s.self.file.(*os.File)
	return f
}

// alive reports whether a kernel lock covers the byte that liveness names, and whether that can be known.
func (p *selfProcess) alive(s *Store, liveness string) (alive, known bool) {
	name, at, ok := strings.Cut(liveness, ":")
	offset, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil || offset < 0 || len(name) != 1 || !strings.Contains("0123456789abcdef", name) {
		return false, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if liveness == p.p.Liveness {
		return true, true
	}
	f := p.seen[name]
	if f == nil {
		f, err = s.fs.OpenFile(filepath.Join(s.root, dirLive, name), os.O_RDONLY|openNoFollow, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return false, false // somebody deleted the file: its locks cannot be seen any more
		}
		if err != nil {
			return false, false
		}
		if p.seen == nil {
			p.seen = map[string]faultfs.File{}
		}
		p.seen[name] = f
	}
	locked, err := process.ByteLocked(f, offset)
	return locked, err == nil
}

func (p *selfProcess) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, f := range p.seen {
		errs = append(errs, f.Close())
	}
	if p.file != nil {
		errs = append(errs, p.file.Close())
	}
	p.seen, p.file, p.p = nil, nil, lokt.Process{}
	return errors.Join(errs...)
}
