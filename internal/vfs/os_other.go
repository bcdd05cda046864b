//go:build !unix

package vfs

import (
	"io/fs"
	"os"
)

// Open is os.OpenFile for regular files.
func Open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}

// Mkdir is os.Mkdir.
func Mkdir(name string, perm fs.FileMode) error { return os.Mkdir(name, perm) }

// syncDir does nothing: Windows cannot flush a directory, and makes renames durable by itself or not at all.
func syncDir(string) error { return nil }

// Links returns how many names the file has, or 1 where that is not known.
func Links(fs.FileInfo) uint64 { return 1 }
