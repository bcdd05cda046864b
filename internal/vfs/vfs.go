// Package vfs is the part of a file system that lokt's files need, as an interface, so that a test can put a file
// system that fails in the place of the real one.
package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// FS has methods that behave as the functions of package os with the same name, errors included.
type FS interface {
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	Rename(oldpath, newpath string) error
	Remove(name string) error
	Mkdir(name string, perm fs.FileMode) error
	Lstat(name string) (fs.FileInfo, error)
	ReadDir(name string) ([]fs.DirEntry, error)
	// SyncDir returns once the names in a directory are as durable as the file system makes them. Where there is
	// no such operation it does nothing.
	SyncDir(name string) error
}

// File is an open file. *os.File is one.
type File interface {
	io.ReadWriteCloser
	io.ReaderAt
	io.WriterAt
	Sync() error
	Stat() (fs.FileInfo, error)
	Fd() uintptr
	Name() string
}

// OS returns the file system of the operating system. Its files are *os.File, and child processes do not inherit them.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := Open(name, flag, perm)
	if err != nil {
		return nil, err // not a File that holds a nil *os.File
	}
	return f, nil
}

func (osFS) Rename(oldpath, newpath string) error       { return os.Rename(oldpath, newpath) }
func (osFS) Remove(name string) error                   { return os.Remove(name) }
func (osFS) Mkdir(name string, perm fs.FileMode) error  { return Mkdir(name, perm) }
func (osFS) Lstat(name string) (fs.FileInfo, error)     { return os.Lstat(name) }
func (osFS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }
func (osFS) SyncDir(name string) error                  { return syncDir(name) }

// MkdirAll is os.MkdirAll by way of Mkdir.
func MkdirAll(name string, perm fs.FileMode) error {
	err := Mkdir(name, perm)
	if up := filepath.Dir(name); errors.Is(err, fs.ErrNotExist) && up != name {
		if err = MkdirAll(up, perm); err == nil {
			err = Mkdir(name, perm)
		}
	}
	if fi, e := os.Stat(name); e == nil && fi.IsDir() {
		return nil // it was there, or somebody else was sooner
	}
	return err
}
