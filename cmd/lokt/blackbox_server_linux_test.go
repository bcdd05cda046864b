package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// served returns an empty place whose locks are kept by a loktd of its own.
func served(t *testing.T, args ...string) (*place, *daemon) {
	t.Helper()
	p := newPlace(t)
	d := &daemon{store: "sqlite:" + filepath.Join(filepath.Dir(p.dir), "loktd.db"), args: args}
	t.Cleanup(d.kill)
	check(t, d.up())
	return p.with("LOKT_SERVER=" + d.url), d
}

// through returns the place for somebody who reaches the server through a proxy, and the proxy.
func (p *place) through(d *daemon) (*place, *proxy) {
	p.t.Helper()
	x := newProxy(p.t, d.listen)
	return p.with("LOKT_SERVER=" + x.url()), x
}

// seen is what the tests look at in the status of a lock.
type seen struct {
	State    string
	Owner    string
	Token    uint64
	Renewals int
	PID      int
}

// status returns what the server has of the lock; zero if it is free.
func (p *place) status(name string) (s seen) {
	p.t.Helper()
	r := p.run("status", name, "--json")
	if r.code == 3 {
		return seen{}
	}
	if r.code != 0 {
		p.t.Fatalf("status %s: %v", name, r)
	}
	check(p.t, json.Unmarshal([]byte(r.out), &s))
	return s
}

func TestAServerOutOfReachIsAnErrorOfEveryCommandAndNothingIsRun(t *testing.T) {
	p := newPlace(t).with("LOKT_SERVER=http://127.0.0.1:1")
	_, err := serverProgram()
	check(t, err)
	var all sync.WaitGroup
	for _, args := range [][]string{
		{"guard", "x", "--", "touch", "wrong"}, {"guard", "x", "--wait", "--", "touch", "wrong"}, {"lock", "x"}, {"lock", "x", "--wait"}, {"unlock", "x"},
		{"unlock", "--all"}, {"exists", "x"}, {"why", "x"}, {"status"}, {"status", "x"}, {"status", "--watch"}, {"audit"}, {"freeze", "x", "--ttl", "1m"},
		{"unfreeze", "x"}, {"metrics"}, {"doctor"},
		{"job", "submit", "--wait"}, {"job", "list"}, {"job", "show", "x"}, {"job", "logs", "x"}, {"job", "cancel", "x"}, {"job", "stats"}, {"job", "workers"},
	} {
		cmd := p.lokt(args...)
		all.Go(func() {
			text, err := cmd.CombinedOutput()
			if code := ended(t, cmd, err); code != 1 || !strings.Contains(string(text), "http://127.0.0.1:1") {
				t.Errorf("lokt %v: exit %d: %s", args, code, text)
			}
		})
	}
	all.Wait()
	if _, err := os.Stat(filepath.Join(p.dir, "wrong")); err == nil {
		t.Error("a command was run")
	}
	r := p.want(0, "prime")
	contains(t, r.out, "Locks in this repository", "they cannot be read")
}

func TestASignalEndsAGuardWhoseServerDoesNotAnswerItsClaim(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer silent.Close()
	p := newPlace(t).with("LOKT_SERVER=http://" + silent.Addr().String())
	h := p.start(p.lokt("guard", "x", "--", "touch", "wrong"))
	check(t, silent.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)))
	asked, err := silent.Accept()
	check(t, err)
	defer asked.Close()
	check(t, h.cmd.Process.Signal(syscall.SIGTERM))
	if r := h.end(); r.code != 128+int(syscall.SIGTERM) {
		t.Error(r)
	}
}

// Promise S-107.
func TestAGuardSurvivesTheDeathOfItsServerIfItIsBackInTime(t *testing.T) {
	p, d := served(t)
	h := p.as("first").holdSeven("x", "--ttl", "15s")
	was := p.status("x")
	d.kill()
	check(t, d.up())
	p.eventually("it is renewed", func() bool { return p.status("x").Renewals > was.Renewals })
	p.as("second").want(2, "lock", "x")
	if is := p.status("x"); is.Token != was.Token || is.Owner != "first" {
		t.Errorf("was %+v and is %+v", was, is)
	}
	if r := h.end(); r.code != 7 || strings.Contains(r.stderr, "lost") {
		t.Error(r)
	}
	p.free("x")
}

