package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/identity"
)

func TestALeaseExcludesOthersLongAfterItsProgramHasGone(t *testing.T) {
	p := newPlace(t)
	for what, lock := range map[string]func(*exec.Cmd) result{
		"without a terminal": p.finish,
		"on a terminal":      func(cmd *exec.Cmd) result { return onTerminal(t, p, cmd) },
		"in its own session": func(cmd *exec.Cmd) result { return p.finish(inSession(cmd)) },
	} {
		name := strings.ReplaceAll(what, " ", "-")
		if r := lock(p.as("first").lokt("lock", name)); r.code != 0 {
			t.Fatalf("%s: %v", what, r)
		}
		if pid := p.record(name).PID; stateOf(pid) != "" {
			t.Fatalf("process %d still lives: this proves little", pid)
		}
		for range 3 {
			p.as("second").want(2, "lock", name)
			p.held(name)
		}
		p.as("second").want(4, "unlock", name)
		p.as("second").want(2, "lock", name)
		p.as("first").want(0, "unlock", name)
		p.as("second").want(0, "lock", name)
	}
}

// onTerminal runs the command in a session of its own that has a terminal, and returns what appears there.
func onTerminal(t *testing.T, p *place, cmd *exec.Cmd) result {
	t.Helper()
	term := newTerminal(t)
	term.attach(cmd)
	h := p.start(cmd)
	check(t, term.slave.Close())
	out := term.rest()
	r := h.wait()
	r.out = out
	return r
}

// terminal is a pseudo-terminal: what a person types goes into master, and what they see comes out.
type terminal struct {
	t             *testing.T
	master, slave *os.File
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	check(t, err)
	t.Cleanup(func() { master.Close() })
	check(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	check(t, err)
	slave, err := os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(n)), os.O_RDWR|syscall.O_NOCTTY, 0)
	check(t, err)
	t.Cleanup(func() { slave.Close() })
	return &terminal{t, master, slave}
}

// attach makes the terminal the command's: its standard streams, and the controlling terminal of its new session.
func (term *terminal) attach(cmd *exec.Cmd) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.slave, term.slave, term.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
}

// until reads until the text has appeared.
func (term *terminal) until(t *testing.T, text string) {
	t.Helper()
	var all string
	buf := make([]byte, 4096)
	for !strings.Contains(all, text) {
		n, err := term.master.Read(buf)
		if all += string(buf[:n]); err != nil {
			t.Fatalf("want %q, got %q: %v", text, all, err)
		}
	}
}

// rest returns all that appears until the last program has closed the terminal.
func (term *terminal) rest() string {
	var all strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := term.master.Read(buf)
		all.Write(buf[:n])
		if err != nil { // EIO: nobody is left
			return all.String()
		}
	}
}

func TestTwoSessionsOfOnePersonExcludeEachOther(t *testing.T) {
	if identity.Find().Method == identity.Agent {
		t.Skip("a coding agent runs this: all its sessions are one owner")
	}
	p := newPlace(t)
	p.want(0, "lock", "x")
	p.want(0, "lock", "x")
	if r := p.finish(inSession(p.lokt("lock", "x"))); r.code != 2 {
		t.Errorf("from another session: %v", r)
	}
	if r := onTerminal(t, p, p.lokt("lock", "x")); r.code != 2 {
		t.Errorf("from a terminal: %v", r)
	}
	agent := p.with("LOKT_AGENT_ID=agent-1")
	agent.want(2, "lock", "x")
	agent.want(0, "lock", "y")
	agent.want(0, "lock", "y")
	if r := p.finish(inSession(agent.lokt("lock", "y"))); r.code != 0 {
		t.Errorf("the same agent from another session: %v", r)
	}
	p.want(2, "lock", "y")
}

func TestALeaseWithPIDIsFreeWhenThatProcessEnds(t *testing.T) {
	p := newPlace(t)
	sleeper := p.command("cat")
	in, err := sleeper.StdinPipe()
	check(t, err)
	check(t, sleeper.Start())
	p.as("first").want(0, "lock", "x", "--pid", strconv.Itoa(sleeper.Process.Pid))
	p.held("x")
	if r := p.record("x"); r.PID != sleeper.Process.Pid || r.PIDStart == 0 {
		t.Errorf("pid %d, pid_start_ns %d in the record, want those of process %d", r.PID, r.PIDStart, sleeper.Process.Pid)
	}
	check(t, in.Close())
	p.comesFree("x") // a zombie is enough
	check(t, sleeper.Wait())

	if r := p.want(1, "lock", "x", "--pid", strconv.Itoa(sleeper.Process.Pid)); r.stderr == "" {
		t.Error("nothing is said about a process that has ended")
	}
	p.want(64, "lock", "x", "--pid", "0")
	p.want(64, "lock", "x", "--pid", "-1")
	if !p.absent("x") {
		t.Error("a claim that was refused left a record")
	}
}

