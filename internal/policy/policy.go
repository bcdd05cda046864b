// Package policy reads lokt.toml: which commands of a repository need which lock.
package policy

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/nearest"
)

// File is the name of the file, at the top of a repository or further down for what is below it.
const File = "lokt.toml"

// DefaultPaths is the lock that stands for the paths of a repository unless the policy says otherwise.
const DefaultPaths = "paths"

// DefaultWait is how long a command waits for its lock unless the policy says otherwise.
const DefaultWait = 10 * time.Minute

// Policy is what a file says.
type Policy struct {
	Path string `toml:"-"` // of the file; empty if there is none

	OnError  onError   `toml:"on-error"`
	Paths    string    `toml:"paths"`   // lock that stands for the paths of the repository
	Commands []Command `toml:"command"` // the first that matches counts
	Locks    []Lock    `toml:"lock"`
}

// Command is a rule for commands.
type Command struct {
	Run    []run `toml:"run"` // such as "make build": the program, and words that must follow in this order
	Locks  names `toml:"lock"`
	Shared bool  `toml:"shared"`
	Slots  *int  `toml:"slots"` // most holders; nil is one
	TTL    ttl   `toml:"ttl"`   // 0 is none
	Wait   wait  `toml:"wait"`  // 0 does not wait
}

// Lock says when the turns of locks come that guards claim. Each lock is in one at most.
type Lock struct {
	Names   names   `toml:"name"`
	Line    int     `toml:"-"` // of the file
	Queue   queue   `toml:"queue"`
	Every   ttl     `toml:"every"` // after a success, nothing is done for this long; 0 is no limit
	Rate    rate    `toml:"rate"`
	Skipped skipped `toml:"skipped"`
}

// Closed reports whether what cannot be judged is refused, and not let through.
func (p *Policy) Closed() bool { return p.OnError.closed }

// Lock returns what the policy says of a lock.
func (p *Policy) Lock(name string) Lock {
	if i := slices.IndexFunc(p.Locks, func(l Lock) bool { return slices.Contains(l.Names, name) }); i >= 0 {
		return p.Locks[i]
	}
	return Lock{}
}

// Rule says in words whose turn it is by the policy that holds in dir; nothing if that has no rule for the lock.
func Rule(dir, name string) string {
	p, err := Find(dir)
	if err != nil {
		return "the rules for turns cannot be read: " + err.Error()
	}
	l := p.Lock(name)
	if l.Line == 0 {
		return ""
	}
	text := fmt.Sprintf("%s:%d has the rule: %s", p.Path, l.Line, map[queue]string{
		{}: "first come, first served", {Newest: true}: "the newest of those that wait wins", {Skip: true}: "skipped if it is held",
	}[l.Queue])
	if l.Every.Duration > 0 {
		text += fmt.Sprintf("; not again for %v after a success", l.Every)
	}
	if l.Rate.N > 0 {
		text += fmt.Sprintf("; at most %d begin in %v", l.Rate.N, l.Rate.Per)
	}
	return text
}

// The types of values say what is wrong with one, and the library where it stands. Most are structs, because the library asks
// types of strings in lists for nothing, and puts any number into types of numbers.
type (
	onError struct{ closed bool }
	queue   struct{ Newest, Skip bool } // a claim that waits sends away those that came before it, or does not wait
	skipped struct{ Held bool }         // what is not done counts as held, and otherwise as done
	names   []string
	run     struct{ text string }
	ttl     struct{ time.Duration }
	wait    struct{ time.Duration }
	rate    struct { // most turns that begin within the time
		N   int // 0 is no limit
		Per time.Duration
	}
)

func (o *onError) UnmarshalText(text []byte) error {
	o.closed = string(text) == "closed"
	return oneOf(text, "on-error", "open", "closed")
}

func (q *queue) UnmarshalText(text []byte) error {
	q.Newest, q.Skip = string(text) == "newest", string(text) == "skip"
	return oneOf(text, "queue", "first", "newest", "skip")
}

func (s *skipped) UnmarshalText(text []byte) error {
	s.Held = string(text) == "held"
	return oneOf(text, "skipped", "success", "held")
}

func oneOf(text []byte, setting string, values ...string) error {
	if slices.Contains(values, string(text)) {
		return nil
	}
	last := len(values) - 1
	return fmt.Errorf(`%s is "%s" or %q, not %q`, setting, strings.Join(values[:last], `", "`), values[last], text)
}

