package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
			if len(args) == 0 {
				return harnessNames(), cobra.ShellCompDirectiveNoFileComp
			}
			return named(args[0]).events(), cobra.ShellCompDirectiveNoFileComp
		},
	})
}

// Limits of a hook.
const (
	requestMost  = 64 << 20               // bytes of a request
	hookTime     = 10 * time.Second       // how long one may take
	questionTime = 100 * time.Millisecond // how long it looks on a server for questions: one that is far away does not hold up every command
)

// hooking is one run of the command.
type hooking struct {
	cmd
	harness
	event string
	req   *request
	id    string // of the session, as LOKT_AGENT_ID has it
	now   context.Context
}

func (a cmd) runHook(agent, event string) error {
	ctx, done := context.WithTimeout(context.Background(), hookTime)
	defer done()
	dir, _ := a.Dir() // without one the request has to say where it is about
	h := named(agent)
	var unknown error // form of answers
	if h.name == "" {
		unknown = fmt.Errorf("there is no agent %q: it is one of %s", agent, strings.Join(append(harnessNames(), "git"), ", "))
	} else if !slices.Contains(h.events(), event) {
		unknown = fmt.Errorf("%s has no event %q here: it is one of %s", h.title, event, strings.Join(h.events(), ", "))
	}
	if unknown != nil && policy.Refuses(dir, unknown) { // which the exit code 2 says to all of them
		a.Tell("%v; %s says to refuse what cannot be judged", unknown, policy.File)
		return app.Exit(app.ExitBlocked)
	} else if unknown != nil {
		return app.Usage(unknown)
	}
	var out answer
	text, err := io.ReadAll(io.LimitReader(a.In, requestMost))
	if err == nil {
		k := &hooking{harness: h, event: event, now: ctx}
		if k.req, err = readRequest(text); err == nil {
			dir = k.req.dir(dir)
			k.cmd, k.id = a.in(dir), h.agentID(k.req.session())
			out, err = k.judge(dir)
		}
	}
	if err != nil {
		out = answer{note: "lokt cannot judge this: " + err.Error()}
		if (event == h.before || event == h.edit) && policy.Refuses(dir, err) {
			out = answer{deny: out.note + "; " + policy.File + " says to refuse such things"}
		} else {
			a.Tell("%s", out.note)
		}
	}
	form := h.form(event, out)
	if form == nil {
		return nil
	}
	if text, err = json.Marshal(form, json.Deterministic(true), lenient()); err != nil {
		return err
	}
	return a.Write(string(text) + "\n")
}

// judge decides about what a tool is to do, or takes note of a session.
func (k *hooking) judge(dir string) (out answer, err error) {
	k.note()
	switch k.event {
	case k.start:
		return out, k.begin(dir)
	case k.end:
		return out, k.finish()
	}
	if out.deny, err = k.edits(dir); err == nil && out.deny == "" && k.event == k.before {
		out, err = k.command(dir)
	}
	if line, _, _ := k.req.command(); err == nil && line == "" && k.meant() && len(k.req.edited()) == 0 {
		err = fmt.Errorf("the request has neither a command nor a path where those of %s are known to be: lokt may be too old for it", k.title)
	}
	if err == nil {
		out.asked = k.questions()
	}
	return out, err
}

// meant reports whether the tool is one that runs a command or changes a file, as far as the request says.
func (k *hooking) meant() bool {
	name := k.req.ToolName
	return k.event != k.edit || name == "" || slices.Contains(strings.Split(k.matcher, "|"), name)
}

// command puts a line of shell under the guards that it needs, or refuses it.
func (k *hooking) command(dir string) (out answer, err error) {
	line, member, err := k.req.command()
	if err != nil || line == "" {
		return out, err
	}
	f := k.finder(dir)
	if !k.told() {
		f.Owner = k.id
	}
	r, err := f.Find(line)
	switch {
	case err != nil || r.Line == line || !k.rewrite && len(r.Needs) == 0:
		return out, err
	case !k.rewrite:
		out.deny = fmt.Sprintf("%s the %s, so that two do not run at once. Run this line instead, which waits for its turn:\n%s",
			list(r.Needs, "%s needs", "%s need"), list(r.Locks, "lock %s", "locks %s"), r.Line)
		return out, nil
	}
	var instead any = r.Line
	if k.req.input[member].Kind() == '[' {
		instead = []string{"bash", "-c", r.Line}
	}
	text, err := json.Marshal(instead, lenient())
	out.input = maps.Clone(k.req.input)
	out.input[member] = text
	return out, err
}

