package guard

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/process"
)

const onTerminal = "LOKT_GUARD_ON_TERMINAL"

// newTerminal returns both ends of a terminal.
func newTerminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { keyboard.Close() })
	fd := int(keyboard.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { tty.Close() })
	return keyboard, tty
}

// guarded is a guard, which runs in a process of its own, and what its command notes.
type guarded struct {
	*exec.Cmd
	t       *testing.T
	log     string
	want    string // that the command notes
	witness int    // whom the guard had last
}

// startGuarded runs the test again in a session of its own, on a terminal if there is one.
func startGuarded(t *testing.T, tty *os.File) *guarded {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := &guarded{Cmd: exec.Command(exe, "-test.run=^"+t.Name()+"$"), t: t, log: filepath.Join(t.TempDir(), "log")}
	g.Env = append(os.Environ(), onTerminal+"="+g.log)
	g.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if tty != nil {
		g.Stdin, g.Stdout, g.Stderr = tty, tty, tty
		g.SysProcAttr.Setctty = true
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-g.Process.Pid, syscall.SIGKILL) }) // fails if it has ended
	return g
}

func (g *guarded) eventually(what string, so func() bool) {
	g.t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			g.t.Fatal("not within a minute: " + what)
		}
	}
}

// notes waits until the command has noted the line, and nothing else since the last one.
func (g *guarded) notes(line string) {
	g.t.Helper()
	g.want += line + "\n"
	var data []byte
	g.eventually("the command notes "+line, func() bool { data, _ = os.ReadFile(g.log); return len(data) >= len(g.want) })
	if string(data) != g.want {
		g.t.Fatalf("the command noted %q; want %q", data, g.want)
	}
}

// witnessed waits until the guard has a witness, and another one than before.
func (g *guarded) witnessed() {
	g.t.Helper()
	g.eventually("the guard has a witness", func() bool {
		for _, pid := range process.Descendants(g.Process.Pid) {
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(name) == "cat\n" && pid != g.witness {
				g.witness = pid
				return true
			}
		}
		return false
	})
}

func (g *guarded) kill(pid int, sig syscall.Signal) {
	g.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		g.t.Fatal(err)
	}
}

// A guard in the foreground of a terminal, or without one, runs a command that notes each signal. Promise S-59.
func TestASignalReachesTheCommandOnceWhoeverSentIt(t *testing.T) {
	if log := os.Getenv(onTerminal); log != "" {
		code, err := newDesk(t).run(Command{}, nil, fmt.Sprintf(
			`for s in INT QUIT TERM HUP; do trap "echo $s >>%[1]s" $s; done; echo ready >>%[1]s; while [ ! -e %[1]s.over ]; do sleep 0.01; done`, log))
		if code != 0 || err != nil {
			t.Errorf("code %d, %v", code, err)
		}
		return
	}
	keyboard, terminal := newTerminal(t)
	for _, tty := range []*os.File{terminal, nil} {
		g := startGuarded(t, tty)
		pid := g.Process.Pid
		g.notes("ready")
		g.witnessed()
		for range 3 {
			for sig, name := range map[syscall.Signal]string{
				syscall.SIGINT: "INT", syscall.SIGQUIT: "QUIT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP",
			} {
				for _, to := range []int{pid, pid, -pid} {
					g.kill(to, sig)
					g.notes(name)
				}
				g.witnessed()
			}
			if tty != nil {
				if _, err := keyboard.Write([]byte{3}); err != nil { // Ctrl-C
					t.Fatal(err)
				}
				g.notes("INT")
				g.witnessed()
			}
		}
		g.kill(pid, syscall.SIGINT) // a second one of any before would have come by then
		g.notes("INT")
		if err := os.WriteFile(g.log+".over", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// The command may be in a group of its own, as timeout and interactive shells are. Promise S-59.
func TestASignalToTheGroupOfTheGuardReachesACommandOfAnotherGroup(t *testing.T) {
	if log := os.Getenv(onTerminal); log != "" {
		code, err := newDesk(t).run(Command{}, nil, fmt.Sprintf(
			`exec setsid sh -c 'trap "exit 0" TERM INT; echo ready >>%[1]s; while :; do sleep 0.01; done'`, log))
		if code != 0 || err != nil {
			t.Errorf("code %d, %v", code, err)
		}
		return
	}
	keyboard, terminal := newTerminal(t)
	for _, tty := range []*os.File{nil, terminal} {
		g := startGuarded(t, tty)
		g.notes("ready")
		g.witnessed()
		if tty == nil {
			g.kill(-g.Process.Pid, syscall.SIGTERM)
		} else if _, err := keyboard.Write([]byte{3}); err != nil { // Ctrl-C
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- g.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the command did not get the signal")
		}
	}
}
