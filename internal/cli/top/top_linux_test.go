package top

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// atMost is how long a test waits for what must happen. Nothing takes so long, but machines are busy.
const atMost = time.Minute

// terminal is a real one: tmux draws what programs write, and tells what the screen is then.
type terminal struct {
	t           *testing.T
	dir, socket string
	env         []string
}

// panics makes this test's own program one whose look panics.
const panics = "LOKT_TOP_TEST_PANICS"

func TestMain(m *testing.M) {
	if os.Getenv(panics) == "" {
		os.Exit(m.Run())
	}
	a := app.New(Commands(), app.System())
	s := &source{App: a, b: &app.Backend{Service: broken{}}}
	os.Exit(a.Finish(show(context.Background(), newModel(s, "nowhere", options{view: locksView}, -1), os.Stdout)))
}

type broken struct{ lokt.Service }

func (broken) List(context.Context, lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	panic("broken on purpose")
}

// newTerminal starts a shell in a terminal of 80 columns and 24 lines.
func newTerminal(t *testing.T) *terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("there is no tmux")
	}
	bin, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	s := &terminal{t: t, dir: t.TempDir()}
	s.socket = filepath.Join(s.dir, "tmux")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LOKT_") && !strings.HasPrefix(v, "TMUX") && !strings.HasPrefix(v, "PATH=") && !strings.HasPrefix(v, "SSH_") {
			s.env = append(s.env, v)
		}
	}
	s.env = append(s.env, "PATH="+bin+":"+os.Getenv("PATH"), "LOKT_ROOT="+filepath.Join(s.dir, "locks"), "LOKT_OWNER=ana", "LC_ALL=C.UTF-8", "ENV=")
	s.tmux("-f", "/dev/null", "new-session", "-d", "-s", "t", "-x", "80", "-y", "24", "sh")
	t.Cleanup(func() { s.tmux("kill-server") })
	s.until("a prompt", func(screen string) bool { return strings.ContainsAny(screen, "$#") })
	return s
}

func (s *terminal) tmux(args ...string) string {
	s.t.Helper()
	c := exec.Command("tmux", append([]string{"-S", s.socket}, args...)...)
	c.Dir, c.Env = s.dir, s.env
	out, err := c.CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// run runs a program beside the terminal.
func (s *terminal) run(args ...string) string {
	s.t.Helper()
	c := exec.Command("env", args...)
	c.Dir, c.Env = s.dir, s.env
	out, err := c.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// enter types a line.
func (s *terminal) enter(line string) {
	s.tmux("send-keys", "-l", line)
	s.tmux("send-keys", "Enter")
}

func (s *terminal) screen() string { return s.tmux("capture-pane", "-p") }

// until waits until the screen is as it must be.
func (s *terminal) until(what string, good func(screen string) bool) string {
	s.t.Helper()
	for end := time.Now().Add(atMost); ; time.Sleep(20 * time.Millisecond) {
		screen := s.screen()
		switch {
		case good(screen):
			return screen
		case time.Now().After(end):
			s.t.Fatalf("%s never came; the screen is\n%s", what, screen)
		}
	}
}

// shows waits until all the texts are on the screen.
func (s *terminal) shows(texts ...string) string {
	s.t.Helper()
	return s.until(fmt.Sprintf("%q", texts), func(screen string) bool {
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				return false
			}
		}
		return true
	})
}

// daemon starts a loktd, and returns where it is.
func (s *terminal) daemon() string {
	s.t.Helper()
	c := exec.Command("env", "loktd", "--listen", "127.0.0.1:0", "--store", "memory:")
	c.Dir, c.Env = s.dir, s.env
	out, err := c.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
	})
	said := make([]byte, 200)
	n, err := out.Read(said)
	if err != nil {
		s.t.Fatal(err)
	}
	_, url, ok := strings.Cut(strings.TrimSpace(string(said[:n])), "listening on ")
	if !ok {
		s.t.Fatalf("loktd said %q", said[:n])
	}
	return url
}

