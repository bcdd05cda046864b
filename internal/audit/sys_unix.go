//go:build unix

package audit

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/lokt-dev/lokt/internal/vfs"
)

// openFile opens the file without following a link and without waiting for the other end of a pipe.
func openFile(path string, flag int) (*os.File, error) {
	return vfs.Open(path, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
}

// tryLock locks the file until it is closed, shared or exclusively. It reports false if another lock is in the way.
func tryLock(f *os.File, exclusive bool) (bool, error) {
	how := syscall.LOCK_SH | syscall.LOCK_NB
	if exclusive {
		how = syscall.LOCK_EX | syscall.LOCK_NB
	}
	err := control(f, "lock", func(fd int) error { return syscall.Flock(fd, how) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// unlinked reports whether the open file, of which fi was just read, is deleted.
func unlinked(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0
}

// writeOnce is one write(2), which os.File does not promise: what follows a short write would not be adjacent to it.
func writeOnce(f *os.File, b []byte) (n int, err error) {
	err = control(f, "write", func(fd int) error {
		n, err = syscall.Write(fd, b)
		return err
	})
	return max(n, 0), err
}

// control calls the function, which does op, with the file's descriptor, again as long as signals interrupt it.
func control(f *os.File, op string, do func(fd int) error) error {
	err := do(int(f.Fd()))
	for errors.Is(err, syscall.EINTR) {
		err = do(int(f.Fd()))
	}
	if err != nil {
		err = &fs.PathError{Op: op, Path: f.Name(), Err: err}
	}
	return err
}
