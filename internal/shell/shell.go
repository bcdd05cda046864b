// Package shell finds the commands in a line of shell that need a lock by a policy, and puts them under lokt guard.
//
// It sees what stands in the line: behind variables that the line or the environment sets, in subshells, functions,
// pipes, substitutions, here-documents and strings that another shell or a known program is given to run. It does not
// see what is computed when the line runs, or what a script or a program does by itself.
package shell

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/lokt-dev/lokt/internal/policy"
)

// Finder says what to look for.
type Finder struct {
	Dir    string                                   // where the line runs
	Getenv func(string) string                      // what it finds in its environment
	Policy func(dir string) (*policy.Policy, error) // that holds in a directory; nil is policy.Find
	Root   func(dir string) string                  // of the locks of a directory
	Lokt   string                                   // how to call lokt
	Owner  string                                   // LOKT_AGENT_ID for lines that call lokt; empty leaves it alone

	seen map[string]*policy.Policy // by directory: each is read once
}

// holds returns the policy that holds in a directory.
func (f *Finder) holds(dir string) (p *policy.Policy, err error) {
	if p = f.seen[dir]; p != nil {
		return p, nil
	}
	if f.Policy == nil {
		f.Policy = policy.Find
	}
	if p, err = f.Policy(dir); err == nil {
		if f.seen == nil {
			f.seen = map[string]*policy.Policy{}
		}
		f.seen[dir] = p
	}
	return p, err
}

// Result is what is in a line.
type Result struct {
	Line  string   // the line with every guard that it needs
	Needs []string // commands that lack their lock, as they stand in the line
	Locks []string // the locks that they lack

	rules []policy.Command // that they come from
	lokt  bool             // lokt is called, and the line does not say for whom
}

// Limits of a look. No program takes a line that is longer.
const (
	most     = 8         // lines within lines
	deepMost = 1000      // brackets within brackets: looking takes as long as the square of them
	braces   = 30        // in a word, each of which may double what it comes to
	lineMost = 128 << 10 // bytes
	workMost = 128 << 10 // statements looked at, and words of eight bytes that variables come to
)

// errTooMuch is the error for a line that would take too long to look at, or too much memory.
var errTooMuch = errors.New("this line of shell is too much to look at")

// Find looks at a line. An error means that it is no shell, or that a policy cannot be read.
func (f *Finder) Find(line string) (r Result, err error) {
	defer func() {
		if p := recover(); p != nil { // the library's expansion gives up so on the rarest constructs
			err = fmt.Errorf("this shell cannot be judged: %v", p)
		}
	}()
	work := workMost
	r, err = f.find(line, scope{dir: f.Dir, vars: map[string]string{}}, most, &work)
	if err == nil && f.Owner != "" && (len(r.Needs) > 0 || r.lokt) {
		r.Line = "export LOKT_AGENT_ID=" + Quote(f.Owner) + "; " + r.Line
	}
	return r, err
}

// scope is what holds at a place of the line.
type scope struct {
	dir  string            // empty if it is not known
	vars map[string]string // set by the line
	held []string          // locks of the guards around it
}

// search is the look at one line.
type search struct {
	*Finder
	line  string
	depth int
	work  *int // that is left to be done
	res   Result
	edits []change
	err   error
}

// spend takes some of the work that may be done, and reports whether there was enough left.
func (s *search) spend(work int) bool {
	if *s.work -= work; *s.work < 0 && s.err == nil {
		s.err = errTooMuch
	}
	return *s.work >= 0
}

// apart returns a scope for what leaves the one around it as it is.
func (s *search) apart(sc scope) scope {
	s.spend(len(sc.vars) / 8)
	sc.vars = maps.Clone(sc.vars)
	return sc
}

// change replaces a part of the line.
type change struct {
	from, to int
	text     string
}

func (f *Finder) find(line string, sc scope, depth int, work *int) (Result, error) {
	if len(line) > lineMost || tooDeep(line) {
		return Result{}, errTooMuch
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(line), "")
	if err != nil {
		return Result{}, fmt.Errorf("this is no shell: %w", err)
	}
	s := &search{Finder: f, line: line, depth: depth, work: work}
	s.statements(file.Stmts, &sc)
	if s.err != nil {
		return Result{}, s.err
	}
	if len(s.res.rules) > 0 {
		s.res.Locks = together(s.res.rules).Locks
	}
	slices.SortStableFunc(s.edits, func(a, b change) int { return cmp.Compare(a.from, b.from) })
	var out strings.Builder
	at := 0
	for _, e := range s.edits {
		if e.from < at { // within what was replaced as a whole
			continue
		}
		out.WriteString(line[at:e.from] + e.text)
		at = e.to
	}
	s.res.Line = out.String() + line[at:]
	return s.res, nil
}

