package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt"
)

func unending() context.Context { return context.Background() }

func lookup(t *testing.T, pid int) lokt.Process {
	t.Helper()
	p, err := Lookup(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func expect(t *testing.T, what string, p lokt.Process, want State) {
	t.Helper()
	if got := Check(p, true); got != want {
		t.Errorf("%s: %v, want %v (%+v)", what, got, want, p)
	}
}

func TestAProcessIsAliveUntilItIsKilled(t *testing.T) {
	a := start(t, command(t, "sleep", ""))
	a.line(t)
	p := lookup(t, a.Process.Pid)
	if p.Start < Self().Start || p.Boot != BootID() || p.Boot == "" || p.Namespace == "" {
		t.Errorf("Lookup = %+v, Self = %+v", p, Self())
	}
	expect(t, "running", p, Alive)

	reused := p
	reused.Start--
	expect(t, "ID used again", reused, Dead)

	reboot := p
	reboot.Boot = "0d3a0c52-5f8e-4c41-9b1a-000000000000"
	expect(t, "another boot", reboot, Dead)

	older := lokt.Process{PID: p.PID}
	expect(t, "nothing but an ID", older, Alive)

	if err := a.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	expect(t, "stopped", p, Alive)
	if err := a.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, p.PID)
	expect(t, "zombie", p, Dead)
	expect(t, "zombie, nothing but an ID", older, Dead)
	if _, err := Lookup(p.PID); err == nil {
		t.Error("a zombie can be looked up")
	}
	_ = a.Wait()
	expect(t, "reaped", p, Dead)
	expect(t, "reaped, nothing but an ID", older, Dead)
}

func TestAChildKeepsTheRecordOfItsDeadParentAlive(t *testing.T) {
	parent, child := start(t, command(t, "sleep", "")), start(t, command(t, "sleep", ""))
	parent.line(t)
	child.line(t)
	p, c := lookup(t, parent.Process.Pid), lookup(t, child.Process.Pid)
	p.Child, p.ChildStart = c.PID, c.Start
	parent.kill(t)
	expect(t, "parent killed", p, Alive)
	child.kill(t)
	expect(t, "both killed", p, Dead)
}

// Promise S-36.
func TestAZombieLeaderWithLivingThreadsIsAlive(t *testing.T) {
	a := start(t, command(t, "headless", ""))
	a.line(t)
	if s, ok := readStat(itoa(a.Process.Pid)); !ok || s.state != 'Z' {
		t.Fatalf("the leader is no zombie: %+v", s)
	}
	p := lookup(t, a.Process.Pid)
	expect(t, "leader gone", p, Alive)
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, p.PID)
	expect(t, "all threads gone", p, Dead)
}

func TestACommandNameCannotForgeItsState(t *testing.T) {
	script := filepath.Join(t.TempDir(), ") Z 1 (x")
	sleepPath, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sleepPath, script); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script, "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // it is named just after it has been started
		comm, err := os.ReadFile("/proc/" + itoa(cmd.Process.Pid) + "/comm")
		if err == nil && bytes.HasPrefix(comm, []byte(") Z 1 (")) {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("comm = %q, %v", comm, err)
		}
	}
	expect(t, "oddly named", lookup(t, cmd.Process.Pid), Alive)
}

// Promise S-34.
func TestAnotherPIDNamespaceIsUnknownFromBothSides(t *testing.T) {
	path := filepath.Join(t.TempDir(), "live")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := LockByte(f, 0); err != nil {
		t.Fatal(err)
	}
	a, there := abroad(t, brief{Parent: Self(), File: path}, "--pid", "--fork", "--kill-child")
	defer a.kill(t)
	if there.Self.PID != 1 || there.Self.Namespace == Self().Namespace || there.Self.Boot != Self().Boot {
		t.Fatalf("there: %+v, here: %+v", there.Self, Self())
	}
	expect(t, "from outside", there.Self, Unknown)
	gone := there.Self
	gone.PID = 1<<22 - 1
	expect(t, "from outside, no such ID here", gone, Unknown)
	if there.Parent != Unknown {
		t.Errorf("from inside: %v", there.Parent)
	}
	// /proc is still that of this namespace: entry 1 is not that process 1.
	if there.SelfState != Alive {
		t.Errorf("from inside, of itself: %v", there.SelfState)
	}
	if !there.Locked {
		t.Error("a lock taken here is not seen there")
	}
	if there.Session == Session() || !strings.HasPrefix(there.Session, "session-0-") {
		t.Errorf("session there %q, here %q", there.Session, Session())
	}
}

