package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// player plays the program of a coding agent that has never heard of lokt: it does what its settings say.
type player struct {
	name, settings, event string
	payload               string // as its program writes it before it runs a command, which stands at COMMAND in JSON
}

func players() []player {
	return []player{
		{"claude", ".claude/settings.json", "PreToolUse", `{"session_id":"00893aaf-19fa-41d2-8238-13269b9b3ca0","transcript_path":"/home/u/.claude/projects/p/0.jsonl","cwd":"CWD",` +
			`"permission_mode":"default","hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":COMMAND,"description":"Build","timeout":120000},"tool_use_id":"toolu_01"}`},
		{"codex", ".codex/hooks.json", "PreToolUse", `{"session_id":"0199a213-81c0-7800-8aa1-bbab2a035a53","turn_id":"1","transcript_path":null,"cwd":"CWD","hook_event_name":"PreToolUse",` +
			`"model":"m","permission_mode":"default","tool_name":"Bash","tool_input":{"command":COMMAND},"tool_use_id":"call_1"}`},
		{"cursor", ".cursor/hooks.json", "beforeShellExecution", `{"conversation_id":"668320d2-2fd8-4888-b33c-2a466fec86e7","generation_id":"490b90b7","model":"m","hook_event_name":"beforeShellExecution",` +
			`"cursor_version":"2.0.77","workspace_roots":["CWD"],"user_email":"u@example.org","command":COMMAND,"cwd":"CWD"}`},
		{"gemini", ".gemini/settings.json", "BeforeTool", `{"session_id":"3f6c1c0e","transcript_path":"/home/u/.gemini/t.json","cwd":"CWD","hook_event_name":"BeforeTool","timestamp":"2026-11-24T10:00:00.000Z",` +
			`"tool_name":"run_shell_command","tool_input":{"command":COMMAND,"description":"Build"}}`},
	}
}

// place is a repository in which the agents work.
type place struct {
	dir, log string
	env      []string
}

func (p *place) run(t *testing.T, stdin string, argv ...string) (out string, err error) {
	t.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	c.Dir, c.Env, c.Stdin = p.dir, p.env, strings.NewReader(stdin)
	text, err := c.CombinedOutput()
	return string(text), err
}

