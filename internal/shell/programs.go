package shell

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// runner is a program that runs the command in its arguments.
type runner struct {
	values string // letters of flags that take a value of their own word
	before int    // how many arguments come before the command
	line   string // letter of the flag whose value is a line of shell; --command is another
}

// runners are the programs that are known to run others.
func runners() map[string]runner {
	return map[string]runner{
		"env": {values: "uC"}, "timeout": {values: "ks", before: 1}, "nice": {values: "n"}, "ionice": {values: "cnp"}, "nohup": {}, "setsid": {},
		"stdbuf": {values: "ioe"}, "time": {values: "fo"}, "sudo": {values: "ugpCDhRrtTU"}, "doas": {values: "uC"}, "xargs": {values: "IinPLdEsa"},
		"chrt": {values: "TPD", before: 1}, "taskset": {before: 1}, "strace": {values: "eopsPuaIOSbEX"}, "ltrace": {values: "eopsu"}, "watch": {values: "nd"},
		"parallel": {values: "jISaN"}, "flock": {values: "wE", before: 1, line: "c"}, "script": {values: "ItToOBE", line: "c"}, "unbuffer": {},
		"su": {values: "gGs", line: "c"}, "runuser": {values: "ugGs", line: "c"}, "busybox": {}, "chronic": {}, "systemd-run": {values: "pHMtEu"},
		"unshare": {values: "SGRw"}, "setpriv": {}, "chroot": {before: 1}, "prlimit": {}, "setarch": {}, "nsenter": {values: "tSG"}, "xvfb-run": {values: "efnpsw"},
		"caffeinate": {values: "tw"}, "perf": {before: 1}, "hyperfine": {values: "wrmMpcsSLnN"}, "entr": {}, "direnv": {before: 2}, "mise": {before: 1},
		"nix-shell": {values: "pAI"}, "uv": {before: 1}, "poetry": {before: 1}, "bundle": {before: 1}, "npx": {values: "p", line: "c"},
	}
}

// longs are the long flags of these programs, of shells and of lokt that take a value of their own word.
var longs = []string{
	"--kill-after", "--signal", "--adjustment", "--user", "--group", "--chdir", "--unset", "--max-args", "--max-procs", "--max-lines", "--delimiter",
	"--arg-file", "--output", "--input", "--error", "--rcfile", "--init-file", "--root", "--server", "--interval", "--timeout", "--class", "--classdata",
}

var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash"}

// skip returns the words behind flags. The flags with these letters take the next word as their value.
func skip(words []field, values string) []field {
	for len(words) > 0 {
		w := words[0].text
		switch {
		case w == "--":
			return words[1:]
		case w == "" || w[0] != '-' && w[0] != '+': // as +x of a shell
			return words
		case slices.Contains(longs, w) && len(words) > 1:
			words = words[2:]
		case !strings.HasPrefix(w, "--") && strings.IndexByte(values, w[len(w)-1]) >= 0 && len(words) > 1:
			words = words[2:]
		default:
			words = words[1:]
		}
	}
	return words
}

// need finds out what a command needs, and what those need that it runs.
func (s *search) need(words []field, sc scope, redirs []*syntax.Redirect) (needed, error) {
	if len(words) == 0 {
		return needed{}, nil
	}
	name := base(words[0])
	if name == "lokt" || words[0].text == s.Lokt {
		return s.lokt(words, sc)
	}
	if n, err := s.rule(words, sc); err != nil || n.rule != nil {
		return n, err
	}
	if slices.Contains(shells, name) {
		return s.shell(words, sc, redirs)
	}
	if name == "find" || name == "fd" {
		for i, w := range words {
			if slices.Contains([]string{"-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec"}, w.text) {
				return s.need(words[i+1:], sc, nil)
			}
		}
		return needed{}, nil
	}
	run, known := runners()[name]
	if !known {
		return needed{}, nil
	}
	if name == "env" {
		words = s.split(words, sc)
	}
	for i, w := range words[1:] {
		short := run.line != "" && strings.HasSuffix(w.text, run.line) && strings.HasPrefix(w.text, "-") && !strings.HasPrefix(w.text, "--")
		if rest := words[i+1:]; len(rest) > 1 && (short || w.text == "--command") {
			if n, err := s.script(words, rest[1], s.apart(sc)); err != nil || n.rule != nil {
				return n, err
			}
		}
	}
	run.values += run.line
	rest := skip(words[1:], run.values)
	rest = rest[min(run.before, len(rest)):]
	rest = skip(rest, run.values)
	for len(rest) > 0 && (name == "env" || name == "sudo" || name == "doas") && strings.Contains(rest[0].text, "=") {
		rest = rest[1:]
	}
	if len(rest) > 0 && strings.ContainsAny(rest[0].text, " \t;&|\n") { // a line for a shell, as watch takes
		return s.script(words, rest[0], s.apart(sc))
	}
	n, err := s.need(rest, sc, nil)
	if n.rule != nil {
		n.text = join(words)
	}
	return n, err
}

// Flags of env: the line to split, in the same word or the next, and those with another value in the next.
var (
	splits = regexp.MustCompile(`^(?:-[i0v]*S|--s[a-z-]*=)((?s:.*))$|^--s[a-z-]*$`)
	valued = regexp.MustCompile(`^(-[i0v]*[uC]|--unset|--chdir)$`)
)

