//go:build unix

package filestore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/process"
)

// helperEnv names what the test binary does instead of testing.
const helperEnv = "LOKT_FILESTORE_HELPER"

func TestMain(m *testing.M) {
	name := os.Getenv(helperEnv)
	if name == "" {
		os.Exit(m.Run())
	}
	helper, known := map[string]func(args []string) error{
		"contend": contend, "stop-inside": stopInside, "hold": hold, "unprivileged": unprivileged, "wait": waitOnce, "ping": ping,
	}[name]
	if !known {
		fmt.Fprintf(os.Stderr, "no helper %q\n", name)
		os.Exit(2)
	}
	if err := helper(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// often returns n where LOKT_SOAK is set, and a third of it otherwise: how often something is tried.
func often(n int) int {
	if os.Getenv("LOKT_SOAK") == "" {
		return n / 3
	}
	return n
}

// child is a process that runs a helper.
type child struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err *strings.Builder
}

func start(t *testing.T, helper string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: exec.Command(exe, args...), err: &strings.Builder{}}
	c.Env = append(os.Environ(), helperEnv+"="+helper)
	c.Stderr = c.err
	if c.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	})
	return c
}

// line returns the next line that the helper prints.
func (c *child) line(t *testing.T) string {
	t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("%v; it said: %s", err, c.err)
	}
	return strings.TrimSuffix(s, "\n")
}

// kill ends the helper as the kernel does, and waits for it.
func (c *child) kill() {
	_ = c.Process.Kill()
	_ = c.Wait()
}

// guardClaim returns the claim of a guard that p runs.
func guardClaim(name string, p lokt.Process, host string) lokt.Claim {
	return lokt.Claim{
		Name: name, Owner: lokt.Owner{ID: "owner " + strconv.Itoa(p.PID), AnySession: true, Host: host, Process: p},
		Process: &p, Strict: true, Attended: true,
	}
}

// contend takes and gives back the lock "x" in the directory for as long as it lives, and tests that it is alone.
func contend(args []string) error {
	root := args[0]
	// The kernel closes files of a killed process in the order of their numbers: this one must go before the lock.
	alone, err := os.OpenFile(filepath.Join(filepath.Dir(root), "alone"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	s, err := Open(root, Options{})
	if err != nil {
		return err
	}
	self, err := s.Self()
	if err != nil {
		return err
	}
	m := lokt.NewManager(s)
	ctx := context.Background()
	for {
		c := guardClaim("x", self, s.Host())
		if c.LeaseID = lokt.NewLeaseID(); rand.IntN(4) > 0 {
			c.Wait = -1
		}
		h, err := m.Acquire(ctx, c)
		if errors.Is(err, lokt.ErrHeld) {
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
			continue
		}
		if err != nil {
			return err
		}
		if err := unix.Flock(int(alone.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return fmt.Errorf("not alone with token %d: %w", h.Token, err)
		}
		if _, err := fmt.Fprintf(alone, "%d %s\n", h.Token, h.LeaseID); err != nil {
			return err
		}
		if rand.IntN(3) == 0 {
			if _, err := m.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: h.LeaseID}); err != nil {
				return fmt.Errorf("renew: %w", err)
			}
		}
		if err := unix.Flock(int(alone.Fd()), unix.LOCK_UN); err != nil {
			return err
		}
		if _, err := m.Release(ctx, lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			return fmt.Errorf("release: %w", err)
		}
	}
}

// Promises S-1, S-3, S-4, S-51, S-56.
func TestProcessesThatAreKilledAtAnyMomentLeaveOneHolderAndLoseNothing(t *testing.T) {
	t.Parallel()
	const contenders = 8
	kills := often(60)
	root := memoryPlace(t)
	if err := os.MkdirAll(filepath.Dir(root), 0o700); err != nil {
		t.Fatal(err)
	}
	running := make([]*child, contenders)
	for i := range running {
		running[i] = start(t, "contend", root)
	}
	granted := func() []string {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(root), "alone"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
	}
	for killed := 0; killed < kills; killed++ {
		before := len(granted())
		for end := time.Now().Add(2 * time.Minute); len(granted()) < before+3; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("after %d kills nobody gets the lock any more", killed)
			}
		}
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		i := rand.IntN(contenders)
		if running[i].kill(); running[i].ProcessState.ExitCode() != -1 {
			t.Fatalf("a contender ended by itself: %s", running[i].err)
		}
		running[i] = start(t, "contend", root)
	}
	for _, c := range running {
		if c.kill(); c.ProcessState.ExitCode() != -1 {
			t.Fatalf("a contender ended by itself: %s", c.err)
		}
	}
	// All are dead: the next one gets the lock, and then the log has everything.
	s := open(t, root, Options{})
	h, err := lokt.NewManager(s).Acquire(t.Context(), by("last"))
	if err != nil {
		t.Fatal(err)
	}
	events := map[string]int{}
	for e, err := range s.log.Read(t.Context(), audit.Query{}) {
		if err != nil {
			t.Errorf("audit log: %v", err)
		}
		events[e.Event+" "+e.LockID]++
	}
	token := uint64(0)
	all := granted()
	for _, line := range all {
		number, id, _ := strings.Cut(line, " ")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n <= token {
			t.Fatalf("%q (%v) follows token %d", line, err, token)
		}
		token = n
		if events["acquire "+id] != 1 {
			t.Errorf("the audit log has %d grants of lease %s", events["acquire "+id], id)
		}
		if ends := events["release "+id] + events["auto-prune "+id]; ends != 1 {
			t.Errorf("the audit log has %d ends of lease %s", ends, id)
		}
	}
	if h.Token <= token {
		t.Errorf("the last token is %d, after %d", h.Token, token)
	}
	t.Logf("%d grants, %d kills", len(all), kills)
	if left, _, err := s.Check(t.Context(), false); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// stopInside stops this process while it changes the lock "x".
