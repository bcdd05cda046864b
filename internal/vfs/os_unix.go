//go:build unix

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Open is os.OpenFile for regular files. It does not offer the file to the runtime's poller, which would refuse it: to
// set the poller up costs a short command a good part of its life. With O_NONBLOCK only the opening does not block. What root
// makes belongs to the owner of the directory, who could not use it otherwise.
func Open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	if flag&os.O_CREATE == 0 || os.Geteuid() != 0 {
		return open(name, flag, perm)
	}
	for range 10 {
		f, err := open(name, flag|os.O_EXCL, perm)
		if err == nil {
			give(f, name)
		}
		if !errors.Is(err, fs.ErrExist) || flag&os.O_EXCL != 0 {
			return f, err
		}
		if f, err = open(name, flag&^os.O_CREATE, perm); !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	return open(name, flag, perm) // there is a link to nothing
}

func open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	fd, err := unix.Open(name, flag|unix.O_CLOEXEC, uint32(perm.Perm()))
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(name, flag|unix.O_CLOEXEC, uint32(perm.Perm()))
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if flag&unix.O_NONBLOCK != 0 {
		_ = unix.SetNonblock(fd, false) // which for a regular file makes no difference
	}
	return os.NewFile(uintptr(fd), name), nil
}

// give gives what root has just made to the owner of the directory that it is in. If that fails it stays root's.
func give(f *os.File, name string) {
	if in, err := os.Stat(filepath.Dir(name)); err == nil {
		if st, ok := in.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			_ = f.Chown(int(st.Uid), int(st.Gid))
		}
	}
}

// Mkdir is os.Mkdir. What root makes belongs to the owner of the directory around it.
func Mkdir(name string, perm fs.FileMode) error {
	if err := os.Mkdir(name, perm); err != nil || os.Geteuid() != 0 {
		return err
	}
	d, err := open(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil //nolint:nilerr // it has been made
	}
	defer d.Close()
	if _, err := d.Readdirnames(1); errors.Is(err, io.EOF) { // another one may stand there now, with something of root's
		give(d, name)
	}
	return nil
}

func syncDir(name string) error {
	d, err := Open(name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil // this file system has no fsync for directories
	}
	return errors.Join(err, d.Close())
}

// Links returns how many names the file has.
func Links(fi fs.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink) //nolint:unconvert // 16 bits on some systems
	}
	return 1
}
