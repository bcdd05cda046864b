package guard

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// A guard in the foreground of a terminal runs a command that notes each interrupt and quit.
func TestASignalReachesTheCommandOnceWhoeverSentIt(t *testing.T) {
	if log := os.Getenv(onTerminal); log != "" {
		code, err := newDesk(t).run(Command{}, nil, fmt.Sprintf(
			`trap 'echo INT >>%[1]s' INT; trap 'echo QUIT >>%[1]s' QUIT; echo ready >>%[1]s; while [ ! -e %[1]s.over ]; do sleep 0.01; done`, log))
		if code != 0 || err != nil {
			t.Errorf("code %d, %v", code, err)
		}
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	keyboard, tty := newTerminal(t)
	log := filepath.Join(t.TempDir(), "log")
	guard := exec.Command(exe, "-test.run=^"+t.Name()+"$")
	guard.Env = append(os.Environ(), onTerminal+"="+log)
	guard.Stdin, guard.Stdout, guard.Stderr = tty, tty, tty
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guard.Process.Kill() }()
	want := []byte("ready\n")
	eventually := func() {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			switch data, err := os.ReadFile(log); {
			case bytes.Equal(data, want):
				return
			case len(data) > len(want) || time.Now().After(end):
				t.Fatalf("the command noted %q, %v; want %q", data, err, want)
			}
		}
	}
	eventually()
	for range 3 {
		for name, send := range map[string]func() error{
			"INT":  func() error { return guard.Process.Signal(syscall.SIGINT) },
			"QUIT": func() error { return guard.Process.Signal(syscall.SIGQUIT) },
		} {
			if err := send(); err != nil {
				t.Fatal(err)
			}
			want = append(want, name+"\n"...)
			eventually()
		}
		if _, err := keyboard.Write([]byte{3}); err != nil { // Ctrl-C
			t.Fatal(err)
		}
		want = append(want, "INT\n"...)
		eventually()
		time.Sleep(100 * time.Millisecond) // the guard has its own by then: the kernel makes one of two that are pending
	}
	time.Sleep(50 * time.Millisecond) // a second one would come about now
	eventually()
	if err := os.WriteFile(log+".over", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := guard.Wait(); err != nil {
		t.Error(err)
	}
}
