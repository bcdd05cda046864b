package agent

import (
	"strings"
	"testing"
)

// Promise S-286.
func TestOddSettingsAreLeftAsTheyAreAndToldInPlainWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ agent, file, now, want string }{
		{"claude", ".claude/settings.json", "{\n\"a\": 1, // mine\n}", "line 2: this is no JSON without comments: " + byHand},
		{"claude", ".claude/settings.json", `{"a":`, "line 1: this is no JSON without comments: " + byHand},
		{"claude", ".claude/settings.json", `{"a": 1, "a": 2}`, "this is JSON that has a name twice: " + byHand},
		{"claude", ".claude/settings.json", `[]`, "this is no object of JSON: " + byHand},
		{"claude", ".claude/settings.json", `{"hooks": []}`, `"hooks": this is no object of JSON: ` + byHand},
		{"claude", ".claude/settings.json", `{"hooks": {"PreToolUse": {}}}`, `"hooks": "PreToolUse": this is no list of JSON: ` + byHand},
		{"cursor", ".cursor/hooks.json", `{"hooks": 5}`, `"hooks": this is no object of JSON: ` + byHand},
		{"claude", ".mcp.json", `{"mcpServers": "x"}`, `"mcpServers": this is no object of JSON: ` + byHand},
		{"codex", ".codex/config.toml", "a = 1\n[[[", "line 2: this is no TOML that can be read: " + byHand},
		{"codex", ".codex/config.toml", "mcp_servers = {}", "its mcp_servers is written such that lokt's cannot be put behind it: " + byHand},
	} {
		text, err := named(c.agent).install(c.file, []byte(c.now))
		if text != nil || err == nil || err.Error() != c.want {
			t.Errorf("%s with %q becomes %q, and the error is %v, want %s", c.file, c.now, text, err, c.want)
		}
	}
}

// Promise S-286.
func TestTheServerIsNamedOnceInEachFile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		agent, file, now string
		adds             bool
	}{
		{"codex", ".codex/config.toml", "", true},
		{"codex", ".codex/config.toml", "a = 1\r\n[mcp_servers]\r\n", true},
		{"codex", ".codex/config.toml", "[mcp_servers.\"lokt\"]\ncommand = \"x\"\n", false},
		{"codex", ".codex/config.toml", "[ mcp_servers . lokt ]\ncommand = \"x\"\n", false},
		{"codex", ".codex/config.toml", "[mcp_servers]\nlokt = {command = \"x\"}\n", false},
		{"claude", ".mcp.json", "null", true},
		{"claude", ".mcp.json", `{"mcpServers": null}`, true},
		{"claude", ".mcp.json", `{"mcpServers": {"other": {"command": "x", "args": ["lokt"]}}}`, true},
		{"claude", ".mcp.json", `{"mcpServers": {"lokt" : {"command": "x"}}} // mine`, false},
	} {
		text, err := named(c.agent).install(c.file, []byte(c.now))
		if err != nil || (string(text) != c.now) != c.adds || c.adds && !strings.Contains(string(text), "mcp") {
			t.Fatalf("%s with %q becomes %q, %v", c.file, c.now, text, err)
		}
		again, err := named(c.agent).install(c.file, text)
		if err != nil || string(again) != string(text) {
			t.Errorf("%s with %q becomes %q the second time, %v", c.file, c.now, again, err)
		}
	}
}
