package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// passed are the signals that a guard passes on.
func passed() []syscall.Signal {
	return []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}
}

// countSignals plays a command that tells of every signal it gets, in the file that its first argument names, and ends with
// 7 when its standard input does.
func countSignals() int {
	c := make(chan os.Signal, 100)
	for _, sig := range passed() {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	out, err := os.OpenFile(os.Args[1], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return complain(err)
	}
	fmt.Fprintln(out, os.Getpid())
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end, too: of the terminal
		close(end)
	}()
	ends := os.Getenv("ENDS") != "no" // with its standard input
	for {
		select {
		case sig := <-c:
			fmt.Fprintln(out, int(sig.(syscall.Signal)))
			if !ends && sig == syscall.SIGTERM {
				return 7
			}
		case <-end:
			if ends {
				return 7
			}
			end = nil
		}
	}
}

// counter is the command line of a guard over a counter of signals that writes to out.
func (p *place) counter(out string, flags ...string) *exec.Cmd {
	p.t.Helper()
	return p.with(helperVariable + "=signal-counter").lokt(append(append([]string{"guard", "x"}, flags...), "--", self(p.t), out)...)
}

func TestEverySignalReachesTheCommandExactlyOnceAndAsOftenAsItIsSent(t *testing.T) {
	t.Parallel()
	for what, flags := range map[string][]string{"plain": nil, "with heartbeats": {"--ttl", "1s"}, "after waiting": {"--wait"}} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			h := p.start(p.counter("/dev/stdout", flags...)).running()
			for range 10 {
				for _, sig := range passed() {
					h.kill(sig)
					if line := h.line(); line != strconv.Itoa(int(sig)) {
						t.Fatalf("after signal %d the command says %q", sig, line)
					}
				}
			}
			p.eventually("it is held, whatever the signals", func() bool { return p.run("exists", "x").code == 0 })
			if r := h.end(); r.code != 7 {
				t.Error(r)
			}
			if line := h.line(); line != "" {
				t.Errorf("one signal too many: %s", line)
			}
			p.free("x")
		})
	}
}

func TestAGuardWaitsForACommandThatTakesItsTimeAfterASignal(t *testing.T) {
	p := newPlace(t)
	h := p.start(p.lokt("guard", "x", "--", "sh", "-c", `trap 'echo ending; cat; exit 9' TERM; echo $$; while :; do sleep 0.02; done`)).running()
	h.kill(syscall.SIGTERM)
	if line := h.line(); line != "ending" {
		t.Fatalf("the command says %q", line)
	}
	p.held("x")
	if !h.childLives() {
		t.Error("the command was killed")
	}
	if r := h.end(); r.code != 9 {
		t.Error(r)
	}
	p.free("x")
}

func TestExitCodesAreTheCommandsOwnOrThoseOfAShell(t *testing.T) {
	p := newPlace(t)
	plain := filepath.Join(p.dir, "plain")
	check(t, os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o644))
	broken := filepath.Join(p.dir, "broken")
	check(t, os.WriteFile(broken, []byte("\x00\x01"), 0o755))
	for _, c := range []struct {
		code    int
		command []string
	}{
		{0, []string{"true"}}, {1, []string{"false"}}, {2, []string{"sh", "-c", "exit 2"}}, {255, []string{"sh", "-c", "exit 255"}},
		{3, []string{"sh", "-c", "exit 3"}}, {127, []string{"sh", "-c", "exit 127"}},
		{128 + 15, []string{"sh", "-c", "kill -TERM $$"}}, {128 + 9, []string{"sh", "-c", "kill -KILL $$"}},
		{128 + 2, []string{"sh", "-c", "kill -INT $$"}}, {128 + 1, []string{"sh", "-c", "kill -HUP $$"}},
		{128 + 11, []string{"sh", "-c", "ulimit -c 0; kill -SEGV $$"}},
		{127, []string{"no-such-program"}}, {127, []string{"./no-such-program"}}, {126, []string{plain}}, {126, []string{p.dir}}, {126, []string{broken}},
	} {
		r := p.run(append([]string{"guard", "x", "--"}, c.command...)...)
		if r.code != c.code {
			t.Errorf("%q: want exit %d, got %v", c.command, c.code, r)
		}
		if not := c.code == 126 || c.code == 127 && c.command[0] != "sh"; not != (r.stderr != "") {
			t.Errorf("%q: says %q", c.command, r.stderr)
		}
		if !p.absent("x") {
			t.Fatalf("%q: the lock is still held", c.command)
		}
	}
	h := p.hold("x")
	p.want(77, "guard", "x", "--conflict-exit-code", "77", "--", "true")
	p.want(0, "guard", "x", "--conflict-exit-code", "0", "--", "true")
	h.finish()
	for _, args := range [][]string{
		{"guard", "x"}, {"guard", "--", "true"}, {"guard", "x", "--"}, {"guard", "x", "--nonsense", "--", "true"}, {"guard", "x", "--ttl", "soon", "--", "true"},
		{"guard", "x", "--timeout", "1s", "--", "true"}, {"lock"}, {"lock", "x", "y"}, {"lock", "x", "--slots", "0"}, {"nonsense"}, {"lock", "x", "--timeout", "1s"},
		{"guard", "x", "--conflict-exit-code", "256", "--", "true"}, {"lock", "x", "--shared", "--slots", "2"}, {"lock", "x", "--meta", "novalue"},
	} {
		if r := p.run(args...); r.code != 64 {
			t.Errorf("%v: %v", args, r)
		}
	}
	p.want(0, "guard", "--ttl", "1m", "x", "--json", "--", "true") // flags stand anywhere before --
	p.want(5, "guard", "x", "--", "sh", "-c", "exit 5", "--ttl")
}

