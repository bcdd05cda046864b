//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/lockfile"
)

// block is a fenced block of the README, and the comment before it that says how to run it, if there is one.
type block struct {
	language string
	line     int
	how      string
	text     []string
}

const (
	inCheckout = "run in the checkout"
	onServer   = "run with a server in LOKT_SERVER"
	notRun     = "not run:" // and why
)

func readmeBlocks(t *testing.T) []block {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []block
	var open *block
	how := ""
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case open != nil && line == "```":
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.text = append(open.text, line)
		case strings.HasPrefix(line, "```"):
			open, how = &block{language: line[3:], line: i + 1, how: how}, ""
		case strings.HasPrefix(line, "<!--"):
			how = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(line, "<!--"), "-->"))
		}
	}
	if open != nil {
		t.Fatalf("README.md:%d: the block has no end", open.line)
	}
	return blocks
}

// step is a command of a block, and what it is shown to print.
type step struct {
	command string
	output  []string
}

func (b block) steps() []step {
	var steps []step
	for _, line := range b.text {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			steps = append(steps, step{command: command})
		} else if len(steps) > 0 {
			last := &steps[len(steps)-1]
			last.output = append(last.output, line)
		}
	}
	return steps
}

// environment returns this process's environment without what would tell lokt of other locks, and with dir first in PATH.
func environment(dir string, more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "LOKT_") || strings.HasPrefix(kv, "PATH=")
	})
	return append(append(env, "PATH="+dir+":"+os.Getenv("PATH")), more...)
}

// The make that the examples call: the first of two at once ends when somebody waits for it.
const fakeMake = `#!/bin/sh
mkdir started 2>/dev/null || exit 0
i=0
until ls .git/lokt/queue/*.json >/dev/null 2>&1; do
	i=$((i+1)); [ $i -lt 600 ] || exit 1
	sleep 0.05
done
`

const mark = "=== mark"

// script returns the block as one script of bash, which prints a mark and the exit code behind each step. A step in the
// background goes on when its lock is on record.
func script(steps []step) string {
	var s strings.Builder
	for _, st := range steps {
		fmt.Fprintf(&s, "(exit ${code:-0})\n%s\ncode=$?\n", st.command)
		if strings.HasSuffix(st.command, "&") {
			s.WriteString("for i in {1..600}; do ls .git/lokt/locks/*.json >/dev/null 2>&1 && break; sleep 0.05; done\n")
		}
		fmt.Fprintf(&s, "echo; echo '%s' $code\n", mark)
	}
	return s.String() + "wait\n"
}

// shown returns a pattern for lines in which … stands for anything within a line.
func shown(lines []string) *regexp.Regexp {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.Join(lines, "\n")), "…", "[^\n]*")
	return regexp.MustCompile("^" + pattern + "$")
}

// Promise S-60.
func TestExamplesOfTheReadmeWorkWordForWord(t *testing.T) {
	t.Parallel()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "make"), []byte(fakeMake), 0o700); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, b := range readmeBlocks(t) {
		if b.language != "console" && b.language != "sh" || strings.HasPrefix(b.how, notRun) {
			continue
		}
		ran++
		t.Run(fmt.Sprintf("line %d", b.line), func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(dir, ".git"), 0o700), os.WriteFile(filepath.Join(dir, ".git", "HEAD"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			c := exec.Command("bash", "-c", script(b.steps()))
			c.Dir, c.Env = dir, environment(bin+":"+filepath.Dir(path))
			switch b.how {
			case inCheckout:
				c.Dir, c.Env = filepath.Join("..", ".."), append(c.Env, "LOKT_ROOT="+dir)
			case onServer:
				d := &daemon{store: "sqlite:" + filepath.Join(t.TempDir(), "loktd.db")}
				t.Cleanup(d.kill)
				if err := d.up(); err != nil {
					t.Fatal(err)
				}
				c.Env = append(c.Env, "LOKT_SERVER="+d.url)
			}
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			compare(t, b, string(out))
		})
	}
	if ran < 4 {
		t.Errorf("the README has %d blocks of examples that run: this test has not found them", ran)
	}
}

