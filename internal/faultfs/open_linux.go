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
	for {
		fd, err := unix.Open(name, flag|unix.O_CLOEXEC|unix.O_LARGEFILE, uint32(perm.Perm()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		if flag&unix.O_NONBLOCK != 0 { // it was for the opening only
			if err := unix.SetNonblock(fd, false); err != nil {
				_ = unix.Close(fd)
				return nil, &fs.PathError{Op: "open", Path: name, Err: err}
			}
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}
