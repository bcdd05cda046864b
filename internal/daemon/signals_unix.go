//go:build unix

package daemon

import (
	"os/signal"
	"syscall"
)

// ignoreLimits makes writes beyond the limit on the size of files fail, instead of ending the process.
func ignoreLimits() { signal.Ignore(syscall.SIGXFSZ) }
