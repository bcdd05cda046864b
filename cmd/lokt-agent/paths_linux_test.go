package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// edit is how an agent's program asks before it changes a file, which stands at PATH in JSON.
type edit struct{ player, event, tool, input string }

func edits() []edit {
	patch := func(line string) string {
		return `{"command":"*** Begin Patch\n` + line + `\n@@\n-a\n+b\n*** End Patch\n"}`
	}
	return []edit{
		{"claude", "PreToolUse", "Edit", `{"file_path":"PATH","old_string":"a","new_string":"b","replace_all":false}`},
		{"claude", "PreToolUse", "Write", `{"file_path":"PATH","content":"b"}`},
		{"claude", "PreToolUse", "MultiEdit", `{"file_path":"PATH","edits":[{"old_string":"a","new_string":"b"}]}`},
		{"claude", "PreToolUse", "NotebookEdit", `{"notebook_path":"PATH","new_source":"b","cell_id":"1"}`},
		{"codex", "PreToolUse", "apply_patch", patch("*** Update File: PATH")},
		{"codex", "PreToolUse", "apply_patch", patch("*** Add File: PATH")},
		{"codex", "PreToolUse", "apply_patch", patch("*** Delete File: PATH")},
		{"codex", "PreToolUse", "apply_patch", patch(`*** Update File: free.go\n*** Move to: PATH`)},
		{"codex", "PreToolUse", "Bash", `{"command":"apply_patch <<'E'\n*** Begin Patch\n*** Add File: PATH\n+b\n*** End Patch\nE\n"}`},
		{"cursor", "preToolUse", "Write", `{"file_path":"PATH","content":"b"}`},
		{"cursor", "preToolUse", "Delete", `{"path":"PATH"}`},
		{"gemini", "BeforeTool", "write_file", `{"file_path":"PATH","content":"b"}`},
		{"gemini", "BeforeTool", "replace", `{"file_path":"PATH","old_string":"a","new_string":"b"}`},
	}
}

// ask answers as the hook does that the agent's settings have for the event.
func (p *place) ask(t *testing.T, e edit, path string, env ...string) string {
	t.Helper()
	for _, a := range players() {
		if a.name != e.player {
			continue
		}
		a.event = e.event
		quoted, err := json.Marshal(path)
		if err != nil {
			t.Fatal(err)
		}
		session := `"session_id":"s-1"`
		if a.name == "cursor" {
			session = `"conversation_id":"s-1","workspace_roots":["` + p.dir + `"]`
		}
		input := strings.ReplaceAll(e.input, "PATH", strings.Trim(string(quoted), `"`))
		request := fmt.Sprintf(`{%s,"cwd":%q,"hook_event_name":%q,"tool_name":%q,"tool_input":%s,"tool_use_id":"1"}`, session, p.dir, e.event, e.tool, input)
		q := *p
		q.env = append(append([]string{}, p.env...), env...)
		out, err := q.run(t, request, "sh", "-c", p.hook(t, a))
		if err != nil {
			t.Fatalf("%s %s: %v: %s", e.player, e.tool, err, out)
		}
		return out
	}
	t.Fatalf("there is no %s", e.player)
	return ""
}