func TestAGuardKeepsItsPlaceInTheQueueOverARestartOfTheServer(t *testing.T) {
	p, d := served(t)
	h := p.as("first").hold("x")
	next := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--", "sh", "-c", loop))
	p.waits("x", "second")
	d.kill()
	check(t, d.up())
	p.waits("x", "second")
	if r := h.end(); r.code != 0 {
		t.Error(r)
	}
	next.running()
	if r := next.end(); r.code != 0 {
		t.Error(r)
	}
}

// waits waits until the owner is in the queue.
func (p *place) waits(name, owner string) {
	p.t.Helper()
	p.eventually(owner+" waits", func() bool {
		var v struct{ Queue []struct{ Owner string } }
		r := p.run("status", name, "--json")
		if r.code == 0 {
			check(p.t, json.Unmarshal([]byte(r.out), &v))
		}
		for _, w := range v.Queue {
			if w.Owner == owner {
				return true
			}
		}
		return false
	})
}

// The command ends with the connection, and gives the lock back when it can, or leaves it to expire.
func TestACommandThatEndsWhileTheServerIsAwayEndsAsItDoes(t *testing.T) {
	p, d := served(t)
	h := p.holdSeven("x", "--ttl", "8s")
	d.kill()
	began := time.Now()
	r := h.end()
	if r.code != 7 {
		t.Error(r)
	}
	contains(t, r.stderr, "not everything could be given back, which expires within 8s")
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
}

// Promise S-105.
func TestAGuardThatIsCutOffEndsItsCommandBeforeAnotherEnters(t *testing.T) {
	t.Parallel()
	for what, nemesis := range map[string]func(*proxy){"silence": (*proxy).swallow, "closed connections": (*proxy).cut} {
		t.Run(what, func(t *testing.T) {
			p, d := served(t)
			q, x := p.as("first").through(d)
			h, log := q.family("TERM", "x", "--ttl", "8s")
			nemesis(x)
			next := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--", "date", "+%s%N"))
			entered, err := strconv.ParseInt(next.line(), 10, 64)
			check(t, err)
			workedUntil(t, log, time.Unix(0, entered))
			r := h.wait()
			if r.code != 5 || strings.Count(r.stderr, "is about to be lost: it could not be renewed in time: stopping the command") != 1 {
				t.Errorf("want exit 5 and to be told once: %v", r)
			}
			if r := next.wait(); r.code != 0 {
				t.Error(r)
			}
		})
	}
}

func TestAGuardWhoseServerIsPausedEndsItsCommandBeforeAnotherEnters(t *testing.T) {
	p, d := served(t)
	h, log := p.as("first").family("TERM", "x", "--ttl", "8s")
	check(t, d.cmd.Process.Signal(syscall.SIGSTOP))
	next := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--", "date", "+%s%N"))
	if code := h.died(); code != 5 {
		t.Errorf("exit %d: %s", code, &h.stderr)
	}
	check(t, d.cmd.Process.Signal(syscall.SIGCONT))
	entered, err := strconv.ParseInt(next.line(), 10, 64)
	check(t, err)
	workedUntil(t, log, time.Unix(0, entered))
	if r := next.wait(); r.code != 0 {
		t.Error(r)
	}
}

func TestAnOutageThatEndsInTimeLosesNothing(t *testing.T) {
	p, d := served(t)
	q, x := p.as("first").through(d)
	h := q.holdSeven("x", "--ttl", "20s")
	was := p.status("x")
	x.swallow()
	h.tells("could not be renewed, trying again")
	x.mend()
	p.eventually("it is renewed", func() bool { return p.status("x").Renewals > was.Renewals })
	if r := h.end(); r.code != 7 || strings.Contains(r.stderr, "lost") {
		t.Error(r)
	}
	p.free("x")
}

func TestASignalThatComesWhenItsCommandHasEndedLeavesNoLockBehind(t *testing.T) {
	p, _ := served(t)
	for range 10 {
		p.want(7, "guard", "x", "--ttl", "1h", "--", "sh", "-c", "trap '' INT; kill -INT $PPID; exit 7")
		p.want(3, "exists", "x")
	}
}

// Promise S-108.
func TestTheCommandOfAKilledGuardOnAServerDiesWithIt(t *testing.T) {
	p, _ := served(t)
	h := p.as("first").hold("x", "--ttl", "8s")
	h.kill(syscall.SIGKILL)
	p.eventually("the command is dead", func() bool { return !h.childLives() })
	p.as("second").want(0, "guard", "x", "--wait", "--", "true")
}

