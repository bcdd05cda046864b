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
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
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
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `{`, `\{`, `}`, `\}`, `,`, `\,`).Replace(path)
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

// parse returns the automata of patterns, one for each alternative.
func parse(patterns []string) (all []*syntax.Prog, err error) {
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

// Classes of runes, for a regular expression. Slashes part segments, and there are neither zero bytes nor halves of surrogate pairs
// in a path.
const (
	noRune   = `\x00\x{D800}-\x{DFFF}`
	anything = `[^` + noRune + `]`
	inside   = `[^/` + noRune + `]`
)

// compile returns the automaton of a pattern without braces: that of the regular expression for the same paths.
func compile(p string) (*syntax.Prog, error) {
	var out strings.Builder
	segments := slices.CompactFunc(strings.Split(p, "/"), func(a, b string) bool { return a == "**" && b == "**" })
	last := len(segments) - 1
	for i, seg := range segments {
		switch {
		case seg == "" || seg == "." || seg == "..":
			return nil, errors.New(`it is relative, and no segment is empty, "." or ".."`)
		case seg == "**" && last == 0:
			out.WriteString(anything + "*")
		case seg == "**" && i == last:
			out.WriteString("(/" + anything + "*)?")
		case seg == "**":
			out.WriteString("(" + anything + "*/)?")
		default:
			if err := segment(&out, seg); err != nil {
				return nil, err
			}
			if i+1 < last || i+1 == last && segments[last] != "**" {
				out.WriteByte('/')
			}
		}
	}
	re, err := syntax.Parse(out.String(), 0)
	if err != nil {
		return nil, err
	}
	return syntax.Compile(re.Simplify())
}

// segment writes the regular expression for a segment.
func segment(out *strings.Builder, seg string) error {
	for len(seg) > 0 {
		size, text := 1, ""
		switch seg[0] {
		case '*':
			if strings.HasPrefix(seg, "**") {
				return errors.New("** stands alone between slashes, as in src/**/*.go")
			}
			text = inside + "*"
		case '?':
			text = inside
		case '[':
			var err error
			if size = classLen(seg); size == 1 {
				return errors.New(`a bracket is not closed; the character is \[`)
			}
			if text, err = class(seg[1 : size-1]); err != nil {
				return err
			}
		default:
			r, n, err := char(seg)
			if err != nil {
				return err
			}
			size, text = n, regexp.QuoteMeta(string(r))
		}
		out.WriteString(text)
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

// class returns what stands between brackets as a regular expression.
func class(s string) (string, error) {
	open, end := "[", "]"
	if strings.HasPrefix(s, "!") || strings.HasPrefix(s, "^") {
		open, end, s = "[^", "/"+noRune+"]", s[1:]
	}
	var out strings.Builder
	for len(s) > 0 {
		from, n, err := char(s)
		if err != nil {
			return "", err
		}
		to := from
		if s = s[n:]; len(s) > 1 && s[0] == '-' {
			if to, n, err = char(s[1:]); err != nil {
				return "", err
			}
			s = s[1+n:]
		}
		switch {
		case from > to:
			return "", fmt.Errorf("the range %c-%c is empty", from, to)
		case from < '/' && '/' < to:
			fmt.Fprintf(&out, `\x{%x}-.`, from)
			from = '/' + 1
		}
		fmt.Fprintf(&out, `\x{%x}-\x{%x}`, from, to)
	}
	return open + out.String() + end, nil
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
func meet(p, q *syntax.Prog) bool {
	type at struct{ p, q, place int }
	seen := make([]uint64, (len(p.Inst)*len(q.Inst)*places+63)/64)
	var next []at
	visit := func(i, j, place int) {
		n := (i*len(q.Inst)+j)*places + place
		if seen[n/64]&(1<<(n%64)) == 0 {
			seen[n/64] |= 1 << (n % 64)
			next = append(next, at{i, j, place})
		}
	}
	visit(p.Start, q.Start, atStart)
	for len(next) > 0 {
		a := next[len(next)-1]
		next = next[:len(next)-1]
		i, j := &p.Inst[a.p], &q.Inst[a.q]
		if i.Op == syntax.InstMatch && j.Op == syntax.InstMatch && a.place == inName {
			return true
		}
		for _, to := range jumps(i) {
			visit(to, a.q, a.place)
		}
		for _, to := range jumps(j) {
			visit(a.p, to, a.place)
		}
		// Of what is no step on runes, the list of them is empty.
		for s := i.Rune; len(s) > 0; s = s[min(2, len(s)):] {
			for t := j.Rune; len(t) > 0; t = t[min(2, len(t)):] {
				from, to := max(s[0], t[0]), min(s[min(1, len(s)-1)], t[min(1, len(t)-1)]) // one rune stands alone
				if from > to {
					continue
				}
				if from <= '/' && '/' <= to && a.place == inName {
					visit(int(i.Out), int(j.Out), atStart)
				}
				if from <= '.' && '.' <= to {
					visit(int(i.Out), int(j.Out), min(a.place+1, inName))
				}
				if from < '.' || to > '/' {
					visit(int(i.Out), int(j.Out), inName)
				}
			}
		}
	}
	return false
}

// jumps returns where an instruction leads without a rune.
func jumps(i *syntax.Inst) []int {
	switch i.Op {
	case syntax.InstAlt:
		return []int{int(i.Out), int(i.Arg)}
	case syntax.InstCapture, syntax.InstNop:
		return []int{int(i.Out)}
	}
	return nil
}
