//go:build !unix

package care

import (
	"io/fs"
	"os"
)

func fileOwner(fs.FileInfo) (uid int, known bool) { return 0, false }

func writable(string) error { return nil }

func chmod(path string, _ fs.FileInfo, perm fs.FileMode) error { return os.Chmod(path, perm) }