func compare(t *testing.T, b block, out string) {
	t.Helper()
	steps := b.steps()
	if len(steps) == 0 {
		t.Fatalf("README.md:%d: no line begins with a prompt", b.line)
	}
	parts := strings.Split(out, "\n"+mark+" ")
	if len(parts) != len(steps)+1 {
		t.Fatalf("%d steps, but %d marks:\n%s", len(steps), len(parts)-1, out)
	}
	got := parts[0]
	for i, st := range steps {
		code, rest, _ := strings.Cut(parts[i+1], "\n")
		if want := shown(st.output); !want.MatchString(strings.TrimSuffix(got, "\n")) {
			t.Errorf("$ %s\nprinted:\n%s\nthe README shows:\n%s", st.command, got, strings.Join(st.output, "\n"))
		}
		if asked := i+1 < len(steps) && steps[i+1].command == "echo $?"; code != "0" && !asked {
			t.Errorf("$ %s\nended with %s, which the README does not show", st.command, code)
		}
		got = rest
	}
}

func TestProgramOfTheReadmeRuns(t *testing.T) {
	t.Parallel()
	ran := false
	for _, b := range readmeBlocks(t) {
		if b.language != "go" {
			continue
		}
		ran = true
		dir := t.TempDir()
		src := filepath.Join(dir, "main.go")
		if err := os.WriteFile(src, []byte(strings.Join(b.text, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "program")
		build := exec.Command("go", "build", "-o", program, src)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("README.md:%d: %v\n%s", b.line, err, out)
		}
		c := exec.Command(program)
		c.Dir, c.Env = dir, environment(dir)
		out, err := c.CombinedOutput()
		if err != nil || string(out) != "processing; the token is set: true\n" {
			t.Errorf("README.md:%d: %v\n%s", b.line, err, out)
		}
	}
	if !ran {
		t.Error("the README has no Go program")
	}
}

// page returns a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEveryFieldOfARecordIsDescribed(t *testing.T) {
	protocol := page(t, "protocol.md")
	for _, typ := range []reflect.Type{
		reflect.TypeFor[lockfile.Record](), reflect.TypeFor[lockfile.Asker](), reflect.TypeFor[lockfile.Yield](),
		reflect.TypeFor[lockfile.Clock](), reflect.TypeFor[lockfile.Queue](), reflect.TypeFor[audit.Entry](),
	} {
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			if !strings.Contains(protocol, "`"+name+"`") && !strings.Contains(protocol, `"`+name+`":`) {
				t.Errorf("docs/protocol.md does not describe %s of %s", name, typ)
			}
		}
	}
}

var (
	eventName = regexp.MustCompile(`EventType = "([a-z-]+)"`)
	goFile    = regexp.MustCompile("`([a-z0-9_/]+\\.go)`")
)

func TestEveryEventIsDescribed(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("..", "..", "events.go"))
	if err != nil {
		t.Fatal(err)
	}
	protocol := page(t, "protocol.md")
	events := eventName.FindAllStringSubmatch(string(source), -1)
	if len(events) == 0 {
		t.Fatal("events.go has no events")
	}
	for _, e := range events {
		if !strings.Contains(protocol, "`"+e[1]+"`") {
			t.Errorf("docs/protocol.md does not describe the event %s", e[1])
		}
	}
}

func TestArchitectureNamesFilesThatAreThere(t *testing.T) {
	have := map[string]bool{}
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return fs.SkipDir
		}
		have[filepath.Base(path)] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	files := goFile.FindAllStringSubmatch(page(t, "architecture.md"), -1)
	if len(files) < 10 {
		t.Errorf("docs/architecture.md names %d files: this test has not found them", len(files))
	}
	for _, f := range files {
		if !have[filepath.Base(f[1])] {
			t.Errorf("docs/architecture.md names %s, which is not there", f[1])
		}
	}
}