func TestAnotherTimeNamespaceIsUnknownThoughStartTimesDiffer(t *testing.T) {
	a, there := abroad(t, brief{Parent: Self()}, "--time", "--boottime", "100000", "--monotonic", "200000", "--fork", "--kill-child")
	defer a.kill(t)
	if there.Raw == Self().Start {
		t.Fatalf("the start time is %d in both time namespaces: this test shows nothing", there.Raw)
	}
	if there.Time == TimeNamespace() || there.Time == "" {
		t.Errorf("time namespace %q there, %q here", there.Time, TimeNamespace())
	}
	if now, ok := Monotonic(); !ok || there.Clock < now+100_000*time.Second {
		t.Errorf("clock %v there, %v here", there.Clock, now)
	}
	if there.Parent != Unknown {
		t.Errorf("from inside: %v", there.Parent)
	}
	expect(t, "from outside", there.Self, Unknown)
}

// abroad runs "report" under unshare(1). Where that is not permitted, the test is skipped.
func abroad(t *testing.T, b brief, flags ...string) (*actor, account) {
	t.Helper()
	if os.Getuid() != 0 {
		flags = append([]string{"--user", "--map-root-user"}, flags...)
	}
	if out, err := exec.Command("unshare", append(slices.Clone(flags), "true")...).CombinedOutput(); err != nil {
		t.Skipf("unshare %v: %v: %s", flags, err, out)
	}
	arg, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := start(t, withRole(exec.Command("unshare", append(flags, exe)...), "report", string(arg)))
	return a, hear[account](t, a)
}

func TestWhatIsHiddenIsUnknownAndWhatMayNotBeSignalledExists(t *testing.T) {
	cmd := command(t, "hidden", "")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	a, err := tryStart(t, cmd)
	if err != nil {
		t.Skipf("new namespaces: %v", err)
	}
	got := hear[[][]string](t, a)
	want := [][]string{
		{"alive", "alive", "dead"},   // as root
		{"unknown", "alive", "dead"}, // as another user, with hidepid
	}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Promises S-33, S-35.
func TestALockedByteOutlivesItsKilledOwnerUntilTheChildEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "live")
	a := start(t, command(t, "locker", path))
	child := hear[int](t, a)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	locked := func(when string, off int64, want bool) {
		t.Helper()
		if got, err := ByteLocked(f, off); err != nil || got != want {
			t.Errorf("%s: ByteLocked(%d) = %v, %v, want %v", when, off, got, err, want)
		}
	}
	locked("both run", 0, true)
	locked("both run", 1, false)
	if err := LockByte(f, 0); !errors.Is(err, ErrByteLocked) {
		t.Errorf("LockByte = %v", err)
	}

	fd, err := unix.PidfdOpen(child, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, a.Process.Pid)
	locked("owner killed", 0, true)

	a.stdin.Close()
	awaitEnd(fd, time.Minute)
	locked("child ended", 0, false)
	if err := LockByte(f, 0); err != nil {
		t.Errorf("LockByte = %v", err)
	}
}

func TestADescriptionDoesNotSeeItsOwnByteLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "live")
	var files [2]*os.File
	for i := range files {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	if err := LockByte(files[0], 7); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true} {
		if got, err := ByteLocked(files[i], 7); err != nil || got != want {
			t.Errorf("file %d: %v, %v, want %v", i, got, err, want)
		}
	}
	closed := files[0]
	closed.Close()
	if got, err := ByteLocked(files[1], 7); err != nil || got {
		t.Errorf("when the file was closed: %v, %v", got, err)
	}
	if err := LockByte(closed, 0); err == nil {
		t.Error("a closed file can be locked")
	}
	if _, err := ByteLocked(closed, 0); err == nil {
		t.Error("a closed file can be asked")
	}
}

