//go:build !windows

package nearest

import "syscall"

// errNotDir is what opening a file below one that is no directory comes to.
const errNotDir = syscall.ENOTDIR
