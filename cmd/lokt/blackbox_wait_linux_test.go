package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// agent returns the place for a coding agent.
func (p *place) agent() *place {
	return p.with("LOKT_OWNER=agent", "LOKT_AGENT_ID=a-1", "XDG_CACHE_HOME="+filepath.Join(filepath.Dir(p.dir), "cache"))
}

// inLine waits until those wait for the lock, next first; who is away has a minus.
func (p *place) inLine(name string, want ...string) {
	p.t.Helper()
	p.eventually(strings.Join(want, ", ")+" wait", func() bool {
		var v struct {
			Queue []struct {
				Owner string
				Away  bool
			}
		}
		if r := p.run("status", name, "--json"); r.code == 0 {
			check(p.t, json.Unmarshal([]byte(r.out), &v))
		}
		var got []string
		for _, w := range v.Queue {
			got = append(got, map[bool]string{true: "-"}[w.Away]+w.Owner)
		}
		return slices.Equal(got, want)
	})
}

var ticketLine = regexp.MustCompile(`lokt wait --ticket ([a-z2-7]{6})`)

// ticket waits until the command has told its ticket, which stays the same.
func (h *holder) ticket() string {
	h.t.Helper()
	h.tells("lokt wait --ticket ")
	return ticketLine.FindStringSubmatch(h.stderr.String())[1]
}

// eachPlace runs a test on files and on a server.
func eachPlace(t *testing.T, test func(p *place)) {
	t.Parallel()
	t.Run("files", func(t *testing.T) { test(newPlace(t)) })
	t.Run("server", func(t *testing.T) {
		p, _ := served(t)
		test(p)
	})
}

// The holder takes longer than the tool of an agent lets commands run, which ends them in one way or another. Each call lasts as
// long as the tool lets it, and the last one gets the lock, before a rival who came after the first.
//
// Promises S-220, S-221.
func TestAnAgentWaitsInOnePlaceWithACallForEachTimeOfItsTool(t *testing.T) {
	eachPlace(t, func(p *place) {
		p = p.with("ENTERED=" + filepath.Join(p.dir, "entered"))
		h := p.as("holder").hold("x")
		a := p.agent()
		enter := `echo "$0" >>"$ENTERED"; ` + loop
		call := a.start(a.lokt("guard", "x", "--wait", "--", "sh", "-c", enter, "agent"))
		p.inLine("x", "agent")
		r := p.as("rival")
		rival := r.start(r.lokt("guard", "x", "--wait", "--", "sh", "-c", enter, "rival"))
		ticket := call.ticket()
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT} {
			p.inLine("x", "agent", "rival")
			if again := call.ticket(); again != ticket {
				p.t.Errorf("the ticket was %s and is %s", ticket, again)
			}
			if r := a.want(1, "wait", "--ticket", ticket); !strings.Contains(r.stderr, "still waits with ticket") {
				p.t.Errorf("while it waits: %v", r)
			}
			call.kill(sig)
			if r := call.wait(); r.code != 128+int(sig) || sig != syscall.SIGKILL && !strings.Contains(r.stderr, "go on in the same place within 2m0s") {
				p.t.Errorf("after %v: %v", sig, r)
			}
			p.inLine("x", "-agent", "rival")
			call = a.start(a.lokt("wait", "--ticket", ticket))
		}
		p.inLine("x", "agent", "rival")
		call.tells("1st in the queue")
		h.finish()
		call.running()
		p.inLine("x", "rival")
		if got := p.entered(); !slices.Equal(got, []string{"agent"}) {
			p.t.Errorf("%v entered", got)
		}
		if r := a.want(3, "wait", "--ticket", ticket); !strings.Contains(r.stderr, "there is no ticket") {
			p.t.Errorf("when the lock was granted: %v", r)
		}
		call.finish()
		rival.running().finish()
	})
}

// endedWaiting has the agent's guard wait for x, and be ended, and returns its ticket.
func (p *place) endedWaiting() (ticket string) {
	p.t.Helper()
	call := p.start(p.lokt("guard", "x", "--wait", "--", "true"))
	p.inLine("x", "agent")
	ticket = call.ticket()
	call.kill(syscall.SIGTERM)
	call.wait()
	return ticket
}

