package agent

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/shell"
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
	servers  string   // file that names MCP servers
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
			settings: ".claude/settings.json", servers: ".mcp.json", signs: []string{".claude", "CLAUDE.md"}, programs: []string{"claude"},
		},
		{
			name: "codex", title: "Codex", before: "PreToolUse", edit: "PreToolUse", matcher: "Bash|apply_patch", rewrite: true,
			settings: ".codex/hooks.json", servers: ".codex/config.toml", signs: []string{".codex"}, programs: []string{"codex"},
		},
		{
			name: "cursor", title: "Cursor", before: "beforeShellExecution", edit: "preToolUse",
			matcher: "Write|Edit|StrReplace|MultiEdit|EditNotebook|ApplyPatch|Delete", end: "sessionEnd",
			settings: ".cursor/hooks.json", servers: ".cursor/mcp.json", signs: []string{".cursor", ".cursorrules"}, programs: []string{"cursor", "cursor-agent"},
		},
		{
			name: "gemini", title: "Gemini CLI", before: "BeforeTool", edit: "BeforeTool",
			matcher: "run_shell_command|write_file|replace", end: "SessionEnd", rewrite: true,
			settings: ".gemini/settings.json", servers: ".gemini/settings.json", signs: []string{".gemini", "GEMINI.md"}, programs: []string{"gemini"},
		},
	}
}

func harnessNames() (names []string) {
	for _, h := range harnesses() {
		names = append(names, h.name)
	}
	return names
}

// named returns the agent of that name; one without a name if there is none.
func named(name string) harness {
	if i := slices.Index(harnessNames(), name); i >= 0 {
		return harnesses()[i]
	}
	return harness{}
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
	Command        jsontext.Value `json:"command"` // of Cursor's beforeShellExecution
	Workspaces     []string       `json:"workspace_roots"`

	input map[string]jsontext.Value
}

func readRequest(text []byte) (*request, error) {
	var r request
	if err := unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("the request is not the JSON that was expected: %w", err)
	}
	if r.ToolInput.Kind() == '"' { // JSON within a string
		var text string
		if unmarshal(r.ToolInput, &text) == nil {
			r.ToolInput = jsontext.Value(text)
		}
	}
	if r.ToolInput.Kind() == '{' {
		if err := unmarshal(r.ToolInput, &r.input); err != nil {
			return nil, fmt.Errorf("tool_input: %w", err)
		}
	}
	if r.Command != nil {
		r.input = map[string]jsontext.Value{"command": r.Command}
	}
	if r.session() == "" && len(r.input) == 0 {
		return nil, errors.New("the request has neither a session nor the input of a tool")
	}
	return &r, nil
}

func (r *request) session() string { return cmp.Or(r.SessionID, r.ConversationID) }

// text returns the first member of the tool's input that is a string, or the words of one that is a list, each in a line.
func (r *request) text(names ...string) string {
	for _, name := range names {
		var one string
		var list []string
		if unmarshal(r.input[name], &one) == nil || unmarshal(r.input[name], &list) == nil {
			if one = cmp.Or(one, strings.Join(list, "\n")); one != "" {
				return one
			}
		}
	}
	return ""
}

// dir returns where the tool is used.
func (r *request) dir(fallback string) string {
	dir := cmp.Or(append([]string{r.Cwd}, append(r.Workspaces, fallback)...)...)
	if there := r.text("workdir", "working_directory", "cwd", "dir_path", "directory"); there != "" {
		dir = app.Against(dir, there)
	}
	return dir
}

// command returns the line of shell that the tool is to run, and the member of its input that has it; neither if it runs none.
func (r *request) command() (line, member string, err error) {
	if r.ToolName == "apply_patch" {
		return "", "", nil
	}
	for _, name := range []string{"command", "cmd"} {
		var words []string
		v := r.input[name]
		if v.Kind() == '[' {
			err = unmarshal(v, &words)
		} else if v != nil {
			err = unmarshal(v, &line)
		}
		if err != nil {
			return "", "", fmt.Errorf("the %s of the tool is neither a line nor a list of words: %w", name, err)
		}
		for i := range words {
			words[i] = shell.Quote(words[i])
		}
		if line = cmp.Or(line, strings.Join(words, " ")); line != "" {
			return line, name, nil
		}
	}
	return "", "", nil
}

// answer is what a hook has to say. If it is nothing, the agent goes on.
type answer struct {
	deny  string                    // why the tool is not to be used
	input map[string]jsontext.Value // of the tool, instead of its own
	note  string                    // for the person who sits before the agent
	asked string                    // by others
}

// form returns the answer as the agent's program reads it. Gemini CLI has no way to tell the model what is asked before a
// tool is used, and tells the person.
func (h harness) form(event string, a answer) map[string]any {
	out, inner := map[string]any{}, map[string]any{}
	say := func(m map[string]any, key string, texts ...string) {
		if text := cmp.Or(texts...); text != "" {
			m[key] = text
		}
	}
	decision := map[bool]string{true: "deny"}[a.deny != ""]
	switch h.name {
	case "cursor":
		say(out, "permission", decision)
		say(out, "user_message", a.deny, a.note, a.asked)
		say(out, "agent_message", a.deny, a.asked)
	case "gemini":
		say(out, "decision", decision)
		say(out, "reason", a.deny)
		say(out, "systemMessage", a.note, a.asked)
		if a.input != nil {
			inner["tool_input"] = a.input
		}
	default:
		if a.input != nil {
			decision, inner["updatedInput"] = "allow", a.input
		}
		say(inner, "permissionDecision", decision)
		say(inner, "permissionDecisionReason", a.deny)
		say(inner, "additionalContext", a.asked)
		say(out, "systemMessage", a.note)
		if len(inner)+len(out) == 0 {
			return nil
		}
	}
	if len(inner) > 0 {
		inner["hookEventName"], out["hookSpecificOutput"] = event, inner
	}
	return out
}

var notPlain = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// agentID returns the session as LOKT_AGENT_ID has it.
func (h harness) agentID(session string) string {
	if session == "" {
		return ""
	}
	plain := notPlain.ReplaceAllString(session, "_")
	return h.name + "-" + plain[:min(len(plain), 200)]
}
