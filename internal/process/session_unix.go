//go:build unix

package process

import "golang.org/x/sys/unix"

func sessionID() int {
	sid, err := unix.Getsid(0)
	if err != nil {
		return 0
	}
	return sid
}
