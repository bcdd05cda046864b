// Package glob tells whether two patterns of paths have a path in common. It decides that exactly, by walking along
// both at once, and not by comparing how they begin.
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

// path is a pattern without braces, by segments: nil is **.
type path [][]item

// item stands for one character of a segment, or with star for any number of them. The set has the first and the last one of
// each range of characters that it may be.
type item struct {
	set  []rune
	star bool
}

// parse returns patterns taken apart, one for each alternative.
func parse(patterns []string) (all []path, err error) {
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
			m, err := split(alt)
			if err != nil {
				return nil, fmt.Errorf("pattern %q: %w", p, err)
			}
			if !slices.ContainsFunc(m, func(s []item) bool { return s != nil && !share(s, []item{{anyOf(), true}}) }) {
				all = append(all, m) // otherwise it stands for no path
			}
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

// anyOf returns the characters that a name may have: slashes part segments, and there are neither zero bytes nor halves of
// surrogate pairs in a path.
func anyOf() []rune { return []rune{1, '/' - 1, '/' + 1, 0xd7ff, 0xe000, utf8.MaxRune} }

// split takes a pattern without braces apart.
func split(p string) (all path, err error) {
	for seg := range strings.SplitSeq(p, "/") {
		var items []item
		switch {
		case seg == "" || seg == "." || seg == "..":
			return nil, errors.New(`it is relative, and no segment is empty, "." or ".."`)
		case seg != "**":
			if items, err = segment(seg); err != nil {
				return nil, err
			}
		}
		all = append(all, items)
	}
	return all, nil
}

// segment takes a segment apart.
func segment(seg string) (all []item, err error) {
	for len(seg) > 0 {
		size, it := 1, item{}
		switch seg[0] {
		case '*':
			if strings.HasPrefix(seg, "**") {
				return nil, errors.New("** stands alone between slashes, as in src/**/*.go")
			}
			it = item{anyOf(), true}
		case '?':
			it.set = anyOf()
		case '[':
			if size = classLen(seg); size == 1 {
				return nil, errors.New(`a bracket is not closed; the character is \[`)
			}
			if it.set, err = class(seg[1 : size-1]); err != nil {
				return nil, err
			}
		default:
			r, n, err := char(seg)
			if err != nil {
				return nil, err
			}
			size, it.set = n, []rune{r, r}
		}
		all, seg = append(all, it), seg[size:]
	}
	return all, nil
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

// class returns the set for which stands what is between brackets.
func class(s string) (set []rune, err error) {
	negated := strings.HasPrefix(s, "!") || strings.HasPrefix(s, "^")
	if negated {
		set, s = anyOf(), s[1:]
	}
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
		switch {
		case from > to:
			return nil, fmt.Errorf("the range %c-%c is empty", from, to)
		case negated:
			set = without(set, from, to)
		default:
			set = append(set, from, to)
		}
	}
	return without(set, '/', '/'), nil
}

// without returns the set without a range.
func without(set []rune, from, to rune) (left []rune) {
	for r := range slices.Chunk(set, 2) {
		if r[0] < from {
			left = append(left, r[0], min(r[1], from-1))
		}
		if r[1] > to {
			left = append(left, max(r[0], to+1), r[1])
		}
	}
	return left
}

// meet reports whether both patterns stand for one path. It walks along p, and keeps how far one may be in q by then.
func meet(p, q path) bool {
	here, next := make([]bool, len(q)+1), make([]bool, len(q)+1)
	here[0] = true
	for i := range len(p) {
		for j := range here {
			if !here[j] {
				continue
			}
			switch more := j < len(q); {
			case p[i] == nil: // and with it stand any segments of q
				next[j] = true
				here[min(j+1, len(q))] = true
			case more && q[j] == nil:
				here[j+1], next[j] = true, true
			case more && !next[j+1]:
				next[j+1] = share(p[i], q[j])
			}
		}
		here, next = next, here
		clear(next)
	}
	for j := range q {
		here[j+1] = here[j+1] || here[j] && q[j] == nil
	}
	return here[len(q)]
}

// What was read of a segment: only name, which "." and ".." are not, may be all of it.
const (
	nothing uint8 = 1 << iota
	dot
	dots
	name
)

// share reports whether both segments stand for one name. It walks as meet does, and keeps what may have been read by then.
func share(p, q []item) bool {
	here, next := make([]uint8, len(q)+1), make([]uint8, len(q)+1)
	here[0] = nothing
	for i := range p {
		a := &p[i]
		for j, b := range q {
			read := here[j]
			switch {
			case read == 0:
			case a.star && b.star:
				read |= name // on which may follow what may follow on the others
				next[j] |= read
				here[j+1] |= read
			case a.star:
				next[j] |= read
				here[j+1] |= after(read, a.set, b.set)
			case b.star:
				here[j+1] |= read
				next[j] |= after(read, a.set, b.set)
			default:
				next[j+1] |= after(read, a.set, b.set)
			}
		}
		if a.star {
			next[len(q)] |= here[len(q)]
		}
		here, next = next, here
		clear(next)
	}
	for j, b := range q {
		if b.star {
			here[j+1] |= here[j]
		}
	}
	return here[len(q)]&name != 0
}

// after returns what may have been read when a character that is in both sets was read, too.
func after(read uint8, a, b []rune) (then uint8) {
	for i := 0; i < len(a); i += 2 {
		for j := 0; j < len(b); j += 2 {
			from, to := max(a[i], b[j]), min(a[i+1], b[j+1])
			switch {
			case from > to:
			case read&name != 0: // all that may follow on less may follow on that
				return name
			case from <= '.' && '.' <= to:
				then |= read << 1
			}
			if from <= to && (from < '.' || to > '.') {
				then |= name
			}
		}
	}
	return then
}
