// Package faultfs is a file system that fails on cue, so that a test can step through every operation of an action and
// see what a full disk, a broken one or a crash leaves behind.
package faultfs

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"sync"
	"syscall"

	"github.com/lokt-dev/lokt/internal/vfs"
)

// ErrCrashed is what every operation returns once a Faulty has crashed.
var ErrCrashed = errors.New("crashed")

// Faulty is a file system that counts its operations, starting at 1, and fails on cue. What counts is open, read,
// write, sync, close, stat, rename, remove, mkdir, syncdir, lstat and readdir, whether asked of the file system or
// of a file that it opened. It is safe for concurrent use.
type Faulty struct {
	inner vfs.FS

	mu     sync.Mutex
	trace  []string
	faults map[int]Fault
	crash  int // 0: never
	open   map[*faultyFile]struct{}
}

// Fault is what happens at one operation: it fails, or if there is neither an error nor something to do before, the
// process crashes.
type Fault struct {
	Op    int   // which operation, from 1
	Err   error // what it returns, without being done. A close closes the file nevertheless, as kernels do
	Short bool  // if the operation is a write, half of it is done; if not, it does not fail

	// Before runs just before the operation, in the goroutine that asks for it: the place to let somebody else in between
	// two steps. The file system may be used in it.
	Before func()
}

func (f Fault) String() string {
	switch {
	case f.Err == nil:
		return fmt.Sprintf("crash before operation %d", f.Op)
	case f.Short:
		return fmt.Sprintf("short write at operation %d: %v", f.Op, f.Err)
	}
	return fmt.Sprintf("failure of operation %d: %v", f.Op, f.Err)
}

// New returns a Faulty that passes to inner what it does not make fail.
func New(inner vfs.FS) *Faulty {
	return &Faulty{inner: inner, faults: map[int]Fault{}, open: map[*faultyFile]struct{}{}}
}

// Inject makes the fault happen. After a crash every operation returns ErrCrashed without being done, as if the process
// had died there. At that moment every file still open is closed, which releases its locks as the kernel does; what was
// written before stays, as it does when a process dies.
func (f *Faulty) Inject(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[fault.Op] = fault
}

// Crash is a crash now.
func (f *Faulty) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt(len(f.trace) + 1)
}

// Trace returns the operations asked for so far, failed ones included, as "write /path/name" or
// "rename /path/old /path/new".
func (f *Faulty) Trace() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.trace)
}

// Reset forgets the operations so far and every fault, and ends a crash: the next operation is the first. Files opened
// before stay usable unless a crash closed them.
func (f *Faulty) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trace, f.faults, f.crash = nil, map[int]Fault{}, 0
}

// step counts an operation and says how it fails. short means that a write is to be done by half.
func (f *Faulty) step(kind, detail string) (short bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trace = append(f.trace, kind+" "+detail)
	n := len(f.trace)
	fault, cued := f.faults[n]
	delete(f.faults, n)
	switch {
	case fault.Before != nil:
		f.mu.Unlock()
		fault.Before()
		f.mu.Lock()
	case cued && fault.Err == nil:
		f.crashAt(n)
	}
	switch {
	case f.crash > 0 && n >= f.crash:
		return false, ErrCrashed
	case fault.Short && kind != "write":
		return false, nil
	}
	return fault.Short, fault.Err
}

func (f *Faulty) crashAt(n int) {
	f.crash = n
	for file := range f.open {
		file.File.Close()
		delete(f.open, file)
	}
}

// OpenFile implements vfs.FS, as the other methods do.
func (f *Faulty) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	return do(f, "open", name, func() (vfs.File, error) {
		inner, err := f.inner.OpenFile(name, flag, perm)
		if err != nil {
			return nil, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.crash > 0 && len(f.trace) >= f.crash { // meanwhile, in another goroutine
			inner.Close()
			return nil, &fs.PathError{Op: "open", Path: name, Err: ErrCrashed}
		}
		file := &faultyFile{File: inner, fs: f}
		f.open[file] = struct{}{}
		return file, nil
	})
}

