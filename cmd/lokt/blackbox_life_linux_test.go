package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAKilledGuardHoldsAsLongAsItsCommandLives(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("x")
	h.kill(syscall.SIGKILL)
	if code := h.died(); code != 128+int(syscall.SIGKILL) {
		t.Fatalf("exit %d", code)
	}
	p.as("first").want(2, "guard", "x", "--", "true")
	p.as("first").in(t).want(2, "guard", "x", "--ttl", "1m", "--", "true")
	p.held("x")
	check(t, h.in.Close())
	p.comesFree("x")
	if takeovers := p.audit("x", "takeover"); len(takeovers) != 1 || takeovers[0].Extra["reason"] != "dead" {
		t.Errorf("audited: %v", takeovers)
	}
}

func TestAKilledGuardHoldsAsLongAsADescendantThatLeftItsSessionLives(t *testing.T) {
	p := newPlace(t)
	fifo := p.dir + "/fifo"
	check(t, syscall.Mkfifo(fifo, 0o600))
	h := p.start(p.lokt("guard", "x", "--", "sh", "-c", `setsid sh -c 'echo $$; read end <"$1"' sh "$1" & wait`, "sh", fifo)).running()
	h.kill(syscall.SIGKILL)
	h.died()
	shell := parentOf(t, h.child)
	check(t, syscall.Kill(shell, syscall.SIGKILL)) // the guard's command, but not what it started
	p.eventually("the command is gone", func() bool { return parentOf(t, h.child) != shell })
	p.held("x")
	check(t, os.WriteFile(fifo, []byte("end\n"), 0))
	p.comesFree("x")
}

// parentOf returns the parent's process ID of a living process.
func parentOf(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	check(t, err)
	var state string
	var parent int
	_, rest, _ := strings.Cut(string(data), ") ")
	_, err = fmt.Sscan(rest, &state, &parent)
	check(t, err)
	return parent
}

func TestAGuardThatIsKilledTogetherWithItsCommandFreesTheLockAtOnce(t *testing.T) {
	p := newPlace(t)
	for range 5 {
		cmd := p.lokt("guard", "x", "--", "sh", "-c", loop)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		h := p.start(cmd).running()
		check(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
		h.wait()
		p.comesFree("x")
	}
}

func TestACommandThatClosesAllDescriptorsStillCountsAsItsGuardsLife(t *testing.T) {
	p := newPlace(t)
	h := p.start(p.lokt("guard", "x", "--", "bash", "-c", `for f in /proc/$$/fd/*; do [ ${f##*/} -lt 3 ] || eval "exec ${f##*/}>&-"; done; `+loop)).running()
	p.eventually("the command has three descriptors", func() bool { // the shell itself opens one now and then
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.child))
		return err == nil && len(fds) == 3
	})
	h.noted("x")
	h.kill(syscall.SIGKILL)
	h.died()
	p.held("x")
	check(t, h.in.Close())
	p.comesFree("x")
}

func TestAZombieGuardIsDead(t *testing.T) {
	p := newPlace(t)
	cmd := p.lokt("guard", "x", "--", "cat")
	in, err := cmd.StdinPipe()
	check(t, err)
	check(t, cmd.Start())
	defer cmd.Wait() // not before: until then it is a zombie
	p.eventually("the lock is held", func() bool { return !p.absent("x") && p.record("x").ChildPID != 0 })
	p.held("x")
	r := p.record("x")
	check(t, cmd.Process.Kill())
	check(t, in.Close())
	p.eventually("the guard is a zombie", func() bool { return stateOf(r.PID) == "Z" })
	p.comesFree("x")
	p.plant("locks/old.json", fmt.Appendf(nil, `{"version":1,"name":"old","owner":"o","host":%q,"pid":%d,"pid_start_ns":%d,"acquired_ts":%q}`,
		r.Host, r.PID, r.PIDStart, time.Now().Format(time.RFC3339Nano)))
	p.free("old")
	if s := stateOf(r.PID); s != "Z" {
		t.Errorf("the guard's state is %q at the end: this proves little", s)
	}
}

// stateOf returns the letter for a process's state; it is empty if there is no such process.
func stateOf(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := strings.Cut(string(data), ") ")
	if err != nil || !ok || rest == "" {
		return ""
	}
	return rest[:1]
}

func TestARecordOfAnotherBootIsDead(t *testing.T) {
	p := newPlace(t)
	h := p.hold("x")
	h.noted("x")
	p.held("x")
	p.edit("x", map[string]any{"boot_id": "01234567-89ab-cdef-0123-456789abcdef"})
	p.free("x")
	r := h.end()
	if r.code != 0 {
		t.Errorf("the guard that was displaced: %v", r)
	}
	contains(t, r.stderr, `the lock "x" was lost`)
}

func TestARecordWithTheProcessIDOfALaterProcessIsDead(t *testing.T) {
	p := newPlace(t)
	h := p.hold("x")
	h.noted("x")
	live := p.record("x")
	host, err := os.Hostname()
	check(t, err)
	old := func(start int64) []byte {
		return fmt.Appendf(nil, `{"version":1,"name":"old","owner":"o","host":%q,"pid":%d,"pid_start_ns":%d,"acquired_ts":%q}`,
			host, live.PID, start, time.Now().Format(time.RFC3339Nano))
	}
	p.plant("locks/old.json", old(live.PIDStart))
	p.held("old")
	p.plant("locks/old.json", old(live.PIDStart-1))
	p.free("old")
	h.finish()
}

// namespaced returns the command as the first process of its own PID namespace. mount says whether /proc is that
// namespace's.
func (p *place) namespaced(mount bool, cmd *exec.Cmd) *exec.Cmd {
	p.t.Helper()
	args := []string{"--pid", "--fork", "--kill-child"}
	if mount {
		args = append(args, "--mount-proc")
	}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	if out, err := exec.Command("unshare", append(args, "true")...).CombinedOutput(); err != nil {
		p.t.Skipf("this machine permits no PID namespaces: %v: %s", err, out)
	}
	in := p.command("unshare", append(append(args, cmd.Path), cmd.Args[1:]...)...)
	in.Env = cmd.Env
	return in
}

func TestAGuardInAnotherPIDNamespaceIsSeenToLiveAndToDie(t *testing.T) {
	t.Parallel()
	for what, mount := range map[string]bool{"with its own proc": true, "with a foreign proc": false} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			h := p.start(p.namespaced(mount, p.lokt("guard", "x", "--", "sh", "-c", loop))).running()
			h.child = 0 // a process ID of another namespace
			p.held("x")
			time.Sleep(50 * time.Millisecond) // so that its command is noted, if it is
			p.held("x")
			h.kill(syscall.SIGKILL) // unshare, and with it the namespace
			h.wait()
			p.comesFree("x")

			h = p.hold("y")
			h.noted("y")
			r := p.finish(p.namespaced(mount, p.as("other").lokt("guard", "y", "--", "true")))
			if r.code != 2 {
				t.Errorf("from within the namespace, a guard outside: %v", r)
			}
			h.kill(syscall.SIGKILL)
			h.died()
			if r := p.finish(p.namespaced(mount, p.as("other").lokt("guard", "y", "--", "true"))); r.code != 2 {
				t.Errorf("from within the namespace, a killed guard outside whose command lives: %v", r)
			}
			check(t, h.in.Close())
			h.wait()
			p.eventually("from within the namespace the guard outside is dead", func() bool { // see comesFree
				return p.finish(p.namespaced(mount, p.as("other").lokt("guard", "y", "--", "true"))).code == 0
			})
		})
	}
}
