package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt/internal/ahead"
	"github.com/lokt-dev/lokt/internal/jitter"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// shard lets one goroutine of this process at a time ask the kernel for a guard file.
type shard struct {
	free    chan struct{} // has one element while nobody is inside
	next    chan struct{} // has one while nobody waits for that but changes that go ahead
	entered atomic.Uint64 // counts those who got in
}

func (s *Store) shard(n uint8) *shard {
	s.shardsMu.Lock()
	defer s.shardsMu.Unlock()
	if s.shards[n] == nil {
		s.shards[n] = newShard()
	}
	return s.shards[n]
}

func newShard() *shard {
	sh := &shard{free: make(chan struct{}, 1), next: make(chan struct{}, 1)}
	sh.next <- struct{}{}
	sh.leave()
	return sh
}

func (sh *shard) leave() { sh.free <- struct{}{} }

// enter makes the calling goroutine the only one of this process that uses the shard. A change that goes ahead waits for one other
// at most, besides those that go ahead, too.
func (sh *shard) enter(p *patience) error {
	if !ahead.Is(p.ctx) {
		if err := sh.take(sh.next, p); err != nil {
			return err
		}
		defer func() { sh.next <- struct{}{} }()
	}
	return sh.take(sh.free, p)
}

// take waits for what the channel has.
func (sh *shard) take(c <-chan struct{}, p *patience) error {
	for {
		select {
		case <-c:
			return nil
		case <-time.After(p.limit):
		case <-p.ctx.Done():
		}
		if err := p.over(sh.entered.Load()); err != nil {
			return err
		}
	}
}

// patience is how long a change waits while nobody gets ahead.
type patience struct {
	ctx   context.Context
	limit time.Duration
	since time.Time // when something last moved
	seen  uint64    // how much had moved then
}

// over returns why the change waits no more, if it does not. moved counts what others get done.
func (p *patience) over(moved uint64) error {
	switch {
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	case moved != p.seen:
		p.seen, p.since = moved, time.Now()
	case time.Since(p.since) >= p.limit:
		return fmt.Errorf("somebody has kept it locked for %v: a process may be stopped (see `lslocks`)", p.limit)
	}
	return nil
}

// guardFile is an open guard file.
type guardFile struct {
	vfs.File
	fileID
}

// fileID tells a file from others, and from older ones with the same inode if the file system keeps times of birth.
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

func (s *Store) guardPath(shard uint8) string {
	const hex = "0123456789abcdef"
	return filepath.Join(s.root, dirGuards, string([]byte{hex[shard>>4], hex[shard&15]}))
}

func (s *Store) openGuard(shard uint8) (*guardFile, error) {
	if err := s.checkDirs(); err != nil { // they may have been swapped since
		return nil, err
	}
	path := s.guardPath(shard)
	f, err := s.create(path, os.O_RDWR)
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

// current returns what stands at the path of the guard file, or nil if that is another file or none: the directory was
// deleted, moved or replaced since.
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

// How often to ask for a kernel lock that another process has. To sleep in the kernel instead would take a thread that
// nothing can call back, and hands a contended lock on no sooner.
const (
	askFirst = 50 * time.Microsecond
	askLast  = 100 * time.Millisecond
)

// lockGuard returns the guard file of the shard, open and locked. The calling goroutine is inside the shard.
func (s *Store) lockGuard(p *patience, n uint8) (*guardFile, error) {
	var f *guardFile
	for pause := askFirst; ; pause = min(pause+pause/8, askLast) {
		var err error
		if f == nil {
			if f, err = s.openGuard(n); err != nil {
				return nil, err
			}
		}
		ok, err := s.sys.Flock(f.File, true)
		if ok {
			return f, nil
		}
		if err == nil {
			moved, _ := readSeq(f)
			err = p.over(moved)
		}
		if err != nil {
			_ = f.Close()
			return nil, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		time.Sleep(pause/2 + time.Duration(jitter.Float64()*float64(pause)))
		if s.replaced(f) { // whoever has it locked is in nobody's way
			_ = f.Close()
			f = nil
		}
	}
}