// split puts the words of lines that env is told to split, behind -S or --split-string, in their place.
func (s *search) split(words []field, sc scope) []field {
	for i := 1; i < len(words) && strings.HasPrefix(words[i].text, "-") && words[i].text != "--"; {
		f, next := splits.FindStringSubmatch(words[i].text), i+1
		if f == nil {
			if i = next; valued.MatchString(words[i-1].text) {
				i++
			}
			continue
		}
		line := f[1]
		if line == "" && next < len(words) {
			line, next = words[next].text, next+1
		}
		var parts []*syntax.Word
		for w, err := range syntax.NewParser().WordsSeq(strings.NewReader(line)) {
			if err != nil {
				return words
			}
			parts = append(parts, w)
		}
		if !s.spend(workMost / 100) { // a line may come to itself again
			return words
		}
		inner := s.fields(&sc, parts...)
		for j := range inner {
			inner[j] = field{text: inner[j].text, from: words[i].from, to: words[i].to}
		}
		words = slices.Concat(words[:i], inner, words[next:])
	}
	return words
}

// rule returns what the policy says of the command itself.
func (s *search) rule(words []field, sc scope) (needed, error) {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = w.text
	}
	n := needed{text: join(words)}
	dir := sc.dir
	if dir == "" {
		dir = s.Dir
	}
	p, err := s.holds(dir)
	if err != nil {
		return needed{}, err
	}
	if i := slices.Index(texts, "-C"); i > 0 && i+1 < len(texts) && !strings.Contains(texts[i+1], unknown) {
		dir = against(dir, texts[i+1])
		other, err := s.holds(dir)
		if err != nil {
			return needed{}, err
		}
		if other.Path != p.Path {
			p, n.root = other, s.Root(dir)
		}
	}
	rule, ok := p.Match(texts)
	rule.Locks = slices.DeleteFunc(slices.Clone(rule.Locks), func(l string) bool { return slices.Contains(sc.held, l) })
	if ok && len(rule.Locks) > 0 {
		n.rule = &rule
		return n, nil
	}
	return needed{}, nil
}

// lokt looks at a call of lokt itself. What it guards needs no other guard of the same lock.
func (s *search) lokt(all []field, sc scope) (needed, error) {
	words := skip(all[1:], "")
	if len(words) == 0 {
		return needed{}, nil
	}
	if _, told := sc.vars["LOKT_AGENT_ID"]; !told {
		s.res.lokt = true
	}
	command := words[0].text
	if command != "guard" && command != "jobserver" {
		return needed{}, nil
	}
	for i, w := range words[1:] {
		if w.text == "--" {
			rest := words[i+2:]
			inner, err := s.need(rest, sc, nil)
			if inner.rule != nil && command == "jobserver" { // which looks whether it runs a make
				inner.text = join(all)
				return inner, err
			}
			if inner.rule != nil {
				s.insert(rest[0].from, inner)
			}
			return needed{}, err
		}
		if command == "guard" && !strings.HasPrefix(w.text, "-") { // the value of a flag is taken for a name too: no policy has a lock called 5m
			sc.held = append(slices.Clip(sc.held), w.text)
		}
	}
	return needed{}, nil
}

// shell looks at what another shell is given to run: behind -c, or as a here-document.
func (s *search) shell(words []field, sc scope, redirs []*syntax.Redirect) (needed, error) {
	rest := skip(words[1:], "oO")
	flag := func(letter string) bool {
		return slices.ContainsFunc(words[1:len(words)-len(rest)], func(f field) bool {
			return strings.HasPrefix(f.text, "-") && !strings.HasPrefix(f.text, "--") && strings.Contains(f.text, letter)
		})
	}
	switch {
	case flag("c") && len(rest) > 0:
		sc = s.apart(sc)
		for i, arg := range rest[1:] {
			sc.vars[strconv.Itoa(i)] = arg.text
		}
		return s.script(words, rest[0], sc)
	case flag("c"), len(rest) > 0 && rest[0].text != "/dev/stdin" && !flag("s"): // the last is a script, which is a file
		return needed{}, nil
	}
	for _, r := range redirs {
		doc := r.Hdoc
		if r.Op == syntax.WordHdoc {
			doc = r.Word
		}
		if doc == nil {
			continue
		}
		for _, f := range s.fields(&sc, &syntax.Word{Parts: []syntax.WordPart{&syntax.DblQuoted{Parts: doc.Parts}}}) {
			return s.script(words, field{text: f.text}, s.apart(sc))
		}
	}
	return needed{}, nil
}

// script looks at a line that a word has in it. If the word is the same whenever it runs, what is in it gets its guards
// there; otherwise the command that runs it does.
func (s *search) script(words []field, arg field, sc scope) (needed, error) {
	if s.depth == 0 {
		return needed{}, nil
	}
	inner, err := s.find(arg.text, sc, s.depth-1, s.work)
	if err != nil {
		s.fail(err)
		return needed{}, s.err
	}
	if s.res.lokt = s.res.lokt || inner.lokt; len(inner.Needs) == 0 {
		return needed{}, nil
	}
	if arg.whole {
		s.edits = append(s.edits, change{arg.from, arg.to, Quote(strings.ReplaceAll(inner.Line, unknown, "?"))})
		s.note(arg.text, inner.rules...)
		return needed{}, nil
	}
	rule := together(inner.rules)
	return needed{rule: &rule, text: join(words)}, nil
}
