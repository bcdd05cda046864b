package filestore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/kernel"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/internal/vfs"
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
	// Observe is told every event, in the order of each lock's changes. It must be quick and must not use the store.
	Observe func(lokt.Event)

	// Warn is told what went wrong without failing the operation, such as an audit log that cannot be written.
	Warn func(error)

	// LockTimeout is how long to wait for one process inside its own change of a lock; 0 means 10 s.
	LockTimeout time.Duration

	fs      vfs.FS
	clock   func() lockfile.Now
	noWatch bool // no file events: wait by looking again only

	lookBlind time.Duration // as the constant of this name
}

// Store is a lokt.Store over files. It is safe for concurrent use, by any number of processes at once.
type Store struct {
	root    string
	o       Options
	fs      vfs.FS
	log     kernel.Log
	host    string
	sys     kernel.System
	isLocal func() bool

	shardsMu sync.Mutex
	shards   [256]*shard

	queue   atomic.Pointer[queueRead] // the last one: who waits in a long one sees the same again and again
	self    selfProcess
	waker   waker
	dropped atomic.Bool // lines for the audit log, since it could be written
	closed  atomic.Bool
	done    chan struct{} // closed by Close
}

// errClosed is what a closed store has to say.
var errClosed = fmt.Errorf("%w: it has been closed", lokt.ErrUnavailable)

// Open returns the store in the directory root. It creates nothing: the directory appears with the first change. It
// fails if root, or one of the store's directories in it, is there but is something else.
func Open(root string, o Options) (*Store, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("lock directory %q: %w", root, err)
	}
	if o.fs == nil {
		o.fs = vfs.OS()
	}
	if o.clock == nil {
		o.clock = systemClock()
	}
	sys := kernel.System{
		FS: o.fs, Log: audit.Open(abs), Clock: o.clock, Boot: process.BootID, Self: process.Self, Check: process.Check,
		Flock: flock, LockByte: process.LockByte, ByteLocked: process.ByteLocked, Watch: watchFiles,
	}
	sys.Host, _ = os.Hostname()
	return openOn(sys, abs, o)
}

// OpenOn is Open on a system that is played, by lokt's own tests: with file systems that are all local.
func OpenOn(sys kernel.System, root string, o Options) (*Store, error) {
	o.clock = sys.Clock
	s, err := openOn(sys, root, o)
	if err == nil {
		s.isLocal = func() bool { return true }
	}
	return s, err
}

func openOn(sys kernel.System, abs string, o Options) (*Store, error) {
	if o.LockTimeout == 0 {
		o.LockTimeout = 10 * time.Second
	}
	if o.lookBlind == 0 {
		o.lookBlind = lookBlind
	}
	if o.Warn == nil {
		o.Warn = func(error) {}
	}
	s := &Store{root: abs, o: o, fs: sys.FS, log: sys.Log, host: sys.Host, sys: sys, done: make(chan struct{})}
	s.isLocal = sync.OnceValue(func() bool { _, local := process.LocalFS(abs); return local })
	if err := s.checkDirs(); err != nil {
		return nil, err
	}
	return s, nil
}

// systemClock reads the host's clocks: the wall clock, and the monotonic one by what passed since now.
func systemClock() func() lockfile.Now {
	base := lockfile.Now{}
	var start time.Time
	for range 5 { // whatever comes between reading the two clocks is an error of all readings to come
		start = time.Now()
		mono, ok := process.Monotonic()
		if base.Monotonic = mono; ok {
			base.BootID, base.TimeNS = process.BootID(), process.TimeNamespace()
		}
		if time.Since(start) < 50*time.Microsecond {
			break
		}
	}
	return func() lockfile.Now {
		t := time.Now()
		n := base
		n.Wall = t.Round(0)
		n.Monotonic += t.Sub(start)
		return n
	}
}

// Root returns the store's directory, absolute.
func (s *Store) Root() string { return s.root }

// Host returns the name of this host as records have it.
func (s *Store) Host() string { return s.host }

// Close ends the liveness of this process in the store and wakes those who wait in it. The store cannot be used after
// it. Lockers over it are to be closed first: what they hold with a Process is free at once, while their leases hear of it
// only at the end of their time.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	close(s.done)
	return errors.Join(s.waker.close(s), s.self.close())
}

