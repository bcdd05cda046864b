package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/agent"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/bench"
	"github.com/lokt-dev/lokt/internal/cli/jobserver"
	"github.com/lokt-dev/lokt/internal/cli/mcp"
	"github.com/lokt-dev/lokt/internal/cli/top"
	"github.com/lokt-dev/lokt/internal/sim"
	"github.com/lokt-dev/lokt/internal/testkit/clitest"
)

// Command lines that are shown to people and agents must work. They are taken out of where they stand as a shell would, and given
// to the commands, which have no working directory, or no certificate: what they do first, when they are content with the
// command line, is to fail for that.

var errNowhere = errors.New("there is no working directory")

// everything returns all commands, those of other programs too.
func everything() []app.Command {
	own := slices.DeleteFunc(Commands(), func(c app.Command) bool { return c.Program != "" })
	return slices.Concat(own, agent.Commands(), bench.Commands(), jobserver.Commands(), mcp.Commands(), sim.Commands(), top.Commands())
}

// accepted reports what is wrong with a command line.
func accepted(words []string) error {
	env := map[string]string{}
	if len(words) > 1 && (words[1] == "job" || words[1] == "worker") { // which take a server
		env["LOKT_SERVER"], env["LOKT_CA_FILE"] = "http://127.0.0.1:1", "/none"
	}
	a := app.New(everything(), app.Streams{
		In: strings.NewReader(""), Out: io.Discard, Err: io.Discard,
		Getenv:  func(key string) string { return env[key] },
		Environ: func() []string { return nil },
		Dir:     func() (string, error) { return "", errNowhere },
	})
	args := words[1:]
	root := a.Tree(args)
	for _, c := range root.Commands() {
		if c.Name() == "bench" || c.Name() == "demo" || c.Name() == "jobserver" || c.Name() == "sim" { // which need no directory of their caller's
			c.RunE = func(*cobra.Command, []string) error { return errNowhere }
		}
	}
	root.SetArgs(args)
	if err := root.Execute(); err != nil && !errors.Is(err, errNowhere) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, lokt.ErrNotFound) { // as the payload's file, the certificate, a ticket
		return err
	}
	for i, w := range args {
		if w == "--" && i+1 < len(args) && args[i+1] == "lokt" {
			return accepted(args[i+1:])
		}
	}
	return nil
}