func TestAWaiterEntersWhenTheProcessOfALeaseEnds(t *testing.T) {
	p := newPlace(t)
	sleeper := p.command("cat")
	in, err := sleeper.StdinPipe()
	check(t, err)
	check(t, sleeper.Start())
	p.as("first").want(0, "lock", "x", "--pid", strconv.Itoa(sleeper.Process.Pid))
	w := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--", "echo", "in"))
	p.queued("x", 1)
	check(t, in.Close())
	check(t, sleeper.Wait())
	if line := w.line(); line != "in" {
		t.Errorf("the waiter says %q", line)
	}
	w.wait()
}

func TestTheSameOwnerRefreshesALease(t *testing.T) {
	p := newPlace(t)
	agent := p.as("agent-1")
	agent.want(0, "lock", "foo", "--ttl", "5m")
	first := p.record("foo")
	if d := first.ExpiresAt.Sub(first.AcquiredTS); d != 5*time.Minute || first.TTLSec != 300 {
		t.Errorf("expires %v after it was acquired, and ttl_sec is %d", d, first.TTLSec)
	}

	agent.want(0, "lock", "foo", "--ttl", "10m")
	second := p.record("foo")
	if !second.AcquiredTS.After(first.AcquiredTS) {
		t.Errorf("acquired_ts was %v and is %v", first.AcquiredTS, second.AcquiredTS)
	}
	if second.PID == first.PID {
		t.Errorf("pid is still %d", first.PID)
	}
	if second.PIDStart == 0 || second.Host == "" || second.TTLSec != 600 || second.ExpiresAt.Sub(second.AcquiredTS) != 10*time.Minute {
		t.Errorf("after the refresh: %+v", second)
	}
	if second.LockID != first.LockID || second.Token != first.Token || second.HeldSince.Sub(first.HeldSince).Abs() > time.Millisecond {
		t.Errorf("it is another hold: %+v, was %+v", second, first)
	}
	p.as("agent-2").want(2, "lock", "foo")
	if got := p.audit("foo", "acquire", "renew"); len(got) != 2 || got[0].Event != "acquire" || got[1].Event != "renew" {
		t.Errorf("audited: %v", got)
	}

	began := time.Now()
	agent.want(0, "lock", "foo", "--wait") // and thereby without a TTL
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("with --wait the refresh took %v", d)
	}
	if third := p.record("foo"); !third.ExpiresAt.IsZero() || third.TTLSec != 0 || strings.Contains(string(p.bytes("foo")), "expires_at\":\"") {
		t.Errorf("the TTL is still there: %s", p.bytes("foo"))
	}
	var told struct {
		Status, Name string
		LockID       string `json:"lock_id"`
		Token        uint64
		ExpiresAt    *time.Time `json:"expires_at"`
	}
	check(t, json.Unmarshal([]byte(agent.want(0, "lock", "foo", "--json", "--ttl", "1m").out), &told))
	if told.Status != "acquired" || told.Name != "foo" || told.LockID != first.LockID || told.Token != first.Token || told.ExpiresAt == nil {
		t.Errorf("told: %+v", told)
	}
	if n := len(p.record("foo").Holders); n != 0 {
		t.Errorf("%d holders, want the one", n)
	}
}

func TestARefreshDoesNotAskWhichHostOrProcessHeldTheLeaseOrWhetherItExpired(t *testing.T) {
	p := newPlace(t)
	agent := p.as("agent-1")
	past := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339Nano) }

	agent.want(0, "lock", "elsewhere")
	p.edit("elsewhere", map[string]any{"host": "host-a", "boot_id": "another-boot", "pid": 1})
	agent.want(0, "lock", "elsewhere")
	if r := p.record("elsewhere"); r.Host == "host-a" || r.PID == 1 {
		t.Errorf("host and process are still the old ones: %+v", r)
	}
	p.as("agent-2").want(2, "lock", "elsewhere")

	agent.want(0, "lock", "expired", "--ttl", "1m")
	id := p.record("expired").LockID
	p.edit("expired", map[string]any{"acquired_ts": past(time.Hour), "expires_at": past(time.Minute)})
	agent.want(0, "lock", "expired", "--ttl", "1m")
	if r := p.record("expired"); r.LockID != id || !r.ExpiresAt.After(time.Now()) {
		t.Errorf("not refreshed: %+v", r)
	}
	p.as("agent-2").want(2, "lock", "expired")

	// As an older program would have written it.
	host, err := os.Hostname()
	check(t, err)
	old, err := json.Marshal(map[string]any{"version": 1, "name": "old", "owner": "agent-1", "host": host, "pid": p.deadPID(), "acquired_ts": past(time.Minute)})
	check(t, err)
	p.plant("locks/old.json", old)
	agent.want(0, "lock", "old")
	p.as("agent-2").want(2, "lock", "old")
	p.plant("locks/old.json", old)
	p.as("agent-2").want(0, "lock", "old") // whose process is dead

	p.plant("locks/corrupt.json", []byte("{broken"))
	agent.want(0, "lock", "corrupt")
	p.as("agent-2").want(2, "lock", "corrupt")
	if got := p.audit("corrupt", "corrupt-break", "acquire"); len(got) != 2 {
		t.Errorf("audited: %v", got)
	}
}

