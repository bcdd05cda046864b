package faultfs

import (
	"os"

	"golang.org/x/sys/unix"
)

func exchange(a, b string) error {
	for {
		err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
		}
	}
}
