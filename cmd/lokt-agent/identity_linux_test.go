package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// agentProgram makes a program that is called as an agent's is and runs lines of shell, as that does.
func agentProgram(t *testing.T, p *place, name string) string {
	t.Helper()
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("there is no setsid")
	}
	text, err := os.ReadFile(shell)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(filepath.Dir(p.dir), "bin", name)
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

type me struct{ Owner, Session, Method, Program string }

// whoAmI reads answers of lokt whoami.
func whoAmI(t *testing.T, out string) (all []me) {
	t.Helper()
	for line := range strings.Lines(out) {
		var m me
		if !strings.HasPrefix(line, "{") {
			continue
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		all = append(all, m)
	}
	return all
}

// Promises S-193, S-21.
func TestCommandsOfOneAgentAreOneOwnerAndThoseOfTwoAreNot(t *testing.T) {
	p := newPlace(t)
	agent := agentProgram(t, p, "claude")
	// A second agent in the same checkout, while the first one lives.
	script := `setsid -w lokt whoami --json; setsid -w lokt whoami --json; setsid -w lokt lock a
` + agent + ` -c 'setsid -w lokt whoami --json; setsid -w lokt lock a; echo second: $?; setsid -w lokt unlock a; echo second: $?; :'
setsid -w lokt guard a -- true; echo first: $?; setsid -w lokt unlock a; echo first: $?; :`
	out, err := p.run(t, "", agent, "-c", script)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	who := whoAmI(t, out)
	if len(who) != 3 || who[0] != who[1] || who[0].Session == who[2].Session || who[0].Method != "agent" || !strings.HasPrefix(who[0].Session, "claude-") {
		t.Errorf("they are %+v", who)
	}
	for _, want := range []string{"second: 2\n", "second: 4\n", "first: 0\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in %s", want, out)
		}
	}
	if strings.Count(out, "first: 0\n") != 2 {
		t.Errorf("the first one lost its lease: %s", out)
	}
}

// What an agent's hook has told counts for what the agent's process starts, such as git, which nobody tells who it is.
//
// Promise S-193.
func TestTheSessionThatAHookToldIsThatOfTheAgentsCommands(t *testing.T) {
	p := newPlace(t)
	agent := agentProgram(t, p, "codex")
	payload := filepath.Join(filepath.Dir(p.dir), "payload")
	text := strings.ReplaceAll(strings.ReplaceAll(players()[1].payload, "COMMAND", `"true"`), "CWD", p.dir)
	if err := os.WriteFile(payload, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(p.dir, ".git", "lokt", "agents", "codex-999999999-1-00000000")
	if err := os.MkdirAll(filepath.Dir(stale), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stale, []byte("codex-gone"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := p.run(t, "", agent, "-c", "setsid -w lokt whoami --json; lokt hook codex PreToolUse <"+payload+"; setsid -w lokt whoami --json; LOKT_AGENT_ID=x lokt whoami --json; :")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	who := whoAmI(t, out)
	if len(who) != 3 || who[0].Method != "agent" || who[1].Method != "hook" || who[1].Session != "codex-0199a213-81c0-7800-8aa1-bbab2a035a53" || who[2].Session != "x" {
		t.Errorf("they are %+v\n%s", who, out)
	}
	if _, err := os.Stat(stale); err == nil {
		t.Error("the note of a process that has ended is still there")
	}
	out, err = p.run(t, "", agent, "-c", "lokt whoami --json; :")
	if again := whoAmI(t, out); err != nil || len(again) != 1 || again[0].Session == who[1].Session {
		t.Errorf("another process of the same program is %+v, %v", again, err)
	}
}