// tooDeep reports whether more brackets are open somewhere in a line, quoted or not, than anybody writes.
func tooDeep(line string) bool {
	open := 0
	return strings.ContainsFunc(line, func(r rune) bool {
		if strings.ContainsRune("([{", r) {
			open++
		} else if open > 0 && strings.ContainsRune(")]}", r) {
			open--
		}
		return open > deepMost
	})
}

func (s *search) statements(list []*syntax.Stmt, sc *scope) {
	for _, st := range list {
		s.statement(st, sc)
	}
}

func (s *search) statement(st *syntax.Stmt, sc *scope) {
	if st == nil || s.err != nil || !s.spend(1) {
		return
	}
	for _, r := range st.Redirs {
		s.within(r, sc)
	}
	switch c := st.Cmd.(type) {
	case nil:
		return
	case *syntax.CallExpr:
		s.call(c, st.Redirs, sc)
		return
	case *syntax.BinaryCmd:
		if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
			for _, side := range []*syntax.Stmt{c.X, c.Y} {
				sub := s.apart(*sc)
				s.statement(side, &sub)
			}
			return
		}
	case *syntax.Subshell, *syntax.CoprocClause, *syntax.FuncDecl:
		sub := s.apart(*sc)
		sc = &sub
	case *syntax.ForClause:
		if it, ok := c.Loop.(*syntax.WordIter); ok {
			s.loop(it, c.Do, sc)
			return
		}
	case *syntax.DeclClause:
		s.assign(c.Args, sc)
	}
	s.within(st.Cmd, sc)
}

// loop looks at a loop's body for each value that can be told, or once.
func (s *search) loop(it *syntax.WordIter, body []*syntax.Stmt, sc *scope) {
	for _, w := range it.Items {
		s.within(w, sc)
	}
	values := s.fields(sc, it.Items...)
	if len(values) == 0 || len(values) > 20 {
		values = []field{{}}
	}
	for _, v := range values {
		sc.vars[it.Name.Value] = v.text
		before := len(s.edits)
		if s.statements(body, sc); len(s.edits) > before {
			return // what one of them needs all get
		}
	}
}

func (s *search) assign(list []*syntax.Assign, sc *scope) {
	for _, a := range list {
		if a.Name == nil || a.Value == nil {
			continue
		}
		c := s.config(sc)
		before := ""
		if a.Append {
			before = c.Env.Get(a.Name.Value).String()
		}
		if v, err := expand.Literal(c, a.Value); err == nil {
			sc.vars[a.Name.Value] = before + v
		}
	}
}

// within looks at the statements and the substitutions in a node.
func (s *search) within(n syntax.Node, sc *scope) {
	syntax.Walk(n, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Stmt:
			s.statement(n, sc)
			return false
		case *syntax.CmdSubst:
			sub := s.apart(*sc)
			s.statements(n.Stmts, &sub)
			return false
		case *syntax.ProcSubst:
			sub := s.apart(*sc)
			s.statements(n.Stmts, &sub)
			return false
		}
		return true
	})
}

// field is a word as the command gets it.
type field struct {
	text     string
	from, to int  // where the word stands in the line that it comes from
	whole    bool // it is all that the word comes to, and there is nothing to be computed in it
}

func (s *search) config(sc *scope) *expand.Config {
	return &expand.Config{ProcSubst: func(*syntax.ProcSubst) (string, error) { return unknown, nil }, Env: expand.FuncEnviron(func(name string) string {
		v, ok := sc.vars[name]
		if !ok {
			v = s.Getenv(name)
		}
		if !s.spend(len(v) / 8) {
			return ""
		}
		return v
	})}
}

// fields returns what words come to. A word that cannot be known comes to one that is like no other.
func (s *search) fields(sc *scope, words ...*syntax.Word) []field {
	var all []field
	for _, w := range words {
		var texts []string
		err := errTooMuch
		if !bursts(w) {
			texts, err = expand.Fields(s.config(sc), w)
		}
		if err != nil {
			texts = []string{unknown}
		}
		if !s.spend(max(len(texts)-1, 0)) {
			return all
		}
		for _, t := range texts {
			all = append(all, field{t, int(w.Pos().Offset()), int(w.End().Offset()), len(texts) == 1 && constant(w)})
		}
	}
	return all
}

// bursts reports whether a word would come to more than anybody could look at.
func bursts(w *syntax.Word) bool {
	n := 0
	for _, part := range w.Parts {
		if lit, ok := part.(*syntax.Lit); ok {
			n += strings.Count(lit.Value, "{")
		}
	}
	return n > braces
}

// unknown stands for a word that is computed when the line runs.
const unknown = "\x00"

