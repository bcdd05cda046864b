package faultfs

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// openFile opens without offering the file to the runtime's poller, as os.OpenFile does: it refuses regular files, and to
// set it up costs a short command a good part of its life.
func openFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	fd, err := openFD(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openFD opens a file such that reading does not change when it was last read, if the kernel lets the caller have it so:
// each read would else dirty the inode of a file that is written between any two.
func openFD(name string, flag int, perm fs.FileMode) (fd int, err error) {
	how := flag | unix.O_CLOEXEC | unix.O_LARGEFILE | unix.O_NOATIME
	if flag&unix.O_ACCMODE == unix.O_RDWR { // then not even a FIFO makes anybody wait
		how &^= unix.O_NONBLOCK
	}
	for {
		fd, err = unix.Open(name, how, uint32(perm.Perm()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EPERM) && how&unix.O_NOATIME != 0: // it is somebody else's
			how &^= unix.O_NOATIME
			continue
		case err != nil:
			return -1, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		if how&unix.O_NONBLOCK != 0 { // it was for the opening only
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, how&(unix.O_APPEND|unix.O_NOATIME)); err != nil {
				_ = unix.Close(fd)
				return -1, &fs.PathError{Op: "open", Path: name, Err: err}
			}
		}
		return fd, nil
	}
}
