// Package glob tells whether two patterns of paths have a path in common. It decides that exactly, by walking the
// automata of both at once, and not by comparing how they begin.
//
// A path is relative, has slashes, and no segment that is empty, "." or "..". In a pattern, * stands for any characters of
// a segment, none included, ? for one, [a-z] for one of those and [!a-z] or [^a-z] for one that is none of those. ** is a
// whole segment and stands for any number of segments, none included: a/** has a itself, too. {a,b} stands for either,
// which may have slashes and further braces in it. A backslash takes the meaning from the next character. Names that
// begin with a dot are like others, and case counts.
package glob

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of the patterns of one list, without which some would take very long to compare.
const (
	MaxSize = 1024 // bytes, with each alternative in braces written out
	maxAlts = 64   // alternatives of one pattern
)

// Check reports what is wrong with patterns, if something is.
func Check(patterns []string) error {
	_, err := parse(patterns)
	return err
}

// Overlap reports whether there is a path that one of a and one of b stand for. Patterns that Check refuses overlap with
// whatever may begin as they do.
func Overlap(a, b []string) bool {
	if !slices.ContainsFunc(a, func(p string) bool {
		return slices.ContainsFunc(b, func(q string) bool { return !apart(p, q) })
	}) {
		return false
	}
	left, err := parse(a)
	right, err2 := parse(b)
	if err != nil || err2 != nil {
		return true
	}
	for _, p := range left {
		for _, q := range right {
			if meet(p, q) {
				return true
			}
		}
	}
	return false
}

// Quote returns the pattern that stands for the path alone.
func Quote(path string) string {
	var out strings.Builder
	for _, r := range path {
		if strings.ContainsRune(special, r) {
			out.WriteByte('\\')
		}
		out.WriteRune(r)
	}
	return out.String()
}

// Literal reports whether the pattern stands for one path, and returns that.
func Literal(pattern string) (path string, literal bool) {
	var out strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\' && i+1 < len(pattern):
			i++
		case strings.IndexByte(special, c) >= 0:
			return "", false
		}
		out.WriteByte(pattern[i])
	}
	return out.String(), true
}

const special = `\*?[]{},`

// apart reports whether patterns can be told apart by how they begin: most can, and in no time.
func apart(p, q string) bool {
	for i := range min(len(p), len(q)) {
		switch {
		case strings.IndexByte(special, p[i]) >= 0 || strings.IndexByte(special, q[i]) >= 0:
			return false
		case p[i] != q[i]:
			// The other one may be about to end: a/** has a.
			return p[i] != '/' && q[i] != '/' || !strings.HasPrefix(p[i:], "/**") && !strings.HasPrefix(q[i:], "/**")
		}
	}
	return false
}

// set is runes, as ranges in order.
type set []span

type span struct{ from, to rune }

// Slashes part segments, and there are neither zero bytes nor halves of surrogate pairs in a path.
var (
	slash    = set{{'/', '/'}}
	anything = set{{1, 0xd7ff}, {0xe000, utf8.MaxRune}}
	inside   = set{{1, '/' - 1}, {'/' + 1, 0xd7ff}, {0xe000, utf8.MaxRune}}
)

// common returns the runes that are in both.
func common(a, b set) set {
	var both set
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if from, to := max(a[i].from, b[j].from), min(a[i].to, b[j].to); from <= to {
			both = append(both, span{from, to})
		}
		if a[i].to < b[j].to {
			i++
		} else {
			j++
		}
	}
	return both
}

// without returns the runes of a segment that are not in the set, whose ranges are in order.
func without(s set) set {
	var rest set
	next := rune(1)
	for _, r := range s {
		if r.from > next {
			rest = append(rest, span{next, r.from - 1})
		}
		next = max(next, r.to+1)
	}
	return common(append(rest, span{next, utf8.MaxRune}), inside)
}

// state is a place in a pattern. The last one of a pattern has no way on, and accepts.
type state struct {
	steps []step
	jumps []int // to other states, without a rune
}

type step struct {
	on set
	to int
}

// automaton is a pattern without braces.
type automaton []state

// add appends a state that leads to the next one by what the steps and jumps say: they count from it.
func (m *automaton) add(steps []step, jumps ...int) {
	at := len(*m)
	for i := range steps {
		steps[i].to += at
	}
	for i := range jumps {
		jumps[i] += at
	}
	*m = append(*m, state{steps, jumps})
}

func (m *automaton) one(on set) { m.add([]step{{on, 1}}) }

// parse returns the automata of patterns, one for each alternative.
func parse(patterns []string) (all []automaton, err error) {
	size := 0
	for _, p := range patterns {
		alternatives, err := expand(p, maxAlts)
		if err != nil {
			return nil, err
		}
		for _, alt := range alternatives {
			if size += len(alt); size > MaxSize {
				return nil, fmt.Errorf("patterns of more than %d bytes together, with their alternatives", MaxSize)
			}
			m, err := compile(alt)
			if err != nil {
				return nil, fmt.Errorf("pattern %q: %w", p, err)
			}
			all = append(all, m)
		}
	}
	return all, nil
}

