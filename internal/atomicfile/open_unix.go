//go:build unix

package atomicfile

import (
	"errors"
	"os"
	"syscall"

	"github.com/lokt-dev/lokt/internal/vfs"
)

const noFollow = syscall.O_NOFOLLOW

func openRegular(fsys vfs.FS, path string) (vfs.File, error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	// A symbolic link: ELOOP by POSIX, EMLINK on FreeBSD. A socket, or a device without driver: ENXIO.
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EMLINK) || errors.Is(err, syscall.ENXIO) {
		return nil, notRegular(path)
	}
	return f, err
}
