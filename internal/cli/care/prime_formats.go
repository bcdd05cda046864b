package care

import (
	_ "embed" // for prime.md
	"fmt"
	"strings"
	"time"
)

const formatPrompt = "prompt"

// primeFormat is a kind of text for an agent.
type primeFormat struct {
	name  string
	file  string // where such instructions belong; empty for a prompt
	plain bool   // without headings and code blocks
	most  int    // bytes; 0 is any number
}

func primeFormats() []primeFormat {
	return []primeFormat{
		{name: formatPrompt},
		{name: "claude-md", file: "CLAUDE.md"},
		{name: "cursorrules", file: ".cursorrules", plain: true},
		{name: "windsurfrules", file: ".windsurfrules", plain: true, most: 1999},
		{name: "copilot", file: ".github/copilot-instructions.md"},
		{name: "clinerules", file: ".clinerules"},
		{name: "aider", file: "CONVENTIONS.md"},
	}
}

// Bounds of lists in texts.
const (
	primeScripts = 40
	primeLocks   = 40
)

// text writes the facts.
func (f primeFormat) text(facts primeFacts) string {
	switch {
	case f.plain:
		return sectionBegin + f.rules(facts) + sectionEnd
	case f.file == "":
		return prompt(facts)
	}
	return sectionBegin + strings.Join([]string{
		"## Locks (lokt)", says("intro"), "### Rules", says("rules"), "### Scripts that take locks", scripts(facts), "### Exit codes", says("exit codes"),
		"### Who you are", says("identity"), f.origin(),
	}, "\n\n") + "\n" + sectionEnd
}

// origin says where a file of instructions comes from.
func (f primeFormat) origin() string {
	return fmt.Sprintf("(This section is for %s and was written by `lokt prime --format %s --write`: write it again when scripts change.)", f.file, f.name)
}

func prompt(facts primeFacts) string {
	about := says("intro")
	if facts.server != "" {
		about += "\n\n" + strings.Replace(says("server"), "SERVER", facts.server, 1)
	}
	return strings.Join([]string{
		"# Locks in this repository (lokt)", about, "## Rules", says("rules"), "## Scripts that take locks", scripts(facts), "## Exit codes", says("exit codes"),
		"## Who you are", identity(facts), "## Held or frozen now", heldNow(facts),
	}, "\n\n") + "\n"
}

//go:embed prime.md
var prose string

// says returns what prime.md says of something.
func says(what string) string {
	_, text, _ := strings.Cut("\n"+prose, "\n== "+what+"\n")
	text, _, _ = strings.Cut(text+"\n== ", "\n== ")
	return strings.TrimRight(text, "\n")
}

func identity(facts primeFacts) string {
	id, session := tame(facts.owner.ID), tame(facts.owner.Session)
	switch facts.from {
	case "LOKT_OWNER":
		return fmt.Sprintf("You are `%s`, from `LOKT_OWNER`. Keep it set for all of your commands; whoever else sets the same is you.", id)
	case "LOKT_AGENT_ID":
		return fmt.Sprintf("You are `%s` in session `%s`, from `LOKT_AGENT_ID`. Keep it set for all of your commands.", id, session)
	}
	return fmt.Sprintf("You are `%s` in session `%s`, which was found out and not set. ", id, session) + says("identity")
}

// scriptLine tells of one script, or nothing if its names are too long to be told.
func scriptLine(s script) string {
	for _, n := range s.Names {
		if len(n) > shownMost {
			return ""
		}
	}
	what := "`" + s.File + "`"
	if s.Run != "" {
		what = "`" + s.Run + "` (" + what + ")"
	}
	line := fmt.Sprintf("- %s takes `%s`", what, strings.Join(s.Names, "` and `"))
	if s.Command == cmdLock {
		line += ", and keeps it until `lokt unlock " + s.Names[0] + "`"
	}
	return line
}

// scriptLines tells of the scripts, at most so many of them, in so many bytes.
func scriptLines(facts primeFacts, bytes int) []string {
	var lines []string
	left := facts.odd
	for _, s := range facts.scripts {
		line := scriptLine(s)
		if line == "" || len(lines) == primeScripts || len(line)+1 > bytes {
			left++
			continue
		}
		lines = append(lines, line)
		bytes -= len(line) + 1
	}
	switch {
	case left > 0:
		lines = append(lines, fmt.Sprintf("- and %d more: search for lokt guard and lokt lock", left)) // see moreBytes
	case facts.cut:
		lines = append(lines, "- and maybe more: not everything was searched")
	case len(lines) == 0:
		lines = append(lines, "- none were found that name their locks")
	}
	return lines
}

const (
	moreBytes = 70 // that the last line of scriptLines can have
	anyBytes  = 1 << 20
)

func scripts(facts primeFacts) string { return strings.Join(scriptLines(facts, anyBytes), "\n") }

func heldNow(facts primeFacts) string {
	var lines []string
	if facts.problem != "" {
		lines = append(lines, "- "+facts.problem+": see `lokt doctor`")
	}
	for i, l := range facts.locks {
		if i == primeLocks {
			lines = append(lines, fmt.Sprintf("- and %d more: see `lokt status`", len(facts.locks)-i))
			break
		}
		who := "`" + l.Owner + "`"
		if l.Host != "" {
			who += " on `" + l.Host + "`"
		}
		if l.AgentID != "" {
			who += ", session `" + l.AgentID + "`"
		}
		if l.Mine {
			who += " (you)"
		}
		line := fmt.Sprintf("- `%s` is %s by %s", l.Name, l.State, who)
		if l.Kind != "" {
			line += fmt.Sprintf(", a %s, for %s", l.Kind, time.Duration(l.HeldFor)*time.Second)
		}
		if l.RemainingSec != nil {
			line += fmt.Sprintf(", expires in %s", time.Duration(*l.RemainingSec)*time.Second)
		}
		if l.Waiters > 0 {
			line += fmt.Sprintf("; waiting: %d", l.Waiters)
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return "Nothing."
	}
	return strings.Join(lines, "\n")
}

// rules writes the plain kind of text, short enough for the format.
func (f primeFormat) rules(facts primeFacts) string {
	head, tail := says("plain")+"\n", f.origin()+"\n"
	bytes := anyBytes
	if f.most > 0 {
		bytes = f.most - len(head) - len(tail) - len(sectionBegin+sectionEnd) - moreBytes
	}
	return head + strings.Join(scriptLines(facts, bytes), "\n") + "\n" + tail
}