func (p *place) must(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := p.run(t, "", argv...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return out
}

// newPlace makes a repository with the programs that ways.txt names, and enrols all agents in it.
func newPlace(t *testing.T) *place {
	t.Helper()
	makes, err := exec.LookPath("make")
	if err != nil {
		t.Skip("there is no make")
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git")
	}
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	p := &place{dir: filepath.Join(top, "repo"), log: filepath.Join(top, "log")}
	makefile := "build all clean:\n\t@case $@ in build) echo built >>\"$(LOG)\" ;; esac\n"
	for name, text := range map[string]string{
		"Makefile": makefile, "sub/Makefile": makefile, "build.sh": "#!/bin/sh\nmake build\n",
		"lokt.toml": "[[command]]\nrun = [\"make build\"]\nlock = \"build\"\nwait = \"0s\"\n",
	} {
		path := filepath.Join(p.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "repo/tools", "home"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"bin/make", "repo/tools/make"} {
		if err := os.Symlink(makes, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	shims := filepath.Join(p.dir, ".git", "lokt", "shims")
	p.env = []string{
		"HOME=" + filepath.Join(top, "home"), "PATH=" + shims + ":" + built + ":" + os.Getenv("PATH"), "BIN=" + filepath.Join(top, "bin"), "LOG=" + p.log,
		"LC_ALL=C.UTF-8",
	}
	p.must(t, "git", "init", "-q")
	p.must(t, filepath.Join(built, "lokt"), "init", "--agent", "claude", "--agent", "codex", "--agent", "cursor", "--agent", "gemini")
	return p
}

// hook returns the command that the agent's settings have for the event.
func (p *place) hook(t *testing.T, a player) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, a.settings))
	if err != nil {
		t.Fatal(err)
	}
	type handler struct {
		Command string
		Hooks   []handler
	}
	var settings struct{ Hooks map[string][]handler }
	if err := json.Unmarshal(text, &settings); err != nil {
		t.Fatal(err)
	}
	for _, h := range settings.Hooks[a.event] {
		for _, one := range append(h.Hooks, h) {
			if one.Command != "" {
				return one.Command
			}
		}
	}
	t.Fatalf("%s has no hook for %s", a.settings, a.event)
	return ""
}

// do lets the agent run a line: as it is, as the hook has it, or as the refusal says.
func (p *place) do(t *testing.T, a player, hook, line string) (ran, out string) {
	t.Helper()
	quoted, err := json.Marshal(line)
	if err != nil {
		t.Fatal(err)
	}
	text, err := p.run(t, strings.ReplaceAll(strings.ReplaceAll(a.payload, "COMMAND", string(quoted)), "CWD", p.dir), "sh", "-c", hook)
	if err != nil {
		t.Fatalf("%s: %v: %s", hook, err, text)
	}
	var answer struct {
		Decision, Reason, Permission string
		AgentMessage                 string `json:"agent_message"`
		Output                       struct {
			Permission string            `json:"permissionDecision"`
			Reason     string            `json:"permissionDecisionReason"`
			Updated    map[string]any    `json:"updatedInput"`
			Input      map[string]string `json:"tool_input"`
		} `json:"hookSpecificOutput"`
	}
	if strings.TrimSpace(text) != "" {
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Fatalf("%s answered %q: %v", hook, text, err)
		}
	}
	denied := answer.Reason + answer.AgentMessage + answer.Output.Reason
	switch updated, _ := answer.Output.Updated["command"].(string); {
	case slices.Contains([]string{answer.Decision, answer.Permission, answer.Output.Permission}, "deny"):
		_, line, _ = strings.Cut(denied, "\n")
	case updated != "":
		line = updated
	case answer.Output.Input["command"] != "":
		line = answer.Output.Input["command"]
	}
	out, _ = p.run(t, "", "bash", "-c", line) // many of them are refused
	return line, out
}

// While somebody else builds, no agent builds in any of a hundred ways that a layer promises to see. Each agent tries a
// quarter of them, and all of them with LOKT_SOAK.
func TestEnrolledAgentsDoNotBuildAtOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	text, err := os.ReadFile(filepath.Join("..", "..", "internal", "shell", "testdata", "ways.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var list [][2]string
	for line := range strings.Lines(string(text)) {
		layer, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "#"):
		case slices.Contains([]string{"hook", "shim", "none"}, layer):
			list = append(list, [2]string{layer, rest})
		case len(list) > 0:
			list[len(list)-1][1] += line
		}
	}
	if len(list) < 100 {
		t.Fatalf("there are %d ways", len(list))
	}
	p.must(t, "sh", "-c", "LOKT_OWNER=somebody lokt lock build")
	tried := 0
	for i, w := range list {
		layer, line := w[0], w[1]
		if slices.ContainsFunc([]string{"python3", "perl", "awk", "flock", "stdbuf", "setsid"}, func(name string) bool {
			_, err := exec.LookPath(name)
			return err != nil && strings.Contains(line, name+" ")
		}) {
			continue // it is not installed here
		}
		for j, a := range players() {
			if os.Getenv("LOKT_SOAK") == "" && j != i%len(players()) {
				continue
			}
			_ = os.Remove(p.log)
			ran, out := p.do(t, a, p.hook(t, a), line)
			_, err := os.Stat(p.log)
			if built := err == nil; built != (layer == "none") {
				t.Errorf("%s ran %s\nas %s\nand built: %v; %s was to see it\n%s", a.name, line, ran, built, layer, out)
			}
			tried++
		}
	}
	if tried < 100 {
		t.Errorf("%d ways were tried", tried)
	}
	p.must(t, "sh", "-c", "LOKT_OWNER=somebody lokt unlock build")
	for _, a := range players() {
		_ = os.Remove(p.log)
		ran, out := p.do(t, a, p.hook(t, a), "cd sub && make build")
		if _, err := os.Stat(p.log); err != nil || !strings.Contains(ran, "lokt guard build -- make") {
			t.Errorf("%s ran %s and did not build: %s", a.name, ran, out)
		}
	}
}
