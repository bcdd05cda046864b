package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/internal/cli/app"
)

// harness is how one agent's program asks and is answered.
type harness struct {
	name    string
	title   string
	before  string // the event before a command is run
	edit    string // the event before a file is changed; the same for most
	matcher string // of the tools whose events those are, where hooks have one
	start   string // of a session, if there is something to do then
	end     string // of a session, if its program tells
	rewrite bool   // it is known to run the command that the answer has instead of its own

	settings string   // file, in the repository, that names the hooks
	signs    []string // files in the repository that tell that the agent is used
	programs []string
}

// harnesses are the agents that are known. Claude Code documents the rewriting of commands but drops it at times, and allows
// what was rewritten without asking; Cursor's hook for commands has none.
func harnesses() []harness {
	return []harness{
		{
			name: "claude", title: "Claude Code", before: "PreToolUse", edit: "PreToolUse",
			matcher: "Bash|Edit|Write|MultiEdit|NotebookEdit", start: "SessionStart", end: "SessionEnd",
			settings: ".claude/settings.json", signs: []string{".claude", "CLAUDE.md"}, programs: []string{"claude"},
		},
		{
			name: "codex", title: "Codex", before: "PreToolUse", edit: "PreToolUse", matcher: "Bash|apply_patch", rewrite: true,
			settings: ".codex/hooks.json", signs: []string{".codex"}, programs: []string{"codex"},
		},
		{
			name: "cursor", title: "Cursor", before: "beforeShellExecution", edit: "preToolUse",
			matcher: "Write|Edit|StrReplace|MultiEdit|EditNotebook|ApplyPatch|Delete", end: "sessionEnd",
			settings: ".cursor/hooks.json", signs: []string{".cursor", ".cursorrules"}, programs: []string{"cursor", "cursor-agent"},
		},
		{
			name: "gemini", title: "Gemini CLI", before: "BeforeTool", edit: "BeforeTool",
			matcher: "run_shell_command|write_file|replace", end: "SessionEnd", rewrite: true,
			settings: ".gemini/settings.json", signs: []string{".gemini", "GEMINI.md"}, programs: []string{"gemini"},
		},
	}
}

func harnessNames() []string {
	var names []string
	for _, h := range harnesses() {
		names = append(names, h.name)
	}
	return names
}

// events returns the events that the agent has a hook for.
func (h harness) events() []string {
	return slices.DeleteFunc(slices.Compact([]string{h.before, h.edit, h.start, h.end}), func(e string) bool { return e == "" })
}

// call returns the arguments with which the agent's program runs this one at an event, or lokt, which takes twice as long.
func (h harness) call(event string) string { return " hook " + h.name + " " + event }

// request is what an agent's program says in JSON.
type request struct {
	SessionID      string         `json:"session_id"`
	ConversationID string         `json:"conversation_id"` // Cursor's session
	Cwd            string         `json:"cwd"`
	ToolName       string         `json:"tool_name"`
	ToolInput      jsontext.Value `json:"tool_input"`
	Command        *string        `json:"command"` // of Cursor's beforeShellExecution
	Workspaces     []string       `json:"workspace_roots"`

	input map[string]jsontext.Value
}

func readRequest(text []byte) (*request, error) {
	var r request
	if err := unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("the request is not the JSON that was expected: %w", err)
	}
	if len(r.ToolInput) > 0 && r.ToolInput.Kind() == '"' { // JSON within a string
		var text string
		if unmarshal(r.ToolInput, &text) == nil {
			r.ToolInput = jsontext.Value(text)
		}
	}
	if len(r.ToolInput) > 0 && r.ToolInput.Kind() == '{' {
		if err := unmarshal(r.ToolInput, &r.input); err != nil {
			return nil, fmt.Errorf("tool_input: %w", err)
		}
	}
	if r.session() == "" && len(r.input) == 0 && r.Command == nil {
		return nil, errors.New("the request has neither a session nor the input of a tool")
	}
	return &r, nil
}

