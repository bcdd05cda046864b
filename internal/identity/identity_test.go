package identity

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/process"
)

// line describes processes, the calling one first: PID, session, NAME, and tty if the session has a terminal. They were called
// as what stands behind the last colon says.
func line(words ...string) (all []process.Relative, args func(int) []string) {
	calls := map[int][]string{}
	for _, w := range words {
		fields := strings.SplitN(w, ":", 4)
		pid, sid := len(all)+100, 0
		for i, c := range fields[0] {
			if sid = 100 + int(c-'a'); i > 0 {
				panic(w)
			}
		}
		name, tty := strings.CutSuffix(fields[1], "+")
		all = append(all, process.Relative{PID: pid, Start: int64(pid) * 10, Session: sid, Name: name, Terminal: tty})
		if len(fields) > 2 {
			calls[pid] = strings.Fields(fields[2])
		}
	}
	return all, func(pid int) []string { return calls[pid] }
}

// Promise S-193.
func TestTheNearestAgentTellsThenTheTerminal(t *testing.T) {
	// The i-th process has the PID 100+i; its session is the letter: a is that of the process 100, b of 101 and so on.
	for _, c := range []struct {
		about, method string
		pid           int
		processes     []string
	}{
		{"an agent whose commands have sessions of their own", Agent, 102, []string{"a:lokt", "b:bash", "e:claude+:claude", "e:zsh+", "e:sshd"}},
		{"an agent whose command is in the terminal", Agent, 101, []string{"c:lokt+", "c:codex+:/usr/bin/codex", "c:zsh+"}},
		{"an agent that node runs", Agent, 101, []string{"a:lokt", "c:node-MainThread+:node --no-warnings /usr/bin/gemini -y", "c:zsh+"}},
		{"an agent that python runs", Agent, 101, []string{"a:lokt", "c:python3.12+:/usr/bin/python3 /home/u/.local/bin/aider", "c:zsh+"}},
		{"the nearest of two", Agent, 101, []string{"a:lokt", "b:codex:codex exec x", "c:claude+:claude", "d:zsh+"}},
		{"a helper of an agent is passed over", Agent, 102, []string{"a:lokt", "b:codex:codex-linux-sandbox -- bash", "d:codex+:codex", "d:zsh+"}},
		{"a terminal within an agent is the agent's", Agent, 102, []string{"b:lokt+", "b:bash+", "d:claude+:claude", "d:zsh+"}},
		{"another script of node", Terminal, 102, []string{"c:lokt+", "c:node+:node build.js claude", "c:zsh+"}},
		{"a server for several sessions", Program, 101, []string{"a:lokt", "d:codex+:codex app-server", "d:zsh+", "d:login+"}},
		{"an editor of the name", Terminal, 102, []string{"c:lokt+", "c:vim+:vim claude", "c:zsh+"}},
		{"a terminal", Terminal, 101, []string{"b:lokt+", "b:zsh+", "c:sshd"}},
		{"a terminal whose first process is gone", Terminal, 107, []string{"h:lokt+", "h:sh+", "c:init"}},
		{"setsid in a terminal", Terminal, 101, []string{"a:lokt", "b:zsh+", "c:sshd"}},
		{"a program in a terminal", Program, 102, []string{"a:lokt", "a:bash", "d:agent+", "d:zsh+"}},
		{"a program that has left the terminal", Program, 101, []string{"a:lokt", "b:agent", "c:zsh+"}},
		{"no terminal", Session, 101, []string{"b:lokt", "b:bash", "c:cron"}},
		{"nothing above", Session, 100, []string{"a:lokt"}},
	} {
		all, args := line(c.processes...)
		w := find(all, args)
		if w.Method != c.method || w.PID != c.pid || w.Session == "" || !strings.Contains(w.Session, "-10") {
			t.Errorf("%s: %+v", c.about, w)
		}
	}
}

func TestTwoOfAKindAreTwo(t *testing.T) {
	ids := map[string]bool{}
	for _, processes := range [][]string{
		{"a:lokt", "d:claude+:claude", "d:sh+", "d:zsh+"},
		{"a:lokt", "d:sh+", "d:claude+:claude", "d:zsh+"},
		{"a:lokt", "d:agent+", "d:sh+", "d:zsh+"},
		{"a:lokt", "a:sh", "d:agent+", "d:zsh+"},
		{"d:lokt+", "d:sh+", "d:sh+", "d:zsh+"},
	} {
		all, args := line(processes...)
		ids[find(all, args).Session] = true
	}
	if len(ids) != 5 {
		t.Errorf("five have the sessions %v", ids)
	}
	all, args := line("a:lokt", "d:claude+:claude", "d:sh+", "d:zsh+")
	before := find(all, args).Session
	if all[1].Start++; find(all, args).Session == before {
		t.Error("a later process with the same ID is taken for the same agent")
	}
}

func TestTheEnvironmentComesFirst(t *testing.T) {
	none := func() string { t.Error("notes were asked for"); return "" }
	of := func(env map[string]string, notes func() string) Who {
		return Of(func(k string) string { return env[k] }, notes, false)
	}
	if w := of(map[string]string{FromAgent: "x"}, none); w.Session != "x" || w.AnySession || w.Method != FromAgent || w.ID == "" {
		t.Errorf("LOKT_AGENT_ID: %+v", w)
	}
	if w := of(map[string]string{FromAgent: "x", FromOwner: "o"}, none); w.ID != "o" || !w.AnySession || w.Method != FromOwner || w.Session != "x" {
		t.Errorf("LOKT_OWNER: %+v", w)
	}
	dir := t.TempDir()
	w := of(nil, func() string { return dir })
	if w.Session == "" || w.Host == "" || w.Process.PID != os.Getpid() || w.Method == FromAgent || w.String() == "" {
		t.Errorf("without a variable: %+v", w)
	}
	agent := Who{Method: Agent}
	agent.Session = "claude-1-2-3"
	if got := agent.Note(dir); got != filepath.Join(dir, "claude-1-2-3") || agent.Note("") != "" || (Who{Method: Program}).Note(dir) != "" {
		t.Errorf("its note is %s", got)
	}
}

func TestAgentsHaveNamesThatTheSystemShowsWhole(t *testing.T) {
	for name := range agents() {
		if len(name) > 15 || name != strings.ToLower(name) || slices.Contains([]string{"node", "bash"}, name) {
			t.Errorf("%s is never seen", name)
		}
	}
}

// What a guard pays to know its owner.
func BenchmarkFind(b *testing.B) {
	for b.Loop() {
		Find()
	}
}

func TestNotesThatNoHookHasWrittenAreNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note")
	for text, want := range map[string]string{
		"claude-1": "claude-1", "": "", "a\nb": "", "a\x00": "", strings.Repeat("a", 257): "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := read(path); got != want {
			t.Errorf("%.20q is read as %q", text, got)
		}
	}
}
