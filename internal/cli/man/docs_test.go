package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/lokt-dev/lokt/internal/cli"
	"github.com/lokt-dev/lokt/internal/cli/agent"
	"github.com/lokt-dev/lokt/internal/cli/bench"
	"github.com/lokt-dev/lokt/internal/cli/jobserver"
	"github.com/lokt-dev/lokt/internal/cli/mcp"
	"github.com/lokt-dev/lokt/internal/cli/top"
	"github.com/lokt-dev/lokt/internal/daemon"
	"github.com/lokt-dev/lokt/internal/sim"
)

// known reports why there is no such command of lokt's programs, or none with such flags.
func known(words []string) error {
	var trees []*cobra.Command
	switch path.Base(words[0]) {
	case "loktd":
		trees = []*cobra.Command{daemon.Tree(daemon.Streams{})}
	case "lokt", "lokt-agent":
		trees = []*cobra.Command{agent.Tree(), bench.Tree(), jobserver.Tree(), mcp.Tree(), sim.Tree(), top.Tree(), cli.Tree()}
	default:
		return nil
	}
	var err error
	for _, tree := range trees {
		var c *cobra.Command
		var rest []string
		if c, rest, err = tree.Find(words[1:]); err != nil || c == tree && tree != trees[len(trees)-1] {
			continue
		}
		switch {
		case c == tree && len(words) > 1 && !strings.HasPrefix(words[1], "-") && words[1] != "help" && words[1] != "NAME":
			err = errors.New("there is no such command")
		case !c.DisableFlagParsing:
			err = c.ParseFlags(rest)
		}
		break
	}
	if err != nil && (errors.Is(err, pflag.ErrHelp) || strings.HasPrefix(err.Error(), "flag needs an argument")) { // of which prose speaks
		return nil
	}
	return err
}

// commands returns the commands in a script, and in what its substitutions run.
func commands(script string) (all [][]string, err error) {
	f, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		return nil, err
	}
	syntax.Walk(f, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		var words []string
		for _, arg := range call.Args {
			word, err := expand.Literal(&expand.Config{
				Env:       expand.FuncEnviron(func(string) string { return "1" }),
				ProcSubst: func(*syntax.ProcSubst) (string, error) { return "1", nil },
				CmdSubst:  func(w io.Writer, _ *syntax.CmdSubst) error { _, err := io.WriteString(w, "1"); return err },
			}, arg)
			if err != nil {
				word = "1" // arithmetic, and processes
			}
			words = append(words, word)
		}
		all = append(all, words)
		return true
	})
	return all, nil
}

var inline = regexp.MustCompile("`(loktd? [^`…]+)`")

// scripts returns what a page gives a shell in fenced blocks, by the line where each begins, and in a line of prose.
func scripts(page string) map[int]string {
	all := map[int]string{}
	begin, console := 0, false
	for i, line := range strings.Split(page, "\n") {
		switch language, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); {
		case fence && (language == "sh" || language == "console"):
			begin, console = i+1, language == "console"
		case fence:
			begin = 0
		case begin == 0:
			for _, found := range inline.FindAllStringSubmatch(line, -1) {
				all[i+1] += found[1] + "\n"
			}
		case console:
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				all[begin] += command + "\n"
			}
		default:
			all[begin] += line + "\n"
		}
	}
	return all
}

func TestCommandsInThePagesExist(t *testing.T) {
	top := filepath.Join("..", "..", "..")
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/*/*.md", "clients/*/README.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	seen := 0
	for _, p := range pages {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for line, script := range scripts(string(text)) {
			all, err := commands(script)
			if err != nil {
				t.Errorf("%s:%d: %v", p, line, err)
			}
			for _, words := range all {
				if err := known(words); err != nil {
					t.Errorf("%s:%d: %s: %v", p, line, strings.Join(words, " "), err)
				}
				if strings.HasPrefix(path.Base(words[0]), "lokt") {
					seen++
				}
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d commands were found", seen)
	}
}

func TestCommandsThatDoNotExistAreFound(t *testing.T) {
	all, err := commands("x=$(lokt staatus a); until loktd serve --storre x; do bin/lokt lock x --ttl parsecs; done | lokt lock --ttl soon x")
	if err != nil {
		t.Fatal(err)
	}
	var wrong []string
	for _, words := range all {
		if err := known(words); err != nil {
			wrong = append(wrong, words[1])
		}
	}
	if slices.Sort(wrong); fmt.Sprint(wrong) != "[lock lock serve staatus]" {
		t.Errorf("found are %v in %v", wrong, all)
	}
}
