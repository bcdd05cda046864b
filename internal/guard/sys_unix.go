//go:build unix

package guard

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/process"
)

var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// terminal is the controlling terminal, if there is one. What it sends goes to the whole foreground process group, the
// command included.
type terminal struct{ fd int }

func openTerminal() terminal {
	fd, _ := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // -1 if there is none
	return terminal{fd}
}

func (t terminal) close() {
	if t.fd >= 0 {
		_ = unix.Close(t.fd)
	}
}

// delivered reports whether the signal is taken to come from the terminal, so that the whole group has got it: an
// interrupt or quit that no process sent while this one is in the foreground, or a hangup of the terminal. But of a hangup
// the system tells the leader of the session alone; a shell, or the leader's end, is what tells the others.
func (t terminal) delivered(sig os.Signal) bool {
	if t.fd < 0 {
		return false
	}
	foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT:
		return !sentByProcess(sig.(syscall.Signal)) && err == nil && foreground == unix.Getpgrp()
	case syscall.SIGHUP:
		hungUp := errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOTTY)
		sid, err := unix.Getsid(0)
		return hungUp && (err != nil || sid != os.Getpid())
	}
	return false
}

// witness is a process in the group of this one that only waits. A signal that has ended it was sent to the whole group, so
// that the command has got it too. The zero witness has not begun.
type witness struct {
	pid       int // of cat, which ends when its input does, and so with this process
	ask, hear *os.File
	waited    bool // for its end
}

// hearing is how long a witness may take to answer. One that was stopped does not.
const hearing = time.Second

// begin starts the witness, if it can be started. Package os would first find out whether the kernel has pidfds, by a process
// that shares this one's memory and signal handlers: a signal of the terminal in that moment would be counted here as well.
func (w *witness) begin() {
	path, _ := exec.LookPath("cat")
	in, ask, err := os.Pipe()
	if err != nil {
		return
	}
	defer in.Close()
	hear, out, err := os.Pipe()
	if err != nil {
		ask.Close()
		return
	}
	defer out.Close()
	open, _ := os.ReadDir("/dev/fd")
	for _, f := range open { // what this process was given to pass on is for the command alone
		if fd, err := strconv.Atoi(f.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	w.end()
	pid, err := syscall.ForkExec(path, []string{"cat"}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{in.Fd(), out.Fd(), out.Fd()},
	})
	if *w = (witness{pid, ask, hear, err != nil}); err != nil {
		w.end()
	}
}

// end ends the witness.
func (w *witness) end() {
	if w.ask == nil {
		return
	}
	w.ask.Close()
	w.hear.Close()
	if !w.waited {
		go (&child{pid: w.pid}).wait()
	}
	*w = witness{}
}

// saw reports whether a signal that this process has got was sent to the whole group. Who has a signal to take does
// nothing else before that.
func (w *witness) saw(sig os.Signal) bool {
	if w.pid == 0 {
		return false
	}
	_, _ = w.ask.Write([]byte{0}) // fails if the witness has ended
	_ = w.hear.SetReadDeadline(time.Now().Add(hearing))
	n, err := w.hear.Read(make([]byte, 1))
	if n > 0 {
		return false
	}
	w.waited = errors.Is(err, io.EOF)
	died := w.waited && (&child{pid: w.pid}).wait() == exitSignal+int(sig.(syscall.Signal))
	w.begin() // another
	return died
}

// child is the command. It is started and waited for with the bare system calls: os/exec spends as long on preparing for
// cases that do not arise here as the command line may add in all.
type child struct {
	pid int

	mu     sync.Mutex
	reaped bool // then the process ID may be somebody else's
}

// start starts the command with this process's standard streams and directory, and with every other descriptor that was
// given to this process to pass on: what is inherited besides keeps its number, so that it takes none of theirs.
func start(c Command) (*child, error) {
	if c.Inherit != nil {
		if _, err := unix.FcntlInt(c.Inherit.Fd(), unix.F_SETFD, 0); err != nil {
			return nil, err
		}
	}
	files := []uintptr{cmp.Or(c.Stdin, os.Stdin).Fd(), 1, 2}
	pid, err := syscall.ForkExec(c.Path, c.Args, &syscall.ProcAttr{Env: c.Env, Files: files, Sys: dying(c.Bound)})
	if err != nil {
		return nil, err
	}
	return &child{pid: pid}, nil
}

// wait waits for the command and returns its exit code, as shells have it.
func (p *child) wait() int {
	waitUnreaped(p.pid) // so that no signal can be on its way when the process ID becomes free
	if reapsQuickly {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reaped = true
	}
	var ws syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(p.pid, &ws, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if ws.Signaled() {
		return exitSignal + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// elsewhere reports whether the command has left the group of this process, as timeout and interactive shells do.
func (p *child) elsewhere() bool {
	group, err := unix.Getpgid(p.pid)
	return err == nil && group != unix.Getpgrp()
}

// signal sends the command a signal, unless it has ended. It fails only for a command that has become another user's.
func (p *child) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return nil
	}
	return syscall.Kill(p.pid, sig)
}

// tree is the command and everything that it started.
type tree struct{ all bool }

func newTree(stop bool) tree {
	return tree{all: stop && process.BecomeSubreaper() == nil} // so that nothing the command leaves behind gets away
}

// deaths tells of children that have ended: the command, and what it left behind, which is this process's to bury. The
// returned function ends that.
func (t tree) deaths() (deaths <-chan os.Signal, enough func()) {
	if !t.all {
		return nil, func() {}
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGCHLD)
	return c, func() { signal.Stop(c) }
}

// reap takes note of the end of what the command left behind: as zombies, all of it together would become too many processes.
func (t tree) reap(p *child, w *witness) { process.ReapOrphans(p.pid, w.pid) }

// signal sends the signal to the command and all that it started. It kills until nothing is left: what is being started
// meanwhile is in no list.
func (t tree) signal(p *child, sig syscall.Signal) error {
	if t.all && sig == syscall.SIGKILL {
		t.killRest()
	} else if t.all {
		for _, pid := range process.Descendants(os.Getpid()) {
			if pid != p.pid {
				_ = syscall.Kill(pid, sig)
			}
		}
	}
	return p.signal(sig)
}

// killRest ends what the command left behind, and returns when nothing of it runs any more.
func (t tree) killRest() {
	if t.all {
		process.KillDescendants(context.Background(), os.Getpid())
	}
}
