package atomicfile

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/faultfs"
)

const canTellUnshared = true

// ownAlone reports whether the file is this user's and has one name.
func ownAlone(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 1 && int(st.Uid) == os.Geteuid()
}

// sameFile reports whether both are the same file, if it was there all the time.
func sameFile(a, b fs.FileInfo) bool {
	x, okA := a.Sys().(*syscall.Stat_t)
	y, okB := b.Sys().(*syscall.Stat_t)
	return okA && okB && x.Dev == y.Dev && x.Ino == y.Ino
}

// unshared reports whether nobody else has the file open, and keeps others from opening it until share is called or f is
// closed: the kernel grants a write lease on no other. If it grants none at all, nobody can know.
func unshared(f faultfs.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	return err == nil
}

// share ends what unshared began.
func share(f faultfs.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err
}
