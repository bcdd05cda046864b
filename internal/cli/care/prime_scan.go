package care

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
)

// script is a place in a repository where lokt is called.
type script struct {
	File    string   `json:"file"` // relative to the repository, with slashes
	Line    int      `json:"line"`
	Command string   `json:"command"` // guard or lock
	Names   []string `json:"names"`
	Run     string   `json:"run,omitzero"` // how to run it from the top of the repository, if it is the target of a makefile there
}

// Bounds of a scan, so that it ends soon wherever it is started.
const (
	scanTime    = 1500 * time.Millisecond
	scanEntries = 50_000
	scanFiles   = 5_000
	scanSize    = 256 << 10 // bytes of a file
	scanLine    = 4096      // bytes of a line
	scanFound   = 200
)

// scan is what was found in a repository.
type scan struct {
	scripts []script
	cut     bool // there may be more
	odd     int  // files whose paths are not fit to be shown
}

// scanScripts returns the places below top where scripts call lokt guard or lokt lock by names that are spelled out, those
// nearest to the top first.
func scanScripts(top string) scan {
	s := scan{}
	until, files := time.Now().Add(scanTime), 0
	dirs := []string{"."}
	for seen := 0; len(dirs) > 0; dirs = dirs[1:] {
		list, _ := os.ReadDir(filepath.Join(top, filepath.FromSlash(dirs[0]))) // a directory that cannot be read has no scripts to run
		for _, e := range list {
			if seen++; seen > scanEntries || files > scanFiles || len(s.scripts) >= scanFound || time.Now().After(until) {
				s.cut = true
				return s
			}
			name := path.Join(dirs[0], e.Name())
			fi, err := e.Info()
			switch {
			case err != nil:
			case e.IsDir() && hasScripts(e.Name()):
				dirs = append(dirs, name)
			case fi.Mode().IsRegular() && isScript(name, fi.Mode()) && fi.Size() <= scanSize:
				files++
				s.look(top, name)
			}
		}
	}
	return s
}

// hasScripts reports whether a directory may have scripts in it that are the repository's own.
func hasScripts(name string) bool {
	if strings.HasPrefix(name, ".") {
		return slices.Contains([]string{".github", ".gitlab", ".circleci", ".buildkite", ".woodpecker", ".ci", ".husky", ".githooks"}, name)
	}
	return !slices.Contains([]string{
		"node_modules", "vendor", "venv", "target", "dist", "build", "out", "obj", "__pycache__", "third_party", "bower_components", "testdata",
	}, name)
}

// isScript reports whether a file may call programs.
func isScript(name string, mode fs.FileMode) bool {
	base := strings.ToLower(path.Base(name))
	return mode&0o111 != 0 ||
		slices.Contains([]string{"makefile", "gnumakefile", "justfile", ".justfile", "package.json", "rakefile", "procfile", "jenkinsfile", "tox.ini"}, base) ||
		slices.Contains([]string{
			".sh", ".bash", ".zsh", ".fish", ".ksh", ".mk", ".yml", ".yaml", ".toml", ".py", ".rb", ".pl", ".js", ".mjs", ".cjs", ".ts", ".ps1",
		}, path.Ext(base))
}

// look looks for calls in a file.
func (s *scan) look(top, name string) {
	text, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(name)))
	if err != nil || !bytes.Contains(text, []byte("lokt")) || bytes.IndexByte(text, 0) >= 0 {
		return
	}
	makefile := name == "Makefile" || name == "makefile" || name == "GNUmakefile"
	before, n, from, pending, run := len(s.scripts), 0, 0, "", ""
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if pending == "" {
			from = n
		}
		if more, ok := strings.CutSuffix(line, `\`); ok && len(pending) < scanLine {
			pending += more + " "
			continue
		}
		line, pending = pending+line, ""
		if target, _, ok := strings.Cut(line, ":"); makefile && ok && strings.IndexAny(target, " \t#.@") != 0 {
			run = ""
			if shown(target) != "" && !strings.HasPrefix(target, "-") {
				run = "make " + target
			}
		}
		if trimmed := strings.TrimSpace(line); len(line) > scanLine || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "//") {
			continue
		}
		for _, c := range calls(line) {
			c.File, c.Line, c.Run = name, from, run
			same := func(x script) bool {
				return x.File == c.File && x.Run == c.Run && x.Command == c.Command && slices.Equal(x.Names, c.Names)
			}
			if !slices.ContainsFunc(s.scripts, same) {
				s.scripts = append(s.scripts, c)
			}
		}
	}
	if len(s.scripts) > before && shown(name) == "" {
		s.scripts = s.scripts[:before]
		s.odd++
	}
}

// calls returns the calls of lokt guard and lokt lock in a line of whatever language. Quotes and commas only separate
// words, which finds them in shell, YAML, JSON and argument lists alike.
func calls(line string) (found []script) {
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
				if c, ok := call(words[i+1:]); ok {
					found = append(found, c)
				}
			}
		}
	}
	return found
}

// The commands that take locks.
const (
	cmdGuard = "guard"
	cmdLock  = "lock"
)

// call makes sense of the words behind lokt. Names that are put together when the script runs are not known.
func call(words []string) (script, bool) {
	var c script
	for i := 0; i < len(words); i++ {
		w := strings.TrimRight(words[i], ")]}")
		switch {
		case w == "--":
			return c, c.Command == cmdGuard && len(c.Names) > 0
		case strings.HasPrefix(w, "--"):
			if !strings.Contains(w, "=") && !slices.Contains([]string{"--wait", "--shared", "--json"}, w) {
				i++ // its value
			}
		case c.Command == "" && (w == cmdGuard || w == cmdLock):
			c.Command = w
		case c.Command == "", lokt.ValidateName(w) != nil, strings.HasPrefix(w, "-"):
			return c, false
		case c.Command == cmdLock && len(c.Names) == 1:
			return c, true // what follows belongs to something else
		default:
			c.Names = append(c.Names, w)
		}
	}
	return c, c.Command == cmdLock && len(c.Names) == 1
}
