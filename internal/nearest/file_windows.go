package nearest

import "syscall"

// errNotDir is what opening a file below one that is no directory comes to.
const errNotDir = syscall.ERROR_PATH_NOT_FOUND