// The tool of an agent gives each command an environment of its own: the ticket is that of another place and owner, or of none.
//
// Promise S-221.
func TestATicketGoesOnWhereAndAsWhomItWasMade(t *testing.T) {
	eachPlace(t, func(p *place) {
		h := p.as("holder").hold("x")
		a := p.agent()
		ticket := a.endedWaiting()
		for _, env := range [][]string{
			{"LOKT_ROOT=", "LOKT_SERVER=", "LOKT_OWNER=", "LOKT_AGENT_ID="},
			{"LOKT_ROOT=" + p.dir, "LOKT_SERVER=http://127.0.0.1:1", "LOKT_OWNER=other", "LOKT_AGENT_ID=a-2", "LOKT_TICKET=new"},
		} {
			p.inLine("x", "-agent")
			call := a.with(env...).start(a.with(env...).lokt("wait", "--ticket", ticket))
			p.inLine("x", "agent")
			call.kill(syscall.SIGKILL)
			call.wait()
		}
		other := a.with("LOKT_ROOT=", "LOKT_SERVER=", "LOKT_OWNER=other")
		call := other.start(other.lokt("wait", "--ticket", ticket))
		p.inLine("x", "agent")
		h.finish()
		if code := call.died(); code != 0 {
			p.t.Errorf("exit code %d", code)
		}
	})
}