// checkDirs refuses anything but directories where the store's directories belong, symbolic links above all.
func (s *Store) checkDirs() error {
	if fi, err := os.Stat(s.root); err == nil && !fi.IsDir() {
		return fmt.Errorf("lock directory %s is not a directory", s.root)
	} else if err != nil {
		if link, _ := os.Readlink(s.root); errors.Is(err, fs.ErrNotExist) && link != "" {
			return fmt.Errorf("lock directory %s is a symbolic link to %s, which is not there", s.root, link)
		} else if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("lock directory: %w", err)
	}
	for _, d := range subdirs {
		fi, err := os.Lstat(filepath.Join(s.root, d))
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

// makeDirs creates what is missing of the root and its directories, to last.
func (s *Store) makeDirs() error {
	if err := vfs.MkdirAll(s.root, dirPerm); err != nil {
		return err
	}
	made := false
	for _, d := range subdirs {
		err := s.fs.Mkdir(filepath.Join(s.root, d), dirPerm)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		made = made || err == nil
	}
	if err := s.checkDirs(); err != nil || !made {
		return err
	}
	for _, dir := range []string{s.root, filepath.Dir(s.root)} {
		// A directory that may be searched need not be readable.
		if err := s.fs.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// inDirs does what needs the store's directories, which somebody may be deleting.
func (s *Store) inDirs(do func() error) error {
	err := do()
	for try := 0; try < 3 && errors.Is(err, fs.ErrNotExist); try++ {
		if err = s.makeDirs(); err == nil {
			err = do()
		}
	}
	return err
}

// create opens a file of the store's, which it makes if there is none.
func (s *Store) create(path string, flag int) (f vfs.File, err error) {
	err = s.inDirs(func() (err error) {
		f, err = s.fs.OpenFile(path, flag|os.O_CREATE|openNoFollow, filePerm)
		return err
	})
	return f, err
}

func (s *Store) path(dir, name string) string {
	return filepath.Join(s.root, dir, name+ext)
}

// shardOf returns which of the guard files excludes changes of the named lock. Names that differ only in case, and may
// have the same files, share it.
func shardOf(name string) uint8 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.ToLower(name)))
	v := h.Sum32()
	return uint8(v ^ v>>8 ^ v>>16 ^ v>>24)
}

// unavailable makes an error of the file system one of the store.
func unavailable(err error) error {
	if err == nil || errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, lokt.ErrDamaged) || errors.Is(err, lokt.ErrInvalid) {
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
	st, err := s.load(name, s.o.clock(), guardPage{seq: g.seq})
	if err != nil {
		return err
	}
	st.snap.Lock.Token = max(st.snap.Lock.Token, g.token)
	c := change(st.snap)
	if err := s.publish(g, st, c); err != nil {
		return unavailable(err)
	}
	s.observe(c.Events)
	return nil
}

func (s *Store) observe(events []lokt.Event) {
	if s.o.Observe != nil {
		for _, e := range events {
			s.o.Observe(e)
		}
	}
}

// maxViews bounds how often a lock is read again because it, or one of its shard, was changed meanwhile.
const maxViews = 20

// View implements lokt.Store. It takes no lock, but reads again if the files were changed meanwhile.
func (s *Store) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	none := lokt.Snapshot{Lock: lokt.Lock{Name: name}}
	// A guard file that cannot be read is left out: what is in the lock's files counts.
	guard, err := s.fs.OpenFile(s.guardPath(shardOf(name)), os.O_RDONLY|openNoFollow, 0)
	if err != nil {
		guard = nil
	} else {
		defer guard.Close()
	}
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return none, context.Cause(ctx)
		}
		if s.closed.Load() {
			return none, unavailable(errClosed)
		}
		var page guardPage
		if guard != nil {
			page, _ = readPage(guard, &[guardSize]byte{})
		}
		st, err := s.read(name, s.o.clock(), page)
		last := try == maxViews
		again := !last && (page.torn && try < 3 || moved(guard, page))
		if err == nil && !again {
			err = st.decode(s)
			again = !last && len(st.snap.Dead) > 0 && moved(guard, page) // whoever is dead may have given back what it had before
		}
		if again {
			time.Sleep(time.Duration(try) * 10 * time.Microsecond)
			continue
		}
		if err != nil {
			return none, err
		}
		return st.snap, nil
	}
}

// moved reports whether a lock of the shard was changed since the page was read.
func moved(guard vfs.File, p guardPage) bool {
	if guard == nil {
		return false
	}
	seq, err := readSeq(guard)
	return err == nil && seq != p.seq
}