// do counts an operation and does it unless it is to fail.
func do[T any](f *Faulty, op, path string, inner func() (T, error)) (T, error) {
	if _, err := f.step(op, path); err != nil {
		return *new(T), &fs.PathError{Op: op, Path: path, Err: err}
	}
	return inner()
}

// try is do for operations without a result.
func try(f *Faulty, op, path string, inner func() error) error {
	_, err := do(f, op, path, func() (struct{}, error) { return struct{}{}, inner() })
	return err
}

func (f *Faulty) Rename(oldpath, newpath string) error {
	return try(f, "rename", oldpath+" "+newpath, func() error { return f.inner.Rename(oldpath, newpath) })
}

func (f *Faulty) Remove(name string) error {
	return try(f, "remove", name, func() error { return f.inner.Remove(name) })
}

func (f *Faulty) Mkdir(name string, perm fs.FileMode) error {
	return try(f, "mkdir", name, func() error { return f.inner.Mkdir(name, perm) })
}

func (f *Faulty) Lstat(name string) (fs.FileInfo, error) {
	return do(f, "lstat", name, func() (fs.FileInfo, error) { return f.inner.Lstat(name) })
}

func (f *Faulty) ReadDir(name string) ([]fs.DirEntry, error) {
	return do(f, "readdir", name, func() ([]fs.DirEntry, error) { return f.inner.ReadDir(name) })
}

func (f *Faulty) SyncDir(name string) error {
	return try(f, "syncdir", name, func() error { return f.inner.SyncDir(name) })
}

// faultyFile passes Fd and Name to the real file without counting them.
type faultyFile struct {
	vfs.File
	fs *Faulty
}

func (file *faultyFile) Read(p []byte) (int, error) {
	return do(file.fs, "read", file.Name(), func() (int, error) { return file.File.Read(p) })
}

func (file *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	return do(file.fs, "read", file.Name(), func() (int, error) { return file.File.ReadAt(p, off) })
}

func (file *faultyFile) Write(p []byte) (int, error) { return file.write(p, file.File.Write) }

func (file *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	return file.write(p, func(p []byte) (int, error) { return file.File.WriteAt(p, off) })
}

func (file *faultyFile) write(p []byte, write func([]byte) (int, error)) (n int, err error) {
	short, failed := file.fs.step("write", file.Name())
	switch {
	case failed == nil:
		return write(p)
	case short:
		n, err = write(p[:len(p)/2])
	}
	if err == nil {
		err = &fs.PathError{Op: "write", Path: file.Name(), Err: failed}
	}
	return n, err
}

func (file *faultyFile) Sync() error { return try(file.fs, "sync", file.Name(), file.File.Sync) }

func (file *faultyFile) Stat() (fs.FileInfo, error) {
	return do(file.fs, "stat", file.Name(), file.File.Stat)
}

func (file *faultyFile) Close() error {
	err := try(file.fs, "close", file.Name(), func() error { return nil })
	if errors.Is(err, ErrCrashed) {
		return err // the crash has closed it
	}
	file.fs.mu.Lock()
	delete(file.fs.open, file)
	file.fs.mu.Unlock()
	if e := file.File.Close(); err == nil {
		err = e
	}
	return err
}

// Faults yields every fault of an action of ops operations, one at a time: a crash before each, I/O error and full
// disk at each, and writes cut short. Run the action once without a fault to learn how many operations it has.
func Faults(ops int) iter.Seq[Fault] {
	return func(yield func(Fault) bool) {
		for n := range ops {
			for _, fault := range []Fault{
				{Op: n + 1},
				{Op: n + 1, Err: syscall.EIO},
				{Op: n + 1, Err: syscall.ENOSPC},
				{Op: n + 1, Err: syscall.ENOSPC, Short: true},
			} {
				if !yield(fault) {
					return
				}
			}
		}
	}
}