func TestALockTakenInAnotherProcessAppearsWithinASecond(t *testing.T) {
	s := newTerminal(t)
	s.run("lokt", "lock", "first")
	s.enter("lokt top")
	s.shows("[1 locks]", "first", "1 held")
	best := time.Hour
	for i := range 5 { // a busy machine may take its time now and then
		name := fmt.Sprintf("build-%d", i)
		s.run("lokt", "lock", name)
		began := time.Now()
		s.shows(name)
		if best = min(best, time.Since(began)); best < time.Second {
			break
		}
	}
	if best > time.Second {
		t.Errorf("at best it took %v", best)
	}
}

func TestItFollowsTheSizeOfTheTerminal(t *testing.T) {
	s := newTerminal(t)
	for i := range 40 {
		s.run("lokt", "lock", fmt.Sprintf("lock-%02d", i))
	}
	s.enter("lokt top")
	for _, size := range [][2]string{{"80", "24"}, {"30", "8"}, {"200", "60"}, {"80", "24"}} {
		s.tmux("resize-window", "-x", size[0], "-y", size[1])
		screen := s.until("a screen of "+size[0]+" by "+size[1], func(screen string) bool {
			lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
			return len(lines) >= 8 && strings.HasPrefix(lines[0], "lokt top") && strings.Contains(lines[2], "LOCK") && strings.HasPrefix(lines[len(lines)-1], "? keys")
		})
		if n := strings.Count(screen, "lokt top"); n != 1 {
			t.Errorf("%v: drawn %d times\n%s", size, n, screen)
		}
	}
	s.tmux("send-keys", "End")
	s.shows("> lock-39")
}

func TestWhateverEndsItTheTerminalIsAsItWas(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]struct {
		command string
		keys    string
		signal  syscall.Signal
		code    int
	}{
		"q": {keys: "q"}, "ctrl-c": {keys: "C-c"}, "in a question": {keys: "/ C-c q"}, "SIGTERM": {signal: syscall.SIGTERM, code: 143},
		"SIGHUP": {signal: syscall.SIGHUP, code: 129}, "SIGINT": {signal: syscall.SIGINT, code: 130}, "SIGQUIT": {signal: syscall.SIGQUIT, code: 131},
		"panic": {command: "env " + panics + "=1 " + self, code: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTerminal(t)
			command := end.command
			if command == "" {
				command = "lokt top"
			}
			s.enter("echo was here; stty -g >before; sh -c 'echo $$ >pid; exec " + command + "'; echo ended $?; stty -g >after")
			if end.code != 1 {
				s.shows("[1 locks]", "nobody holds")
			}
			if end.signal != 0 {
				text, err := os.ReadFile(filepath.Join(s.dir, "pid"))
				if err != nil {
					t.Fatal(err)
				}
				var pid int
				if _, err := fmt.Sscan(string(text), &pid); err != nil {
					t.Fatal(err)
				}
				if err := syscall.Kill(pid, end.signal); err != nil {
					t.Fatal(err)
				}
			} else if end.keys != "" {
				s.tmux(append([]string{"send-keys"}, strings.Fields(end.keys)...)...)
			}
			screen := s.shows(fmt.Sprintf("ended %d", end.code))
			if end.code != 1 && (strings.Contains(screen, "[1 locks]") || !strings.Contains(screen, "was here")) {
				t.Errorf("something stayed on the screen:\n%s", screen)
			}
			if end.code == 1 && !strings.Contains(screen, "internal error") {
				t.Errorf("the panic is not told:\n%s", screen)
			}
			const modes = "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_flag} #{keypad_cursor_flag} #{origin_flag} #{wrap_flag}"
			if got := strings.TrimSpace(s.tmux("display-message", "-p", modes)); got != "0 1 0 0 0 0 1" {
				t.Errorf("the terminal's modes are %s", got)
			}
			s.enter("echo typed; echo $?")
			s.shows("typed\n0\n")
			before, err := os.ReadFile(filepath.Join(s.dir, "before"))
			if err != nil {
				t.Fatal(err)
			}
			if after, err := os.ReadFile(filepath.Join(s.dir, "after")); err != nil || string(after) != string(before) {
				t.Errorf("the line was set to %s, and is set to %s (%v)", before, after, err)
			}
		})
	}
}