// list returns words as people list them, each once, and not too many, in a text for one or for several.
func list(words []string, one, several string) string {
	if words = slices.Compact(slices.Sorted(slices.Values(words))); len(words) > 1 {
		one = several
	}
	return fmt.Sprintf(one, "`"+strings.Join(words[:min(10, len(words))], "`, `")+"`")
}

// finder looks at lines of shell in a directory.
func (a cmd) finder(dir string) *shell.Finder {
	return &shell.Finder{Dir: dir, Getenv: a.Getenv, Root: a.lockRoot, Lokt: loktPath()}
}

// lockRoot returns where the locks of a directory are.
func (a cmd) lockRoot(dir string) string {
	r, err := a.in(dir).FindRoot()
	if err != nil {
		return ""
	}
	return r.Path
}

// told reports whether the environment says who this is.
func (k *hooking) told() bool {
	return k.Getenv(identity.FromOwner) != "" || k.Getenv(identity.FromAgent) != ""
}

// self returns the agent.
func (k *hooking) self() lokt.Owner {
	by := k.Asker()
	if !k.told() && k.id != "" {
		by.Session = k.id
	}
	return by
}

// questions returns what others ask the agent about what it holds.
func (k *hooking) questions() string {
	b, err := k.Backend()
	if err != nil || k.id == "" {
		return "" // whoever needs the locks is told why there are none
	}
	limit := hookTime
	if b.Far != nil {
		limit = questionTime
	}
	ctx, done := context.WithTimeout(k.now, limit)
	defer done()
	by := k.self()
	var all []string
	for s, err := range b.List(ctx, lokt.Filter{}) {
		if err != nil {
			continue
		}
		for _, h := range s.Live() {
			for _, m := range h.Messages {
				if m.Answer == "" && by.Same(h.Owner) {
					all = append(all, fmt.Sprintf("%s says about the lock %q, which you hold: %q. Answer with: %s TEXT",
						m.From, s.Lock.Name, app.OneLine(m.Text), k.CommandLine("answer", s.Lock.Name)))
				}
			}
		}
	}
	return strings.Join(all, "\n")
}

// begin puts a session into the variables of its commands, which Claude Code reads from a file.
func (k *hooking) begin(dir string) error {
	file := k.Getenv("CLAUDE_ENV_FILE")
	if file == "" {
		return nil
	}
	var lines string
	if k.id != "" {
		lines = "export LOKT_AGENT_ID=" + k.id + "\n"
	}
	if dir := filepath.Join(k.lockRoot(dir), "shims"); exists(dir) {
		lines += "export PATH=" + shell.Quote(dir) + ":\"$PATH\"\n"
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(lines)
	return errors.Join(err, f.Close())
}

// note tells commands that the agent's process will start which session they are of, as well as it can. What was noted of
// processes that have ended goes.
func (k *hooking) note() {
	path := identity.Find().Note(k.Notes())
	if k.id == "" || path == "" {
		return
	}
	if have, err := os.ReadFile(path); err == nil && string(have) == k.id {
		return
	}
	dir := filepath.Dir(path)
	all, _ := os.ReadDir(dir) // there may be none
	for _, e := range all {
		var pid int
		var start int64
		_, numbers, _ := strings.Cut(e.Name(), "-")
		_, _ = fmt.Sscanf(numbers, "%d-%d-", &pid, &start) // which leaves what it cannot read
		if process.Check(lokt.Process{PID: pid, Start: start}, true) == process.Dead {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), write(path, []byte(k.id))); err != nil {
		k.Tell("warning: the session is not noted for the commands of this agent: %v", err)
	}
}

// finish releases the leases of a session.
func (k *hooking) finish() error {
	if k.id == "" {
		return nil
	}
	if path := identity.Find().Note(k.Notes()); path != "" {
		_ = os.Remove(path) // it may never have been noted
	}
	b, err := k.Backend()
	if err != nil {
		return err
	}
	by := k.Asker()
	by.Session = k.id
	var failed error
	for s, err := range b.List(k.now, lokt.Filter{}) {
		failed = errors.Join(failed, err)
		if err != nil || !slices.ContainsFunc(s.Lock.Holders, func(h lokt.Holder) bool { return !h.Strict && by.Same(h.Owner) }) {
			continue
		}
		_, err := b.Release(k.now, lokt.Target{Name: s.Lock.Name, Owner: by, UpTo: s.Lock.Token})
		if err != nil && !errors.Is(err, lokt.ErrNotFound) && !errors.Is(err, lokt.ErrNotOwner) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// lenient is how other programs' JSON is read and answered: as leniently as they do.
func lenient() json.Options {
	return json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), jsontext.EscapeForHTML(false))
}

func unmarshal(text []byte, v any) error { return json.Unmarshal(text, v, lenient()) }