// No agent edits what somebody else has reserved, by whatever way its path leads there; and all edit what is free, or their own.
//
// Promise S-194.
func TestEnrolledAgentsDoNotEditWhatOthersHaveReserved(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.must(t, "sh", "-ec", "mkdir -p src/auth other/x; echo a >src/auth/login.go; echo a >free.go; ln -s src/auth door; ln -s src/auth/login.go file; ln -s src/auth/new.go dangling")
	p.must(t, "sh", "-c", "LOKT_OWNER=ana lokt reserve 'src/auth/**' '**/*.sql' --why 'bd-142: keep out' --ttl 1h")
	elsewhere := filepath.Join(filepath.Dir(p.dir), "door")
	if err := os.Symlink(p.dir, elsewhere); err != nil {
		t.Fatal(err)
	}
	reserved := []string{
		"src/auth/login.go", "src/auth/deep/er/new.go", "src/auth", "door/login.go", "door/new/x", "file", "dangling", "./src/../src/auth/login.go", "a b.sql", "other/x/é.sql",
		filepath.Join(p.dir, "src/auth/login.go"), filepath.Join(elsewhere, "src/auth/x"), filepath.Join(elsewhere, "door", "login.go"),
	}
	free := []string{"free.go", "src/authors.go", "src/x/auth/login.go", "sql", "x.sql/y", filepath.Join(filepath.Dir(p.dir), "out.go")}
	for _, e := range edits() {
		for _, path := range reserved {
			if e.event == "PreToolUse" && strings.Contains(e.tool, "Bash") && strings.Contains(path, "'") {
				continue
			}
			out := p.ask(t, e, path)
			if !strings.Contains(out, `"deny"`) || !strings.Contains(out, "is reserved by ana@") || !strings.Contains(out, "bd-142: keep out") || !strings.Contains(out, "for another ") {
				t.Errorf("%s %s of %s is answered %s", e.player, e.tool, path, out)
			}
			if strings.Contains(e.tool, "patch") || path != reserved[0] {
				continue
			}
			if out := p.ask(t, e, path, "LOKT_OWNER=ana"); strings.Contains(out, "deny") {
				t.Errorf("%s %s of its own %s is answered %s", e.player, e.tool, path, out)
			}
		}
		for _, path := range free {
			if out := p.ask(t, e, path); strings.Contains(out, "deny") || strings.Contains(out, "cannot judge") {
				t.Errorf("%s %s of %s, which is free, is answered %s", e.player, e.tool, path, out)
			}
		}
	}
	read := edit{"claude", "PreToolUse", "Read", `{"file_path":"PATH"}`}
	if out := p.ask(t, read, reserved[0]); strings.Contains(out, "deny") {
		t.Errorf("reading is answered %s", out)
	}
	for line, denied := range map[string]bool{
		"cd src/auth && apply_patch": true, "cd ./src/x/../auth; apply_patch": true, "cd 'src/auth' && applypatch": true, `cd \"src/auth\"  &&  apply_patch`: true,
		"cd src && cd auth && apply_patch": true, "cd other && apply_patch": false, "apply_patch": false,
	} {
		patch := edit{"codex", "PreToolUse", "Bash", `{"command":["bash","-lc","` + line + ` <<'E'\n*** Begin Patch\n*** Update File: PATH\n@@\n-a\n+b\n*** End Patch\nE\n"]}`}
		if out := p.ask(t, patch, "login.go"); strings.Contains(out, `"deny"`) != denied {
			t.Errorf("%s is answered %s", line, out)
		}
	}
	// The session that the hook tells has what it reserved, wherever its commands run.
	p.must(t, "sh", "-c", "LOKT_AGENT_ID=claude-s-1 lokt reserve own.go")
	if out := p.ask(t, edits()[0], "own.go"); strings.Contains(out, "deny") {
		t.Errorf("an agent may not edit its own: %s", out)
	}
	if out := p.ask(t, edits()[4], "own.go"); !strings.Contains(out, "deny") {
		t.Errorf("another agent's session edits it: %s", out)
	}
	// Who shares may edit what others share, and nobody else may.
	p.must(t, "sh", "-c", "LOKT_OWNER=ana lokt reserve doc --shared; LOKT_AGENT_ID=claude-s-1 lokt reserve 'do[c]' --shared")
	if out := p.ask(t, edits()[0], "doc"); strings.Contains(out, "deny") {
		t.Errorf("who shares is answered %s", out)
	}
	if out := p.ask(t, edits()[4], "doc"); !strings.Contains(out, "deny") {
		t.Errorf("who does not share is answered %s", out)
	}
	p.must(t, "sh", "-c", "LOKT_OWNER=ana lokt reserve --release; lokt freeze paths --ttl 1h")
	if out := p.ask(t, edits()[0], "src/auth/login.go"); !strings.Contains(out, "frozen") {
		t.Errorf("while paths are frozen the answer is %s", out)
	}
	if out := p.ask(t, edits()[0], "own.go"); strings.Contains(out, "deny") {
		t.Errorf("while paths are frozen, who has one is answered %s", out)
	}
}

