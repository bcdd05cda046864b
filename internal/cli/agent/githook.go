package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/glob"
	"github.com/lokt-dev/lokt/internal/policy"
	"github.com/lokt-dev/lokt/internal/shell"
)

// git is what lokt hook calls git among the agents.
const git = "git"

// gitEvents are the hooks of git that are installed.
func gitEvents() []string { return []string{"pre-commit", "pre-push"} }

// runGit is a hook of git: it fails if somebody else has reserved a path of what is committed or pushed.
func (a cmd) runGit(event string, args []string) error {
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	text, err := a.judgeGit(dir, event, args)
	refuses := text != ""
	if err != nil {
		text = "lokt cannot judge this: " + err.Error()
		if refuses = policy.Refuses(dir, err); refuses {
			text += "; " + policy.File + " says to refuse such things"
		}
	}
	if text != "" {
		a.Tell("%s: %s", event, text)
	}
	if refuses {
		return app.Exit(app.ExitError)
	}
	return nil
}

func (a cmd) judgeGit(dir, event string, args []string) (string, error) {
	ctx, done := context.WithTimeout(context.Background(), hookTime)
	defer done()
	paths, err := a.touched(ctx, event, args)
	if err != nil {
		return "", err
	}
	c, err := a.checkout(dir)
	if err != nil {
		return "", err
	}
	for i := range paths {
		paths[i] = glob.Quote(c.folded(paths[i]))
	}
	all, err := c.refusals(ctx, c.Asker(), paths)
	return refused(all), err
}

// touched returns the paths that a commit or a push is about.
func (a cmd) touched(ctx context.Context, event string, args []string) ([]string, error) {
	if event == "pre-commit" {
		diff := []string{"diff", "--cached", "--name-only", "-z", "--no-renames", "--no-ext-diff"}
		paths, err := a.git(ctx, diff...)
		if _, none := a.git(ctx, "rev-parse", "-q", "--verify", "MERGE_HEAD"); err != nil || none != nil {
			return paths, err
		}
		theirs, err := a.git(ctx, append(diff, "MERGE_HEAD")...)
		return slices.DeleteFunc(paths, func(p string) bool { return !slices.Contains(theirs, p) }), err // what came as it was is nobody's change
	}
	refs, err := io.ReadAll(io.LimitReader(a.In, requestMost))
	if err != nil {
		return nil, err
	}
	known := []string{"--not", "--remotes"}
	if len(args) > 0 && !strings.ContainsAny(args[0], "*?[/:") { // a name, and no address
		known[1] += "=" + args[0]
	}
	log := []string{"log", "--format=", "--name-only", "-z", "--no-renames", "--no-show-signature", "-c"}
	some := false
	for line := range strings.Lines(string(refs)) {
		fields := strings.Fields(line)
		if len(fields) != 4 || strings.Trim(fields[1], "0") == "" { // a ref that is deleted
			continue
		}
		log, some = append(log, fields[1]), true
		if _, err := a.git(ctx, "cat-file", "-e", fields[3]); err == nil {
			known = append(known, fields[3])
		}
	}
	if !some {
		return nil, nil
	}
	return a.git(ctx, append(append(log, known...), "--")...)
}

// git returns what git answers, as paths that zero bytes end.
func (a cmd) git(ctx context.Context, args ...string) ([]string, error) {
	c := exec.CommandContext(ctx, git, args...)
	c.Env = a.Environ()
	var told bytes.Buffer
	c.Stderr = &told
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(told.String()))
	}
	paths := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	for i := range paths {
		paths[i] = strings.TrimPrefix(paths[i], "\n")
	}
	slices.Sort(paths)
	return slices.Compact(slices.DeleteFunc(paths, func(p string) bool { return p == "" })), nil
}

