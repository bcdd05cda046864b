//go:build !unix

package atomicfile

import (
	"os"

	"github.com/lokt-dev/lokt/internal/vfs"
)

const noFollow = 0

// openRegular looks before it opens: elsewhere than on Unix there is no flag that refuses a symbolic link. A link put
// there between the two is followed.
func openRegular(fsys vfs.FS, path string) (vfs.File, error) {
	info, err := fsys.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(path)
	}
	return fsys.OpenFile(path, os.O_RDONLY, 0)
}
