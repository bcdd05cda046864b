//go:build unix

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Open is os.OpenFile for regular files. It does not offer the file to the runtime's poller, which would refuse it: to
// set the poller up costs a short command a good part of its life. With O_NONBLOCK only the opening does not block.
func Open(name string, flag int, perm fs.FileMode) (*os.File, error) {
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