// mostRate is how many turns are counted at most: each is a hold, until it does not count any more.
const mostRate = 1000

func (r *rate) UnmarshalText(text []byte) error {
	number, unit, _ := strings.Cut(string(text), "/")
	n, err := strconv.Atoi(number)
	r.N, r.Per = n, map[string]time.Duration{"s": time.Second, "min": time.Minute, "h": time.Hour, "day": 24 * time.Hour}[unit]
	if err != nil || n < 1 || n > mostRate || r.Per == 0 {
		return fmt.Errorf(`%q is no rate: write "10/min", with a number up to %d, and s, min, h or day`, text, mostRate)
	}
	return nil
}

func (n *names) UnmarshalText(text []byte) error {
	*n = strings.Fields(string(text))
	if len(*n) == 0 {
		return errors.New("there is no name of a lock")
	}
	return n.check()
}

// check looks at the names, also at those of a list, which the library reads as they are.
func (n names) check() error {
	for _, name := range n {
		if err := lokt.ValidateName(name); err != nil {
			return err
		}
		if name[0] == '-' {
			return fmt.Errorf("%s would be a flag of lokt guard, and is no name here", name)
		}
	}
	return nil
}

func (r *run) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	if len(words) == 0 {
		return errors.New("a command is empty")
	}
	for _, w := range words {
		if _, err := path.Match(w, ""); err != nil {
			return fmt.Errorf("%q: %w", w, err)
		}
	}
	r.text = strings.Join(words, " ")
	return nil
}

func (w *wait) UnmarshalText(text []byte) (err error) {
	if w.Duration, err = time.ParseDuration(string(text)); err != nil || w.Duration < 0 {
		return fmt.Errorf(`%q is no duration: write "90s", "5m" or "1h30m"`, text)
	}
	if w.Duration == 0 {
		w.Duration = noWait
	}
	return nil
}

// noWait tells a wait of 0 from none until all is read.
const noWait = -1

func (t *ttl) UnmarshalText(text []byte) error {
	err := (*wait)(t).UnmarshalText(text)
	if err == nil && t.Duration < time.Second {
		err = fmt.Errorf("%q is shorter than 1s", text)
	}
	return err
}

// Error is what is wrong with a file.
type Error struct {
	Path   string
	Line   int // from 1
	Text   string
	Closed bool // the file says in so many words that what cannot be judged is to be refused
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.Path, e.Line, e.Text) }

// Parse reads a file. Errors are of type *Error.
func Parse(file string, text []byte) (*Policy, error) {
	bad := func(line int, format string, args ...any) error {
		return &Error{file, max(line, 1), fmt.Sprintf(format, args...), saysClosed.Match(text)}
	}
	p := &Policy{Path: file, Paths: DefaultPaths}
	dec := toml.NewDecoder(strings.NewReader(string(text)))
	if err := dec.DisallowUnknownFields().Decode(p); err != nil {
		var one *toml.DecodeError
		var unknown *toml.StrictMissingError
		line, says := 1, strings.TrimPrefix(err.Error(), "toml: ")
		if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
			one = &unknown.Errors[0]
			says = fmt.Sprintf("there is no setting %q", strings.Join(one.Key(), "."))
		}
		if one != nil || errors.As(err, &one) {
			line, _ = one.Position()
		}
		if found := wrongKind.FindStringSubmatch(says); found != nil {
			kinds := map[string]string{"Run": `run is a list, such as ["make build"]`, "Slots": "slots is a number", "Shared": "shared is true or false"}
			says = cmp.Or(kinds[found[2]], fmt.Sprintf("a TOML %s cannot stand here", found[1]))
		}
		return nil, bad(line, "%s", says)
	}
	if err := lokt.ValidateName(p.Paths); err != nil {
		return nil, bad(1, "paths is the name of a lock: %v", err)
	}
	for i := range p.Commands {
		line, c := lineOf(text, "[[command]]", i), &p.Commands[i]
		switch {
		case len(c.Run) == 0:
			return nil, bad(line, `the command has no run, such as run = ["make build"]`)
		case len(c.Locks) == 0:
			return nil, bad(line, `the command has no lock, such as lock = "build"`)
		case c.Slots != nil && (*c.Slots < 1 || *c.Slots >= lokt.Shared):
			return nil, bad(line, "the command has %d slots, and 1 is the least", *c.Slots)
		case c.Shared && c.Slots != nil:
			return nil, bad(line, "shared has no limit and slots sets one: the command has both")
		}
		if err := c.Locks.check(); err != nil {
			return nil, bad(line, "%v", err)
		}
		c.Wait.Duration = max(cmp.Or(c.Wait.Duration, DefaultWait), 0)
	}
	seen := map[string]int{}
	for i := range p.Locks {
		line, l := lineOf(text, "[[lock]]", i), &p.Locks[i]
		switch {
		case line == 0: // guards look for it without reading the rest
			return nil, bad(1, "a lock begins with the line [[lock]]")
		case len(l.Names) == 0:
			return nil, bad(line, `the lock has no name, such as name = "deploy"`)
		}
		for _, name := range l.Names {
			if err := lokt.ValidateName(name + ".every"); err != nil { // see package turns
				return nil, bad(line, "the name of a lock with rules: %v", err)
			}
			if seen[name] > 0 {
				return nil, bad(line, "the lock %s has rules in line %d already", name, seen[name])
			}
			seen[name] = line
		}
		l.Line = line
	}
	return p, nil
}

