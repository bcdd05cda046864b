package process

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt"
)

// The test binary plays other processes, too: which one, the environment says.
const (
	roleVar = "LOKT_PROCESS_TEST_ROLE"
	argVar  = "LOKT_PROCESS_TEST_ARG"
)

func TestMain(m *testing.M) {
	role, ok := roles()[os.Getenv(roleVar)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := role(os.Getenv(argVar)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func roles() map[string]func(arg string) error {
	return map[string]func(string) error{
		"sleep":      sleep,
		"report":     report,
		"hidden":     hidden,
		"headless":   headless,
		"locker":     locker,
		"lock-child": func(string) error { untilStdinEnds(); return nil },
		"leader":     leader,
		"follower":   follower,
		"subreaper":  subreaper,
		"rogue":      rogue,
	}
}

// command is a process that plays a role; it ends at the latest when its standard input does.
func command(t *testing.T, role, arg string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return withRole(exec.Command(exe), role, arg)
}

func withRole(cmd *exec.Cmd, role, arg string) *exec.Cmd {
	cmd.Env = append(os.Environ(), roleVar+"="+role, argVar+"="+arg, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	return cmd
}

// actor is a running command that says something, line by line.
type actor struct {
	*exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

func start(t *testing.T, cmd *exec.Cmd) *actor {
	t.Helper()
	a, err := tryStart(t, cmd)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func tryStart(t *testing.T, cmd *exec.Cmd) (*actor, error) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &actor{cmd, stdin, bufio.NewReader(stdout)}, nil
}

func (a *actor) line(t *testing.T) string {
	t.Helper()
	s, err := a.out.ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %q, %v", a.Args, s, err)
	}
	return strings.TrimSpace(s)
}

func (a *actor) kill(t *testing.T) {
	t.Helper()
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = a.Wait()
}

// awaitZombie waits until a child has ended, and leaves it a zombie.
func awaitZombie(t *testing.T, pid int) {
	t.Helper()
	if _, err := retry(func() (int, error) {
		return 0, unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}); err != nil {
		t.Fatal(err)
	}
}

func say(what any) error {
	data, err := json.Marshal(what)
	if err == nil {
		_, err = fmt.Printf("%s\n", data)
	}
	return err
}

func hear[T any](t *testing.T, a *actor) (what T) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.line(t)), &what); err != nil {
		t.Fatal(err)
	}
	return what
}

func untilStdinEnds() { _, _ = io.Copy(io.Discard, os.Stdin) }

func sleep(string) error {
	fmt.Println("ready")
	untilStdinEnds()
	return nil
}

// brief is what a process in another namespace is told, and account what it finds there.
type (
	brief struct {
		Parent lokt.Process
		File   string // a file whose byte 0 may be locked
	}
	account struct {
		Self      lokt.Process
		SelfState State
		Session   string
		Time      string
		Clock     time.Duration
		Parent    State // of the parent's record
		Raw       int64 // start time of the parent, if it can be seen
		Locked    bool
	}
)

func report(arg string) error {
	var b brief
	if err := json.Unmarshal([]byte(arg), &b); err != nil {
		return err
	}
	a := account{Self: Self(), SelfState: Check(Self(), true), Session: Session(), Time: TimeNamespace(), Parent: Check(b.Parent, true)}
	a.Raw = inspect(b.Parent.PID).start
	a.Clock, _ = Monotonic()
	if b.File != "" {
		f, err := os.Open(b.File)
		if err != nil {
			return err
		}
		if a.Locked, err = ByteLocked(f, 0); err != nil {
			return err
		}
	}
	if err := say(a); err != nil {
		return err
	}
	untilStdinEnds()
	return nil
}

// hidden looks at processes of another user, first when everybody may, then through a /proc that hides them. It runs as
// process 1 of a PID namespace, in a mount namespace of its own.
func hidden(string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	victim := withRole(exec.Command(exe), "sleep", "")
	stdin, err := victim.StdinPipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	if err := victim.Start(); err != nil {
		return err
	}
	Self() // what is known of ourselves, from before this process is changed
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_REMOUNT, "hidepid=0"); err != nil {
		return err
	}
	p, err := Lookup(victim.Process.Pid)
	if err != nil {
		return err
	}
	unaware := p
	unaware.Start = 0
	gone := p
	gone.PID = 30000
	look := func() []string {
		return []string{Check(p, true).String(), Check(unaware, true).String(), Check(gone, true).String()}
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_REMOUNT, "hidepid=2"); err != nil {
		return err
	}
	root := look()
	if err := syscall.Setgid(65534); err != nil {
		return err
	}
	if err := syscall.Setuid(65534); err != nil {
		return err
	}
	return say([][]string{root, look()})
}

// headless ends its first thread and goes on with the others.
func headless(string) error {
	for range 64 {
		go func() {
			runtime.LockOSThread()
			if unix.Gettid() == unix.Getpid() {
				_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
			}
			select {}
		}()
	}
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		go func() {
			runtime.LockOSThread()
			awaitHeadless()
		}()
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
	awaitHeadless()
	return nil
}

func awaitHeadless() {
	for {
		if s, _ := readStat("self"); s.state == 'Z' {
			break
		}
		runtime.Gosched()
	}
	fmt.Println("ready")
	untilStdinEnds()
	os.Exit(0)
}

// locker locks byte 0 of a file, and has a child that inherits it.
func locker(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := LockByte(f, 0); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	child := withRole(exec.Command(exe), "lock-child", "")
	child.ExtraFiles = []*os.File{f}
	child.Stdin = os.Stdin // the test's, which outlives this process
	if err := child.Start(); err != nil {
		return err
	}
	if err := say(child.Process.Pid); err != nil {
		return err
	}
	return child.Wait()
}

// leader leads a session, leaves a follower in it and ends.
func leader(string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := withRole(exec.Command(exe), "follower", "")
	cmd.Stdout = os.Stdout
	stdin, err := cmd.StdinPipe() // ends with this process
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(stdin)
	if err := cmd.Start(); err != nil {
		return err
	}
	return say(Session())
}

func follower(string) error {
	untilStdinEnds()
	return say(Session())
}

// deed is what a subreaper saw of its descendants.
type deed struct {
	Before, After bool // has it children?
	Found, Left   []int
	Rogue, Reaped int
}

// subreaper runs a child that leaves an orphan in another session, and gets rid of it.
func subreaper(string) error {
	var d deed
	d.Before = HasChildren()
	if err := BecomeSubreaper(); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	out, err := withRole(exec.Command(exe), "rogue", "").Output()
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(out), &d.Rogue); err != nil {
		return err
	}
	d.Found = Descendants(os.Getpid())
	d.Left = KillDescendants(unending(), os.Getpid())
	d.Reaped = ReapOrphans(d.Rogue)*10 + ReapOrphans()
	d.After = HasChildren()
	return say(d)
}

// rogue leaves a process that has detached itself from everything but the tree.
func rogue(string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := withRole(exec.Command(exe), "sleep", "")
	cmd.Stderr = nil
	cmd.Stdin, cmd.ExtraFiles = r, []*os.File{w} // it keeps its own input open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return say(cmd.Process.Pid)
}
