//go:build !unix

package audit

import (
	"errors"
	"io/fs"
	"os"
)

// Lock files, whose log this is, are kept on Unix alone: everything fails elsewhere.

func openFile(string, int) (*os.File, error)  { return nil, errors.ErrUnsupported }
func tryLock(*os.File, bool) (bool, error)    { return false, errors.ErrUnsupported }
func unlinked(fs.FileInfo) bool               { return false }
func writeOnce(*os.File, []byte) (int, error) { return 0, errors.ErrUnsupported }
