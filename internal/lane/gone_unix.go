//go:build unix

package lane

import (
	"errors"
	"syscall"
)

// gone reports whether the client has hung up already, as far as that is known without waiting.
func (c *conn) gone() (gone bool) {
	if c.raw == nil {
		return false
	}
	_ = c.raw.Control(func(fd uintptr) { // if not, the connection was closed here, and nothing can be said on it
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK) //nolint:gosec // as large as it was
		gone = n <= 0 && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	})
	return gone
}
