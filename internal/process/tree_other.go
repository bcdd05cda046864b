//go:build !linux

package process

import (
	"context"
	"errors"
)

// BecomeSubreaper returns errors.ErrUnsupported: here, a process that loses its parent becomes a child of the init
// process, and only its process group still tells where it came from.
func BecomeSubreaper() error { return errors.ErrUnsupported }

// HasChildren returns false: it is not known here.
func HasChildren() bool { return false }

// ReapOrphans does nothing: without BecomeSubreaper there are none.
func ReapOrphans(except ...int) int { return 0 }

// Descendants returns nil: it is not known here. What remains is to signal the process group, or the job object.
func Descendants(root int) []int { return nil }

// KillDescendants does nothing: it is not known here who they are.
func KillDescendants(ctx context.Context, root int) (left []int) { return nil }
