package filestore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/faultfs"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/lockfile"
)

// The directories below the root.
const (
	dirLocks   = "locks"
	dirQueue   = "queue"
	dirFreezes = "freezes"
	dirGuards  = "guards"
	dirLive    = "live"
	dirWake    = "wake"
	dirDamaged = "damaged"
)

var subdirs = []string{dirLocks, dirQueue, dirFreezes, dirGuards, dirLive, dirWake, dirDamaged}

const (
	dirPerm  fs.FileMode = 0o700
	filePerm fs.FileMode = 0o600
	ext                  = ".json"
)

// Options change how a store works. The zero value is what programs want.
type Options struct {
	// Observe is told every event, in the order of the changes of each lock, while the lock is still excluded: it must
	// be quick and must not use the store.
	Observe func(lokt.Event)

	// Warn is told what went wrong without failing the operation, such as an audit log that cannot be written.
	Warn func(error)

	// LockTimeout is how long to wait for another process inside its own change of a lock, which takes well under a
	// millisecond unless that process is stopped. The default is 10 s.
	LockTimeout time.Duration

	fs      faultfs.FS
	clock   func() lockfile.Now
	noWatch bool // wait by looking again only
}

// Store is a lokt.Store over files. It is safe for concurrent use, by any number of processes at once.
type Store struct {
	root    string
	o       Options
	fs      faultfs.FS
	log     *audit.Log
	host    string
	isLocal func() bool

	shards shardSet
	self   selfProcess
	waker  waker
}

// Open returns the store in the directory root. It creates nothing: the directory appears with the first change. It fails
// if root, or one of the store's directories in it, is there but is something else.
func Open(root string, o Options) (*Store, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("lock directory %q: %w", root, err)
	}
	if o.fs == nil {
		o.fs = faultfs.OS()
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = 10 * time.Second
	}
	if o.Warn == nil {
		o.Warn = func(error) {}
	}
	s := &Store{root: abs, o: o, fs: o.fs, log: audit.Open(abs, audit.Options{})}
	s.host, _ = os.Hostname()
	if s.o.clock == nil {
		s.o.clock = systemClock()
	}
	s.isLocal = sync.OnceValue(func() bool { _, local := process.LocalFS(abs); return local })
	if err := s.checkDirs(); err != nil {
		return nil, err
	}
	return s, nil
}

// systemClock reads the host's clocks: the wall clock, and the monotonic one by what passed since now.
func systemClock() func() lockfile.Now {
	start := time.Now()
	mono, ok := process.Monotonic()
	base := lockfile.Now{}
	if ok {
		base.BootID, base.TimeNS = process.BootID(), process.TimeNamespace()
	}
	return func() lockfile.Now {
		t := time.Now()
		n := base
		n.Wall = t.Round(0)
		n.Monotonic = mono + t.Sub(start)
		return n
	}
}

// Root returns the store's directory, absolute.
func (s *Store) Root() string { return s.root }

// Host returns the name of this host as records have it.
func (s *Store) Host() string { return s.host }

// Audit returns the store's event log.
func (s *Store) Audit() *audit.Log { return s.log }

// Close ends the liveness of this process in the store and wakes those who wait in it.
func (s *Store) Close() error {
	return errors.Join(s.waker.close(), s.self.close())
}

// checkDirs refuses anything but directories where the store's directories belong, symbolic links above all.
func (s *Store) checkDirs() error {
	if fi, err := os.Stat(s.root); err == nil && !fi.IsDir() {
		return fmt.Errorf("lock directory %s is not a directory", s.root)
	} else if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("lock directory: %w", err)
	}
	for _, d := range subdirs {
		fi, err := s.fs.Lstat(filepath.Join(s.root, d))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lock directory: %w", err)
		}
		if !fi.IsDir() {
			return fmt.Errorf("%s is not a directory (%s): move it away; lokt does not follow it", filepath.Join(s.root, d), fi.Mode().Type())
		}
	}
	return nil
}

// makeDirs creates what is missing of the root and its directories.
func (s *Store) makeDirs() error {
	if err := os.MkdirAll(s.root, dirPerm); err != nil {
		return err
	}
	for _, d := range subdirs {
		if err := s.fs.Mkdir(filepath.Join(s.root, d), dirPerm); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return s.checkDirs()
}

func (s *Store) path(dir, name string) string { return filepath.Join(s.root, dir, name+ext) }

// shardOf returns which of the guard files excludes changes of the named lock.
func shardOf(name string) uint8 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	v := h.Sum32()
	return uint8(v ^ v>>8 ^ v>>16 ^ v>>24)
}

// unavailable makes an error of the file system one of the store.
func unavailable(err error) error {
	if err == nil || errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, lokt.ErrDamaged) {
		return err
	}
	return fmt.Errorf("%w: %w", lokt.ErrUnavailable, err)
}

// Update implements lokt.Store.
func (s *Store) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	g, err := s.enter(ctx, name)
	if err != nil {
		return unavailable(err)
	}
	defer g.leave()
	st, err := s.load(name, s.o.clock())
	if err != nil {
		return err
	}
	if err := g.repair(st); err != nil {
		return unavailable(err)
	}
	st.snap.Lock.Token = max(st.snap.Lock.Token, g.token)
	c := change(st.snap)
	if err := s.publish(g, st, c); err != nil {
		return unavailable(err)
	}
	if s.o.Observe != nil {
		for _, e := range c.Events {
			s.o.Observe(e)
		}
	}
	return nil
}

// View implements lokt.Store. It takes no lock: each file is published whole, and a change seen between two of them is
// read again.
func (s *Store) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return lokt.Snapshot{}, err
	}
	st, err := s.load(name, s.o.clock())
	for range 3 {
		if err != nil || st.data[fileQueue] == nil && st.data[fileFreeze] == nil {
			break
		}
		again, err2 := s.load(name, s.o.clock())
		if err2 == nil && again.snap.Lock.Revision == st.snap.Lock.Revision {
			break
		}
		st, err = again, err2
	}
	if err != nil {
		return lokt.Snapshot{Lock: lokt.Lock{Name: name}}, err
	}
	return st.snap, nil
}
