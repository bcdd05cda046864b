//go:build !linux && !darwin

package faultfs

import (
	"errors"
	"os"
)

func exchange(a, b string) error {
	return &os.LinkError{Op: "exchange", Old: a, New: b, Err: errors.ErrUnsupported}
}