// Nobody commits or pushes what somebody else has reserved, in a worktree neither, and the hooks that were there before still
// run.
//
// Promises S-194, S-195.
func TestGitDoesNotCommitOrPushWhatOthersHaveReserved(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.env = append(p.env, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "GIT_CONFIG_NOSYSTEM=1")
	p.must(t, "sh", "-ec", `mkdir -p src/auth; echo 1 >src/auth/a.go; echo 1 >free.go; git add src free.go; git commit -qm one; git branch -M main
git init -q --bare ../far.git; git remote add origin ../far.git; git push -q origin main`)
	p.must(t, "sh", "-c", "LOKT_OWNER=ana lokt reserve src/auth --why bd-142")
	refused := func(what, line string) {
		t.Helper()
		if out, err := p.run(t, "", "sh", "-ec", line); err == nil || !strings.Contains(out, "is reserved by ana@") {
			t.Errorf("%s: %v: %s", what, err, out)
		}
	}
	refused("a commit", "echo 2 >src/auth/a.go; git commit -qam two")
	refused("a new file", "git reset -q --hard; echo 2 >src/auth/b.go; git add src; git commit -qm two")
	refused("one that is removed", "git reset -q --hard; git rm -q src/auth/a.go; git commit -qm two")
	refused("one that is renamed", "git reset -q --hard; git mv src/auth/a.go a.go; git commit -qm two")
	refused("one named in the command", "git reset -q --hard; echo 2 >src/auth/a.go; git commit -qm two -- src/auth/a.go")
	refused("from below", "git reset -q --hard; echo 2 >src/auth/a.go; cd src; git commit -qam two")
	refused("in a worktree", "git reset -q --hard; git worktree add -q ../tree; cd ../tree; echo 2 >src/auth/a.go; git commit -qam two")
	p.must(t, "sh", "-ec", "git reset -q --hard; echo 2 >free.go; git commit -qam free; git push -q origin main")
	p.must(t, "sh", "-ec", "echo 2 >src/auth/a.go; LOKT_OWNER=ana git commit -qam hers; LOKT_OWNER=ana git push -q origin main")
	p.must(t, "sh", "-ec", "echo 3 >src/auth/a.go; git commit -qam evil --no-verify") // which no hook of git sees
	refused("a push", "git push -q origin main")
	refused("a push of a new branch", "git push -q origin main:other")
	refused("a push by address", "git push -q ../far.git main:third")
	p.must(t, "sh", "-ec", "git push -q origin HEAD~1:refs/heads/fine; git push -q origin :fine; LOKT_OWNER=ana git push -q origin main")

	// What the holder has changed comes in by a merge; what is changed beyond that does not.
	p.must(t, "sh", "-ec", `git checkout -q -b hers; echo 7 >src/auth/a.go; echo 7 >free.go; LOKT_OWNER=ana git commit -qam hers; LOKT_OWNER=ana git push -q origin hers; git checkout -q main
echo 8 >free.go; git commit -qam mine; ! git merge hers; echo 9 >free.go; git add free.go`)
	refused("a merge that changes more", "echo 8 >src/auth/a.go; git add src; git commit -qm merge")
	p.must(t, "sh", "-ec", "git checkout -q hers -- src; git commit -qm merge; test $(cat src/auth/a.go) = 7")

	// Hooks that were there before.
	p.must(t, "sh", "-c", "lokt init --remove")
	hooks := filepath.Join(p.dir, ".git", "hooks")
	for name, text := range map[string]string{
		"pre-commit": "#!/usr/bin/env bash\nset -e\necho \"$(basename \"$0\") $#\" >>\"$LOG\"\n",
		"pre-push":   "#!/usr/bin/awk -f\nBEGIN { ARGC = 1 }\n{ print \"push \" $1 \" \" NF >>ENVIRON[\"LOG\"] }\n",
	} {
		if err := os.WriteFile(filepath.Join(hooks, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := p.must(t, "sh", "-c", "cd .git/hooks; ls -lR --time-style=+ . | grep -v sample; cat pre-commit pre-push")
	p.must(t, "sh", "-c", "lokt init")
	if again := p.must(t, "sh", "-c", "lokt init"); !strings.Contains(again, "everything is there") {
		t.Errorf("again: %s", again)
	}
	refused("a commit with a hook", "echo 4 >src/auth/a.go; git commit -qam four")
	if _, err := os.Stat(p.log); err == nil {
		t.Error("the hook of before has run, though the commit was refused")
	}
	p.must(t, "sh", "-ec", "git reset -q --hard; echo 5 >free.go; git commit -qam five; git push -q origin main")
	if text, _ := os.ReadFile(p.log); string(text) != "pre-commit 0\npush refs/heads/main 4\n" {
		t.Errorf("the hooks of before have left %q", text)
	}
	p.must(t, "sh", "-c", "lokt init --remove")
	if after := p.must(t, "sh", "-c", "cd .git/hooks; ls -lR --time-style=+ . | grep -v sample; cat pre-commit pre-push"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}

	// core.hooksPath, in the repository and beyond it.
	p.must(t, "sh", "-ec", "git config core.hooksPath tools/hooks; lokt init; test -x tools/hooks/pre-commit; test ! -e .git/hooks/lokt")
	refused("a commit with core.hooksPath", "echo 6 >src/auth/a.go; git commit -qam six")
	p.must(t, "sh", "-ec", "chmod -x tools/hooks/pre-commit; ! lokt init --check; lokt init; test -x tools/hooks/pre-commit; lokt init --remove; test ! -e tools/hooks")
	if out := p.must(t, "sh", "-ec", "git config core.hooksPath \"$HOME/hooks\"; lokt init; test ! -e \"$HOME/hooks\""); !strings.Contains(out, "core.hooksPath is") {
		t.Errorf("hooks of all repositories: %s", out)
	}
}

// Hooks of git that are links stay the files to which they lead, for which others call them too; those of husky are not in the
// directory that it makes anew.
//
// Promise S-195.
func TestHooksThatAreLinksOrOfHuskyGoOn(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.env = append(p.env, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "GIT_CONFIG_NOSYSTEM=1")
	p.must(t, "sh", "-c", "lokt init --remove; git init -q --bare ../far.git")
	for name, c := range map[string]struct{ make, want string }{
		"links": {`mkdir scripts; printf '#!/bin/sh\necho "$(basename "$0")" >>"$LOG"\n' >scripts/all; chmod +x scripts/all
for h in pre-commit pre-push commit-msg; do ln -s ../../scripts/all .git/hooks/$h; done`, "pre-commit\ncommit-msg\npre-push\n"},
		"husky": {`mkdir -p .husky/_; echo 'sh -e "${0%/*}/../${0##*/}" "$@"' >.husky/_/h; git config core.hooksPath .husky/_
for h in pre-commit pre-push; do printf '#!/bin/sh\n. "${0%%/*}/h"' >.husky/_/$h; chmod +x .husky/_/$h; echo "echo husky $h >>\"\$LOG\"" >.husky/$h; done`,
			"husky pre-commit\nhusky pre-push\n"},
	} {
		const list = `find .git/hooks .husky scripts -printf '%p %M %l\n' 2>/dev/null | grep -v sample; cat .git/hooks/pre-* .husky/* .husky/_/* scripts/* 2>/dev/null || :`
		p.must(t, "sh", "-ec", c.make)
		before := p.must(t, "sh", "-c", list)
		p.must(t, "sh", "-ec", "lokt init; lokt init --check; LOKT_OWNER=ana lokt reserve secret")
		if out, err := p.run(t, "", "sh", "-ec", "echo "+name+" >secret; git add secret; git commit -qm x"); err == nil || !strings.Contains(out, "is reserved by ana@") {
			t.Errorf("%s: a commit: %v: %s", name, err, out)
		}
		p.must(t, "sh", "-ec", "LOKT_OWNER=ana lokt reserve --release; rm -f $LOG; git commit -qm x; git push -q ../far.git HEAD:"+name+"; git reset -q; rm secret")
		if text, _ := os.ReadFile(p.log); string(text) != c.want {
			t.Errorf("%s: the hooks of before have left %q", name, text)
		}
		p.must(t, "sh", "-ec", "lokt init --remove; rm -f $LOG; git commit -qm y --allow-empty; git config --unset core.hooksPath || :")
		if after := p.must(t, "sh", "-c", list); after != before {
			t.Errorf("%s: before:\n%s\nafter:\n%s", name, before, after)
		}
		p.must(t, "sh", "-ec", "rm -rf .husky scripts .git/hooks/pre-* .git/hooks/commit-msg")
	}
}

// Who runs init at once, in one checkout and in several, or is killed, loses nothing of what is to be put back.
//
// Promise S-195.
func TestInitsAtOnceAreAllPutBack(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.must(t, "sh", "-c", "lokt init --remove")
	const list = `find . .git/hooks -path './.git' -prune -o -type f ! -name '.*.tmp-*' -print | sort` // a kill may leave a new file unnamed
	before := p.must(t, "sh", "-c", list)
	for range 3 {
		p.must(t, "sh", "-ec", "for i in 1 2 3 4 5 6; do lokt init --agent claude --agent cursor & done; for i in 1 2 3 4 5 6; do wait %$i; done; lokt init --check; lokt init --remove")
		if after := p.must(t, "sh", "-c", list); after != before {
			t.Fatalf("before:\n%s\nafter:\n%s", before, after)
		}
	}
	p.must(t, "sh", "-ec", "echo mine >CLAUDE.md; cp CLAUDE.md ../mine")
	for i := range 15 { // killed in the middle
		p.must(t, "bash", "-c", fmt.Sprintf(`lokt init --agent claude >/dev/null 2>&1 & sleep %.3f; kill -9 $!; wait; lokt init --remove; cmp CLAUDE.md ../mine`, 0.002*float64(i)))
	}
	p.must(t, "sh", "-ec", "rm CLAUDE.md")
	if after := p.must(t, "sh", "-c", list); after != before {
		t.Errorf("before:\n%s\nafter one that was killed:\n%s", before, after)
	}
	p.must(t, "sh", "-ec", `git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m x; git worktree add -q ../tree; lokt init
(cd ../tree; lokt init; lokt init --remove; test -e "$(git rev-parse --git-common-dir)/lokt/shims/make"); lokt init --check
cd ..; mv repo moved; cd moved; lokt init --remove; test ! -e .git/lokt/shims; cd ..; mv moved repo`)
	if after := p.must(t, "sh", "-c", list); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