func TestACommandThatASignalEndsGivesItsCodeAndTheLockBack(t *testing.T) {
	p := newPlace(t)
	for _, sig := range passed() {
		cmd := p.lokt("guard", "x", "--", "sh", "-c", "ulimit -c 0; "+loop)
		h := p.start(cmd).running()
		h.kill(sig)
		if code := h.died(); code != 128+int(sig) {
			t.Errorf("signal %d: exit %d", sig, code)
		}
		if !p.absent("x") {
			t.Errorf("signal %d: the lock is still held", sig)
		}
	}
}

func TestASignalWhileWaitingLeavesTheQueueAtOnce(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("x")
	for _, sig := range passed() {
		for _, args := range [][]string{
			{"guard", "x", "--wait", "--", "touch", "ran"}, {"guard", "a", "x", "--wait", "--timeout", "0", "--", "touch", "ran"}, {"lock", "x", "--wait"},
		} {
			w := p.as("waiter").start(p.as("waiter").lokt(args...))
			p.queued("x", 1)
			began := time.Now()
			w.kill(sig)
			if r := w.wait(); r.code != 128+int(sig) {
				t.Errorf("%v, signal %d: %v", args, sig, r)
			}
			if d := time.Since(began); d > 20*time.Second {
				t.Errorf("%v, signal %d: it took %v", args, sig, d)
			}
			if q := p.queue("x"); len(q) != 0 || !p.absent("a") {
				t.Errorf("%v, signal %d: left behind: %v", args, sig, q)
			}
		}
	}
	if _, err := os.Lstat(filepath.Join(p.dir, "ran")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a command ran")
	}
	h.finish()
	p.free("x")
}

func TestASignalThatIsIgnoredStaysIgnored(t *testing.T) {
	p := newPlace(t)
	for sig, name := range map[syscall.Signal]string{syscall.SIGHUP: "HUP", syscall.SIGINT: "INT"} {
		h := p.start(p.command("sh", append([]string{"-c", "trap '' " + name + `; exec "$@"`, "sh"}, p.lokt("guard", "x", "--", "sh", "-c", loop).Args...)...)).running()
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.child))
		check(t, err)
		_, rest, _ := strings.Cut(string(status), "SigIgn:")
		var mask uint64
		_, err = fmt.Sscanf(rest, "%x", &mask)
		check(t, err)
		if mask&(1<<(sig-1)) == 0 {
			t.Errorf("%s is not ignored by the command: SigIgn is %x", name, mask)
		}
		h.kill(sig)
		h.say("still here?")
		if line := h.line(); line != "still here?" {
			t.Errorf("after %s the command says %q", name, line)
		}
		if r := h.end(); r.code != 0 {
			t.Errorf("%s: %v", name, r)
		}
	}
}

// follow waits until the command has written its process ID to a file.
func (h *holder) follow(path string) {
	h.t.Helper()
	h.eventually("the command writes", func() bool { data, _ := os.ReadFile(path); return strings.Contains(string(data), "\n") })
	data, err := os.ReadFile(path)
	check(h.t, err)
	first, _, _ := strings.Cut(string(data), "\n")
	h.child, err = strconv.Atoi(first)
	check(h.t, err)
}

