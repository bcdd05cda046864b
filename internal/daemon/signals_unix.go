//go:build unix

package daemon

import (
	"os/signal"
	"syscall"
)

// ignoreFailures makes writes that cannot be done fail, instead of ending the process: those beyond the limit on the size of
// files, and those to a log that nobody reads any more.
func ignoreFailures() { signal.Ignore(syscall.SIGXFSZ, syscall.SIGPIPE) }