// expand writes out the alternatives of a pattern.
func expand(p string, most int) (all []string, err error) {
	if len(p) > MaxSize || !utf8.ValidString(p) {
		return nil, fmt.Errorf("a pattern has more than %d bytes or is not UTF-8", MaxSize)
	}
	open, depth, from := -1, 0, 0
	var parts []string
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '[':
			i += classLen(p[i:]) - 1
		case '{':
			if depth++; depth == 1 {
				open, from = i, i+1
			}
		case ',':
			if depth == 1 {
				parts, from = append(parts, p[from:i]), i+1
			}
		case '}':
			if depth--; depth < 0 || depth == 0 && len(parts) == 0 {
				return nil, fmt.Errorf(`pattern %q: braces have alternatives between them, as in {a,b}; the character is \{`, p)
			}
			if depth > 0 {
				continue
			}
			for _, part := range append(parts, p[from:i]) {
				more, err := expand(p[:open]+part+p[i+1:], most-len(all))
				if err != nil {
					return nil, err
				}
				if all = append(all, more...); len(all) > most {
					return nil, fmt.Errorf("pattern %q: it has more than %d alternatives", p, maxAlts)
				}
			}
			return all, nil
		}
	}
	if depth > 0 {
		return nil, fmt.Errorf("pattern %q: a brace is not closed", p)
	}
	return []string{p}, nil
}

// classLen returns the length of the class in brackets with which p begins; 1 if it is not closed.
func classLen(p string) int {
	for i := 1; i < len(p); i++ {
		switch {
		case p[i] == '\\':
			i++
		case p[i] == ']' && i > 1 && !(i == 2 && (p[1] == '!' || p[1] == '^')):
			return i + 1
		}
	}
	return 1
}

func compile(p string) (automaton, error) {
	var m automaton
	segments := slices.CompactFunc(strings.Split(p, "/"), func(a, b string) bool { return a == "**" && b == "**" })
	last := len(segments) - 1
	for i, seg := range segments {
		switch {
		case seg == "" || seg == "." || seg == "..":
			return nil, errors.New(`it is relative, and no segment is empty, "." or ".."`)
		case seg == "**" && last == 0:
			m.add([]step{{anything, 0}}, 1)
		case seg == "**" && i == last: // nothing, or a slash and anything
			m.add([]step{{slash, 1}}, 2)
			m.add([]step{{anything, 0}}, 1)
		case seg == "**": // nothing, or anything and a slash
			m.add(nil, 1, 2)
			m.add([]step{{anything, 0}, {slash, 1}})
		default:
			if err := m.segment(seg); err != nil {
				return nil, err
			}
			if i+1 < last || i+1 == last && segments[last] != "**" {
				m.one(slash)
			}
		}
	}
	m.add(nil)
	return m, nil
}

func (m *automaton) segment(seg string) error {
	for len(seg) > 0 {
		size := 1
		switch seg[0] {
		case '*':
			if strings.HasPrefix(seg, "**") {
				return errors.New("** stands alone between slashes, as in src/**/*.go")
			}
			m.add([]step{{inside, 0}}, 1)
		case '?':
			m.one(inside)
		case '[':
			if size = classLen(seg); size == 1 {
				return errors.New(`a bracket is not closed; the character is \[`)
			}
			class, err := class(seg[1 : size-1])
			if err != nil {
				return err
			}
			m.one(class)
		default:
			r, n, err := char(seg)
			if err != nil {
				return err
			}
			m.one(set{{r, r}})
			size = n
		}
		seg = seg[size:]
	}
	return nil
}

// char returns the character with which s begins, and how many bytes it takes up.
func char(s string) (rune, int, error) {
	escaped := 0
	if s[0] == '\\' {
		escaped = 1
	}
	r, n := utf8.DecodeRuneInString(s[escaped:])
	if n == 0 || r == 0 || r == '/' {
		return 0, 0, errors.New(`a backslash takes the meaning from a character that is no slash, and a class has none`)
	}
	return r, escaped + n, nil
}

// class returns what stands between brackets.
func class(s string) (set, error) {
	negated := strings.HasPrefix(s, "!") || strings.HasPrefix(s, "^")
	if negated {
		s = s[1:]
	}
	var all set
	for len(s) > 0 {
		from, n, err := char(s)
		if err != nil {
			return nil, err
		}
		to := from
		if s = s[n:]; len(s) > 1 && s[0] == '-' {
			if to, n, err = char(s[1:]); err != nil {
				return nil, err
			}
			s = s[1+n:]
		}
		if from > to {
			return nil, fmt.Errorf("the range %c-%c is empty", from, to)
		}
		all = append(all, span{from, to})
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	outside := without(all)
	if negated {
		return outside, nil
	}
	return without(outside), nil
}

// Where a walk is within a segment: only behind a name, which "." and ".." are not, may a slash or the end follow.
const (
	atStart = iota
	atDot
	atDots
	inName
	places
)

// meet reports whether both automata accept one path.
func meet(p, q automaton) bool {
	type at struct{ p, q, place int }
	seen := make([]uint64, (len(p)*len(q)*places+63)/64)
	var next []at
	visit := func(a at) {
		i := (a.p*len(q)+a.q)*places + a.place
		if seen[i/64]&(1<<(i%64)) == 0 {
			seen[i/64] |= 1 << (i % 64)
			next = append(next, a)
		}
	}
	visit(at{0, 0, atStart})
	for len(next) > 0 {
		a := next[len(next)-1]
		next = next[:len(next)-1]
		if a.p == len(p)-1 && a.q == len(q)-1 && a.place == inName {
			return true
		}
		for _, to := range p[a.p].jumps {
			visit(at{to, a.q, a.place})
		}
		for _, to := range q[a.q].jumps {
			visit(at{a.p, to, a.place})
		}
		for _, s := range p[a.p].steps {
			for _, t := range q[a.q].steps {
				for _, r := range common(s.on, t.on) {
					if r.from <= '/' && '/' <= r.to && a.place == inName {
						visit(at{s.to, t.to, atStart})
					}
					if r.from <= '.' && '.' <= r.to {
						visit(at{s.to, t.to, min(a.place+1, inName)})
					}
					if r.from < '.' || r.to > '/' {
						visit(at{s.to, t.to, inName})
					}
				}
			}
		}
	}
	return false
}