func stopInside(args []string) error {
	s, err := Open(args[0], Options{})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return s.Update(context.Background(), "x", func(snap lokt.Snapshot) lokt.Change {
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
		time.Sleep(2 * time.Second) // another thread may take the signal, and this one would go on for a moment
		return lokt.Change{Lock: snap.Lock}
	})
}

// awaitStopped waits until the process has been stopped.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	var ws syscall.WaitStatus
	for {
		got, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || got != pid || !ws.Stopped() {
			t.Fatalf("waiting for %d to stop: %d, %v, %#x", pid, got, err, ws)
		}
		return
	}
}

func TestAProcessThatIsStoppedInsideAChangeBlocksOthersForAWhile(t *testing.T) {
	t.Parallel()
	root := place(t)
	s := open(t, root, Options{LockTimeout: 150 * time.Millisecond})
	m := lokt.NewManager(s)
	recordOf(t, s, by("a"))
	stopped := start(t, "stop-inside", root)
	stopped.line(t)
	awaitStopped(t, stopped.Process.Pid)

	for range 10 {
		begun := time.Now()
		_, err := m.Acquire(t.Context(), by("b"))
		if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), s.guardPath(shardOf("x"))) || !strings.Contains(err.Error(), "stopped") {
			t.Fatalf("acquire: %v", err)
		}
		if waited := time.Since(begun); waited < 150*time.Millisecond {
			t.Errorf("gave up after %v", waited)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	patient := open(t, root, Options{})
	if err := patient.Update(ctx, "x", func(snap lokt.Snapshot) lokt.Change { return lokt.Change{Lock: snap.Lock} }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a context that ended first: %v", err)
	}
	if got := holders(t, s); !slices.Equal(got, []string{"a"}) { // looking needs no lock
		t.Errorf("held by %v", got)
	}
	other := by("b")
	for other.Name = "y"; shardOf(other.Name) == shardOf("x"); other.Name += "y" {
	}
	if _, err := m.Acquire(t.Context(), other); err != nil {
		t.Errorf("another lock: %v", err)
	}

	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := lokt.NewManager(patient).Release(context.Background(), lokt.Target{Name: "x", LeaseID: "lease of a"})
			done <- err
		}()
	}
	if err := stopped.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	released := 0
	for range 2 {
		if err := <-done; err == nil {
			released++
		} else if !errors.Is(err, lokt.ErrNotFound) {
			t.Errorf("release: %v", err)
		}
	}
	if released != 1 {
		t.Errorf("released %d times", released)
	}
	// The lock that was waited for in vain is given back as soon as the kernel grants it, and this process gets to run.
	eventually(t, "it can be changed again", func() bool {
		_, err := m.Acquire(t.Context(), by("b"))
		if err != nil && !errors.Is(err, lokt.ErrUnavailable) {
			t.Fatalf("then: %v", err)
		}
		return err == nil
	})
	if err := stopped.Wait(); err != nil {
		t.Errorf("who was stopped: %v, %s", err, stopped.err)
	}
}

