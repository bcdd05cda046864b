//go:build !unix

package filestore

import (
	"errors"
	"io/fs"

	"github.com/lokt-dev/lokt/internal/process"
)

const openNoFollow = 0

// errUnsupported is what every operation says where the kernel locks that exclusion rests on are missing.
var errUnsupported = errors.New("lock files need flock and atomic rename, which lokt has on Linux, macOS and the BSDs only; use a server instead")

// transient are errors that have nothing to do with the file that they were met at.
var transient = []error{errUnsupported}

func supported() error { return errUnsupported }

func flock(process.Descriptor, bool) (bool, error) { return false, errUnsupported }
func inode(fs.FileInfo) uint64                     { return 0 }
func device(fs.FileInfo) uint64                    { return 0 }
