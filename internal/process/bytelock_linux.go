package process

import (
	"errors"
	"io"
	"runtime"

	"golang.org/x/sys/unix"
)

// KernelLiveness says whether LockByte and ByteLocked work on this system.
const KernelLiveness = true

// LockByte locks one byte of a file, which must be open for writing, for as long as the file stays open in any process:
// the lock belongs to the open file description, which children inherit together with the descriptor, and ends when
// the last of them has ended or closed it, however they end. It does not wait: if another description has the byte
// locked the error is ErrByteLocked. The byte need not exist.
func LockByte(f Descriptor, off int64) error {
	_, err := byteLock(f, off, unix.F_OFD_SETLK, unix.F_WRLCK)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return ErrByteLocked
	}
	return err
}

// ByteLocked reports whether a description other than f's has locked the byte. It takes no lock, not for an
// instant, and works across PID namespaces. f may be open for reading only.
func ByteLocked(f Descriptor, off int64) (bool, error) {
	found, err := byteLock(f, off, unix.F_OFD_GETLK, unix.F_WRLCK)
	return found != unix.F_UNLCK, err
}

func byteLock(f Descriptor, off int64, cmd int, typ int16) (int16, error) {
	lk := unix.Flock_t{Type: typ, Whence: io.SeekStart, Start: off, Len: 1}
	_, err := retry(func() (int, error) { return 0, unix.FcntlFlock(f.Fd(), cmd, &lk) })
	runtime.KeepAlive(f)
	return lk.Type, err
}