// wrongKind finds how the library says that a value is of another kind, by the names of types.
var wrongKind = regexp.MustCompile(`^cannot decode TOML ([\w ]+) into struct field policy\.\w+\.(\w+) of type `)

// saysClosed finds the setting in a file that cannot be parsed.
var saysClosed = regexp.MustCompile(`(?m)^\s*on-error\s*=\s*["']closed["']`)

// lineOf returns the number of the line with which the i-th table of an array begins; 0 if it is written in another way.
func lineOf(text []byte, table string, i int) int {
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if strings.HasPrefix(strings.TrimSpace(line), table) {
			if i--; i < 0 {
				return n
			}
		}
	}
	return 0
}

// Find reads the policy that holds in dir: that of the nearest file in it or above, up to the top of the repository.
// Without one the policy asks for nothing. Errors about what a file says are of type *Error.
func Find(dir string) (*Policy, error) {
	file, text, err := nearest.File(dir, File)
	switch {
	case err != nil:
		return nil, &Error{Path: file, Line: 1, Text: err.Error()}
	case file == "":
		return &Policy{Paths: DefaultPaths}, nil
	}
	return Parse(file, text)
}

// Refuses reports whether what cannot be judged in dir is refused because of the policy: the one that err is about, or the one
// that holds there.
func Refuses(dir string, err error) bool {
	var bad *Error
	if errors.As(err, &bad) {
		return bad.Closed
	}
	p, err := Find(dir)
	if errors.As(err, &bad) {
		return bad.Closed
	}
	return p.Closed()
}

// Match returns the first rule for a command, whose first word is its program. Words of the rule that are no flags are
// found wherever they stand among the arguments, in their order.
func (p *Policy) Match(words []string) (Command, bool) {
	for _, c := range p.Commands {
		if slices.ContainsFunc(c.Run, func(r run) bool { return matches(strings.Fields(r.text), words) }) {
			return c, true
		}
	}
	return Command{}, false
}

// Programs returns the names of the programs that rules are about, sorted.
func (p *Policy) Programs() []string {
	var all []string
	for _, c := range p.Commands {
		for _, r := range c.Run {
			if name, _, _ := strings.Cut(r.text, " "); !strings.ContainsAny(name, `/*?[\`) && strings.Trim(name, ".") != "" { // the shell's own . is no file
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func matches(rule, words []string) bool {
	if len(words) == 0 || !matchesWord(path.Base(rule[0]), path.Base(filepath.ToSlash(words[0]))) {
		return false
	}
	rest := words[1:]
	for _, want := range rule[1:] {
		i := slices.IndexFunc(rest, func(w string) bool { return matchesWord(want, w) })
		if i < 0 {
			return false
		}
		rest = rest[i+1:]
	}
	return true
}

func matchesWord(want, word string) bool {
	ok, err := path.Match(want, word)
	return err == nil && ok
}

// Flags returns the flags of lokt guard that the rule asks for.
func (c Command) Flags() []string {
	var flags []string
	if c.Wait.Duration > 0 {
		flags = append(flags, "--wait")
		if c.Wait.Duration != DefaultWait {
			flags = append(flags, "--timeout", c.Wait.String())
		}
	}
	switch {
	case c.Shared:
		flags = append(flags, "--shared")
	case c.Slots != nil:
		flags = append(flags, "--slots", strconv.Itoa(*c.Slots))
	}
	if c.TTL.Duration > 0 {
		flags = append(flags, "--ttl", c.TTL.String())
	}
	return flags
}
