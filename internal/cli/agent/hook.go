package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/identity"
	"github.com/lokt-dev/lokt/internal/policy"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/internal/shell"
)

func newHook(a cmd) *cobra.Command {
	return app.Describe("hook", &cobra.Command{
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 1 && args[0] == git && slices.Contains(gitEvents(), args[1]):
				return a.runGit(args[1], args[2:])
			case len(args) != 2:
				return app.Usagef("name the agent and the event: lokt hook AGENT EVENT")
			}
			return a.runHook(args[0], args[1])
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return harnessNames(), cobra.ShellCompDirectiveNoFileComp
			case 1:
				for _, h := range harnesses() {
					if h.name == args[0] {
						return h.events(), cobra.ShellCompDirectiveNoFileComp
					}
				}
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	})
}

// Limits of a hook.
const (
	requestMost = 64 << 20         // bytes of a request
	hookTime    = 10 * time.Second // how long one may take
)

// hooking is one run of the command.
type hooking struct {
	cmd
	harness
	event string
	req   *request
	dir   string
	now   context.Context
}

func (a cmd) runHook(agent, event string) error {
	ctx, done := context.WithTimeout(context.Background(), hookTime)
	defer done()
	k := &hooking{cmd: a, event: event, now: ctx}
	k.dir, _ = a.Dir() // without one the request has to say where it is about
	i := slices.IndexFunc(harnesses(), func(h harness) bool { return h.name == agent })
	if i < 0 {
		return k.unknown(fmt.Errorf("there is no agent %q: it is one of %s", agent, strings.Join(harnessNames(), ", ")))
	}
	k.harness = harnesses()[i]
	if !slices.Contains(k.events(), event) {
		return k.unknown(fmt.Errorf("%s has no event %q here: it is one of %s", k.title, event, strings.Join(k.events(), ", ")))
	}
	text, err := io.ReadAll(io.LimitReader(a.In, requestMost))
	if err == nil {
		k.req, err = readRequest(text)
	}
	if err != nil {
		return k.failed(err)
	}
	k.dir = k.req.dir(k.dir)
	k.note()
	var answer any
	switch event {
	case k.start:
		answer, err = k.begin()
	case k.end:
		answer, err = k.finish()
	default:
		if answer, err = k.judge(); err == nil {
			answer, err = k.asked(k.event, answer, k.questions())
		}
	}
	if err != nil {
		return k.failed(err)
	}
	return k.answer(answer)
}

func (k *hooking) answer(v any) error {
	if v == nil {
		return nil
	}
	text, err := marshal(v)
	if err != nil {
		return err
	}
	return k.Write(string(text) + "\n")
}

// failed answers what cannot be judged, as the policy says.
func (k *hooking) failed(err error) error {
	note := "lokt cannot judge this: " + err.Error()
	if k.event != k.before && k.event != k.edit || !k.closed(err) {
		k.Tell("%s", note)
		return k.answer(k.allow(note))
	}
	return k.answer(k.deny(note + "; " + policy.File + " says to refuse such things"))
}

// unknown ends a hook of an agent whose form of answers is not known. All of them take the exit code 2 for a refusal, and
// others for no answer.
func (k *hooking) unknown(err error) error {
	if k.closed(err) {
		k.Tell("%v; %s says to refuse what cannot be judged", err, policy.File)
		return app.Exit(app.ExitBlocked)
	}
	return app.Usage(err)
}

// closed reports whether the policy says that what cannot be judged is refused.
func (k *hooking) closed(err error) bool {
	var bad *policy.Error
	if errors.As(err, &bad) {
		return bad.Closed
	}
	p, err := policy.Find(k.dir)
	if errors.As(err, &bad) {
		return bad.Closed
	}
	return err == nil && p.Closed
}

// judge decides about what a tool is to do.
func (k *hooking) judge() (any, error) {
	if paths := k.req.edited(); len(paths) > 0 {
		if reason, err := k.edits(paths); err != nil || reason != "" {
			return k.deny(reason), err
		}
	}
	if k.event != k.before {
		return k.allow(""), nil
	}
	if line, ok := k.req.command(); ok {
		return k.command(line)
	}
	return k.allow(""), nil
}

// command puts a line of shell under the guards that it needs, or refuses it.
func (k *hooking) command(line string) (any, error) {
	id := k.agentID(k.req.session())
	f := &shell.Finder{
		Dir: k.dir, Getenv: k.Getenv, Policy: policies(), Root: k.lockRoot, Lokt: loktPath(), Owner: id,
	}
	if k.told() {
		f.Owner = ""
	}
	r, err := f.Find(line)
	switch {
	case err != nil:
		return nil, err
	case r.Line == line:
		return k.allow(""), nil
	case k.rewrite:
		return k.instead(k.req, r.Line)
	case len(r.Needs) == 0:
		return k.allow(""), nil
	}
	return k.deny(fmt.Sprintf("%s needs the lock %s, so that two do not run at once. Run this line instead, which waits for its turn:\n%s",
		list(r.Needs), list(r.Locks), r.Line)), nil
}

