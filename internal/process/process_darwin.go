package process

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
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

// namespace is the same everywhere: macOS has no others, so that a boot is known again though its host has another name by now.
func namespace() string { return "macos" }

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

// asleep returns for how long the machine has slept since the boot, or a moment less.
func asleep() time.Duration {
	var all, awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &all) != nil || unix.ClockGettime(unix.CLOCK_UPTIME_RAW, &awake) != nil {
		return 0
	}
	return time.Duration(all.Nano() - awake.Nano())
}

func ownStart() int64 { return inspect(os.Getpid()).start }

// lookUp returns a process as Lineage does, and its parent.
func lookUp(pid int) (r Relative, parent int, ok bool) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(info.Proc.P_pid) != pid {
		return r, 0, false
	}
	r = Relative{PID: pid, Start: info.Proc.P_starttime.Nano(), Name: unix.ByteSliceToString(info.Proc.P_comm[:]), Terminal: info.Eproc.Tdev != -1}
	r.Session, _ = unix.Getsid(pid) // 0 if it is not told
	return r, int(info.Eproc.Ppid), true
}

// Args returns how a process was called, or nil: behind a count and the path of the program, both padded with zeros.
func Args(pid int) []string {
	data, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil || len(data) < 4 {
		return nil
	}
	count := int(binary.NativeEndian.Uint32(data))
	_, rest, _ := strings.Cut(string(data[4:]), "\x00")
	words := strings.Split(strings.TrimLeft(rest, "\x00"), "\x00")
	return words[:min(max(count, 0), len(words))]
}

const zombie = 5 // SZOMB of sys/proc.h

func inspect(pid int) sight {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(info.Proc.P_pid) != pid {
		// No entry: x/sys says EIO for that. Ask in another way before calling it dead.
		return sight{exists: !errors.Is(unix.Kill(pid, 0), unix.ESRCH)}
	}
	return sight{exists: true, zombie: info.Proc.P_stat == zombie, start: info.Proc.P_starttime.Nano()}
}