func TestItGoesToTheBackgroundAndComesBack(t *testing.T) {
	s := newTerminal(t)
	s.enter("set -m; sh -c 'echo $$ >pid; exec lokt top'")
	s.shows("[1 locks]")
	for _, stop := range []func(){
		func() { s.tmux("send-keys", "C-z") },
		func() { s.run("sh", "-c", "kill -TSTP $(cat pid)") },
		func() { s.tmux("send-keys", "C-z") },
	} {
		stop()
		s.until("the shell", func(screen string) bool {
			return strings.Contains(screen, "Stopped") && !strings.Contains(screen, "[1 locks]")
		})
		s.enter("clear; fg")
		s.shows("[1 locks]", "? keys")
		s.tmux("send-keys", "?") // keys are read one by one again
		s.shows("ctrl-z")
		s.tmux("send-keys", "?")
		s.until("the rows", func(screen string) bool { return !strings.Contains(screen, "ctrl-z") })
	}
	s.tmux("send-keys", "q")
	s.until("the shell", func(screen string) bool { return !strings.Contains(screen, "[1 locks]") })

	s.enter("exec lokt top") // where there is no shell to come back to
	s.shows("[1 locks]")
	s.tmux("send-keys", "C-z", "?")
	s.shows("ctrl-z")
}

func TestHoldsAreEndedAndLocksFrozenByKeys(t *testing.T) {
	s := newTerminal(t)
	s.run("lokt", "lock", "build")
	s.run("LOKT_OWNER=ben", "lokt", "lock", "deploy", "--ttl", "1h")
	s.enter("lokt top --filter deploy")
	s.shows("> deploy", "ben@", "1 of 2 rows")
	s.tmux("send-keys", "Enter")
	s.shows("Holders: 1", "1h0m0s", "Queue: 0") // the line may be wrapped before it
	s.tmux("send-keys", "q", "u", "deploy", "Enter")
	s.shows("ended 1 holds of deploy")
	if out := s.run("sh", "-c", "lokt exists deploy; echo $?"); strings.TrimSpace(out) != "3" {
		t.Error(out)
	}
	s.tmux("send-keys", "/", "C-u", "Enter", "f", "release", "Enter")
	s.shows("froze build for 15m", "frozen")
	var frozen struct {
		Freeze struct{ Owner, Reason string }
	}
	if err := json.Unmarshal([]byte(s.run("lokt", "status", "build", "--json")), &frozen); err != nil || frozen.Freeze.Owner != "ana" || frozen.Freeze.Reason != "release" {
		t.Error(frozen, err)
	}
	s.tmux("send-keys", "f", "yes", "Enter")
	s.shows("unfroze build")
}

// Promise S-370.
func TestAHoldThatCameAfterTheQuestionStays(t *testing.T) {
	s := newTerminal(t)
	s.run("lokt", "lock", "db")
	s.enter("lokt top")
	s.shows("> db", "ana@")
	s.tmux("send-keys", "u", "db")
	s.shows("type its name: db")
	s.run("lokt", "unlock", "db")
	s.run("LOKT_OWNER=ben", "lokt", "lock", "db", "--ttl", "1h")
	s.shows("ben@")
	s.tmux("send-keys", "Enter")
	s.shows("failed: ", "held by ben@")
	if out := s.run("sh", "-c", "lokt exists db; echo $?"); strings.TrimSpace(out) != "0" {
		t.Error(out)
	}
}

func TestARecordMadeToDeceiveIsShownAndNotObeyed(t *testing.T) {
	s := newTerminal(t)
	s.run("lokt", "lock", "plain")
	path := filepath.Join(s.dir, "locks", "locks", "plain.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	evil := strings.Replace(strings.ReplaceAll(string(text), `"plain"`, `"evil"`), `"ana"`, `"\u001b[2J\u001b]0;taken\u0007\u202eevil\u200f`+strings.Repeat("x", 1<<20)+`"`, 1)
	if evil == string(text) {
		t.Fatal(evil)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "evil.json"), []byte(evil), 0o600); err != nil {
		t.Fatal(err)
	}
	s.enter("lokt top")
	if screen := s.shows("evil", "plain", "[1 locks]"); strings.ContainsAny(screen, "\u202e\u200f") {
		t.Error(screen)
	}
	if title := s.tmux("display-message", "-p", "#{pane_title}"); strings.Contains(title, "taken") {
		t.Error(title)
	}
}