// hold takes the lock "x" as a guard does, runs a command that inherits its liveness or not, and stays.
func hold(args []string) error {
	s, err := Open(args[0], Options{})
	if err != nil {
		return err
	}
	self, err := s.Self()
	if err != nil {
		return err
	}
	h, err := lokt.NewManager(s).Acquire(context.Background(), guardClaim("x", self, s.Host()))
	if err != nil {
		return err
	}
	pid := 0
	if how := args[1]; how != "alone" {
		cmd := exec.Command("sleep", "600")
		if how == "inherited" {
			cmd.ExtraFiles = []*os.File{s.LiveFile()}
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if pid = cmd.Process.Pid; how == "noted" {
			p, err := process.Lookup(pid)
			if err != nil {
				return err
			}
			if err := s.SetChild(context.Background(), map[string]string{"x": h.LeaseID}, pid, p.Start); err != nil {
				return err
			}
		}
	}
	fmt.Println(pid)
	time.Sleep(10 * time.Minute)
	return nil
}

// holding starts a process that holds "x", and returns it and the command that it runs.
func holding(t *testing.T, root, how string) (c *child, pid int) {
	t.Helper()
	c = start(t, "hold", root, how)
	pid, err := strconv.Atoi(c.line(t))
	if err != nil {
		t.Fatal(err)
	}
	if pid != 0 {
		t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	}
	return c, pid
}

// alive reports whether who holds "x" is known to live, or known to be dead.
func alive(t *testing.T, s *Store) process.State {
	t.Helper()
	snap, err := s.View(t.Context(), "x")
	if err != nil || len(snap.Lock.Holders) != 1 {
		t.Fatalf("%v: held by %+v", err, snap.Lock.Holders)
	}
	state := s.state(snap.Lock.Holders[0])
	if dead := snap.Dead[snap.Lock.Holders[0].LeaseID]; dead && state != process.Dead { // it may have died since
		t.Errorf("the state is %v, and before it was dead", state)
	}
	return state
}

// eventually waits until what holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to pass that %s", what)
		}
	}
}