// shellCommands returns the words of the simple commands in a script: quotes are undone, comments, redirections and
// assignments are left out. What a shell would put in stays as it is written.
func shellCommands(script string) ([][]string, error) {
	var all [][]string
	var words []string
	var word strings.Builder
	inWord, redirect := false, false
	endWord := func() {
		if inWord && !redirect {
			words = append(words, word.String())
		}
		redirect = redirect && !inWord
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		endWord()
		if redirect = false; len(words) > 0 {
			all = append(all, words)
		}
		words = nil
	}
	s := strings.ReplaceAll(script, "\\\n", " ")
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			inWord = true
			word.WriteByte(s[i])
		case c == '\'' || c == '"':
			inWord = true
			for i++; i < len(s) && s[i] != c; i++ {
				if s[i] == '\\' && c == '"' && i+1 < len(s) && strings.IndexByte("\\\"$`", s[i+1]) >= 0 {
					i++
				}
				word.WriteByte(s[i])
			}
			if i == len(s) {
				return nil, fmt.Errorf("quote %c has no end", c)
			}
		case c == '$' && i+1 < len(s) && s[i+1] == '(':
			n := strings.IndexByte(s[i:], ')')
			if n < 0 {
				return nil, errors.New("$( has no end")
			}
			inWord = true
			inner, err := shellCommands(s[i+2 : i+n])
			if err != nil {
				return nil, err
			}
			all = append(all, inner...)
			word.WriteString(s[i : i+n+1])
			i += n
		case c == '#' && !inWord:
			for i+1 < len(s) && s[i+1] != '\n' {
				i++
			}
		case c == ' ' || c == '\t':
			endWord()
		case c == '<' && i+1 < len(s) && isLetter(s[i+1]):
			return nil, errors.New("write NAME, not <NAME>, which a shell takes for a redirection")
		case c == '<' || c == '>':
			if digits := word.String(); inWord && strings.Trim(digits, "0123456789") == "" {
				inWord = false
				word.Reset()
			}
			endWord()
			redirect = true
			if i+1 < len(s) && (s[i+1] == '&' || s[i+1] == '>') {
				i++
			}
		case strings.IndexByte("\n;|&()", c) >= 0:
			endCommand()
		default:
			inWord = true
			word.WriteByte(c)
		}
	}
	endCommand()
	return all, nil
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// loktCommands returns the calls of lokt in a script.
func loktCommands(script string) ([][]string, error) {
	commands, err := shellCommands(script)
	var found [][]string
	for _, words := range commands {
		for len(words) > 0 {
			name, _, assignment := strings.Cut(words[0], "=")
			prefix := assignment && strings.Trim(strings.ToUpper(name), "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
			switch words[0] {
			case "if", "then", "else", "elif", "while", "until", "do", "!", "{", "time", "exec", "env", "$", "-", "@", "sudo":
				prefix = true
			}
			if !prefix {
				break
			}
			words = words[1:]
		}
		if len(words) > 0 && strings.TrimLeft(words[0], "@-") == "lokt" {
			found = append(found, words)
		}
	}
	return found, err
}

// checkScript checks all calls of lokt in a script and returns how many there are.
func checkScript(t *testing.T, where, script string) int {
	t.Helper()
	commands, err := loktCommands(script)
	if err != nil {
		t.Errorf("%s: %v: %s", where, err, script)
	}
	for _, words := range commands {
		if err := accepted(words); err != nil {
			t.Errorf("%s: %s\n%v", where, strings.Join(words, " "), err)
		}
	}
	return len(commands)
}

// checkMarkdown checks the calls in fenced blocks of a document, and with spans those in `code` too.
func checkMarkdown(t *testing.T, where, text string, spans bool) (n int) {
	t.Helper()
	fence, indent, language := "", 0, ""
	var block strings.Builder
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		at := fmt.Sprintf("%s:%d", where, i+1)
		switch {
		case fence == "" && (strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~")):
			fence, language = trimmed[:3], strings.TrimSpace(strings.Trim(trimmed, "`~"))
			indent = len(line) - len(strings.TrimLeft(line, " "))
			block.Reset()
		case fence != "" && trimmed == fence:
			fence = ""
			switch language {
			case "", "sh", "bash", "shell", "console", "make", "makefile", "text":
				n += checkScript(t, where+" above line "+fmt.Sprint(i+1), block.String())
			}
		case fence != "":
			line = line[min(indent, len(line)-len(strings.TrimLeft(line, " "))):]
			command, prompted := strings.CutPrefix(line, "$ ")
			if language == "console" && !prompted || (language == "" || language == "text") && !prompted && !strings.HasPrefix(line, "lokt ") {
				continue // output
			}
			block.WriteString(strings.TrimLeft(command, "\t") + "\n")
		case spans:
			for j, span := range strings.Split(line, "`") {
				if j%2 == 1 && strings.HasPrefix(span, "lokt ") {
					n += checkScript(t, at, span)
				}
			}
		}
	}
	if fence != "" {
		t.Errorf("%s: a code block has no end", where)
	}
	return n
}

func TestExamplesOfEveryCommandAreAccepted(t *testing.T) {
	n := 0
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		where := c.CommandPath()
		if c.Short == "" || c.Long == "" || c.Example == "" {
			t.Errorf("%s has no description, or no example", where)
		}
		for _, line := range strings.Split(c.Example, "\n") {
			if checkScript(t, where, line) == 0 {
				t.Errorf("%s: the example does not call lokt: %s", where, line)
			}
			n++
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	root := Tree()
	check(root)
	for _, tree := range []*cobra.Command{agent.Tree(), bench.Tree(), jobserver.Tree(), sim.Tree(), top.Tree()} {
		check(tree)
		for _, c := range tree.Commands() {
			named := slices.ContainsFunc(Commands(), func(o app.Command) bool { return o.Name == c.Name() && o.Program != "" })
			if !c.Hidden && !named && c.Name() != "help" {
				t.Errorf("lokt does not name %s as its program does", c.Name())
			}
		}
	}
	if n < len(root.Commands()) {
		t.Errorf("there are only %d examples", n)
	}
}

func TestCommandLinesInDocumentsAreAccepted(t *testing.T) {
	top := filepath.Join("..", "..")
	n := 0
	check := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			return
		}
		n += checkMarkdown(t, path, string(text), false)
	}
	check(filepath.Join(top, "README.md"))
	err := filepath.WalkDir(filepath.Join(top, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			check(path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if n == 0 {
		t.Error("no command lines were found")
	}
}

func TestCommandLinesForAgentsAreAccepted(t *testing.T) {
	for _, format := range []string{"prompt", "agents-md", "claude-md", "cursorrules", "windsurfrules", "copilot", "clinerules", "aider"} {
		text := clitest.New(t, "ann", Commands()).Must("prime", "--format", format)
		if n := checkMarkdown(t, "prime --format "+format, text, true); n < 5 {
			t.Errorf("prime --format %s: %d command lines were found", format, n)
		}
	}
}

func TestCheckOfCommandLinesFindsWhatDoesNotParse(t *testing.T) {
	for line, want := range map[string]int{ // commands, or -1 if something is wrong
		"lokt guard build --ttl 5m -- make build &":                1,
		"A=b lokt lock x 2>/dev/null || lokt why x # and so on":    2,
		"if ! lokt exists x; then make | tee log; fi":              1,
		"id=$(lokt lock x --json | jq -r .lock_id)":                1,
		"source <(lokt completion bash)":                           1,
		"lokt guard a -- lokt guard b -- true":                     1,
		"lokt guard db \\\n  --wait \\\n  -- make \"$TARGET\" '#'": 1,
		"echo lokt guard":                   0,
		"lokt demo > out.txt":               1,
		"lokt guard build":                  -1,
		"lokt guard -- make":                -1,
		"lokt guard a -- lokt guard b true": -1,
		"lokt lock":                         -1,
		"lokt lock a b":                     -1,
		"lokt lock ../a":                    -1,
		"lokt lock <NAME>":                  -1,
		"lokt lock a --ttl soon":            -1,
		"lokt lock a --timeout 5s":          -1,
		"lokt nonsense":                     -1,
		"lokt help nonsense":                -1,
		"lokt audit --since yesterdayish":   -1,
		"lokt prime --format nonsense":      -1,
		"lokt lock 'a":                      -1,
		"true && lokt audit --tail --name 'a b' ; lokt version now": -1,
	} {
		commands, err := loktCommands(line)
		for _, words := range commands {
			err = errors.Join(err, accepted(words))
		}
		switch {
		case want < 0 && err == nil:
			t.Errorf("%s: accepted", line)
		case want >= 0 && (err != nil || len(commands) != want):
			t.Errorf("%s: %d commands: %v; want %d", line, len(commands), err, want)
		}
	}
	const doc = "```console\n$ lokt lock a\nlokt lock\n```\n```go\nlokt lock\n```\n- a:\n\n  ```sh\n  lokt lock b\n  ```\n`lokt lock c`\n"
	if n := checkMarkdown(t, "doc", doc, false); n != 2 {
		t.Errorf("%d commands were found in the document, want 2", n)
	}
	if n := checkMarkdown(t, "doc", doc, true); n != 3 {
		t.Errorf("%d commands were found in the document with spans, want 3", n)
	}
}

func TestHelpFitsATerminal(t *testing.T) {
	var check func(words []string, cmd *cobra.Command)
	check = func(words []string, cmd *cobra.Command) {
		if !cmd.Hidden && !cmd.DisableFlagParsing { // which another program tells of
			help := clitest.New(t, "ann", Commands()).Must(append(words, "--help")...)
			for line := range strings.Lines(help) {
				if len(line) > 81 {
					t.Errorf("lokt %s --help has a line of %d characters: %s", strings.Join(words, " "), len(line)-1, line)
				}
			}
		}
		for _, sub := range cmd.Commands() {
			check(append(words[:len(words):len(words)], sub.Name()), sub)
		}
	}
	check(nil, Tree())
}