// gitHooks returns the directory of git's hooks; empty if there is none that belongs to this repository alone. If husky makes
// those of git anew, it is the one above, with the scripts that it runs.
func (s *setup) gitHooks() (dir string, husky bool, err error) {
	c := exec.CommandContext(context.Background(), git, "-C", s.top, "rev-parse", "--git-path", "hooks", "--git-common-dir", "--is-inside-git-dir")
	c.Env = append(s.Environ(), "LC_ALL=C")
	out, err := c.Output()
	told := strings.Split(string(out), "\n")
	var refused *exec.ExitError
	switch {
	case errors.As(err, &refused) && !bytes.Contains(refused.Stderr, []byte("not a git repository")): // such as somebody else's
		if !s.remove {
			s.failed = append(s.failed, "hooks of git")
			s.Tell("hooks of git: %s", strings.TrimSpace(string(refused.Stderr)))
		}
		return "", false, nil
	case err != nil || len(told) < 3: // no repository, or no git
		return "", false, nil
	case told[2] == "true":
		return "", false, fmt.Errorf("%s is no checkout of a git repository, but its own directory: run lokt init where the files are", s.top)
	}
	dir, common := resolve(app.Against(s.top, told[0])), resolve(app.Against(s.top, told[1]))
	if husky = filepath.Base(dir) == "_" && exists(filepath.Join(dir, "h")); husky {
		dir = filepath.Dir(dir)
	}
	for _, own := range []string{s.top, common} {
		if filepath.IsLocal(relative(own, dir)) {
			return dir, husky, nil
		}
	}
	s.Tell("warning: core.hooksPath is %s, which is not of this repository alone: call there what docs/agents.md says", dir)
	return "", false, nil
}

// What stands in a hook of git. What was there goes on behind it, with the same name, arguments and input.
const (
	hookBegin = "# lokt: begin (lokt init --remove takes this out)\n"
	hookEnd   = "# lokt: end\n"

	preCommit = `if command -v LOKT >/dev/null 2>&1; then
  LOKT hook git pre-commit "$@" </dev/null || exit 1
fi
`
	prePush = `if command -v LOKT >/dev/null 2>&1; then
  lokt_refs=$(cat)
  printf '%s\n' "$lokt_refs" | LOKT hook git pre-push "$@" || exit 1
  if [ -n "$lokt_refs" ]; then
    exec <<lokt_refs_end
$lokt_refs
lokt_refs_end
  else
    exec </dev/null
  fi
fi
`
)

var (
	hookBlock = regexp.MustCompile("(?s)" + regexp.QuoteMeta(hookBegin) + ".*?" + hookEnd)
	isShell   = regexp.MustCompile(`^#![ \t]*(/\S+/env[ \t]+)?(/\S+/)?(sh|bash|dash|ash|ksh|zsh)\b[^\n]*\n`)
)

// gitItems returns what there is to be in the hooks of git. A script of a shell gets some lines more. Another program, or what
// a link leads to, is called under its own name beside it; one that is not executable is none to git either.
func (s *setup) gitItems() (items []item, err error) {
	dir, husky, err := s.gitHooks()
	if dir == "" {
		return nil, err
	}
	for i, text := range []string{preCommit, prePush} {
		name := gitEvents()[i]
		block := []byte(hookBegin + strings.ReplaceAll(text, "LOKT", shell.Quote(loktPath())) + hookEnd)
		path := filepath.Join(dir, name)
		hook := item{path: path, hook: true}
		now, _ := read(path) // what cannot be read is told when it is written
		first := isShell.Find(now)
		to, _ := os.Readlink(path) // if it is a link
		var text []byte
		switch {
		case hookBlock.Match(now):
			text = hookBlock.ReplaceAllLiteral(now, block)
		case len(now) == 0 || !executable(path) && !husky:
			text = slices.Concat([]byte("#!/bin/sh\n"), block)
		case (first != nil || husky) && to == "":
			text = slices.Concat(first, block, now[len(first):])
		default:
			if to != "" && !filepath.IsAbs(to) {
				to = filepath.Join("..", to)
			}
			was := []byte(cmp.Or(to, string(now)))
			items = append(items, item{path: filepath.Join(dir, "lokt", name), want: func([]byte) ([]byte, error) { return was, nil }, hook: true, link: to != ""})
			text = slices.Concat([]byte("#!/bin/sh\n"), block, []byte(`exec "$(dirname "$0")/lokt/`+name+`" "$@"`+"\n"))
		}
		hook.want = func([]byte) ([]byte, error) { return text, nil }
		items = append(items, hook)
	}
	return items, nil
}

// relative returns a path as the record has it.
func relative(base, path string) string {
	if rel, err := filepath.Rel(base, path); err == nil { // not on another volume
		path = rel
	}
	return filepath.ToSlash(path)
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && (runtime.GOOS == "windows" || fi.Mode()&0o111 != 0)
}
