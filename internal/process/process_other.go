//go:build !linux && !darwin && !windows

package process

import (
	"os"
	"syscall"
	"time"
)

// BootID returns "": it is not known how to learn it on this system.
func BootID() string { return "" }

func namespace() string { return "" }

// TimeNamespace returns "": this system has no time namespaces.
func TimeNamespace() string { return "" }

// asleep returns 0: it is not known how to ask on this system.
func asleep() time.Duration { return 0 }

// Monotonic returns false: without a boot ID, readings of different boots could not be told apart.
func Monotonic() (reading time.Duration, ok bool) { return 0, false }

// lookUp tells nothing: it is not known here.
func lookUp(int) (r Relative, parent int, ok bool) { return r, 0, false }

// Args returns nil: it is not known here.
func Args(int) []string { return nil }

func ownStart() int64 { return 0 }

// inspect knows existence only: neither start times nor zombies.
func inspect(pid int) sight {
	p, err := os.FindProcess(pid)
	if err != nil {
		return sight{}
	}
	return sight{exists: p.Signal(syscall.Signal(0)) != os.ErrProcessDone}
}