// counterOnTerminal starts a guard over a counter of signals in the foreground of a terminal: as leader of its session, or
// under another program that is.
func (p *place) counterOnTerminal(under []string, env ...string) (h *holder, term *terminal, counted func() []string) {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "counted")
	check(p.t, os.WriteFile(path, nil, 0o600))
	term = newTerminal(p.t)
	q := p.with(env...)
	cmd := q.counter(path)
	if under != nil {
		env := cmd.Env
		cmd = q.command(under[0], append(under[1:], cmd.Args...)...)
		cmd.Env = env
	}
	term.attach(cmd)
	h = p.start(cmd)
	check(p.t, term.slave.Close())
	h.follow(path)
	return h, term, func() []string {
		data, err := os.ReadFile(path)
		check(p.t, err)
		return strings.Fields(string(data))[1:]
	}
}

func TestWhatAPersonTypesAtATerminalReachesTheCommandExactlyOnce(t *testing.T) {
	p := newPlace(t)
	for key, sig := range map[string]syscall.Signal{"\x03": syscall.SIGINT, "\x1c": syscall.SIGQUIT} {
		h, term, counted := p.counterOnTerminal(nil)
		const n = 10
		for i := range n {
			_, err := term.master.WriteString(key)
			check(t, err)
			p.eventually("the command has counted it", func() bool { return len(counted()) > i })
		}
		h.kill(syscall.SIGTERM) // which comes after everything that the guard might have passed on
		p.eventually("the command has counted TERM", func() bool { got := counted(); return got[len(got)-1] == "15" })
		if got := counted(); len(got) != n+1 || strings.Count(strings.Join(got, " "), strconv.Itoa(int(sig))) != n {
			t.Errorf("%q typed %d times: the command got %v", key, n, got)
		}
		_, err := term.master.WriteString("\x04") // end of input
		check(t, err)
		if code := h.died(); code != 7 {
			t.Errorf("exit %d", code)
		}
	}
	p.free("x")
}

func TestTheHangupOfATerminalReachesTheCommandExactlyOnce(t *testing.T) {
	t.Parallel()
	t.Run("if the guard leads the session", func(t *testing.T) {
		p := newPlace(t)
		h, term, counted := p.counterOnTerminal(nil, "ENDS=no")
		check(t, term.master.Close())
		p.eventually("the command has counted it", func() bool { return len(counted()) > 0 })
		h.kill(syscall.SIGTERM)
		if code := h.died(); code != 7 {
			t.Errorf("exit %d", code)
		}
		if got := strings.Join(counted(), " "); got != "1 15" {
			t.Errorf("the command got %s", got)
		}
		p.free("x")
	})
	t.Run("if a shell does", func(t *testing.T) {
		p := newPlace(t)
		const script = `sh -c 'echo $$ >"$GUARD"; exec "$@"' sh "$@" & wait` // it is told before the command can have begun
		shell, term, counted := p.counterOnTerminal([]string{"sh", "-c", script, "sh"}, "ENDS=no", "GUARD="+p.dir+"/guard")
		_ = shell
		var guard int
		data, err := os.ReadFile(p.dir + "/guard")
		check(t, err)
		_, err = fmt.Sscan(string(data), &guard)
		check(t, err)
		check(t, term.master.Close()) // the shell ends, and the system tells the others
		p.eventually("the command has counted it", func() bool { return len(counted()) > 0 })
		check(t, syscall.Kill(guard, syscall.SIGTERM))
		p.comesFree("x")
		if got := strings.Join(counted(), " "); got != "1 15" {
			t.Errorf("the command got %s", got)
		}
	})
}

// Promise S-59.
func TestASignalInTheMomentOfTheGrantEndsTheGuard(t *testing.T) {
	p := newPlace(t)
	for i := range 60 {
		h := p.start(p.lokt("guard", "x", "--wait", "--", "sleep", "30"))
		time.Sleep(time.Duration(i) * time.Millisecond / 4) // until the command runs, and after
		h.kill(syscall.SIGTERM)
		if code := h.died(); code != 128+int(syscall.SIGTERM) {
			t.Fatalf("TERM after %v: exit %d; %s", time.Duration(i)*time.Millisecond/4, code, &h.stderr)
		}
	}
	p.free("x")
}

func TestAnInterruptOfAWaiterAtATerminalEndsIt(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("x")
	term := newTerminal(t)
	cmd := p.as("waiter").lokt("guard", "x", "--wait", "--", "touch", "ran")
	term.attach(cmd)
	w := p.start(cmd)
	check(t, term.slave.Close())
	term.until(t, `waiting, 1st in the queue: "x" is held by first@`)
	p.queued("x", 1)
	_, err := term.master.WriteString("\x03")
	check(t, err)
	if code := w.died(); code != 130 {
		t.Errorf("exit %d", code)
	}
	if q := p.queue("x"); len(q) != 0 {
		t.Errorf("left behind: %v", q)
	}
	h.finish()
}