// Eight guards work under one lock, each a little, over connections that break all the time. Whoever works writes who it
// is, again and again.
func TestEightGuardsOverBrokenConnectionsNeverWorkAtOnce(t *testing.T) {
	p, d := served(t)
	const guards, work = 8, `for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "$LOKT_OWNER $LOKT_TOKEN" >>"$LOG"; sleep 0.02; done`
	log := filepath.Join(p.dir, "log")
	var all []*holder
	var proxies []*proxy
	for i := range guards {
		q, x := p.as(fmt.Sprint("guard-", i)).with("LOG=" + log).through(d)
		proxies = append(proxies, x)
		all = append(all, q.start(q.lokt("guard", "x", "--wait", "--ttl", "8s", "--", "sh", "-c", work)))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, h := range all {
			h.died()
		}
	}()
	cuts := 0
	for ended := false; !ended; cuts++ {
		x := proxies[cuts%guards]
		if cuts%3 == 0 {
			x.swallow()
		} else {
			x.cut()
		}
		select {
		case <-done:
			ended = true
		case <-time.After(60 * time.Millisecond):
		}
		x.mend()
	}
	ran := 0
	for _, h := range all {
		switch r := h.wait(); r.code {
		case 0:
			ran++
		case 1, 2, 5: // out of reach for too long, or stopped for it
		default:
			t.Error(r)
		}
	}
	data, err := os.ReadFile(log)
	check(t, err)
	var last string
	had := map[string]bool{}
	var token uint64
	for line := range strings.Lines(string(data)) {
		var who string
		var n uint64
		_, err := fmt.Sscan(line, &who, &n)
		check(t, err)
		if who != last && had[who] {
			t.Errorf("%s worked, and then %s, and then %[1]s again", who, last)
		}
		if n < token {
			t.Errorf("%s worked with the token %d after somebody had %d", who, n, token)
		}
		last, token, had[who] = who, n, true
	}
	t.Logf("%d of %d ran to their end, with %d cuts", ran, guards, cuts)
	if ran == 0 {
		t.Error("none ran to its end")
	}
}

// Promise S-109.
func TestTokensOpenAServerAndAreNowhereToBeSeen(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(p.dir, "tokens")
	loktd, err := serverProgram()
	check(t, err)
	token := func(name string, args ...string) string {
		r := p.finish(p.command(loktd, append([]string{"token", "create", name, "--tokens", file}, args...)...))
		if r.code != 0 {
			t.Fatal(r)
		}
		for _, word := range strings.Fields(r.out) {
			if len(word) > 20 {
				return word
			}
		}
		t.Fatal(r)
		return ""
	}
	ann, bob := token("ann"), token("bob", "--scopes", "read")
	d := &daemon{store: "sqlite:" + filepath.Join(p.dir, "loktd.db"), args: []string{"--tokens", file}}
	t.Cleanup(d.kill)
	check(t, d.up())
	p = p.with("LOKT_SERVER=" + d.url)

	r := p.want(1, "guard", "x", "--", "touch", "wrong")
	contains(t, r.stderr, "set LOKT_SERVER_TOKEN, or LOKT_TOKEN_FILE")
	r = p.with("LOKT_SERVER_TOKEN="+bob).want(1, "lock", "x", "--json")
	contains(t, r.out, `"code":"forbidden"`)
	p.with("LOKT_SERVER_TOKEN="+bob).want(3, "exists", "x")
	r = p.with("LOKT_SERVER_TOKEN=nonsense-and-more").want(1, "status")
	if strings.Contains(r.String(), "nonsense") {
		t.Errorf("the token is told: %v", r)
	}
	contains(t, p.with("LOKT_SERVER_TOKEN="+bob).want(0, "doctor").out, `you are "bob" to the server, with the scopes read: taking locks needs lock too`)

	q := p.with("LOKT_SERVER_TOKEN=" + ann)
	h := q.hold("x")
	for _, pid := range []int{h.cmd.Process.Pid, h.child} {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		check(t, err)
		if strings.Contains(string(line), ann) {
			t.Errorf("the token is in the command line of %d: %q", pid, line)
		}
	}
	h.finish()
	// Commands inside a guard reach the server all the same.
	path, err := program()
	check(t, err)
	q.want(0, "guard", "x", "--", path, "guard", "x", "y", "--", path, "lock", "z")
	secret := filepath.Join(p.dir, "secret")
	check(t, os.WriteFile(secret, []byte(ann+"\n"), 0o600))
	q = p.with("LOKT_TOKEN_FILE=" + secret)
	q.want(0, "exists", "z")
	q.want(0, "unlock", "z")
	for _, args := range [][]string{{"status"}, {"audit", "--json"}, {"doctor"}, {"doctor", "--json"}, {"metrics"}} {
		if r := q.run(args...); strings.Contains(r.String(), ann) {
			t.Errorf("the token is told by %v", args)
		}
	}
}

