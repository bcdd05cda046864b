// Package policy reads lokt.toml: which commands of a repository need which lock.
package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/lokt-dev/lokt"
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

// document is the form of the file.
type document struct {
	OnError  onError   `toml:"on-error"`
	Paths    names     `toml:"paths"`
	Commands []command `toml:"command"`
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
)

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
		err = fmt.Errorf("a TTL of %q is shorter than 1s", text)
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
		line := lineOf(text, i)
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
	return p, nil
}

// saysClosed finds the setting in a file that cannot be parsed.
var saysClosed = regexp.MustCompile(`(?m)^\s*on-error\s*=\s*["']closed["']`)

// lineOf returns the number of the line with which the i-th command begins.
func lineOf(text []byte, i int) int {
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if strings.HasPrefix(strings.TrimSpace(line), "[[command]]") {
			if i--; i < 0 {
				return n
			}
		}
	}
	return 1
}

// Find reads the policy that holds in dir: that of the nearest file in it or above, up to the top of the repository.
// Without one the policy asks for nothing. Errors about what a file says are of type *Error.
func Find(dir string) (*Policy, error) {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		file := filepath.Join(at, File)
		text, err := os.ReadFile(file)
		if err == nil {
			return Parse(file, text)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNotDir) {
			return nil, &Error{Path: file, Line: 1, Text: err.Error()}
		}
		_, err = os.Lstat(filepath.Join(at, ".git"))
		if err == nil || filepath.Dir(at) == at {
			return &Policy{Paths: DefaultPaths}, nil
		}
	}
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
