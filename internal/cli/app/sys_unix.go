//go:build unix

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// WhileRead returns a context that also ends when nobody reads any more what is written to w: the next program of a
// pipeline has ended, or the terminal is gone. Waiting for something to write would be the only way to find out otherwise.
func WhileRead(parent context.Context, w io.Writer) (context.Context, context.CancelFunc) {
	const look = 200 // milliseconds: how long this may outlive the context
	ctx, cancel := context.WithCancel(parent)
	f, ok := w.(*os.File)
	if !ok {
		return ctx, cancel
	}
	go func() {
		fds := []unix.PollFd{{Fd: int32(f.Fd())}} //nolint:gosec // descriptors are small
		for ctx.Err() == nil {
			switch n, err := unix.Poll(fds, look); {
			case err != nil && !errors.Is(err, unix.EINTR):
				return
			case n > 0 && err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) == 0:
				return
			case n > 0 && err == nil:
				cancel()
			}
		}
	}()
	return ctx, cancel
}

// EnoughFiles reports an error if this process may not open n more files: where the runtime can open none it ends the
// process without a word that anybody understands.
func EnoughFiles(n int) error {
	for range n {
		fd, e := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0) // an os.File each is a good part of a start
		switch {
		case errors.Is(e, unix.EMFILE), errors.Is(e, unix.ENFILE):
			return fmt.Errorf("%d more open files are needed: %w (see `ulimit -n`)", n, e)
		case e != nil:
			return nil // a chroot without /dev says nothing about open files
		}
		defer func() { _ = unix.Close(fd) }() // nothing was written
	}
	return nil
}
