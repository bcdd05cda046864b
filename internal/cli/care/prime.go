package care

import (
	"bytes"
	"context"
	_ "embed" // for prime.md
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/locks"
	"github.com/lokt-dev/lokt/internal/section"
	"github.com/lokt-dev/lokt/internal/vfs"
)

type primeOptions struct {
	format string
	write  bool
}

func newPrime(a cmd) *cobra.Command {
	var o primeOptions
	var names []string
	for _, f := range primeFormats() {
		names = append(names, f.name)
	}
	cmd := app.Plain("prime", func(*cobra.Command) error {
		i := slices.Index(names, o.format)
		switch {
		case i < 0:
			return app.Usagef("--format %q is none of %s", o.format, strings.Join(names, ", "))
		case o.write && primeFormats()[i].file == "":
			return app.Usagef("--write needs the --format of a file of instructions")
		}
		return a.runPrime(primeFormats()[i], o.write)
	})
	cmd.Flags().StringVar(&o.format, "format", names[0], "what to write it for: "+strings.Join(names, ", "))
	cmd.Flags().BoolVar(&o.write, "write", false, "write it into the file that the format is for, at the top of the repository")
	// The error is for flags that there are not.
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// primeLock is a lock that is held or frozen now. Its texts are fit to be shown to an agent: see shown.
type primeLock struct {
	Name         string    `json:"name"`
	State        string    `json:"state"` // held or frozen
	Owner        string    `json:"owner,omitzero"`
	Host         string    `json:"host,omitzero"`
	AgentID      string    `json:"agent_id,omitzero"`
	Kind         string    `json:"kind,omitzero"`
	Mine         bool      `json:"mine,omitzero"`
	HeldFor      int64     `json:"held_for_sec,omitzero"`
	ExpiresAt    time.Time `json:"expires_at,omitzero"`
	RemainingSec *int64    `json:"remaining_sec,omitzero"`
	Waiters      int       `json:"waiters,omitzero"`
}

// primeFacts is what there is to tell.
type primeFacts struct {
	scan
	locks   []primeLock
	problem string // why the locks cannot be told
	owner   lokt.Owner
	from    string // the variable that says who the owner is; empty if it is the user and the session
	server  string // that keeps the locks; empty for files
}

func (a cmd) runPrime(f primeFormat, write bool) error {
	dir, err := a.Dir()
	if err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	top := app.Repository(dir)
	facts := primeFacts{scan: scanScripts(top), owner: a.Asker(), locks: []primeLock{}}
	for _, name := range []string{"LOKT_AGENT_ID", "LOKT_OWNER"} {
		if a.Getenv(name) != "" {
			facts.from = name
		}
	}
	if urls := a.ServerURLs(); len(urls) > 0 {
		facts.server = shown(app.WithoutUser(urls[0]))
	}
	if err := a.liveLocks(&facts); err != nil {
		facts.problem = "they cannot be read"
		a.Tell("warning: %v", err)
	}
	text := f.text(facts)
	path := filepath.Join(top, f.file)
	if fi, err := os.Stat(path); f.file != "" && err == nil && fi.IsDir() { // Cline's may be a directory of such files
		path = filepath.Join(path, "lokt.md")
	}
	into := f.file != "" && !a.JSON && a.prints(path) // with >>
	if write || into {
		if err := replaceSection(path, text); err != nil {
			return err
		}
		text = fmt.Sprintf("wrote the section about locks in %s\n", app.OneLine(path))
	}
	if into {
		a.Tell("%s", strings.TrimSpace(text))
		return nil
	}
	if !a.JSON {
		return a.Write(text)
	}
	return a.Print(struct {
		Format  string      `json:"format"`
		File    string      `json:"file,omitzero"` // where such instructions belong
		Server  string      `json:"server,omitzero"`
		Text    string      `json:"text"`
		Scripts []script    `json:"scripts"`
		Locks   []primeLock `json:"locks"`
	}{f.name, f.file, facts.server, f.text(facts), facts.scripts, facts.locks})
}

// prints reports whether standard output is the file.
func (a cmd) prints(path string) bool {
	out, ok := a.Out.(*os.File)
	if !ok {
		return false
	}
	to, err := out.Stat()
	file, missing := os.Stat(path)
	return err == nil && missing == nil && os.SameFile(to, file)
}

// replaceSection puts our section into the file.
func replaceSection(path, ours string) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	text, _, err := atomicfile.ReadRegular(vfs.OS(), path, 16<<20)
	perm := fs.FileMode(0o644)
	switch fi, stat := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	case err == nil && stat == nil:
		perm = fi.Mode().Perm()
	}
	if err != nil {
		return err
	}
	changed, err := section.Put(string(text), ours)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if changed != string(text) {
		return atomicfile.Replace(vfs.OS(), path, []byte(changed), atomicfile.Options{Perm: perm})
	}
	return nil
}

