//go:build !linux

package faultfs

import (
	"io/fs"
	"os"
)

func openRaw(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := openFile(name, flag, perm)
	if err != nil {
		return nil, err // not a File that holds a nil *os.File
	}
	return f, nil
}

// OSFile returns f as an *os.File, for a child process to inherit, or nil if it is not a file of OS. f must not be used any
// more if it is.
func OSFile(f File) *os.File {
	own, _ := f.(*os.File)
	return own
}

func lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }
