//go:build unix

package filestore

import (
	"errors"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/process"
)

const openNoFollow = unix.O_NOFOLLOW | unix.O_NONBLOCK

// transient are errors that have nothing to do with the file that they were met at.
var transient = []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR}

func supported() error { return nil }

// flock locks or unlocks the file. It reports false if somebody else has it locked.
func flock(f process.Descriptor, lock bool) (bool, error) {
	how := unix.LOCK_UN
	if lock {
		how = unix.LOCK_EX | unix.LOCK_NB
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
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