func (r *request) session() string {
	if r.SessionID != "" {
		return r.SessionID
	}
	return r.ConversationID
}

// text returns a member of the tool's input, if it is a string.
func (r *request) text(names ...string) string {
	for _, name := range names {
		var s string
		if v, ok := r.input[name]; ok && unmarshal(v, &s) == nil && s != "" {
			return s
		}
	}
	return ""
}

// dir returns where the tool is used.
func (r *request) dir(fallback string) string {
	dir := r.Cwd
	if dir == "" && len(r.Workspaces) > 0 {
		dir = r.Workspaces[0]
	}
	if dir == "" {
		dir = fallback
	}
	if there := r.text("workdir", "working_directory", "cwd", "dir_path", "directory"); there != "" {
		dir = app.Against(dir, there)
	}
	return dir
}

// command returns the line of shell that the tool is to run; ok is false if it runs none.
func (r *request) command() (line string, ok bool) {
	switch {
	case r.Command != nil:
		return *r.Command, true
	case r.ToolName == "apply_patch":
		return "", false
	}
	line = r.text("command", "cmd")
	return line, line != ""
}

// allow is the answer that lets the agent go on; note is for the person who sits before it.
func (h harness) allow(note string) any {
	switch {
	case note == "" && (h.name == "claude" || h.name == "codex"):
		return nil
	case note == "":
		return struct{}{}
	case h.name == "cursor":
		return map[string]string{"user_message": note}
	}
	return map[string]string{"systemMessage": note}
}

// asked adds to an answer what the agent is asked. Gemini CLI has no way to tell the model before a tool is used, and tells
// the person. An answer that says something there already comes first: the next one will tell.
func (h harness) asked(event string, answer any, questions string) (any, error) {
	if questions == "" {
		return answer, nil
	}
	text, err := marshal(answer)
	all := map[string]any{}
	if answer != nil && err == nil {
		err = unmarshal(text, &all)
	}
	put := func(m map[string]any, key string, value any) {
		if _, said := m[key]; !said {
			m[key] = value
		}
	}
	switch h.name {
	case "cursor":
		put(all, "user_message", questions)
		put(all, "agent_message", questions)
	case "gemini":
		put(all, "systemMessage", questions)
	default:
		put(all, "hookSpecificOutput", map[string]any{"hookEventName": event})
		if inner, ok := all["hookSpecificOutput"].(map[string]any); ok {
			put(inner, "additionalContext", questions)
		}
	}
	return all, err
}

// deny is the answer that refuses.
func (h harness) deny(reason string) any {
	switch h.name {
	case "cursor":
		return map[string]string{"permission": "deny", "user_message": reason, "agent_message": reason}
	case "gemini":
		return map[string]string{"decision": "deny", "reason": reason}
	}
	return map[string]any{"hookSpecificOutput": map[string]string{
		"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason,
	}}
}

// instead is the answer that makes the agent run another line.
func (h harness) instead(r *request, line string) (any, error) {
	text, err := marshal(line)
	if err != nil {
		return nil, err
	}
	input := maps.Clone(r.input)
	for _, name := range []string{"command", "cmd"} {
		if _, ok := input[name]; ok {
			input[name] = jsontext.Value(text)
			break
		}
	}
	if h.name == "gemini" {
		return map[string]any{"hookSpecificOutput": map[string]any{"hookEventName": "BeforeTool", "tool_input": input}}, nil
	}
	return map[string]any{"hookSpecificOutput": map[string]any{
		"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": input,
	}}, nil
}

// agentID returns the session as LOKT_AGENT_ID has it.
func (h harness) agentID(session string) string {
	if session == "" {
		return ""
	}
	plain := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' {
			return c
		}
		return '_'
	}, session)
	return h.name + "-" + plain[:min(len(plain), 200)]
}
