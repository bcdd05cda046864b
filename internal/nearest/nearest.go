// Package nearest finds the file of a repository that holds for a directory.
package nearest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// most is how long such a file may be, in bytes.
const most = 1 << 20

// Real returns the directory without symbolic links, as far as that can be told: those by which a shell came to it lead other
// processes there by other paths, and up from those to other repositories.
func Real(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return filepath.Clean(dir)
}

// File reads the nearest file of that name in dir or above it, up to the top of the repository. The path is empty if there is none.
func File(dir, name string) (path string, text []byte, err error) {
	for at := Real(dir); ; at = filepath.Dir(at) {
		path := filepath.Join(at, name)
		fi, err := os.Stat(path)
		switch {
		case err == nil && (!fi.Mode().IsRegular() || fi.Size() > most):
			return path, nil, fmt.Errorf("it is no file of at most %d bytes", most)
		case err == nil:
			text, err := os.ReadFile(path)
			return path, text, err
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return path, nil, err
		}
		if _, err = os.Lstat(filepath.Join(at, ".git")); err == nil || filepath.Dir(at) == at {
			return "", nil, nil
		}
	}
}