func TestTheClockIsSharedByProcesses(t *testing.T) {
	before, ok := Monotonic()
	arg, err := json.Marshal(brief{Parent: Self()})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	there := hear[account](t, start(t, command(t, "report", string(arg))))
	after, _ := Monotonic()
	if there.Clock < before || there.Clock > after || before == 0 {
		t.Errorf("%v is not between %v and %v", there.Clock, before, after)
	}
	if there.Time != TimeNamespace() || there.Session != Session() || there.Parent != Alive || there.Self.Namespace != Self().Namespace {
		t.Errorf("there: %+v", there)
	}
}

func TestASessionKeepsItsIDWhenItsLeaderEnds(t *testing.T) {
	cmd := command(t, "leader", "")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	a := start(t, cmd)
	first, second := hear[string](t, a), hear[string](t, a)
	if first != second || first == Session() {
		t.Errorf("with its leader %s, without %s, here %s", first, second, Session())
	}
	if !strings.HasPrefix(first, "session-"+itoa(a.Process.Pid)+"-") {
		t.Errorf("%s of leader %d", first, a.Process.Pid)
	}
}

func TestASubreaperFindsKillsAndReapsWhatHasDetachedItself(t *testing.T) {
	d := hear[deed](t, start(t, command(t, "subreaper", "")))
	if d.Before || d.After || d.Rogue == 0 || !slices.Equal(d.Found, []int{d.Rogue}) || len(d.Left) > 0 || d.Reaped != 1 {
		t.Errorf("%+v", d)
	}
}

func TestKillDescendantsLeavesOthersAloneAndEndsWithItsContext(t *testing.T) {
	bystander := start(t, command(t, "sleep", ""))
	bystander.line(t)
	ctx, cancel := context.WithCancel(unending())
	cancel()
	if left := KillDescendants(ctx, bystander.Process.Pid); left != nil {
		t.Errorf("left: %v", left)
	}
	expect(t, "root and bystander", lookup(t, bystander.Process.Pid), Alive)
	if !slices.Contains(Descendants(os.Getpid()), bystander.Process.Pid) {
		t.Error("a child is not found")
	}
	if killExactly(node{pid: bystander.Process.Pid, start: 1}) >= 0 {
		t.Error("a process of another start time was killed")
	}
	expect(t, "after an attempt on another start time", lookup(t, bystander.Process.Pid), Alive)
}

func TestFileSystemsAreNamed(t *testing.T) {
	for path, want := range map[string]string{"/proc": "proc", "/proc/nowhere": ""} {
		if name, local := LocalFS(path); name != want || !local {
			t.Errorf("LocalFS(%s) = %q, %v", path, name, local)
		}
	}
	if name, _ := LocalFS(t.TempDir()); name == "" {
		t.Error("the file system of the test's directory has no name")
	}
	for magic, want := range map[uint32]string{
		unix.NFS_SUPER_MAGIC: "nfs", unix.CIFS_SUPER_MAGIC: "cifs", unix.FUSE_SUPER_MAGIC: "fuse", unix.V9FS_MAGIC: "9p",
		unix.CEPH_SUPER_MAGIC: "ceph", unix.SMB2_SUPER_MAGIC: "smb2", 0x0bd00bd0: "lustre", unix.EXT4_SUPER_MAGIC: "",
	} {
		if got := remoteFS()[magic]; got != want {
			t.Errorf("remoteFS()[%x] = %q, want %q", magic, got, want)
		}
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("7 (a) Z (b) S 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4711 0"))
	f.Add([]byte("7 (a"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, line []byte) {
		s, ok := parseStat(line)
		if !ok {
			return
		}
		if i := bytes.LastIndexByte(line, ')'); len(bytes.Fields(line[i+1:])) < 20 {
			t.Errorf("parsed %q as %+v", line, s)
		}
	})
}

func TestStatIsParsedBehindTheLastParenthesis(t *testing.T) {
	line := "7 (a) Z (b) S 3 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 2 0 4711 0"
	want := stat{pid: 7, state: 'S', parent: 3, session: 7, threads: 2, start: 4711, name: "a) Z (b"}
	if s, ok := parseStat([]byte(line)); !ok || s != want {
		t.Errorf("%+v, %v", s, ok)
	}
	for n := range len(line) - len("4711 0") {
		if s, ok := parseStat([]byte(line[:n])); ok {
			t.Errorf("cut after %d bytes: %+v", n, s)
		}
	}
}