// list returns words as people list them: each once, and not too many.
func list(words []string) string {
	var quoted []string
	for _, w := range words {
		if q := "`" + w + "`"; !slices.Contains(quoted, q) {
			quoted = append(quoted, q)
		}
		if len(quoted) == 10 {
			break
		}
	}
	return strings.Join(quoted, ", ")
}

// policies returns a reader of policies that reads each directory's once.
func policies() func(dir string) (*policy.Policy, error) {
	seen := map[string]*policy.Policy{}
	return func(dir string) (*policy.Policy, error) {
		if p := seen[dir]; p != nil {
			return p, nil
		}
		p, err := policy.Find(dir)
		if err == nil {
			seen[dir] = p
		}
		return p, err
	}
}

// lockRoot returns where the locks of a directory are.
func (a cmd) lockRoot(dir string) string {
	r, err := a.in(dir).FindRoot()
	if err != nil {
		return ""
	}
	return r.Path
}

// questionTime is how long a hook looks for questions: a server that is far away does not hold up every command.
const questionTime = 100 * time.Millisecond

// questions returns what others ask the agent about what it holds.
func (k *hooking) questions() string {
	ctx, done := context.WithTimeout(k.now, questionTime)
	defer done()
	a, id := k.in(k.dir), k.agentID(k.req.session())
	b, err := a.Backend()
	if err != nil || id == "" {
		return "" // whoever needs the locks is told why there are none
	}
	by := a.Asker()
	by.Session = id
	var all []string
	for s, err := range b.List(ctx, lokt.Filter{}) {
		if err != nil {
			continue
		}
		for _, h := range s.Live() {
			for _, m := range h.Messages {
				if m.Answer == "" && by.Same(h.Owner) {
					all = append(all, fmt.Sprintf("%s says about the lock %q, which you hold: %q. Answer with: %s TEXT",
						m.From, s.Lock.Name, app.OneLine(m.Text), a.CommandLine("answer", s.Lock.Name)))
				}
			}
		}
	}
	return strings.Join(all, "\n")
}

// begin takes note of a session. Claude Code reads variables for later commands from a file.
func (k *hooking) begin() (any, error) {
	id, file := k.agentID(k.req.session()), k.Getenv("CLAUDE_ENV_FILE")
	if file == "" {
		return k.allow(""), nil
	}
	var lines string
	if id != "" {
		lines = "export LOKT_AGENT_ID=" + id + "\n"
	}
	if dir := k.shims(k.dir); exists(dir) {
		lines += "export PATH=" + shell.Quote(dir) + ":\"$PATH\"\n"
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(lines)
	return k.allow(""), errors.Join(err, f.Close())
}

// note tells commands that the agent's process will start which session they are of, as well as it can. What was noted of
// processes that have ended goes.
func (k *hooking) note() {
	id, path := k.agentID(k.req.session()), identity.Find().Note(k.in(k.dir).Notes())
	if id == "" || path == "" {
		return
	}
	if have, err := os.ReadFile(path); err == nil && string(have) == id {
		return
	}
	dir := filepath.Dir(path)
	all, _ := os.ReadDir(dir) // there may be none
	for _, e := range all {
		var pid int
		var start int64
		if _, numbers, found := strings.Cut(e.Name(), "-"); found {
			_, _ = fmt.Sscanf(numbers, "%d-%d-", &pid, &start) // which leaves what it cannot read
		}
		if process.Check(lokt.Process{PID: pid, Start: start}, true) == process.Dead {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), write(path, []byte(id))); err != nil {
		k.Tell("warning: the session is not noted for the commands of this agent: %v", err)
	}
}

// finish releases the leases of a session.
func (k *hooking) finish() (any, error) {
	id := k.agentID(k.req.session())
	if id == "" {
		return k.allow(""), nil
	}
	if path := identity.Find().Note(k.in(k.dir).Notes()); path != "" {
		_ = os.Remove(path) // it may never have been noted
	}
	a := k.in(k.dir)
	b, err := a.Backend()
	if err != nil {
		return nil, err
	}
	by := a.Asker()
	by.Session = id
	var failed error
	for s, err := range b.List(k.now, lokt.Filter{}) {
		failed = errors.Join(failed, err)
		if err != nil || !slices.ContainsFunc(s.Lock.Holders, func(h lokt.Holder) bool { return !h.Strict && by.Same(h.Owner) }) {
			continue
		}
		_, err := b.Release(k.now, lokt.Target{Name: s.Lock.Name, Owner: by})
		if err != nil && !errors.Is(err, lokt.ErrNotFound) && !errors.Is(err, lokt.ErrNotOwner) {
			failed = errors.Join(failed, err)
		}
	}
	return k.allow(""), failed
}

// Requests are other programs' JSON, which is read as leniently as they read it.
func unmarshal(text []byte, v any) error {
	return json.Unmarshal(text, v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

func marshal(v any) ([]byte, error) {
	return json.Marshal(v, json.Deterministic(true), jsontext.EscapeForHTML(false), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}
