package care

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/locks"
)

// script is a place in a repository where lokt is called.
type script struct {
	File    string   `json:"file"` // relative to the repository, with slashes
	Line    int      `json:"line,omitzero"`
	Command string   `json:"command"` // guard or lock
	Names   []string `json:"names"`
	Run     string   `json:"run,omitzero"` // how to run it from the top of the repository, if that is known
}

// Bounds of a scan, so that it ends soon wherever it is started. What is nearer to the top is looked at first.
const (
	scanTime    = 1500 * time.Millisecond
	scanEntries = 50_000
	scanFiles   = 5_000
	scanSize    = 256 << 10 // bytes of a file
	scanLine    = 4096      // bytes of a line
	scanFound   = 200
)

// scanner looks for calls of lokt in a repository.
type scanner struct {
	top    string
	lokt   *cobra.Command // the commands guard and lock, for their flags
	until  time.Time
	found  []script
	files  int
	cut    bool // not everything was looked at
	odd    int  // files whose paths are not fit to be shown
	ignore map[string]bool
}

// scan returns the places below top where scripts call lokt guard or lokt lock by names that are spelled out.
func (a cmd) scan(top string) *scanner {
	s := &scanner{top: top, until: time.Now().Add(scanTime), ignore: map[string]bool{}}
	s.lokt = &cobra.Command{}
	s.lokt.PersistentFlags().String("root", "", "")
	s.lokt.PersistentFlags().Bool("json", false, "")
	s.lokt.AddCommand(locks.Guards(a.App)...)
	for _, name := range []string{
		"node_modules", "vendor", "venv", "target", "dist", "build", "out", "obj", "__pycache__", "third_party", "bower_components", "testdata",
	} {
		s.ignore[name] = true
	}
	s.walk()
	slices.SortStableFunc(s.found, func(x, y script) int {
		if d := strings.Count(x.File, "/") - strings.Count(y.File, "/"); d != 0 {
			return d
		}
		return strings.Compare(x.File, y.File)
	})
	return s
}

// walk looks into directories, level by level.
func (s *scanner) walk() {
	dirs, entries := []string{"."}, 0
	for len(dirs) > 0 {
		dir := dirs[0]
		dirs = dirs[1:]
		list, err := os.ReadDir(filepath.Join(s.top, filepath.FromSlash(dir)))
		if err != nil {
			continue // what cannot be read cannot be run
		}
		for _, e := range list {
			if entries++; entries > scanEntries || s.files > scanFiles || len(s.found) >= scanFound || time.Now().After(s.until) {
				s.cut = true
				return
			}
			name := path.Join(dir, e.Name())
			switch {
			case e.IsDir():
				hidden := strings.HasPrefix(e.Name(), ".") && !hiddenWithScripts(e.Name())
				if !hidden && !s.ignore[e.Name()] {
					dirs = append(dirs, name)
				}
			case e.Type().IsRegular():
				s.look(name, e)
			}
		}
	}
}

// hiddenWithScripts reports whether a hidden directory is one of those that have scripts in them by convention.
func hiddenWithScripts(name string) bool {
	return slices.Contains([]string{".github", ".gitlab", ".circleci", ".buildkite", ".woodpecker", ".ci", ".husky", ".githooks"}, name)
}

// scriptKind is the kind of a file that may call programs.
type scriptKind int

const (
	kindNone scriptKind = iota
	kindScript
	kindMake
	kindJust
	kindPackage
)

func kindOf(name string, mode fs.FileMode) scriptKind {
	base := strings.ToLower(path.Base(name))
	switch base {
	case "makefile", "gnumakefile":
		return kindMake
	case "justfile", ".justfile":
		return kindJust
	case "package.json":
		return kindPackage
	case "rakefile", "procfile", "jenkinsfile", "lefthook.yml", "tox.ini":
		return kindScript
	}
	switch path.Ext(base) {
	case ".sh", ".bash", ".zsh", ".fish", ".ksh", ".mk", ".yml", ".yaml", ".toml", ".py", ".rb", ".pl", ".js", ".mjs", ".cjs", ".ts", ".ps1":
		return kindScript
	}
	if mode&0o111 != 0 {
		return kindScript
	}
	return kindNone
}

// look looks for calls in a file.
func (s *scanner) look(name string, e fs.DirEntry) {
	fi, err := e.Info()
	if err != nil || fi.Size() > scanSize || fi.Size() == 0 {
		return
	}
	kind := kindOf(name, fi.Mode())
	if kind == kindNone {
		return
	}
	s.files++
	text, err := os.ReadFile(filepath.Join(s.top, filepath.FromSlash(name)))
	if err != nil || !bytes.Contains(text, []byte("lokt")) || bytes.IndexByte(text, 0) >= 0 {
		return
	}
	before := len(s.found)
	switch {
	case kind == kindPackage:
		s.lookPackage(name, text)
	default:
		s.lookLines(name, string(text), kind, fi.Mode()&0o111 != 0)
	}
	if len(s.found) > before && shown(name) == "" {
		s.found = s.found[:before]
		s.odd++
	}
}

