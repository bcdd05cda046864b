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

// unshared reports whether nobody else has the file open, and keeps others from opening it until f is closed: the kernel
// grants a write lease on no other. If it grants none at all, nobody can know.
func unshared(f faultfs.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	return err == nil
}