func TestAnotherTokenDoesNotReleaseWhatItsOwnerNameHolds(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(p.dir, "tokens")
	loktd, err := serverProgram()
	check(t, err)
	var tokens []string
	for _, name := range []string{"one", "two"} {
		r := p.finish(p.command(loktd, "token", "create", name, "--tokens", file, "--scopes", "read,lock"))
		for _, word := range strings.Fields(r.out) {
			if len(word) > 20 {
				tokens = append(tokens, word)
				break
			}
		}
	}
	if len(tokens) != 2 {
		t.Fatalf("tokens: %d", len(tokens))
	}
	d := &daemon{store: "sqlite:" + filepath.Join(p.dir, "loktd.db"), args: []string{"--tokens", file}}
	t.Cleanup(d.kill)
	check(t, d.up())
	p = p.as("same").with("LOKT_SERVER=" + d.url)
	one, two := p.with("LOKT_SERVER_TOKEN="+tokens[0]), p.with("LOKT_SERVER_TOKEN="+tokens[1])
	one.want(0, "lock", "x")
	contains(t, two.want(4, "unlock", "x").stderr, "taken with another token")
	contains(t, two.want(1, "unlock", "x", "--force").stderr, `the scope "force" is missing`)
	contains(t, two.want(2, "lock", "x").stderr, "one/same")
	contains(t, two.want(2, "why", "x").out, "one/same")
	one.want(0, "lock", "x") // enters again
	if r := one.want(0, "status", "x"); strings.Contains(r.out, "one/") {
		t.Error(r)
	}
	one.want(0, "unlock", "x")
	one.want(0, "freeze", "x", "--ttl", "10m")
	contains(t, two.want(4, "unfreeze", "x").stderr, "yours by name, but taken with another token")
	one.want(0, "unfreeze", "x")
}

func TestAGuardGoesOnWithAnotherAddressOfItsServer(t *testing.T) {
	p, d := served(t)
	_, x := p.through(d)
	_, y := p.through(d)
	q := p.as("first").with("LOKT_SERVER=" + x.url() + "," + y.url())
	h := q.holdSeven("x", "--ttl", "12s")
	for i, cut := range []*proxy{x, y, x} {
		cut.cut()
		was := p.status("x").Renewals
		p.eventually("it is renewed", func() bool { return p.status("x").Renewals > was })
		if cut.mend(); !h.childLives() {
			t.Fatalf("the command ended, %d: %s", i, &h.stderr)
		}
	}
	r := h.end()
	for line := range strings.Lines(r.stderr) { // an answer that is slow because the machine is busy is told of
		if !strings.Contains(line, "could not be renewed, trying again") {
			t.Errorf("it says %q", line)
		}
	}
	if r.code != 7 {
		t.Error(r)
	}
	p.free("x")
}

func TestWhyExplainsHoldersOnOtherHosts(t *testing.T) {
	p, _ := served(t)
	args := []string{"--uts"}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	path, err := program()
	check(t, err)
	const script = `hostname elsewhere || exit 99; "$1" lock y; exec "$1" guard x -- sh -c 'echo $$; exec cat'`
	probe := p.finish(p.command("unshare", append(args, "hostname", "elsewhere")...))
	if probe.code != 0 {
		t.Skipf("this machine lets nobody have another name: %v", probe)
	}
	h := p.as("ann").start(p.as("ann").command("unshare", append(args, "sh", "-c", script, "sh", path)...))
	if line := h.line(); !strings.HasPrefix(line, "locked y until it is unlocked") {
		t.Fatal(line, &h.stderr)
	}
	h.running()
	q := p.as("bob")
	r := q.want(2, "why", "x")
	contains(t, r.out, "it is held by ann@elsewhere", " there, guard of ", "expires in", "its guard on elsewhere renews it while its command runs; if the guard or elsewhere dies, it expires")
	if strings.Contains(r.out, "--force") {
		t.Errorf("it suggests force against a guard that expires: %s", r.out)
	}
	r = q.want(2, "why", "y")
	contains(t, r.out, "only unlocking it ends it, whatever becomes of elsewhere", "lokt unlock y --force --id L-")
	contains(t, q.want(0, "status", "x").out, "pid_status:    unknown")
	p.as("ann").want(0, "unlock", "y")
	if r := h.end(); r.code != 0 {
		t.Error(r)
	}
}
