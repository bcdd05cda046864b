package process

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// BootID returns the ID of the kernel's boot, or "" if the kernel does not tell. The time of the boot would not do
// instead: it moves when the clock is set.
func BootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
}

// namespace is empty: macOS has no PID namespaces.
func namespace() string { return "" }

// TimeNamespace returns "": macOS has no time namespaces.
func TimeNamespace() string { return "" }

// Monotonic returns the reading of the clock that no clock step moves, that stands still while the machine sleeps, and
// that all processes of one boot share. ok is false where there is no such clock.
func Monotonic() (reading time.Duration, ok bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_UPTIME_RAW, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}

func ownStart() int64 { return inspect(os.Getpid()).start }

const zombie = 5 // SZOMB of sys/proc.h

func inspect(pid int) sight {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(info.Proc.P_pid) != pid {
		// No entry: x/sys says EIO for that. Ask in another way before calling it dead.
		return sight{exists: !errors.Is(unix.Kill(pid, 0), unix.ESRCH)}
	}
	return sight{exists: true, zombie: info.Proc.P_stat == zombie, start: info.Proc.P_starttime.Nano()}
}