// liveLocks finds what is held and frozen now.
func (a cmd) liveLocks(facts *primeFacts) error {
	b, err := a.Backend()
	if err != nil {
		return err
	}
	var failed error
	for s, err := range b.List(context.Background(), lokt.Filter{}) {
		if err != nil {
			failed = err
			continue
		}
		one := func(state string, o lokt.Owner, expires time.Time) *primeLock {
			facts.locks = append(facts.locks, primeLock{
				Name: s.Lock.Name, State: state, Owner: tame(o.ID), Host: tame(o.Host), AgentID: tame(o.Session), Mine: facts.owner.Same(o),
				ExpiresAt: expires, RemainingSec: app.Remaining(s.Now, expires), Waiters: len(s.Lock.Queue),
			})
			return &facts.locks[len(facts.locks)-1]
		}
		if f := s.Frozen(); f != nil {
			one(locks.StateFrozen, f.Owner, f.ExpiresAt)
		}
		for _, h := range s.Live() {
			l := one(locks.StateHeld, h.Owner, h.ExpiresAt)
			l.Kind, l.HeldFor = h.Kind(), int64(s.Now.Sub(h.HeldSince)/time.Second)
		}
	}
	return failed
}

// Names of files and owners are other people's: an agent reads them beside its instructions and must not take them for
// some. So they are shown only if they are plain words, and short.

const shownMost = 100 // bytes

func plainWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/@+:", r)
}

// shown returns the word if it is fit to be shown as it is, and nothing otherwise.
func shown(word string) string {
	if len(word) > shownMost || strings.IndexFunc(word, func(r rune) bool { return !plainWord(r) }) >= 0 {
		return ""
	}
	return word
}

// tame makes a word fit to be shown.
func tame(word string) string {
	word = strings.Map(func(r rune) rune {
		if plainWord(r) {
			return r
		}
		return '_'
	}, word)
	return word[:min(len(word), 40)]
}

// primeFormat is a kind of text for an agent.
type primeFormat struct {
	name  string
	file  string // where such instructions belong; empty for a prompt
	plain bool   // without headings and code blocks
	most  int    // bytes; 0 is any number
}

func primeFormats() []primeFormat {
	return []primeFormat{
		{name: "prompt"},
		{name: "agents-md", file: "AGENTS.md"},
		{name: "claude-md", file: "CLAUDE.md"},
		{name: "cursorrules", file: ".cursorrules", plain: true},
		{name: "windsurfrules", file: ".windsurfrules", plain: true, most: 1999},
		{name: "copilot", file: ".github/copilot-instructions.md"},
		{name: "clinerules", file: ".clinerules"},
		{name: "aider", file: "CONVENTIONS.md"},
	}
}

// primeMost is how many scripts, or locks, a text tells of.
const primeMost = 40

// text writes the facts, as prime.md has it.
func (f primeFormat) text(facts primeFacts) string {
	title, server, who, last := "Locks (lokt)", "", says("identity"), fmt.Sprintf(
		"(This section is for %s and was written by `lokt prime --format %s --write`: write it again when scripts change.)", f.file, f.name)
	if f.file == "" {
		title, who, last = "Locks in this repository (lokt)", youAre(facts), "### Held or frozen now\n\n"+heldNow(facts)
		if facts.server != "" {
			server = strings.Replace(says("server"), "{url}", facts.server, 1)
		}
	}
	write := func(what string, bytes int) string {
		return strings.NewReplacer("{title}", title, "{server}", server, "{identity}", who, "{last}", last,
			"{scripts}", scriptLines(facts, bytes)).Replace(says(what)) + "\n"
	}
	switch {
	case f.file == "":
		return write("document", anyBytes)
	case !f.plain:
		return section.Begin + write("document", anyBytes) + section.End
	}
	bytes := anyBytes
	if f.most > 0 {
		bytes = f.most - len(write("plain", 0)) - len(section.Begin+section.End)
	}
	return section.Begin + write("plain", bytes) + section.End
}

//go:embed prime.md
var prose string

// says returns what prime.md says of something.
func says(what string) string {
	_, text, _ := strings.Cut("\n"+prose, "\n== "+what+"\n")
	text, _, _ = strings.Cut(text+"\n== ", "\n== ")
	return strings.TrimRight(text, "\n")
}

