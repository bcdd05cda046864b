//go:build !linux

package filestore

import "github.com/lokt-dev/lokt/internal/faultfs"

// birth returns 0: the inode alone tells files apart.
func birth(faultfs.File) int64 { return 0 }
