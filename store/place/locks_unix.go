//go:build unix

package place

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// excludes reports whether a lock of the kernel on the directory keeps out who has opened it, too.
func excludes(dir string) (works bool, err error) {
	var files [2]*os.File
	for i := range files {
		if files[i], err = os.Open(dir); err != nil {
			return false, err
		}
		defer files[i].Close()
	}
	if err := unix.Flock(int(files[0].Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Is(err, unix.EWOULDBLOCK), ignoreHeld(err)
	}
	err = unix.Flock(int(files[1].Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return err != nil, ignoreHeld(err)
}

// ignoreHeld returns nil if somebody has the lock.
func ignoreHeld(err error) error {
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	return err
}
