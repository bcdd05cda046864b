package process

import "errors"

// ErrByteLocked means that somebody else has locked the byte.
var ErrByteLocked = errors.New("byte is locked by another")

// Descriptor is an open file: *os.File, or anything that stands in for one.
type Descriptor interface{ Fd() uintptr }
