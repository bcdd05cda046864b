//go:build unix

package app

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// unread waits until nobody reads what is written to f, or ctx ends, and reports whether the former is so.
func unread(ctx context.Context, f *os.File) bool {
	const look = 200                          // milliseconds: how long this may outlive ctx
	fds := []unix.PollFd{{Fd: int32(f.Fd())}} //nolint:gosec // descriptors are small
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, look)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return false
		case n > 0 && err == nil:
			return fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
		}
	}
	return false
}
