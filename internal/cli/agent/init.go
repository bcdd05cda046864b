package agent

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/gofrs/flock"
	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/policy"
	"github.com/lokt-dev/lokt/internal/section"
	"github.com/lokt-dev/lokt/internal/shell"
	"github.com/lokt-dev/lokt/internal/vfs"
)

func newInit(a cmd) *cobra.Command {
	s := &setup{cmd: a, names: []string{}}
	cmd := app.Plain("init", func(*cobra.Command) error {
		for _, name := range s.agents {
			if !slices.Contains(harnessNames(), name) {
				return app.Usagef("--agent %q is none of %s", name, strings.Join(harnessNames(), ", "))
			}
		}
		if s.check && s.remove {
			return app.Usagef("--check looks and --remove changes: give one of them")
		}
		return s.run()
	})
	cmd.Flags().BoolVar(&s.check, "check", false, "change nothing, say what is missing, and end with 3 if something is")
	cmd.Flags().BoolVar(&s.remove, "remove", false, "put every file back as it was before")
	cmd.Flags().StringArrayVar(&s.agents, "agent", nil, "enrol this `agent`, found or not; may be repeated")
	// The error is for flags that there are not.
	_ = cmd.RegisterFlagCompletionFunc("agent", cobra.FixedCompletions(harnessNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// setup is one run of the command.
type setup struct {
	cmd
	check, remove bool
	agents        []string

	top    string // of the repository
	root   string // of the locks
	record record
	names  []string // of what was done, or is missing
	failed []string // what could not be done
}

// item is a file, and what is to become of it.
type item struct {
	path string
	want func(now []byte) ([]byte, error)
	hook bool // it is a program, and meant itself if it is a link
	link bool // it is to be a link to what is wanted
}

func (s *setup) run() error {
	dir, err := s.Dir()
	if err != nil {
		return err
	}
	s.top = resolve(app.Repository(dir))
	if s.root = s.lockRoot(s.top); s.root == "" {
		return errors.New("there is no directory for locks here")
	}
	hooks, err := s.gitItems()
	if err != nil {
		return err
	}
	if !s.check && (!s.remove || exists(s.root)) {
		if err := vfs.MkdirAll(s.root, 0o700); err != nil {
			return err
		}
		path := filepath.Join(s.root, "init.lock")
		if f, err := vfs.Open(path, os.O_CREATE|os.O_RDONLY, 0o600); err == nil { // it belongs to whom the directory does
			_ = f.Close()
		}
		turn := flock.New(path)
		if err := turn.Lock(); err != nil {
			return err
		}
		defer func() { _ = turn.Close() }()
	}
	if s.record, err = readRecord(s.recordPath()); err != nil {
		return err
	}
	if s.remove {
		return s.undo()
	}
	for _, it := range append(s.items(), hooks...) {
		if err := s.bring(it); err != nil {
			s.failed = append(s.failed, relative(s.top, it.path))
			s.Tell("%s: %v", relative(s.top, it.path), err)
		}
	}
	if err := s.link(); err != nil && !slices.Contains(s.failed, policy.File) {
		return err
	}
	return s.tell()
}

// found reports whether an agent is used here.
func (s *setup) found(h harness) bool {
	return slices.Contains(s.agents, h.name) ||
		slices.ContainsFunc(s.record.Changes, func(c change) bool { return c.Path == h.settings }) ||
		slices.ContainsFunc(h.signs, func(f string) bool { return exists(filepath.Join(s.top, f)) }) ||
		slices.ContainsFunc(h.programs, func(p string) bool { _, err := exec.LookPath(p); return err == nil })
}

// items returns what there is to be in files.
func (s *setup) items() (items []item) {
	add := func(file string, want func(now []byte) ([]byte, error)) {
		items = append(items, item{path: filepath.Join(s.top, filepath.FromSlash(file)), want: want})
	}
	add(policy.File, func(now []byte) ([]byte, error) {
		if len(now) > 0 {
			_, err := policy.Parse(policy.File, now)
			return now, err
		}
		return propose(s.top), nil
	})
	sections := []string{"AGENTS.md"}
	for _, h := range harnesses() {
		if !s.found(h) {
			continue
		}
		for _, file := range slices.Compact([]string{h.settings, h.servers}) {
			add(file, func(now []byte) ([]byte, error) { return h.install(file, now) })
		}
		if file := filepath.Join(s.top, "CLAUDE.md"); h.name == "claude" && resolve(file) != resolve(filepath.Join(s.top, "AGENTS.md")) { // one file has one section
			sections = append(sections, "CLAUDE.md")
		}
	}
	for _, file := range sections {
		add(file, func(now []byte) ([]byte, error) {
			format := strings.ReplaceAll(strings.ToLower(file), ".", "-")
			c := exec.CommandContext(context.Background(), loktPath(), "prime", "--format", format)
			c.Dir, c.Stderr = s.top, s.Err
			ours, err := c.Output()
			if err != nil {
				return now, err
			}
			text, err := section.Put(string(now), string(ours))
			return []byte(text), err
		})
	}
	return items
}

// look returns what a file is: its text, or where it leads if it is a link.
func look(path string) (fs.FileMode, []byte, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return 0, nil, err
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		to, err := os.Readlink(path)
		return fs.ModeSymlink, []byte(to), err
	}
	text, err := read(path)
	return fi.Mode().Perm(), text, err
}

// readMost is how many bytes a file has that init reads or changes.
const readMost = 16 << 20

// read returns the text of a regular file, wherever links lead to it. It waits for no pipe.
func read(path string) ([]byte, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	text, _, err := atomicfile.ReadRegular(vfs.OS(), path, readMost)
	return text, err
}

// bring makes a file what it is to be, or says that it is not.
func (s *setup) bring(it item) error {
	path := it.path
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&fs.ModeSymlink != 0 && !it.hook {
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	mode, now, err := look(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	want, err := it.want(now)
	if err != nil || bytes.Equal(want, now) && (!it.hook || executable(path)) {
		return err
	}
	if !s.check {
		err = s.note(change{Path: relative(s.top, path), Missing: missing, MadeDir: !exists(filepath.Dir(path)), Mode: mode, Before: now, After: want})
		switch {
		case it.link:
			mode = fs.ModeSymlink
		case it.hook:
			mode = mode.Perm() | 0o755
		}
		if err == nil {
			err = put(path, mode, want)
		}
	}
	if err == nil {
		s.names = append(s.names, relative(s.top, it.path))
	}
	return err
}

// put makes a file what look says that it is.
func put(path string, mode fs.FileMode, text []byte) error {
	if mode&fs.ModeSymlink != 0 {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = vfs.MkdirAll(filepath.Dir(path), 0o755)
		}
		return errors.Join(err, os.Symlink(string(text), path))
	}
	err := write(path, text)
	if err == nil && mode != 0 {
		err = os.Chmod(path, mode)
	}
	return err
}

// write replaces a file, or makes it.
func write(path string, text []byte) error {
	perm := fs.FileMode(0o644)
	if fi, err := os.Stat(path); err == nil {
		perm = fi.Mode().Perm()
	} else if err := vfs.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Replace(vfs.OS(), path, text, atomicfile.Options{Perm: perm})
}

// link makes the shims of the programs that the policy names, and removes others.
func (s *setup) link() error {
	if runtime.GOOS == "windows" { // where a link needs a right of its own
		return nil
	}
	p, err := policy.Find(s.top)
	if err != nil {
		return err
	}
	own, err := app.Self()
	if err != nil {
		return err
	}
	dir, want := filepath.Join(s.root, "shims"), p.Programs()
	have, _ := os.ReadDir(dir) // there may be none
	for _, e := range have {
		if name := e.Name(); !slices.Contains(want, name) && !s.others() {
			want = append(want, name)
		}
	}
	for _, name := range want {
		path := filepath.Join(dir, name)
		needed := slices.Contains(p.Programs(), name)
		if to, _ := os.Readlink(path); to == own && needed {
			continue
		}
		s.names = append(s.names, "shims/"+name)
		if s.check {
			continue
		}
		_ = os.Remove(path) // it leads elsewhere, is not needed, or is not there
		if needed {
			err = errors.Join(err, vfs.MkdirAll(dir, 0o700), os.Symlink(own, path))
		}
	}
	return err
}

// tell says what was done, or is missing.
func (s *setup) tell() error {
	dir, status, verb, code := filepath.Join(s.root, "shims"), "done", "wrote", app.ExitOK
	if s.check {
		status, verb = "checked", "missing or not as it is to be:"
	}
	switch {
	case len(s.failed) > 0:
		code = app.ExitError
	case s.check && len(s.names) > 0:
		code = app.ExitNotFound
	}
	if s.JSON {
		return s.end(status, code)
	}
	for _, name := range s.names {
		s.Say("%s %s", verb, name)
	}
	switch {
	case s.check && len(s.names) > 0:
		s.Tell("to put it there: lokt init")
	case len(s.failed) > 0:
		s.Tell("all else is there")
	case s.check:
		s.Say("nothing is missing")
	case len(s.names) == 0:
		s.Say("everything is there already")
	case exists(dir):
		s.Say("start agents with the shims first on the path: export PATH=%s:\"$PATH\"", shell.Quote(dir))
	}
	return s.end(status, code)
}

// end ends the program with the code, and says to programs what was done.
func (s *setup) end(status string, code int) error {
	if !s.JSON {
		return app.Exit(code)
	}
	return errors.Join(s.Print(struct {
		Status string   `json:"status"` // "done", "checked" or "removed"
		Top    string   `json:"top"`
		Files  []string `json:"files"` // changed, or with --check not as they are to be
		Failed []string `json:"failed,omitzero"`
		Shims  string   `json:"shims"`
	}{status, s.top, s.names, s.failed, filepath.Join(s.root, "shims")}), app.Exit(code))
}

// undo puts back what init has changed.
func (s *setup) undo() error {
	for _, c := range slices.Backward(s.record.Changes) {
		back, err := s.putBack(c)
		switch {
		case err != nil:
			s.failed = append(s.failed, c.Path)
			s.Tell("%s: %v", c.Path, err)
		case back:
			if s.names = append(s.names, c.Path); !s.JSON {
				s.Say("put back %s", c.Path)
			}
		}
	}
	if len(s.failed) > 0 {
		s.Tell("run it again when these can be written: lokt init --remove")
		return s.end("removed", app.ExitError)
	}
	if !s.others() {
		if err := os.RemoveAll(filepath.Join(s.root, "shims")); err != nil {
			return err
		}
	}
	if err := os.Remove(s.recordPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(s.names) == 0 && !s.JSON {
		s.Say("there was nothing to put back")
	}
	return s.end("removed", app.ExitOK)
}

// putBack undoes a change, and reports whether there was something to undo.
func (s *setup) putBack(c change) (bool, error) {
	path := app.Against(s.top, filepath.FromSlash(c.Path))
	mode, now, err := look(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !c.Missing && mode == c.Mode && bytes.Equal(now, c.Before):
		return false, nil
	case err != nil:
		return false, err
	case !bytes.Equal(now, c.After) || c.Mixed:
		s.Tell("warning: %s was changed since: take out by hand what lokt put there", c.Path)
		return false, nil
	case !c.Missing:
		return true, put(path, c.Mode, c.Before)
	}
	err = os.Remove(path)
	if err == nil && c.MadeDir {
		_ = os.Remove(filepath.Dir(path)) // unless there is something else in it
	}
	return true, err
}
