//go:build !linux

package process

import "errors"

// KernelLiveness says whether LockByte and ByteLocked work on this system. Here they do not: there are no locks that a
// child inherits, or none whose holder can be asked for without taking it. PID and start time have to do.
const KernelLiveness = false

// LockByte returns errors.ErrUnsupported.
func LockByte(f Descriptor, off int64) error { return errors.ErrUnsupported }

// ByteLocked returns errors.ErrUnsupported.
func ByteLocked(f Descriptor, off int64) (bool, error) { return false, errors.ErrUnsupported }
