//go:build !unix

package place

import "errors"

// excludes cannot be tried on this system.
func excludes(string) (works bool, err error) { return false, errors.ErrUnsupported }
