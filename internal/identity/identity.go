// Package identity finds out for whom a command runs, from the processes that it descends from.
//
// The nearest one that is a coding agent tells, wherever its commands run: many agents start each in a session of its own.
// Otherwise it is the terminal, by its session; a program that runs in a terminal and gives its commands sessions of
// their own is told from it, and from others of its kind. Without a terminal it is the session.
package identity

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/process"
)

// How it was found out who it is.
const (
	FromOwner = "LOKT_OWNER"
	FromAgent = "LOKT_AGENT_ID"
	Hook      = "hook"     // as Agent, and that agent's hook has noted its session
	Agent     = "agent"    // an ancestor is a coding agent
	Program   = "program"  // an ancestor in a terminal gave this command a session of its own
	Terminal  = "terminal" // the session has one, or was begun from one
	Session   = "session"  // there is nothing but the session
)

// Who is for whom a command runs.
type Who struct {
	lokt.Owner
	Method string
	Name   string // of the program that tells, as the system has it; empty for sessions and variables
	PID    int    // of its process, or of the one that began the session; 0 if it is not known
	Start  int64  // when that process started, as lokt.Process.Start; 0 if it is not known
}

// Of returns who this process is. What the environment says comes first. notes returns a directory of notes (see Note); it is
// asked only if it matters. far says that others on other hosts will see it.
func Of(getenv func(string) string, notes func() string, far bool) Who {
	w := Who{Method: FromAgent}
	session := getenv(FromAgent)
	if session == "" {
		w = Find()
		if session = w.Session; process.BootID() == "" && far {
			host, _ := os.Hostname()
			session += "-" + host // nothing else in it differs between hosts
		}
		if w.Method == Agent {
			if told := read(w.Note(notes())); told != "" {
				session, w.Method = told, Hook
			}
		}
	}
	w.Owner = lokt.Owner{ID: getenv(FromOwner), Session: session, Process: process.Self()}
	w.Host, _ = os.Hostname()
	if w.ID == "" {
		w.ID = process.UserName()
	} else {
		w.AnySession, w.Method = true, FromOwner
	}
	return w
}

// Note returns the file in a directory in which a hook notes the session of the agent whose process tells; empty if no agent's does.
func (w Who) Note(dir string) string {
	if dir == "" || w.Method != Agent {
		return ""
	}
	return filepath.Join(dir, w.Session)
}

// read returns what a note says. What no hook has written is none: a pipe, or what is no session.
func read(path string) string {
	if fi, err := os.Lstat(path); err != nil || !fi.Mode().IsRegular() || fi.Size() > 256 {
		return ""
	}
	text, err := os.ReadFile(path)
	if err != nil || bytes.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) }) {
		return ""
	}
	return string(text)
}

// String says who it is in a sentence.
func (w Who) String() string {
	text := fmt.Sprintf("you are %s, from your user name, in session %s, ", w.Owner, w.Session)
	switch w.Method {
	case FromOwner:
		return fmt.Sprintf("you are %s, from LOKT_OWNER, in every session", w.Owner)
	case FromAgent:
		return text + "from LOKT_AGENT_ID"
	case Hook:
		return text + fmt.Sprintf("which the hook of %s has told, pid %d", w.Name, w.PID)
	case Agent:
		return text + fmt.Sprintf("that of the agent %s, pid %d", w.Name, w.PID)
	case Program:
		return text + fmt.Sprintf("that of %s, pid %d, which gave this command a session of its own", w.Name, w.PID)
	case Terminal:
		return text + "that of the terminal"
	}
	return text + "that of whatever started this: programs that start each command in a new session must set LOKT_OWNER or LOKT_AGENT_ID to be one owner"
}

// Find returns for whom this process runs as far as processes tell. Of its owner it knows the session alone.
func Find() Who { return find(process.Lineage(), process.Args) }

// find judges a process, which comes first, and those that it descends from.
func find(line []process.Relative, args func(pid int) []string) Who {
	if len(line) == 0 {
		return Who{Owner: lokt.Owner{Session: process.Session()}, Method: Session}
	}
	for _, r := range line[1:] {
		if name := agent(r, args); name != "" {
			return of(Agent, name, r)
		}
	}
	if line[0].Terminal {
		return session(Terminal, line[0], line)
	}
	i := slices.IndexFunc(line, func(r process.Relative) bool { return r.Session != line[0].Session })
	switch {
	case i < 0 || !slices.ContainsFunc(line[i:], func(r process.Relative) bool { return r.Terminal }):
		return session(Session, line[0], line)
	case line[i].Terminal && line[i].PID == line[i].Session: // somebody began the session by hand
		return session(Terminal, line[i], line)
	}
	return of(Program, "program", line[i]) // whose name may change
}

func of(method, name string, r process.Relative) Who {
	id := process.ID(name, int64(r.PID), r.Start)
	return Who{Owner: lokt.Owner{Session: id}, Method: method, Name: r.Name, PID: r.PID, Start: r.Start}
}

// session tells by the kernel's session of r, and by that alone: the process that began it may be gone.
func session(method string, r process.Relative, line []process.Relative) Who {
	w := Who{Owner: lokt.Owner{Session: process.ID("session", int64(r.Session))}, Method: method, PID: r.Session}
	if i := slices.IndexFunc(line, func(r process.Relative) bool { return r.PID == w.PID }); i >= 0 {
		w.Start = line[i].Start
	}
	return w
}

// agents are the names of programs of coding agents that run commands, and what they are called in an ID.
func agents() map[string]string {
	return map[string]string{
		"claude": "claude", "codex": "codex", "cursor-agent": "cursor", "gemini": "gemini", "aider": "aider", "amp": "amp", "auggie": "auggie",
		"copilot": "copilot", "crush": "crush", "droid": "droid", "goose": "goose", "kiro-cli": "kiro", "opencode": "opencode", "qwen": "qwen",
	}
}

// agent returns what the agent is called whose process it is, or nothing. What the system has as its name is looked at
// first, which costs nothing more. How it was called decides: helpers of an agent are often the same program under
// another name.
func agent(r process.Relative, args func(pid int) []string) string {
	runs := slices.ContainsFunc([]string{"node", "bun", "deno", "python", "MainThread"}, func(p string) bool { return strings.HasPrefix(r.Name, p) })
	if !runs && agents()[r.Name] == "" {
		return ""
	}
	words := args(r.PID)
	for i, w := range words {
		switch name := agents()[base(w)]; {
		case name != "" && slices.ContainsFunc(words[i+1:], func(w string) bool { return w == "app-server" || w == "mcp-server" }):
			return "" // it works for several sessions
		case name != "":
			return name
		case i > 0 && !strings.HasPrefix(w, "-"), !runs:
			return "" // it runs another script
		}
	}
	return ""
}

func base(word string) string {
	name := filepath.Base(word)
	for _, ext := range []string{".js", ".mjs", ".cjs", ".py"} {
		name = strings.TrimSuffix(name, ext)
	}
	return name
}
