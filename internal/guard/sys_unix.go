//go:build unix

package guard

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/process"
)

var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// terminal is the controlling terminal, if there is one. What it sends goes to the whole foreground process group, the
// command included.
type terminal struct{ f *os.File }

func openTerminal() terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return terminal{}
	}
	return terminal{f}
}

func (t terminal) close() {
	if t.f != nil {
		_ = t.f.Close()
	}
}

// delivered reports whether the signal is taken to come from the terminal, so that the command has got it too: an
// interrupt or quit while this process is in the foreground, or a hangup of the terminal.
func (t terminal) delivered(sig os.Signal) bool {
	if t.f == nil {
		return false
	}
	foreground, err := unix.IoctlGetInt(int(t.f.Fd()), unix.TIOCGPGRP)
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT:
		return err == nil && foreground == unix.Getpgrp()
	case syscall.SIGHUP:
		return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOTTY)
	}
	return false
}

// tree is the command and everything that it started.
type tree struct{ all bool }

func newTree(stop bool) tree {
	return tree{all: stop && process.BecomeSubreaper() == nil} // so that nothing the command leaves behind gets away
}

// signal sends the signal to the command, and a kill to all of its descendants too.
func (t tree) signal(p *os.Process, sig syscall.Signal) {
	if t.all {
		pids := process.Descendants(os.Getpid())
		if sig == syscall.SIGTERM {
			slices.Reverse(pids)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, sig)
		}
	}
	_ = p.Signal(sig)
}

// killRest ends what the command left behind, and returns when nothing of it runs any more.
func (t tree) killRest(int) {
	if !t.all {
		return
	}
	for {
		pids := process.Descendants(os.Getpid())
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		var ws syscall.WaitStatus
		for {
			if pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil); pid <= 0 && !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		time.Sleep(time.Millisecond) // a kill takes effect when the kernel gets to it
	}
}
