//go:build unix

package care

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileOwner returns the user ID of the file's owner.
func fileOwner(fi fs.FileInfo) (uid int, known bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// writable returns why this process cannot write the file, or make files in the directory.
func writable(path string) error {
	mode := uint32(unix.W_OK)
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		mode |= unix.X_OK
	}
	return unix.Access(path, mode)
}

// chmod sets the permissions of the file, unless another than the one seen stands there now.
func chmod(path string, seen fs.FileInfo, perm fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) { // even its owner may not read it
		return unix.Fchmodat(unix.AT_FDCWD, path, uint32(perm.Perm()), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !os.SameFile(fi, seen) {
		return errors.Join(err, errors.New("it was replaced"))
	}
	return f.Chmod(perm)
}
