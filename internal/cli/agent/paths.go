package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/glob"
	"github.com/lokt-dev/lokt/internal/policy"
	"github.com/lokt-dev/lokt/internal/rows"
)

// checkout is a repository whose paths can be reserved, and the lock that stands for them.
type checkout struct {
	cmd
	top  string // with links resolved
	fold bool   // its file system takes names for the same that differ in case
	lock string // name
	b    *app.Backend
}

// checkout returns the one around a directory. Without a repository its top is where the locks are, or that of all files.
func (a cmd) checkout(dir string) (*checkout, error) {
	top := app.Repository(dir)
	if !exists(filepath.Join(top, ".git")) {
		top = filepath.VolumeName(dir) + string(filepath.Separator)
		if r, err := a.in(dir).FindRoot(); err == nil && r.Method == app.MethodLocal {
			top = filepath.Dir(r.Path)
		}
	}
	top = resolve(top)
	p, err := policy.Find(top)
	if err != nil {
		return nil, err
	}
	c := &checkout{cmd: a.in(top), top: top, lock: p.Paths}
	if r, err := a.FindRoot(); err == nil && r.Method == app.MethodEnv { // seen from the working directory
		c.cmd = a
	}
	here, _ := os.Stat(filepath.Join(top, ".git")) // what is not there is the same as no other
	there, _ := os.Stat(filepath.Join(top, ".GIT"))
	c.fold = os.SameFile(here, there)
	c.b, err = c.Backend()
	return c, err
}

// resolve returns where a path leads, with the links resolved in as much of it as there is.
func resolve(path string) string { return follow(path, 40) }

// follow is resolve for so many links to what is not there: there may be a circle of them.
func follow(path string, links int) string {
	for rest := ""; ; path = filepath.Dir(path) {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Join(real, rest)
		}
		if to, err := os.Readlink(path); err == nil && links > 0 { // to what is not there yet
			return follow(filepath.Join(app.Against(filepath.Dir(path), to), rest), links-1)
		}
		if filepath.Dir(path) == path {
			return filepath.Join(path, rest)
		}
		rest = filepath.Join(filepath.Base(path), rest)
	}
}

// within returns a resolved path as patterns have it.
func (c *checkout) within(path string) (string, error) {
	rel := relative(c.top, path)
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%s is not in the repository %s", path, c.top)
	}
	return c.folded(rel), nil
}

func (c *checkout) folded(path string) string {
	if c.fold {
		return strings.ToLower(path)
	}
	return path
}