// lookPackage looks into the scripts of a package.json.
func (s *scanner) lookPackage(name string, text []byte) {
	var p struct {
		Scripts map[string]any `json:"scripts"`
	}
	if json.Unmarshal(text, &p) != nil {
		return
	}
	in := ""
	if dir := path.Dir(name); dir != "." {
		in = "--prefix " + dir + " "
	}
	for _, key := range slices.Sorted(maps.Keys(p.Scripts)) {
		if line, ok := p.Scripts[key].(string); ok {
			s.add(script{File: name}, line, "npm "+in+"run ", key)
		}
	}
}

// lookLines looks into a file of lines.
func (s *scanner) lookLines(name, text string, kind scriptKind, executable bool) {
	prefix, target := "", ""
	dir := path.Dir(name)
	switch {
	case kind == kindMake && dir == ".":
		prefix = "make "
	case kind == kindMake:
		prefix = "make -C " + dir + " "
	case kind == kindJust && dir == ".":
		prefix = "just "
	case kind == kindScript && executable:
		prefix, target = "./", name
	}
	n, from, pending := 0, 0, ""
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if len(line) > scanLine {
			pending = ""
			continue
		}
		if pending == "" {
			from = n
		}
		if more, ok := strings.CutSuffix(line, `\`); ok && len(pending) < scanLine {
			pending += more + " "
			continue
		}
		line, pending = pending+line, ""
		if kind == kindMake || kind == kindJust {
			if t, ok := makeTarget(line); ok {
				target = t
			}
		}
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "//") {
			continue
		}
		s.add(script{File: name, Line: from}, line, prefix, target)
	}
}

// makeTarget returns the target, or recipe, that the line begins.
func makeTarget(line string) (string, bool) {
	if line == "" || strings.ContainsAny(line[:1], " \t#.@") {
		return "", false
	}
	head, after, ok := strings.Cut(line, ":")
	fields := strings.Fields(head)
	if !ok || strings.HasPrefix(after, "=") || len(fields) == 0 {
		return "", false
	}
	return fields[0], true
}

// add adds the calls in a line, with how to run them if prefix is known and target is fit to be shown.
func (s *scanner) add(at script, line, prefix, target string) {
	if prefix != "" && shown(target) != "" && !strings.HasPrefix(target, "-") {
		at.Run = prefix + target
	}
	for _, call := range s.calls(line) {
		at.Command, at.Names = call.Command, call.Names
		same := func(x script) bool {
			return x.File == at.File && x.Run == at.Run && x.Command == at.Command && slices.Equal(x.Names, at.Names)
		}
		if !slices.ContainsFunc(s.found, same) {
			s.found = append(s.found, at)
		}
	}
}

// calls returns the calls of lokt guard and lokt lock in a line of whatever language. Quotes and commas only separate
// words, which finds them in shell, YAML, JSON and argument lists alike.
func (s *scanner) calls(line string) (found []script) {
	ends := func(r rune) bool { return strings.ContainsRune(";|&", r) }
	gaps := func(r rune) bool { return strings.ContainsRune(" \t\"'`,<>\\", r) }
	for _, part := range strings.FieldsFunc(line, ends) {
		words := strings.FieldsFunc(part, gaps)
		for i, w := range words {
			w = w[strings.LastIndexAny(w, "(=@+")+1:]
			if w == "echo" || w == "printf" {
				break
			}
			if path.Base(strings.TrimLeft(w, "-")) == "lokt" {
				if call, ok := s.call(words[i+1:]); ok {
					found = append(found, call)
				}
			}
		}
	}
	return found
}

// call makes sense of the words behind lokt. Names that are put together when the script runs are not known.
func (s *scanner) call(words []string) (script, bool) {
	var c script
	cmd := s.lokt
	for i := 0; i < len(words); i++ {
		w := strings.TrimRight(words[i], ")]}")
		switch {
		case w == "--":
			return c, c.Command == cmdGuard && len(c.Names) > 0
		case strings.HasPrefix(w, "--"):
			name, _, valued := strings.Cut(w[2:], "=")
			f := cmd.Flags().Lookup(name)
			if f == nil {
				f = s.lokt.PersistentFlags().Lookup(name)
			}
			if f == nil {
				return c, false
			}
			if f.NoOptDefVal == "" && !valued {
				i++ // its value
			}
		case c.Command == "":
			if w != cmdGuard && w != cmdLock {
				return c, false
			}
			c.Command = w
			if cmd, _, _ = s.lokt.Find([]string{w}); cmd == nil {
				return c, false
			}
		case lokt.ValidateName(w) != nil || strings.HasPrefix(w, "-"):
			return c, false
		case c.Command == cmdLock && len(c.Names) == 1:
			return c, true // what follows belongs to something else
		default:
			c.Names = append(c.Names, w)
		}
	}
	return c, c.Command == cmdLock && len(c.Names) == 1
}

// The commands that take locks.
const (
	cmdGuard = "guard"
	cmdLock  = "lock"
)
