//go:build linux && (amd64 || arm64)

package guard

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An interrupt of the terminal has reached the command already, one that a process sent to the guard has not. The kernel
// tells them apart, but package os/signal does not pass that on, and a command cannot be given a process group of its own:
// then it would not share the terminal with the rest of its pipeline. So a handler in front of the runtime's counts the
// signals that processes sent.

// sent counts them, by signal. The handler writes it.
var sent [65]uint32

// next is the runtime's handler.
var next uintptr

func handler()           //nolint:unused // in assembly: counts, and goes on in next
func handlerPC() uintptr // the address of handler

// sigaction is the kernel's struct of that name.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// noteSenders puts the handler in front of the runtime's. The runtime's must be installed for these signals.
func noteSenders() {
	noting.Lock()
	defer noting.Unlock()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		var a sigaction
		const none = 1 // SIG_DFL is 0, SIG_IGN is 1
		if actOn(sig, nil, &a) != 0 || a.handler <= none || a.handler == handlerPC() {
			continue
		}
		atomic.StoreUintptr(&next, a.handler) // the same one for all signals
		a.handler = handlerPC()
		actOn(sig, &a, nil)
	}
}

var noting sync.Mutex

func actOn(sig syscall.Signal, to, was *sigaction) unix.Errno {
	_, _, err := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(was)), unsafe.Sizeof(to.mask), 0, 0)
	return err
}

// sentByProcess reports whether a process has sent the signal since the last call.
func sentByProcess(sig syscall.Signal) bool { return atomic.SwapUint32(&sent[sig], 0) > 0 }
