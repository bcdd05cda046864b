// Package glob compares patterns of paths: whether one matches a path, and whether there is a path that two match.
//
// Paths are relative, clean and separated by slashes. In a pattern,
//
//   - stands for any characters but a slash
//     ?       stands for one character but a slash
//     [a-z]   stands for one of these characters, [!a-z] and [^a-z] for one of the others
//     {a,b}   stands for either; braces can be nested
//     **      as a whole segment, stands for any number of segments, none included
//     \x      stands for x itself
//
// A pattern without any of these, such as the name of a directory, also matches what is below it. Characters are those
// of Unicode; letters of different case differ.
package glob

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits on a pattern, so that two can always be compared in a moment.
const (
	MaxLen          = 512 // bytes
	MaxAlternatives = 32  // patterns without braces that it stands for
)

// ErrInvalid means that a text is no pattern.
var ErrInvalid = errors.New("invalid pattern")

// Glob is a pattern that was parsed: a nondeterministic automaton whose states are the places in it.
type Glob struct {
	text   string
	states []state
	starts []int
}

// state is a place in a pattern.
type state struct {
	skip  []int  // states reached without a character
	edges []edge // states reached by one
	final bool
}

type edge struct {
	on set
	to int
}

// String returns the pattern.
func (g *Glob) String() string { return g.text }

// Literal returns the pattern that matches the path alone, and what is below it.
func Literal(path string) string {
	var out strings.Builder
	for _, r := range path {
		if strings.ContainsRune(`*?[]{},\`, r) {
			out.WriteByte('\\')
		}
		out.WriteRune(r)
	}
	return out.String()
}

// Parse reads a pattern. The error wraps ErrInvalid.
func Parse(pattern string) (*Glob, error) {
	bad := func(format string, args ...any) (*Glob, error) {
		return nil, fmt.Errorf("%w %q: %s", ErrInvalid, pattern, fmt.Sprintf(format, args...))
	}
	switch {
	case pattern == "":
		return bad("it is empty")
	case len(pattern) > MaxLen:
		return bad("it has %d bytes, more than %d", len(pattern), MaxLen)
	case !utf8.ValidString(pattern):
		return bad("it is not UTF-8")
	}
	all, err := expand(pattern)
	if err != nil {
		return bad("%v", err)
	}
	g := &Glob{text: pattern}
	for _, one := range all {
		if err := g.add(one); err != nil {
			return bad("%v", err)
		}
	}
	return g, nil
}

// expand returns the patterns without braces that a pattern stands for.
func expand(pattern string) ([]string, error) {
	depth, open, class := 0, 0, false
	var cuts []int
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']' || strings.HasSuffix(pattern[:i], "[") || strings.HasSuffix(pattern[:i], "[!") || strings.HasSuffix(pattern[:i], "[^")
		case c == '[':
			class = true
		case c == '{':
			if depth++; depth == 1 {
				open, cuts = i, nil
			}
		case c == ',' && depth == 1:
			cuts = append(cuts, i)
		case c == '}' && depth == 0:
			return nil, errors.New("a } without a {")
		case c == '}':
			if depth--; depth > 0 {
				continue
			}
			var all []string
			from := open + 1
			for _, cut := range append(cuts, i) {
				more, err := expand(pattern[:open] + pattern[from:cut] + pattern[i+1:])
				if err != nil {
					return nil, err
				}
				if all = append(all, more...); len(all) > MaxAlternatives {
					return nil, fmt.Errorf("its braces stand for more than %d patterns", MaxAlternatives)
				}
				from = cut + 1
			}
			return all, nil
		}
	}
	if depth > 0 {
		return nil, errors.New("a { without a }")
	}
	return []string{pattern}, nil
}

// add adds what a pattern without braces matches.
func (g *Glob) add(pattern string) error {
	segments := slices.CompactFunc(strings.Split(pattern, "/"), func(a, b string) bool { return a == "**" && b == "**" })
	plain := true
	at := g.state()
	g.starts = append(g.starts, at)
	for i, seg := range segments {
		last := i == len(segments)-1
		switch seg {
		case "":
			return errors.New("a segment is empty: a path is relative, and has no slash at its end")
		case ".", "..":
			return fmt.Errorf("a segment is %q", seg)
		case "**":
			plain = false
			at = g.anything(at, i == 0, last)
			continue
		}
		wild, end, err := g.segment(at, seg)
		if err != nil {
			return err
		}
		plain = plain && !wild
		switch at = end; {
		case !last && segments[i+1] == "**":
		case !last:
			at = g.step(at, only('/'))
		case plain:
			g.states[at].final = true
			g.anything(at, false, true)
		default:
			g.states[at].final = true
		}
	}
	return nil
}

// anything adds any number of segments, and returns where what follows begins.
func (g *Glob) anything(at int, first, last bool) int {
	if last {
		in := at
		if !first {
			g.states[at].final = true
			in = g.step(at, only('/'))
		}
		rest := g.step(in, all())
		g.states[rest].edges = append(g.states[rest].edges, edge{all(), rest})
		g.states[rest].final = true
		return rest
	}
	if !first {
		at = g.step(at, only('/'))
	}
	inside := g.step(at, others('/'))
	g.states[inside].edges = append(g.states[inside].edges, edge{others('/'), inside}, edge{only('/'), at})
	return at
}

// segment adds what one segment matches.
func (g *Glob) segment(at int, seg string) (wild bool, end int, err error) {
	for len(seg) > 0 {
		r, n := utf8.DecodeRuneInString(seg)
		seg = seg[n:]
		switch r {
		case '*':
			wild = true
			loop := g.state()
			g.states[at].skip = append(g.states[at].skip, loop)
			g.states[loop].edges = append(g.states[loop].edges, edge{others('/'), loop})
			at = loop
		case '?':
			wild = true
			at = g.step(at, others('/'))
		case '[':
			wild = true
			class, rest, err := parseClass(seg)
			if err != nil {
				return false, 0, err
			}
			seg = rest
			at = g.step(at, class)
		case '\\':
			if seg == "" {
				return false, 0, errors.New(`a \ at the end of a segment`)
			}
			r, n = utf8.DecodeRuneInString(seg)
			seg = seg[n:]
			fallthrough
		default:
			at = g.step(at, only(r))
		}
	}
	return wild, at, nil
}

func (g *Glob) state() int {
	g.states = append(g.states, state{})
	return len(g.states) - 1
}

func (g *Glob) step(from int, on set) int {
	to := g.state()
	g.states[from].edges = append(g.states[from].edges, edge{on, to})
	return to
}

// Match reports whether the pattern matches the path.
func (g *Glob) Match(path string) bool {
	now := g.close(slices.Clone(g.starts))
	for _, r := range path {
		var next []int
		for _, s := range now {
			for _, e := range g.states[s].edges {
				if e.on.has(r) && !slices.Contains(next, e.to) {
					next = append(next, e.to)
				}
			}
		}
		if now = g.close(next); len(now) == 0 {
			return false
		}
	}
	return slices.ContainsFunc(now, func(s int) bool { return g.states[s].final })
}

// close adds the states that are reached without a character.
func (g *Glob) close(list []int) []int {
	for i := 0; i < len(list); i++ {
		for _, s := range g.states[list[i]].skip {
			if !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
	}
	return list
}
