//go:build unix

package faultfs

import (
	"errors"
	"os"
	"syscall"
)

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil // this file system has no fsync for directories
	}
	if e := d.Close(); err == nil {
		err = e
	}
	return err
}