func TestJobsOfAServerSayWhatTheyWaitFor(t *testing.T) {
	s := newTerminal(t)
	url := s.daemon()
	s.run("LOKT_SERVER="+url, "lokt", "lock", "db", "--ttl", "1h")
	s.run("LOKT_SERVER="+url, "lokt", "job", "submit", "--type", "migrate", "--lock", "db")
	w := exec.Command("env", "LOKT_SERVER="+url, "lokt", "worker", "--type", "migrate", "--", "true")
	w.Dir, w.Env = s.dir, s.env
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Process.Signal(syscall.SIGTERM)
		_ = w.Wait()
	})
	s.tmux("resize-window", "-x", "160", "-y", "24")
	s.enter("lokt top --server " + url)
	s.shows("> db", "held", "ana@")
	s.tmux("send-keys", "2")
	s.shows("[2 jobs]", "migrate", "queued", "waits for lock db, held by ana@")
	s.tmux("send-keys", "f", "yes", "Enter")
	s.shows("froze jobs of type migrate", "its type is frozen")
	s.tmux("send-keys", "Enter")
	s.shows("requested_units", "waiting_for")
	s.tmux("send-keys", "q", "Tab")
	s.shows("[3 workers]", "1 workers", "LEASES")
}

func TestPlainEndsThoughNobodyTakesWhatItWrites(t *testing.T) {
	s := newTerminal(t)
	for i := range 30 { // more than a pipe of a page takes
		s.run("lokt", "lock", strings.Repeat("x", 190)+strconv.Itoa(i))
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if _, err := unix.FcntlInt(write.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("env", "lokt", "top", "--plain")
	c.Dir, c.Env, c.Stdout = s.dir, s.env, write
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // until no line has room
		if n, err := unix.IoctlGetInt(int(read.Fd()), unix.TIOCINQ); err != nil || n > 4096-512 {
			break
		}
		if time.Since(began) > atMost {
			t.Fatal("the pipe is not full")
		}
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { _ = c.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(atMost):
		_ = c.Process.Kill()
		<-over
	}
	if c.ProcessState.ExitCode() != 143 {
		t.Error(c.ProcessState)
	}
}

func TestPlainWritesALineForEachChange(t *testing.T) {
	s := newTerminal(t)
	s.run("lokt", "lock", "build")
	c := exec.Command("env", "TERM=xterm", "lokt", "top", "--plain")
	c.Dir, c.Env = s.dir, s.env
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	c.Stdout = write
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	got := ""
	buf := make([]byte, 1<<16)
	until := func(pattern string) {
		t.Helper()
		for want := regexp.MustCompile("(?m)^" + pattern + "$"); !want.MatchString(got); {
			if err := read.SetReadDeadline(time.Now().Add(atMost)); err != nil {
				t.Fatal(err)
			}
			n, err := read.Read(buf)
			if err != nil {
				t.Fatalf("%s never came (%v), but\n%s", pattern, err, got)
			}
			got += string(buf[:n])
		}
	}
	until(`\d\d:\d\d:\d\d build is held by ana@\S+`)
	s.run("lokt", "freeze", "build", "--ttl", "1h", "--reason", "release")
	until(`\S+ build is frozen, held by ana@\S+: release`)
	s.run("lokt", "unfreeze", "build")
	s.run("lokt", "unlock", "build")
	until(`\S+ build is free`)
	if strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _ = c.Wait(); c.ProcessState.ExitCode() != 143 {
		t.Error(c.ProcessState)
	}
	// Without a screen it is plain by itself, and nobody who reads ends it.
	out := s.run("sh", "-c", "lokt lock again; { lokt top --json; echo ended >&2; } | head -n 1")
	if !strings.Contains(out, `"lock":{"name":"again"`) || !strings.Contains(out, "ended\n") {
		t.Error(out)
	}
}