func TestSimultaneousRefreshesOfOneOwnerAllSucceed(t *testing.T) {
	p := newPlace(t)
	agent := p.as("agent-1")
	agent.want(0, "lock", "x", "--ttl", "1m")
	id := p.record("x").LockID
	g := newGate(t)
	var all []*holder
	for range 8 {
		all = append(all, p.start(g.behind(agent, agent.lokt("lock", "x", "--ttl", "2m"))))
	}
	g.open()
	for _, h := range all {
		if r := h.wait(); r.code != 0 {
			t.Error(r)
		}
	}
	if r := p.record("x"); r.LockID != id || len(r.Holders) != 0 || r.TTLSec != 120 {
		t.Errorf("afterwards: %+v", r)
	}
}

func TestTheExpiryOnRecordDecidesAndTheTTLOnlyWithoutIt(t *testing.T) {
	p := newPlace(t)
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339Nano) }
	for name, c := range map[string]struct {
		fields map[string]any
		code   int
	}{
		"expired":          {map[string]any{"acquired_ts": ago(0), "ttl_sec": 3600, "expires_at": ago(time.Second)}, 0},
		"not-expired":      {map[string]any{"acquired_ts": ago(time.Hour), "ttl_sec": 1, "expires_at": ago(-time.Hour)}, 2},
		"old-expired":      {map[string]any{"acquired_ts": ago(time.Hour), "ttl_sec": 60}, 0},
		"old-not-expired":  {map[string]any{"acquired_ts": ago(time.Minute), "ttl_sec": 3600}, 2},
		"without-a-ttl":    {map[string]any{"acquired_ts": ago(1000 * time.Hour)}, 2},
		"version-missing":  {map[string]any{"version": nil, "acquired_ts": ago(time.Hour), "ttl_sec": 3700}, 2},
		"version-too-high": {map[string]any{"version": 2, "acquired_ts": ago(time.Hour), "ttl_sec": 60}, 1},
	} {
		fields := map[string]any{"version": 1, "name": name, "owner": "somebody", "host": "elsewhere", "pid": 1, "unknown": []int{1}}
		for k, v := range c.fields {
			if fields[k] = v; v == nil {
				delete(fields, k)
			}
		}
		data, err := json.Marshal(fields)
		check(t, err)
		p.plant("locks/"+name+".json", data)
		if r := p.as("other").run("lock", name); r.code != c.code {
			t.Errorf("%s: want exit %d, got %v", name, c.code, r)
		}
		if c.code != 0 && string(p.bytes(name)) != string(data) {
			t.Errorf("%s: a claim that was refused changed the record: %s", name, p.bytes(name))
		}
	}
}

func TestALeaseAndAGuardOfOneOwnerNeverEndEachOther(t *testing.T) {
	p := newPlace(t)
	agent, other := p.as("agent-1"), p.as("agent-2")

	agent.want(0, "lock", "x")
	h := agent.hold("x")
	h.finish()
	other.want(2, "lock", "x") // the lease is still there
	agent.want(0, "unlock", "x")
	other.want(0, "lock", "x")
	other.want(0, "unlock", "x")

	h = agent.hold("x")
	agent.want(0, "lock", "x")
	agent.want(2, "guard", "x", "--", "true") // guards are strict
	agent.want(0, "unlock", "x")
	other.want(2, "lock", "x") // the guard is still there
	r := agent.run("unlock", "x")
	if r.code == 0 {
		t.Errorf("unlock ended a guard: %v", r)
	}
	other.want(2, "lock", "x")
	agent.want(0, "lock", "x", "--ttl", "1m")
	h.finish()
	other.want(2, "lock", "x")
	agent.want(0, "unlock", "x")
	other.want(0, "lock", "x")

	// A guard that dies takes only its own hold along.
	h = agent.hold("y")
	agent.want(0, "lock", "y")
	h.kill(syscall.SIGKILL)
	check(t, h.in.Close())
	h.wait()
	other.want(2, "lock", "y")
	p.eventually("its own hold is over", func() bool { return agent.run("guard", "y", "--", "true").code == 0 }) // see comesFree
	other.want(2, "lock", "y")
	agent.want(0, "unlock", "y")
	other.want(0, "lock", "y")
}

func TestALeaseIsFreeAfterItsTimeAndNotBefore(t *testing.T) {
	p := newPlace(t)
	const ttl = 2 * time.Second
	began := time.Now()
	p.as("first").want(0, "lock", "x", "--ttl", ttl.String())
	p.eventually("it comes free", func() bool { return p.as("second").run("lock", "x").code != 2 })
	if d := time.Since(began); d < ttl {
		t.Errorf("free after %v", d)
	}
}
