// Package policy reads lokt.toml: which commands of a repository need which lock.
package policy

import (
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
	Path string // of the file; empty if there is none

	Closed   bool      // what cannot be judged is refused, and not let through
	Paths    string    // lock that stands for the paths of the repository
	Commands []Command // the first that matches counts
	Locks    []Lock
}

// Command is a rule for commands.
type Command struct {
	Run    []string // such as "make build": the program, and words that must follow in this order
	Locks  []string
	Shared bool
	Slots  int           // most holders; 0 is one
	TTL    time.Duration // 0 is none
	Wait   time.Duration // 0 does not wait
}

// Lock says when the turns of locks come that guards claim. Each lock is in one at most.
type Lock struct {
	Names  []string
	Line   int           // of the file
	Newest bool          // a claim that waits sends away those that came before it
	Skip   bool          // a claim does not wait
	Every  time.Duration // after a success, nothing is done for this long; 0 is no limit
	Rate   int           // most turns that begin within Per; 0 is no limit
	Per    time.Duration
	Held   bool // what is not done because of this counts as held, and otherwise as done
}

// Lock returns what the policy says of a lock.
func (p *Policy) Lock(name string) Lock {
	if i := slices.IndexFunc(p.Locks, func(l Lock) bool { return slices.Contains(l.Names, name) }); i >= 0 {
		return p.Locks[i]
	}
	return Lock{}
}

// document is the form of the file.
type document struct {
	OnError  onError   `toml:"on-error"`
	Paths    names     `toml:"paths"`
	Commands []command `toml:"command"`
	Locks    []turns   `toml:"lock"`
}

type turns struct {
	Name    names   `toml:"name"`
	Queue   queue   `toml:"queue"`
	Every   ttl     `toml:"every"`
	Rate    rate    `toml:"rate"`
	Skipped skipped `toml:"skipped"`
}

type command struct {
	Run    []runs    `toml:"run"`
	Lock   names     `toml:"lock"`
	Shared bool      `toml:"shared"`
	Slots  *int      `toml:"slots"`
	TTL    ttl       `toml:"ttl"`
	Wait   *duration `toml:"wait"`
}

// The types of values say what is wrong with one, and the library where it stands.
type (
	onError  bool
	names    []string
	runs     struct{ text string } // a struct, because the library does not ask types of strings
	duration time.Duration
	ttl      time.Duration
	queue    struct{ newest, skip bool }
	skipped  bool
	rate     struct {
		n   int
		per time.Duration
	}
)

func (q *queue) UnmarshalText(text []byte) error {
	switch string(text) {
	case "first":
	case "newest":
		q.newest = true
	case "skip":
		q.skip = true
	default:
		return fmt.Errorf(`queue is "first", "newest" or "skip", not %q`, text)
	}
	return nil
}

func (s *skipped) UnmarshalText(text []byte) error {
	*s = string(text) == "held"
	if !*s && string(text) != "success" {
		return fmt.Errorf(`skipped is "success" or "held", not %q`, text)
	}
	return nil
}

// mostRate is how many turns are counted at most: each is a hold, until it does not count any more.
const mostRate = 1000

func (r *rate) UnmarshalText(text []byte) error {
	number, unit, _ := strings.Cut(string(text), "/")
	n, err := strconv.Atoi(number)
	r.n, r.per = n, map[string]time.Duration{"s": time.Second, "min": time.Minute, "h": time.Hour, "day": 24 * time.Hour}[unit]
	if err != nil || n < 1 || n > mostRate || r.per == 0 {
		return fmt.Errorf(`%q is no rate: write "10/min", with a number up to %d, and s, min, h or day`, text, mostRate)
	}
	return nil
}

func (o *onError) UnmarshalText(text []byte) error {
	switch string(text) {
	case "open":
	case "closed":
		*o = true
	default:
		return fmt.Errorf(`on-error is "open" or "closed", not %q`, text)
	}
	return nil
}

func (n *names) UnmarshalText(text []byte) error {
	*n = strings.Fields(string(text))
	if len(*n) == 0 {
		return errors.New("there is no name of a lock")
	}
	for _, name := range *n {
		if err := lokt.ValidateName(name); err != nil {
			return err
		}
	}
	return nil
}

func (r *runs) UnmarshalText(text []byte) error {
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

func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf(`%q is no duration: write "90s", "5m" or "1h30m"`, text)
	}
	*d = duration(v)
	return nil
}

