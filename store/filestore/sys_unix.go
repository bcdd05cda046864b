//go:build unix

package filestore

import (
	"errors"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/vfs"
)

const openNoFollow = unix.O_NOFOLLOW | unix.O_NONBLOCK

// transient are errors that have nothing to do with the file that they were met at.
var transient = []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR}

func supported() error { return nil }

func tryFlock(f vfs.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, err
		}
	}
}

func funlock(f vfs.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }

func inode(fi fs.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

func device(fi fs.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev) //nolint:unconvert // int32 on some systems
	}
	return 0
}
