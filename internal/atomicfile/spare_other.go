//go:build !linux

package atomicfile

import (
	"io/fs"

	"github.com/lokt-dev/lokt/internal/faultfs"
)

// canTellUnshared is false where no means is known to find out whether a file is open elsewhere: no old version is used
// again then.
const canTellUnshared = false

func ownAlone(fs.FileInfo) bool { return false }

func unshared(faultfs.File) bool { return false }

func share(faultfs.File) error { return nil }

func sameFile(fs.FileInfo, fs.FileInfo) bool { return false }