func (t *ttl) UnmarshalText(text []byte) error {
	err := (*duration)(t).UnmarshalText(text)
	if err == nil && time.Duration(*t) < time.Second {
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
	var doc document
	dec := toml.NewDecoder(strings.NewReader(string(text)))
	if err := dec.DisallowUnknownFields().Decode(&doc); err != nil {
		var one *toml.DecodeError
		var unknown *toml.StrictMissingError
		switch {
		case errors.As(err, &unknown) && len(unknown.Errors) > 0:
			line, _ := unknown.Errors[0].Position()
			return nil, bad(line, "there is no setting %q", strings.Join(unknown.Errors[0].Key(), "."))
		case errors.As(err, &one):
			line, _ := one.Position()
			return nil, bad(line, "%s", strings.TrimPrefix(one.Error(), "toml: "))
		}
		return nil, bad(1, "%s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	p := &Policy{Path: file, Closed: bool(doc.OnError), Paths: DefaultPaths}
	switch {
	case len(doc.Paths) > 1:
		return nil, bad(1, "paths is the name of one lock")
	case len(doc.Paths) == 1:
		p.Paths = doc.Paths[0]
	}
	for i, c := range doc.Commands {
		line := lineOf(text, "[[command]]", i)
		switch {
		case len(c.Run) == 0:
			return nil, bad(line, `the command has no run, such as run = ["make build"]`)
		case len(c.Lock) == 0:
			return nil, bad(line, `the command has no lock, such as lock = "build"`)
		case c.Slots != nil && (*c.Slots < 1 || *c.Slots >= lokt.Shared):
			return nil, bad(line, "the command has %d slots, and 1 is the least", *c.Slots)
		case c.Shared && c.Slots != nil:
			return nil, bad(line, "shared has no limit and slots sets one: the command has both")
		}
		rule := Command{Locks: c.Lock, Shared: c.Shared, TTL: time.Duration(c.TTL), Wait: DefaultWait}
		for _, r := range c.Run {
			rule.Run = append(rule.Run, r.text)
		}
		if c.Slots != nil {
			rule.Slots = *c.Slots
		}
		if c.Wait != nil {
			rule.Wait = time.Duration(*c.Wait)
		}
		p.Commands = append(p.Commands, rule)
	}
	for i, l := range doc.Locks {
		line := lineOf(text, "[[lock]]", i)
		switch {
		case line == 0: // guards look for it without reading the rest
			return nil, bad(1, "a lock begins with the line [[lock]]")
		case len(l.Name) == 0:
			return nil, bad(line, `the lock has no name, such as name = "deploy"`)
		}
		for _, name := range l.Name {
			if err := lokt.ValidateName(name + ".every"); err != nil { // see package turns
				return nil, bad(line, "the name of a lock with rules: %v", err)
			}
			if other := p.Lock(name); other.Line > 0 {
				return nil, bad(line, "the lock %s has rules in line %d already", name, other.Line)
			}
		}
		p.Locks = append(p.Locks, Lock{l.Name, line, l.Queue.newest, l.Queue.skip, time.Duration(l.Every), l.Rate.n, l.Rate.per, bool(l.Skipped)})
	}
	return p, nil
}

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

// Match returns the first rule for a command, whose first word is its program. Words of the rule that are no flags are
// found wherever they stand among the arguments, in their order.
func (p *Policy) Match(words []string) (Command, bool) {
	for _, c := range p.Commands {
		if slices.ContainsFunc(c.Run, func(run string) bool { return matches(strings.Fields(run), words) }) {
			return c, true
		}
	}
	return Command{}, false
}

// Programs returns the names of the programs that rules are about, sorted.
func (p *Policy) Programs() []string {
	var all []string
	for _, c := range p.Commands {
		for _, run := range c.Run {
			if name, _, _ := strings.Cut(run, " "); !strings.ContainsAny(name, `/*?[\`) {
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
	if c.Wait > 0 {
		flags = append(flags, "--wait")
		if c.Wait != DefaultWait {
			flags = append(flags, "--timeout", c.Wait.String())
		}
	}
	switch {
	case c.Shared:
		flags = append(flags, "--shared")
	case c.Slots > 0:
		flags = append(flags, "--slots", strconv.Itoa(c.Slots))
	}
	if c.TTL > 0 {
		flags = append(flags, "--ttl", c.TTL.String())
	}
	return flags
}
