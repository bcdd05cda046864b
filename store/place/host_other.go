//go:build !linux

package place

import "errors"

// What this system does not tell, or nobody knows how to ask.
func clock() (ppm int, synced bool, err error) { return 0, false, errors.ErrUnsupported }
func excludes(string) (works bool, err error)  { return false, errors.ErrUnsupported }
