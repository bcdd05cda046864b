package guard

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// reapsQuickly: after waitUnreaped, to reap does not wait.
const reapsQuickly = true

// waitUnreaped returns when the process has ended, and leaves it a zombie.
func waitUnreaped(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// dying returns what makes the system kill the command when the thread that starts it ends.
func dying(bound bool) *syscall.SysProcAttr {
	if !bound {
		return nil
	}
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
