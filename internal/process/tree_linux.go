package process

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// BecomeSubreaper makes the calling process the new parent of every descendant that loses its own, in place of the
// init process. Descendants that detach themselves stay descendants that way; in return the caller has to call
// ReapOrphans. Its children do not inherit it.
func BecomeSubreaper() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// HasChildren reports whether the calling process has children, zombies included. For a subreaper, no children means no
// descendants. It costs one system call, and reaps nothing.
func HasChildren() bool {
	_, err := retry(func() (int, error) {
		return 0, unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	})
	return !errors.Is(err, unix.ECHILD)
}

// ReapOrphans takes note of the end of every child of the calling process that has ended, except the given ones, so
// that it does not stay a zombie, and returns how many there were. The exceptions are the children that the caller
// waits for by other means, such as package os/exec.
func ReapOrphans(except ...int) int {
	if !HasChildren() {
		return 0
	}
	reaped := 0
	for _, n := range processes() {
		if n.parent != os.Getpid() || !n.ended || slices.Contains(except, n.pid) {
			continue
		}
		if pid, _ := unix.Wait4(n.pid, nil, unix.WNOHANG, nil); pid == n.pid {
			reaped++
		}
	}
	return reaped
}

// Descendants returns the living processes that descend from root, root itself left out. What has lost its parent
// descends from the nearest subreaper, so a subreaper that asks about itself misses nobody. It reads all of /proc;
// processes hidden there are not found, and if /proc is of another PID namespace nobody is.
func Descendants(root int) []int { return pids(descendants(root)) }

func descendants(root int) []node {
	const looks = 5
	var found []node
	for range looks {
		var torn bool
		if found, torn = below(root, processes()); !torn {
			break
		}
	}
	return found
}

// KillDescendants kills every process that descends from root, root itself left out, until there is none or ctx ends.
// It returns those that were left when it last looked: what ctx left no time for, what may not be killed by this
// user, and what does not die because it waits for a device. It reaps nothing.
func KillDescendants(ctx context.Context, root int) (left []int) {
	const round = 50 * time.Millisecond
	for {
		found := descendants(root)
		if len(found) == 0 {
			return nil
		}
		var fds []int
		for _, n := range found {
			if fd := killExactly(n); fd >= 0 {
				fds = append(fds, fd)
			}
		}
		end := time.Now().Add(round)
		for _, fd := range fds {
			awaitEnd(fd, time.Until(end))
			closeFD(fd)
		}
		if ctx.Err() != nil {
			return pids(descendants(root))
		}
		if len(fds) == 0 { // none may be killed, or pidfds are not to be had
			select {
			case <-ctx.Done():
			case <-time.After(round):
			}
		}
	}
}

// killExactly kills the process n, and not another one that has its ID by now. It returns a descriptor of the process,
// or -1.
func killExactly(n node) int {
	fd, err := unix.PidfdOpen(n.pid, 0)
	if s, ok := readStat(strconv.Itoa(n.pid)); !ok || s.start != n.start {
		if err == nil {
			closeFD(fd)
		}
		return -1
	}
	if err != nil { // a kernel before 5.3, or a sandbox
		_ = unix.Kill(n.pid, unix.SIGKILL)
		return -1
	}
	if unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil {
		closeFD(fd)
		return -1
	}
	return fd
}

// awaitEnd waits until the process of a pidfd has ended, or for the time given.
func awaitEnd(fd int, limit time.Duration) {
	if limit > 0 {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(limit.Milliseconds())+1) // an early return does no harm
	}
}

// processes lists what /proc shows.
func processes() []node {
	if !ownProc() {
		return nil
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what it got before an error counts
	var list []node
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		if s, ok := readStat(name); ok {
			list = append(list, node{pid: s.pid, parent: s.parent, ended: s.ended(), start: s.start})
		}
	}
	return list
}