// A token for a server is not written down: it is asked for, and a wrong one does not cost the place.
//
// Promise S-221.
func TestATicketHasNoSecretAndOutlivesAFailedTry(t *testing.T) {
	p := newPlace(t)
	file := filepath.Join(p.dir, "tokens")
	loktd, err := serverProgram()
	check(t, err)
	token := ""
	for word := range strings.FieldsSeq(p.finish(p.command(loktd, "token", "create", "ann", "--tokens", file)).out) {
		if len(word) > 20 {
			token = word
		}
	}
	d := &daemon{store: "sqlite:" + filepath.Join(p.dir, "loktd.db"), args: []string{"--tokens", file}}
	t.Cleanup(d.kill)
	check(t, d.up())
	p = p.with("LOKT_SERVER="+d.url, "LOKT_SERVER_TOKEN="+token)
	h := p.as("holder").hold("x")
	a := p.agent()
	ticket := a.endedWaiting()
	p.inLine("x", "-agent")
	text, err := os.ReadFile(filepath.Join(filepath.Dir(p.dir), "cache", "lokt", "tickets", ticket))
	check(t, err)
	if token == "" || strings.Contains(string(text), token) {
		t.Errorf("the token is in the ticket: %s", text)
	}
	contains(t, a.with("LOKT_SERVER_TOKEN=").want(1, "wait", "--ticket", ticket).stderr, "set LOKT_SERVER_TOKEN as it was")
	contains(t, a.with("LOKT_SERVER_TOKEN=wrong-but-there").want(1, "wait", "--ticket", ticket).stderr, "LOKT_SERVER_TOKEN")
	call := a.with("LOKT_SERVER=").start(a.with("LOKT_SERVER=").lokt("wait", "--ticket", ticket))
	p.inLine("x", "agent")
	call.tells("1st in the queue")
	h.finish()
	if code := call.died(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A guard of several locks waits for one that is not their first, and is ended and goes on. What it held it has again at once.
//
// Promises S-220, S-221.
func TestATicketOfSeveralLocksHasThePlaceInTheOneThatIsWaitedFor(t *testing.T) {
	eachPlace(t, func(p *place) {
		h, last := p.as("holder").hold("q3"), p.as("holder").hold("q4")
		a, r := p.agent(), p.as("rival")
		call := a.start(a.lokt("guard", "q2", "q3", "q4", "--wait", "--", "sh", "-c", loop))
		p.inLine("q3", "agent")
		rival := r.start(r.lokt("guard", "q3", "--wait", "--", "sh", "-c", loop))
		ticket := call.ticket()
		again := func(lock string, sig syscall.Signal) {
			p.inLine(lock, "agent", "rival")
			call.kill(sig)
			call.wait()
			p.inLine(lock, "-agent", "rival")
			call = a.start(a.lokt("wait", "--ticket", ticket))
			p.inLine(lock, "agent", "rival")
			if call.ticket() != ticket || strings.Contains(call.stderr.String(), `"q2"`) || strings.Contains(call.stderr.String(), "is gone") {
				p.t.Errorf("with ticket %s it says %s", ticket, &call.stderr)
			}
			if got := p.status("q2").PID; got != call.cmd.Process.Pid {
				p.t.Errorf("q2 is held by pid %d, not %d", got, call.cmd.Process.Pid)
			}
		}
		again("q3", syscall.SIGKILL)
		again("q3", syscall.SIGTERM)
		again("q3", syscall.SIGKILL)
		h.finish()
		p.inLine("q4", "agent")
		p.inLine("q3", "rival")
		rival.kill(syscall.SIGTERM)
		rival.wait()
		rival = r.start(r.lokt("guard", "q4", "--wait", "--", "sh", "-c", loop))
		again("q4", syscall.SIGKILL)
		again("q4", syscall.SIGTERM)
		last.finish()
		call.running()
		a.want(3, "wait", "--ticket", ticket)
		call.finish()
		rival.running().finish()
		p.inLine("q3")
	})
}

// Whoever is away is nobody's hindrance, and comes before those who came later when it is there again.
//
// Promise S-220.
func TestOthersPassATicketWhoseHolderIsAway(t *testing.T) {
	eachPlace(t, func(p *place) {
		h := p.as("holder").hold("x")
		a := p.agent()
		call := a.start(a.lokt("guard", "x", "--wait", "--", "sh", "-c", loop))
		p.inLine("x", "agent")
		ticket := call.ticket()
		call.kill(syscall.SIGKILL)
		p.inLine("x", "-agent")
		h.finish()
		first := p.as("first").hold("x") // at once: nobody is there who comes before it
		second := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--", "sh", "-c", loop))
		p.inLine("x", "-agent", "second")
		call = a.start(a.lokt("wait", "--ticket", ticket))
		p.inLine("x", "agent", "second")
		first.finish()
		call.running().finish()
		second.running().finish()
	})
}

// A wait whose time is over says so with the ticket, in JSON too; people and scripts, who are no agents, leave nothing.
//
// Promises S-40, S-221.
func TestAWaitWhoseTimeIsOverLeavesATicketToAnAgent(t *testing.T) {
	eachPlace(t, func(p *place) {
		h := p.as("holder").hold("x")
		a := p.agent()
		for _, args := range [][]string{{"lock", "x"}, {"guard", "x", "--", "true"}} {
			flags := []string{"--wait", "--timeout", "50ms", "--json"}
			r := a.want(2, append(append(slices.Clone(args[:2]), flags...), args[2:]...)...)
			var v struct {
				TimedOut bool `json:"timed_out"`
				Ticket   string
				GoOn     string `json:"go_on"`
			}
			check(p.t, json.Unmarshal([]byte(r.out), &v))
			if !v.TimedOut || v.GoOn != "lokt wait --ticket "+v.Ticket || !strings.Contains(r.stderr, v.GoOn) {
				p.t.Errorf("%v: %v", args, r)
			}
			p.inLine("x", "-agent")
			again := a.want(2, strings.Fields(v.GoOn)[1:]...)
			if !strings.Contains(again.out, v.Ticket) {
				p.t.Errorf("again: %v", again)
			}
			p.inLine("x", "-agent")
			h.finish()
			a.want(0, strings.Fields(v.GoOn)[1:]...)
			a.run("unlock", "x")
			h = p.as("holder").hold("x")
			p.inLine("x")
		}
		p.as("script").want(2, "lock", "x", "--wait", "--timeout", "50ms")
		p.inLine("x")
		h.finish()
	})
}

// Promise S-222.
func TestWaitEndsWhenOneOrAllOfTheLocksAreFree(t *testing.T) {
	eachPlace(t, func(p *place) {
		one, two := p.as("holder").hold("a"), p.as("holder").hold("b")
		if r := p.want(2, "wait", "a", "c", "--timeout", "2s"); !strings.Contains(r.out, "not free: a") {
			p.t.Error(r)
		}
		either := p.start(p.lokt("wait", "--any", "a", "b", "--json"))
		both := p.start(p.lokt("wait", "a", "b"))
		two.finish()
		if line := either.line(); line != `{"status":"free","names":["b"]}` {
			p.t.Errorf("either: %s", line)
		}
		one.finish()
		if line := both.line() + both.line(); line != "ab" {
			p.t.Errorf("both: %s", line)
		}
		if code := both.died(); code != 0 {
			p.t.Errorf("exit code %d", code)
		}
	})
}

// Of shells that go on with one ticket at the same moment one waits, and the others are told so at once.
//
// Promise S-221.
func TestOneOfSeveralGoesOnWithATicket(t *testing.T) {
	p := newPlace(t)
	const shells = 6
	for range 8 {
		h := p.as("holder").hold("x")
		a := p.agent()
		ticket := a.endedWaiting()
		ended := make(chan string, shells)
		for range shells {
			go func() {
				c := a.lokt("wait", "--ticket", ticket)
				text, _ := c.CombinedOutput()
				ended <- fmt.Sprint(c.ProcessState.ExitCode(), " ", string(text))
			}()
		}
		next := func() string {
			select {
			case text := <-ended:
				return text
			case <-time.After(30 * time.Second):
				t.Fatal("several wait with one ticket")
				return ""
			}
		}
		for range shells - 1 {
			if text := next(); !strings.HasPrefix(text, "1 ") || !strings.Contains(text, "still waits with ticket "+ticket) {
				t.Errorf("it ended with %s", text)
			}
		}
		p.inLine("x", "agent")
		h.finish()
		if text := next(); !strings.HasPrefix(text, "0 ") {
			t.Errorf("it ended with %s", text)
		}
	}
}