// pattern returns what somebody in dir means by a pattern, seen from the top. The names with which it begins are resolved,
// among them those that are there, such as app/[id]; a directory stands for all that is in it. What is in another checkout is
// refused, a submodule or a worktree: whoever edits there looks there.
func (c *checkout) pattern(dir, text string) (string, error) {
	if strings.Trim(filepath.ToSlash(text), "/") == "" {
		return "", fmt.Errorf("%q is no path in the repository, and . is all of it", text)
	}
	segments := strings.Split(strings.TrimSuffix(filepath.ToSlash(text), "/"), "/")
	plain := 0
	var names []string
	for ; plain < len(segments); plain++ {
		name, literal := glob.Literal(segments[plain])
		if !literal {
			name = segments[plain]
			there := filepath.Join(app.Against(dir, filepath.FromSlash(strings.Join(names, "/"))), name)
			if strings.ContainsAny(name, `*?\`) || !exists(there) {
				break
			}
		}
		names = append(names, name)
	}
	base := resolve(app.Against(dir, filepath.FromSlash(strings.Join(names, "/"))))
	if other := app.Repository(base); exists(filepath.Join(other, ".git")) && relative(c.top, other) != "." {
		return "", fmt.Errorf("%s is in another checkout, which has its own reservations: run this in %s", base, other)
	}
	pattern, err := c.entry(base, plain < len(segments) || strings.HasSuffix(text, "/"))
	if err != nil {
		return "", err
	}
	if plain < len(segments) {
		pattern = c.folded(strings.TrimSuffix(pattern, "**") + strings.Join(segments[plain:], "/"))
	}
	return pattern, glob.Check([]string{pattern})
}

// entry returns the pattern of what is at a resolved path: for a directory, and what is to be one, all that is in it.
func (c *checkout) entry(path string, dir bool) (string, error) {
	rel, err := c.within(path)
	if fi, gone := os.Stat(path); gone == nil && fi.IsDir() {
		dir = true
	}
	switch {
	case err != nil:
		return "", err
	case rel == ".":
		return "**", nil
	case dir:
		return glob.Quote(rel) + "/**", nil
	}
	return glob.Quote(rel), nil
}

// refusal says that somebody else has reserved a path, or that nobody may.
type refusal struct {
	*lokt.BlockedError
	path string
}

// refusals returns which of the patterns are kept from their owner by the rules for claims: those of which somebody else
// holds a reservation, unless both share.
func (c *checkout) refusals(ctx context.Context, by lokt.Owner, patterns []string) ([]refusal, error) {
	s, err := c.b.Get(ctx, c.lock)
	if err != nil || len(s.Lock.Holders) == 0 && s.Frozen() == nil {
		return nil, err
	}
	var all []refusal
	for _, pattern := range patterns {
		path, literal := glob.Literal(strings.TrimSuffix(pattern, "/**"))
		if !literal {
			path = pattern
		}
		claim := lokt.Claim{Name: c.lock, LeaseID: lokt.NewLeaseID(), Owner: by, Paths: []string{pattern}}
		in := false
		for _, h := range s.Live() {
			if by.Same(h.Owner) && (len(h.Paths) == 0 || glob.Overlap(h.Paths, claim.Paths)) {
				in, claim.Limit = true, max(claim.Limit, h.Limit)
			}
		}
		var blocked *lokt.BlockedError
		err := s.WouldGrant(claim)
		switch {
		case err == nil:
		case !errors.As(err, &blocked):
			return nil, err
		case len(blocked.Holders) > 0 || blocked.Freeze != nil && !in:
			all = append(all, refusal{blocked, path})
		}
	}
	return all, nil
}

func (r refusal) text() string {
	if len(r.Holders) == 0 {
		return fmt.Sprintf("`%s` may not be changed now: %s", app.OneLine(r.path), freezeText(r.Freeze, r.Now))
	}
	return fmt.Sprintf("`%s` is reserved by %s", app.OneLine(r.path), whoText(r.Holders[0], r.Now))
}

// whoText says who has a reservation, why and until when. What others wrote is quoted: nobody is to take it for advice.
func whoText(h lokt.Holder, now time.Time) string {
	text := h.Owner.String()
	if h.Owner.Session != "" {
		text += " (" + app.OneLine(h.Owner.Session) + ")"
	}
	text += " for " + app.Short(now.Sub(h.HeldSince))
	if h.ExpiresAt.IsZero() {
		text += ", until it is released"
	} else {
		text += ", for another " + app.Short(h.ExpiresAt.Sub(now)) + " unless it is renewed"
	}
	return text + note(h.Metadata[metaWhy])
}

// freezeText says who keeps everybody from the paths, until when and why.
func freezeText(f *lokt.Freeze, now time.Time) string {
	text := "the paths of this repository are frozen by " + f.Owner.String()
	switch {
	case f.Damaged != "":
		return "the paths of this repository are frozen by a record that cannot be read: lokt unfreeze --force removes it"
	case !f.ExpiresAt.IsZero():
		text += ", for another " + app.Short(f.ExpiresAt.Sub(now))
	}
	return text + note(f.Reason)
}

// note returns what somebody has said about it, in quotes.
func note(text string) string {
	if text = app.OneLine(text); text == "" {
		return ""
	}
	return fmt.Sprintf(", with the note %q", rows.Cut(text, 200))
}

// metaWhy is the key under which a reservation says what it is for.
const metaWhy = "why"

// refused says what is kept from whoever asks, and what to do then; nothing if nothing is.
func refused(all []refusal) (text string) {
	for _, r := range all[:min(5, len(all))] {
		text += r.text() + "\n"
	}
	if len(all) == 0 {
		return ""
	}
	if len(all) > 5 {
		text += fmt.Sprintf("and %d more\n", len(all)-5)
	}
	return text + "Change something else, or take turns: lokt reserve --wait PATH waits until it is free. Who has what: lokt reserve"
}

// edited returns the files that a tool of an agent is about to change.
func (r *request) edited() (paths []string) {
	const tools = " edit write multiedit notebookedit apply_patch applypatch write_file replace search_replace strreplace edit_file editnotebook" +
		" create_file delete delete_file bash shell run_shell_command "
	if r.ToolName != "" && !strings.Contains(tools, " "+strings.ToLower(r.ToolName)+" ") {
		return nil
	}
	line, in := r.text("command", "cmd", "input", "patch"), ""
	for _, cd := range toThere.FindAllStringSubmatch(toPatch.FindString(line), -1) {
		in = app.Against(in, strings.Trim(cd[1], `"'`))
	}
	if _, member, err := r.command(); err == nil && member == "" {
		for _, name := range []string{"file_path", "notebook_path", "path", "target_file", "target_notebook", "absolute_path", "filePath"} {
			if p := r.text(name); p != "" {
				paths = append(paths, p)
			}
		}
	}
	if !strings.Contains(line, "*** Begin Patch") {
		return paths
	}
	for l := range strings.Lines(line) {
		for _, mark := range []string{"*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "} {
			if p, found := strings.CutPrefix(strings.TrimSpace(l), mark); found {
				paths = append(paths, app.Against(in, p))
			}
		}
	}
	return paths
}

// toPatch is how a line of shell goes to the directory in which it applies a patch, in steps.
var (
	toPatch = regexp.MustCompile(`(?m)^\s*(?:` + toThere.String() + `)+apply_?patch\b`)
	toThere = regexp.MustCompile(`cd\s+("[^"$]+"|'[^']+'|[^\s"'$;&|]+)\s*(?:&&|;)\s*`)
)

// edits refuses to change what somebody else has reserved. Each path counts for the repository in which its target is. It
// returns nothing if there is nothing to refuse.
func (k *hooking) edits(dir string) (string, error) {
	var all []refusal
	for _, p := range k.req.edited() {
		path := resolve(app.Against(dir, p))
		c, err := k.checkout(filepath.Dir(path))
		if err != nil {
			return "", err
		}
		pattern, err := c.entry(path, false)
		if err != nil {
			return "", err
		}
		some, err := c.refusals(k.now, k.self(), []string{pattern})
		if err != nil {
			return "", err
		}
		all = append(all, some...)
	}
	return refused(all), nil
}
