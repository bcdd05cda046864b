// Package faultfs is the part of a file system that lokt's files need, as an interface with two implementations: OS,
// the real one, and Faulty, which counts operations and makes chosen ones fail, so that a test can step through every
// operation of an action and see what a full disk, a broken one or a crash leaves behind.
package faultfs

import (
	"io"
	"io/fs"
	"os"
)

// FS is the part of a file system that lokt's files need. Its methods behave as those of package os with the same
// name, errors included.
type FS interface {
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	Rename(oldpath, newpath string) error

	// Exchange makes two existing names change places in one step. Where the system or the file system cannot, the error
	// is errors.ErrUnsupported or, as from Linux, syscall.EINVAL.
	Exchange(a, b string) error
	Remove(name string) error
	Mkdir(name string, perm fs.FileMode) error
	Lstat(name string) (fs.FileInfo, error)
	ReadDir(name string) ([]fs.DirEntry, error)

	// SyncDir returns once the names in a directory are as durable as the file system makes them. Where there is
	// no such operation it does nothing.
	SyncDir(name string) error
}

// File is an open file. *os.File is one. Nobody may use a File while somebody closes it.
type File interface {
	io.Reader
	io.Writer
	io.ReaderAt
	io.WriterAt
	io.Closer
	Sync() error
	Stat() (fs.FileInfo, error)
	Fd() uintptr
	Name() string
	Truncate(size int64) error
}

// OS returns the file system of the operating system. Files that it opens are not inherited by child processes; see
// OSFile.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	return openRaw(name, flag, perm)
}

// OpenOS is os.OpenFile for files that a program does not wait for: reads and writes block the calling thread. With
// O_NONBLOCK, only the opening does not block.
func OpenOS(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return openFile(name, flag, perm)
}

func (osFS) Rename(oldpath, newpath string) error       { return os.Rename(oldpath, newpath) }
func (osFS) Exchange(a, b string) error                 { return exchange(a, b) }
func (osFS) Remove(name string) error                   { return os.Remove(name) }
func (osFS) Mkdir(name string, perm fs.FileMode) error  { return os.Mkdir(name, perm) }
func (osFS) Lstat(name string) (fs.FileInfo, error)     { return lstat(name) }
func (osFS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }
func (osFS) SyncDir(name string) error                  { return syncDir(name) }