// constant reports whether a word is the same whenever it runs.
func constant(w *syntax.Word) bool {
	same := true
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n.(type) {
		case *syntax.ParamExp, *syntax.CmdSubst, *syntax.ProcSubst, *syntax.ArithmExp:
			same = false
		}
		return same
	})
	return same
}

func (s *search) call(c *syntax.CallExpr, redirs []*syntax.Redirect, sc *scope) {
	s.within(c, sc)
	local := *sc
	if len(c.Args) == 0 {
		s.assign(c.Assigns, sc)
		return
	}
	words := s.fields(&local, c.Args...)
	if len(c.Assigns) > 0 {
		local = s.apart(local)
		s.assign(c.Assigns, &local)
	}
	for len(words) > 0 {
		switch first := words[0].text; first {
		case "exec", "command", "builtin", "noglob", "nocorrect", "-":
			if len(words) > 1 && (words[1].text == "-v" || words[1].text == "-V") {
				return
			}
			words = skip(words[1:], "a")
			continue
		case "eval", "trap":
			if words = skip(words[1:], ""); first == "trap" { // whose other words are signals
				words = words[:min(1, len(words))]
			}
			if len(words) > 0 { // values of now are as good as those of then: the line is run at once
				_, _ = s.script(nil, field{join(words), words[0].from, words[len(words)-1].to, true}, local)
			}
			return
		case "cd", "pushd":
			sc.dir = changed(local.dir, skip(words[1:], ""))
			return
		case "popd":
			sc.dir = ""
			return
		}
		break
	}
	if len(words) == 0 {
		return
	}
	need, err := s.need(words, local, redirs)
	if err != nil {
		s.err = err
	} else if need.rule != nil {
		s.insert(words[0].from, need)
	}
}

// changed returns the directory after cd; empty if it cannot be known.
func changed(dir string, args []field) string {
	if len(args) != 1 || args[0].text == "-" || strings.Contains(args[0].text, unknown) || dir == "" && !filepath.IsAbs(args[0].text) {
		return ""
	}
	return against(dir, args[0].text)
}

// against returns a path as seen from a directory.
func against(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// needed is what a command needs.
type needed struct {
	rule *policy.Command
	root string // of its locks, if they are not those of the directory
	text string // the command
}

// insert puts a command under its guard.
func (s *search) insert(at int, n needed) {
	text := ""
	for _, w := range s.words(n) {
		text += Quote(w) + " "
	}
	s.edits = append(s.edits, change{at, at, text})
	s.note(n.text, *n.rule)
}

// note takes note of a command, and of the rules by which it needs a lock.
func (s *search) note(command string, rules ...policy.Command) {
	s.res.Needs = append(s.res.Needs, command)
	s.res.rules = append(s.res.rules, rules...)
}

// together returns one rule for commands that run under one guard. If there are several, nobody else shares the locks.
func together(rules []policy.Command) policy.Command {
	one := rules[0]
	for _, r := range rules[1:] {
		if slices.Equal(r.Locks, one.Locks) && slices.Equal(r.Flags(), one.Flags()) {
			continue
		}
		locks := slices.Concat(one.Locks, r.Locks)
		slices.Sort(locks)
		one = policy.Command{Locks: slices.Compact(locks), TTL: one.TTL, Wait: one.Wait}
		one.TTL.Duration, one.Wait.Duration = max(one.TTL.Duration, r.TTL.Duration), max(one.Wait.Duration, r.Wait.Duration)
	}
	return one
}

// words returns the call of lokt guard up to the command.
func (f *Finder) words(n needed) []string {
	words := append([]string{f.Lokt, "guard"}, n.rule.Locks...)
	if n.root != "" {
		words = append(words, "--root", n.root)
	}
	return append(append(words, n.rule.Flags()...), "--")
}

// Guard returns the call of lokt guard, up to the command, that a command needs; nothing if it needs none.
func (f *Finder) Guard(command []string) ([]string, error) {
	var words []field
	for _, w := range command {
		words = append(words, field{text: w})
	}
	n, err := (&search{Finder: f}).rule(words, scope{dir: f.Dir})
	if err != nil || n.rule == nil {
		return nil, err
	}
	return f.words(n), nil
}

// Quote returns a word as a shell takes it.
func Quote(word string) string {
	q, err := syntax.Quote(word, syntax.LangBash)
	if err != nil { // a zero byte, which no argument has
		return "''"
	}
	return q
}

// fail takes note of a policy that cannot be read, or of too much work. A string that is no shell is none of lokt's business.
func (s *search) fail(err error) {
	if (errors.As(err, new(*policy.Error)) || errors.Is(err, errTooMuch)) && s.err == nil {
		s.err = err
	}
}

func join(words []field) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = w.text
	}
	return strings.Join(texts, " ")
}

// base returns the name of the program that a word calls.
func base(f field) string { return path.Base(filepath.ToSlash(f.text)) }