func youAre(facts primeFacts) string {
	text := fmt.Sprintf("You are `%s`", tame(facts.owner.ID))
	if facts.from != "LOKT_OWNER" {
		text += fmt.Sprintf(" in session `%s`", tame(facts.owner.Session))
	}
	switch facts.from {
	case "":
		return text + ", which was found out and not set. " + says("identity")
	case "LOKT_OWNER":
		return text + ", from `LOKT_OWNER`. Keep it set for all of your commands; whoever else sets the same is you."
	}
	return text + ", from `LOKT_AGENT_ID`. Keep it set for all of your commands."
}

// scriptLine tells of one script, or nothing if its names are too long to be told.
func scriptLine(s script) string {
	for _, n := range s.Names {
		if len(n) > shownMost {
			return ""
		}
	}
	what := "`" + s.File + "`"
	if s.Run != "" {
		what = "`" + s.Run + "` (" + what + ")"
	}
	line := fmt.Sprintf("- %s takes `%s`", what, strings.Join(s.Names, "` and `"))
	if s.Command == cmdLock {
		line += ", and keeps it until `lokt unlock " + s.Names[0] + "`"
	}
	return line
}

// scriptLines tells of the scripts, at most so many of them, in so many bytes; that there are more is told in any case.
func scriptLines(facts primeFacts, bytes int) string {
	var lines []string
	left := facts.odd
	for _, s := range facts.scripts {
		line := scriptLine(s)
		if bytes -= len(line) + 1; line == "" || len(lines) == primeMost || bytes < 0 {
			left++
			bytes += len(line) + 1
			continue
		}
		lines = append(lines, line)
	}
	switch {
	case left > 0:
		lines = append(lines, fmt.Sprintf("- and %d more: search for lokt guard and lokt lock", left))
	case facts.cut:
		lines = append(lines, "- and maybe more: not everything was searched")
	case len(lines) == 0:
		lines = append(lines, "- none were found that name their locks")
	}
	return strings.Join(lines, "\n")
}

const anyBytes = 1 << 20

func heldNow(facts primeFacts) string {
	var lines []string
	if facts.problem != "" {
		lines = append(lines, "- "+facts.problem+": see `lokt doctor`")
	}
	for i, l := range facts.locks {
		if i == primeMost {
			lines = append(lines, fmt.Sprintf("- and %d more: see `lokt status`", len(facts.locks)-i))
			break
		}
		who := "`" + l.Owner + "`"
		if l.Host != "" {
			who += " on `" + l.Host + "`"
		}
		if l.AgentID != "" {
			who += ", session `" + l.AgentID + "`"
		}
		if l.Mine {
			who += " (you)"
		}
		line := fmt.Sprintf("- `%s` is %s by %s", l.Name, l.State, who)
		if l.Kind != "" {
			line += fmt.Sprintf(", a %s, for %s", l.Kind, time.Duration(l.HeldFor)*time.Second)
		}
		if l.RemainingSec != nil {
			line += fmt.Sprintf(", expires in %s", time.Duration(*l.RemainingSec)*time.Second)
		}
		if l.Waiters > 0 {
			line += fmt.Sprintf("; waiting: %d", l.Waiters)
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return "Nothing."
	}
	return strings.Join(lines, "\n")
}

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
	until := time.Now().Add(scanTime)
	dirs := []string{"."}
	for seen := 0; len(dirs) > 0; dirs = dirs[1:] {
		list, _ := os.ReadDir(filepath.Join(top, filepath.FromSlash(dirs[0]))) // a directory that cannot be read has no scripts to run
		for _, e := range list {
			if seen++; seen > scanEntries || len(s.scripts) >= scanFound || time.Now().After(until) {
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
				s.look(top, name)
			}
		}
	}
	return s
}

// Names by which directories and files are told that may call programs, and those that are others' work.
const (
	scriptDirs  = ".github .gitlab .circleci .buildkite .woodpecker .ci .husky .githooks"
	foreignDirs = "node_modules vendor venv target dist build out obj __pycache__ third_party bower_components testdata"
	scriptFiles = "makefile gnumakefile justfile .justfile package.json rakefile procfile jenkinsfile tox.ini"
	scriptExts  = ".sh .bash .zsh .fish .ksh .mk .yml .yaml .toml .py .rb .pl .js .mjs .cjs .ts .ps1"
)

func among(names, name string) bool { return slices.Contains(strings.Fields(names), name) }

// hasScripts reports whether a directory may have scripts in it that are the repository's own.
func hasScripts(name string) bool {
	return !among(foreignDirs, name) && (!strings.HasPrefix(name, ".") || among(scriptDirs, name))
}

// isScript reports whether a file may call programs.
func isScript(name string, mode fs.FileMode) bool {
	base := strings.ToLower(path.Base(name))
	return mode&0o111 != 0 || among(scriptFiles, base) || among(scriptExts, path.Ext(base))
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
