//go:build !linux

package place

import "errors"

// clock cannot be asked on this system.
func clock() (ppm int, synced bool, err error) { return 0, false, errors.ErrUnsupported }