// Promises S-33, S-35.
func TestAKilledGuardHoldsAsLongAsItsCommandLives(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"inherited", "noted", "alone"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			if how == "inherited" && !process.KernelLiveness {
				t.Skip("no kernel locks that children inherit on this system")
			}
			root := place(t)
			s := open(t, root, Options{})
			guard, command := holding(t, root, how)
			if state := alive(t, s); state != process.Alive {
				t.Fatalf("at first: %v", state)
			}
			guard.kill()
			if how != "alone" {
				if state := alive(t, s); state != process.Alive {
					t.Fatalf("with its command alive: %v", state)
				}
				if _, err := lokt.NewManager(s).Acquire(t.Context(), by("b")); !errors.Is(err, lokt.ErrHeld) {
					t.Fatalf("acquire: %v", err)
				}
				if err := unix.Kill(command, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the hold of the dead is over", func() bool { return alive(t, s) == process.Dead })
			if _, err := lokt.NewManager(s).Acquire(t.Context(), by("b")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWithoutItsLivenessFileAHolderIsJudgedByItsProcess(t *testing.T) {
	t.Parallel()
	if !process.KernelLiveness {
		t.Skip("no kernel locks that prove life on this system")
	}
	for _, again := range []bool{false, true} { // somebody makes the files anew
		root := place(t)
		s := open(t, root, Options{})
		guard, _ := holding(t, root, "alone")
		if state := alive(t, s); state != process.Alive {
			t.Fatal(state)
		}
		if err := os.RemoveAll(filepath.Join(root, dirLive)); err != nil {
			t.Fatal(err)
		}
		if again {
			if err := s.makeDirs(); err != nil {
				t.Fatal(err)
			}
			for i := range liveFiles {
				f, _, err := s.openLive(strconv.FormatInt(int64(i), 16))
				if err != nil {
					t.Fatal(err)
				}
				_ = f.Close()
			}
		}
		for _, s := range []*Store{s, open(t, root, Options{})} { // one has the deleted file open, the other has not
			if state := alive(t, s); state != process.Alive {
				t.Errorf("made again %v: who lives is %v", again, state)
			}
		}
		guard.kill()
		if state := alive(t, open(t, root, Options{})); state != process.Dead {
			t.Errorf("made again %v: who is dead is %v", again, state)
		}
	}
}

func TestAHolderIsNotTakenForDeadBecauseOfADeletedLivenessFile(t *testing.T) {
	t.Parallel()
	if !process.KernelLiveness {
		t.Skip("no kernel locks that prove life on this system")
	}
	root := place(t)
	s := open(t, root, Options{})
	if err := s.makeDirs(); err != nil {
		t.Fatal(err)
	}
	holder := open(t, root, Options{})
	p, err := holder.Self()
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(p.Liveness, ":")
	p.Namespace = "another" // so that only the kernel lock can tell
	if state := s.judge(p, s.host); state != process.Alive {
		t.Fatal(state)
	}
	// s has the file open now. It is deleted, and a later holder locks a byte of the next one of that name.
	if err := os.Remove(filepath.Join(root, dirLive, name)); err != nil {
		t.Fatal(err)
	}
	f, node, err := holder.openLive(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := process.LockByte(f, 12345); err != nil {
		t.Fatal(err)
	}
	later := p
	later.Liveness = name + ":12345:" + fmt.Sprint(node)
	if state := s.judge(later, s.host); state != process.Alive {
		t.Errorf("who locks the new file is %v", state)
	}
	if state := s.judge(p, s.host); state == process.Dead {
		t.Errorf("who locks the deleted file is %v", state)
	}
	later.Liveness = name + ":54321:" + fmt.Sprint(node)
	if state := s.judge(later, s.host); state != process.Dead {
		t.Errorf("who locks nothing is %v", state)
	}
	for _, odd := range []string{"", ":", "::", name, name + ":12345", name + ":12345:", name + ":x:1", name + ":-1:" + fmt.Sprint(node), "../" + name + ":1:1", "g:1:1", "00:1:1"} {
		later.Liveness = odd
		if state := s.judge(later, s.host); state != process.Unknown {
			t.Errorf("by %q the process is %v", odd, state)
		}
	}
}

// Promise S-34.
func TestWhoIsUnknownIsNotDead(t *testing.T) {
	t.Parallel()
	s := open(t, place(t), Options{})
	gone := lokt.Process{PID: 0x7ffffff0, Start: 1}
	here := process.Self()
	with := func(boot, namespace string) lokt.Process {
		p := gone
		p.Boot, p.Namespace = boot, namespace
		return p
	}
	for _, test := range []struct {
		what  string
		p     lokt.Process
		host  string
		local bool
		want  process.State
	}{
		{"gone", with(here.Boot, here.Namespace), s.host, true, process.Dead},
		{"gone, as older programs record it", gone, s.host, true, process.Dead},
		{"of another PID namespace", with(here.Boot, "4026599999"), s.host, true, process.Unknown},
		{"of another host", with("another", "another"), "elsewhere", true, process.Unknown},
		{"of an earlier boot", with("another", here.Namespace), s.host, true, process.Dead},
		{"of an earlier boot, or of another host of this name", with("another", here.Namespace), s.host, false, process.Unknown},
		{"of a container of this kernel with another name", with(here.Boot, "4026599999"), "container", true, process.Unknown},
		{"no process", lokt.Process{}, s.host, true, process.Unknown},
	} {
		if here.Boot == "" && test.p.Boot == "another" || here.Namespace == "" && test.p.Namespace != "" {
			continue // this system tells neither
		}
		s.isLocal = func() bool { return test.local }
		if got := s.judge(test.p, test.host); got != test.want {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	if got := s.state(lokt.Holder{Claim: lokt.Claim{Owner: lokt.Owner{Process: gone, Host: s.host}}}); got != process.Unknown {
		t.Errorf("a lease whose claimant is gone is %v", got)
	}
	pending := lokt.Holder{Claim: lokt.Claim{Owner: lokt.Owner{Process: gone, Host: s.host}}, Pending: time.Now()}
	if got := s.state(pending); got != process.Dead {
		t.Errorf("a grant whose waiter is gone is %v", got)
	}
}

// Where there is no /proc a process knows neither its boot nor its namespace, but its kernel lock is there all the same. Promise S-34.
func TestWhoHasItsKernelLockLivesThoughNoBootAndNamespaceAreKnown(t *testing.T) {
	t.Parallel()
	dir := place(t)
	s, other := open(t, dir, Options{}), open(t, dir, Options{})
	p, err := other.Self()
	if err != nil {
		t.Fatal(err)
	}
	if p.Liveness == "" {
		t.Skip("this kernel has no such locks")
	}
	p.PID, p.Start, p.Boot, p.Namespace = 0x7ffffff0, 0, "", "" // an ID that it has in its namespace, and nobody here
	if got := s.judge(p, s.host); got != process.Alive {
		t.Errorf("while it lives: %v", got)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.judge(p, s.host); got != process.Dead {
		t.Errorf("when it has ended: %v", got)
	}
}

// unprivileged does what its arguments say as a user who is nobody.
func unprivileged(args []string) error {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
		return err
	}
	s, err := Open(args[0], Options{LockTimeout: time.Second, Warn: func(err error) { fmt.Println("warning:", err) }})
	if err != nil {
		fmt.Println("open:", err)
		return nil
	}
	_, err = s.View(context.Background(), "x")
	fmt.Println("view:", err)
	_, err = lokt.NewManager(s).Acquire(context.Background(), by("nobody"))
	fmt.Println("acquire:", err)
	_, err = s.Self()
	fmt.Println("self:", err)
	return nil
}

func TestWithoutPermissionTheErrorSaysWhere(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	try := func(t *testing.T, prepare func(s *Store) error) (root, said string) {
		dir, err := os.MkdirTemp("", "lokt-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		s := open(t, filepath.Join(dir, "root"), Options{})
		if err := errors.Join(os.Chmod(dir, 0o755), prepare(s)); err != nil {
			t.Fatal(err)
		}
		c := start(t, "unprivileged", s.root)
		out, err := io.ReadAll(c.out)
		if werr := c.Wait(); err != nil || werr != nil {
			t.Fatalf("%v, %v: %s", err, werr, c.err)
		}
		return s.root, string(out)
	}
	everybody := func(s *Store) error {
		errs := []error{s.makeDirs(), os.Chmod(s.root, 0o777)}
		for _, dir := range subdirs {
			errs = append(errs, os.Chmod(filepath.Join(s.root, dir), 0o777))
		}
		return errors.Join(errs...)
	}
	for _, test := range []struct {
		name    string
		prepare func(s *Store) error
		want    []string // %s is the root
	}{
		{"a directory that cannot be made", func(*Store) error { return nil }, []string{
			"view: <nil>", "acquire: store is unavailable: mkdir %s: permission denied", "self: store is unavailable: mkdir %s: permission denied"}},
		{"a directory that cannot be searched", func(s *Store) error { return s.makeDirs() }, []string{
			"open: lock directory: ", "%s/locks: permission denied"}},
		{"directories that cannot be searched", func(s *Store) error { return errors.Join(s.makeDirs(), os.Chmod(s.root, 0o755)) }, []string{
			`view: lock "x": stored record cannot be read: read %s/locks/x.json: `, "acquire: store is unavailable: open %s/guards/", "permission denied"}},
		{"a record that cannot be read", func(s *Store) error {
			return errors.Join(everybody(s), os.WriteFile(s.path(dirLocks, "x"), []byte("{}"), 0o600))
		}, []string{`acquire: lock "x": stored record cannot be read: read %s/locks/x.json: `, "permission denied"}},
		{"a freeze that cannot be read", func(s *Store) error {
			return errors.Join(everybody(s), os.WriteFile(s.path(dirFreezes, "x"), []byte("{}"), 0o600))
		}, []string{`acquire: lock "x" is frozen by a freeze that cannot be read: open %s/freezes/x.json: permission denied`}},
		{"a queue that cannot be read", func(s *Store) error {
			return errors.Join(everybody(s), os.WriteFile(s.path(dirQueue, "x"), []byte("{}"), 0o600))
		}, []string{"acquire: <nil>", "self: <nil>"}},
		{"a guard file that cannot be opened", func(s *Store) error {
			return errors.Join(everybody(s), os.WriteFile(s.guardPath(shardOf("x")), nil, 0o600))
		}, []string{"view: <nil>", "acquire: store is unavailable: open %s/guards/", "permission denied"}},
		{"liveness files that cannot be opened", func(s *Store) error {
			errs := []error{everybody(s)}
			for i := range liveFiles {
				errs = append(errs, os.WriteFile(filepath.Join(s.root, dirLive, strconv.FormatInt(int64(i), 16)), nil, 0o600))
			}
			return errors.Join(errs...)
		}, []string{"acquire: <nil>", "self: store is unavailable: open %s/live/", "permission denied"}},
		{"an audit log that cannot be written", func(s *Store) error {
			return errors.Join(everybody(s), os.WriteFile(filepath.Join(s.root, "audit.log"), nil, 0o600))
		}, []string{"acquire: <nil>", "warning: audit log: ", "%s/audit.log: permission denied"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			root, said := try(t, test.prepare)
			for _, want := range test.want {
				if want = strings.ReplaceAll(want, "%s", root); !strings.Contains(said, want) {
					t.Errorf("it said\n%sbut not\n%s", said, want)
				}
			}
		})
	}
}
