//go:build unix

package daemon

import (
	"os/signal"
	"syscall"
)

// ignoreFailures makes writes that cannot be done fail, instead of ending the process: those beyond the limit on the
// size of files, and those to a log that nobody reads any more.
func ignoreFailures() { signal.Ignore(syscall.SIGXFSZ, syscall.SIGPIPE) }

// fileLimit returns how many files the process may have open; 0 if that is not known.
func fileLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || uint64(l.Cur) > 1<<30 {
		return 0
	}
	return int(l.Cur) //nolint:gosec // bounded above
}
