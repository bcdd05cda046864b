package glob

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// matches is the meaning of a pattern once more, as somebody would write it who need not be fast.
func matches(pattern, path string) bool {
	alternatives, err := expand(pattern, maxAlts)
	if err != nil {
		panic(err)
	}
	return slices.ContainsFunc(alternatives, func(p string) bool {
		return matchSegments(strings.Split(p, "/"), strings.Split(path, "/"))
	})
}

func matchSegments(pattern, path []string) bool {
	switch {
	case len(pattern) == 0:
		return len(path) == 0
	case pattern[0] == "**":
		return matchSegments(pattern[1:], path) || len(path) > 0 && matchSegments(pattern, path[1:])
	}
	return len(path) > 0 && matchSegment(pattern[0], path[0]) && matchSegments(pattern[1:], path[1:])
}

func matchSegment(p, s string) bool {
	switch {
	case p == "":
		return s == ""
	case p[0] == '*':
		return matchSegment(p[1:], s) || s != "" && matchSegment(p, s[1:])
	case s == "":
		return false
	case p[0] == '?':
		return matchSegment(p[1:], s[1:])
	case p[0] == '[':
		end := classLen(p)
		in, body := false, p[1:end-1]
		negated := body[0] == '!'
		body = strings.TrimPrefix(body, "!")
		for i := 0; i < len(body); i++ {
			if i+2 < len(body) && body[i+1] == '-' {
				in = in || body[i] <= s[0] && s[0] <= body[i+2]
				i += 2
			} else {
				in = in || body[i] == s[0]
			}
		}
		return in != negated && matchSegment(p[end:], s[1:])
	}
	return p[0] == s[0] && matchSegment(p[1:], s[1:])
}

// paths returns all paths of up to n characters.
func paths(alphabet string, n int) (all []string) {
	for last := []string{""}; n > 0; n-- {
		var longer []string
		for _, p := range last {
			for _, c := range alphabet {
				longer = append(longer, p+string(c))
			}
		}
		all = append(all, longer...)
		last = longer
	}
	return slices.DeleteFunc(all, func(p string) bool {
		return slices.ContainsFunc(strings.Split(p, "/"), func(s string) bool { return s == "" || s == "." || s == ".." })
	})
}

// generate returns a pattern.
func generate(r *rand.Rand, deep int) string {
	pieces := []string{"a", "b", "a", "b", ".", "*", "?", "[ab]", "[!a]", "[.a]"}
	var segments []string
	for range 1 + r.IntN(3) {
		if r.IntN(4) == 0 {
			segments = append(segments, "**")
			continue
		}
		var seg string
		for range 1 + r.IntN(2) {
			piece := pieces[r.IntN(len(pieces))]
			if deep > 0 && r.IntN(8) == 0 {
				piece = "{" + generate(r, deep-1) + "," + generate(r, 0) + "}"
			}
			seg += piece
		}
		segments = append(segments, seg)
	}
	return strings.Join(segments, "/")
}

// Two patterns overlap if, and only if, there is a path that both stand for.
func TestOverlapIsWhatBruteForceFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	all := paths("ab./", 6)
	var patterns []string
	var has []map[string]bool
	for len(patterns) < 250 {
		p := generate(r, 1)
		if Check([]string{p}) != nil {
			continue
		}
		set := map[string]bool{}
		for _, path := range all {
			if matches(p, path) {
				set[path] = true
			}
		}
		patterns, has = append(patterns, p), append(has, set)
	}
	found, none := 0, 0
	for i, p := range patterns {
		for j, q := range patterns {
			got := Overlap([]string{p}, []string{q})
			want := false
			for path := range has[i] {
				if want = has[j][path]; want {
					break
				}
			}
			if want {
				found++
			} else {
				none++
			}
			if want && !got {
				t.Errorf("%s and %s have a path in common, and are told apart", p, q)
			}
			// A path in common may be longer than those that were tried.
			if got && !want && shortest(p) && shortest(q) {
				t.Errorf("%s and %s have none of %d paths in common, and overlap", p, q, len(all))
			}
		}
	}
	if found < 1000 || none < 1000 {
		t.Errorf("%d pairs overlapped, and %d did not", found, none)
	}
}

// shortest reports whether what two such patterns have in common shows in a path of at most six characters.
func shortest(p string) bool {
	alternatives, _ := expand(p, maxAlts)
	return !slices.ContainsFunc(alternatives, func(p string) bool {
		return strings.Count(p, "/")+len(strings.NewReplacer("/", "", "**", "", "[ab]", "a", "[!a]", "a", "[.a]", "a").Replace(p)) > 3
	})
}

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"src/auth/**", "src/auth/login.go", true},
		{"src/auth/**", "src/auth", true},
		{"src/auth/**", "src/authors/x", false},
		{"src/auth", "src/auth/login.go", false},
		{"src/*", "src/auth/login.go", false},
		{"**/*.go", "src/**", true},
		{"**/*.go", "src/**/*.ts", false},
		{"**/*_test.go", "src/**/a*.go", true},
		{"a/**/b", "a/b", true},
		{"a/**/b", "a/xb", false},
		{"**", "x", true},
		{"**/**", "x", true},
		{"**/a/**", "b/**/c", true},
		{"*a*", "*b*", true},
		{"a*b", "ab?", true},
		{"a*b", "a?c", false},
		{"a*b", "ab??", true},
		{"[Mm]akefile", "makefile", true}, // both cases of a letter
		{"[Mm]akefile", "Makefile", true},
		{"[a-c]x", "[c-e]x", true},
		{"[a-c]x", "[d-e]x", false},
		{"[!a]", "a", false},
		{"[^a]", "/", false},
		{"[]a]", "]", true},
		{"[]-a]", "`", true},
		{"[a-]", "-", true},
		{`\*`, "x", false},
		{`\*`, "*", true},
		{`a\{b`, "a[{]b", true},
		{"{a,b/**}/c", "b/x/y/c", true},
		{"{a,b/{c,d}}", "b/d", true},
		{"x{,.bak}", "x", true},
		{"a/?", "a/[.]", false}, // a/. is no path
		{"**", "[.]", false},
		{"a/**", `a/\..`, false},
		{"**", "[.]?", true},
		{"**", "..*", true},
		{"?", "é", true},
		{"[à-ü]", "é", true},
		{"a/*", "a/**", true},
		{"[^\x01-\u007e]", "\u007f", true},
		{"a/**", "b/**", false},
	} {
		for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			if got := Overlap(pair[:1], pair[1:]); got != c.want && Check(pair[:]) == nil {
				t.Errorf("%s and %s overlap: %v", pair[0], pair[1], got)
			}
		}
	}
	if !Overlap([]string{"x", "a/b"}, []string{"y", "a/*"}) || Overlap([]string{"x", "a/b"}, []string{"y", "a/c"}) {
		t.Error("of several, any pair counts")
	}
	if !Overlap([]string{"[", "b"}, []string{"a"}) {
		t.Error("what is no pattern overlaps with whatever may begin like it")
	}
}

func TestWhatIsNoPatternIsRefused(t *testing.T) {
	for _, p := range []string{
		"", "/a", "a/", "a//b", ".", "a/../b", "./a", "a**", "**b", "***", "[a", "[]", "[b-a]", "[a/b]", "{a}", "{a", "a}", "{a,b}}", "a\\", "a\\/b", "[\\]",
		"{a,}/b", "a\x00", "\xff", strings.Repeat("a", MaxSize+1), strings.Repeat("{a,b}", 10), strings.Repeat("{,", 400) + strings.Repeat("}", 400),
	} {
		if Check([]string{p}) == nil {
			t.Errorf("%.40q is taken for a pattern", p)
		}
	}
	if Check([]string{strings.Repeat("a", MaxSize/2), strings.Repeat("b", MaxSize/2+1)}) == nil {
		t.Error("patterns that are too long together are taken")
	}
}

func TestQuoteStandsForOnePath(t *testing.T) {
	for _, path := range []string{"a", "a/b.go", `a*b/[x]{y,z}\?`, "é/ü", "a-b!^"} {
		p := Quote(path)
		if back, literal := Literal(p); !literal || back != path || Check([]string{p}) != nil {
			t.Errorf("%s is quoted as %s, which is %s, %v", path, p, back, literal)
		}
		if !Overlap([]string{p}, []string{p}) || Overlap([]string{p}, []string{Quote(path + "x"), Quote("x" + path)}) {
			t.Errorf("%s does not stand for itself alone", p)
		}
	}
	for _, p := range []string{"*", "a?", "[a]", "{a,b}"} {
		if _, literal := Literal(p); literal {
			t.Errorf("%s stands for several paths", p)
		}
	}
}

// The worst patterns that fit are compared in a time that does no harm.
func TestHostilePatternsAreComparedSoon(t *testing.T) {
	for _, pair := range [][2]string{
		{strings.Repeat("*a", 400) + "b", strings.Repeat("a*", 400) + "c"},
		{strings.Repeat("**/a/", 200) + "b", strings.Repeat("**/[!b]/", 120) + "c"},
		{strings.Repeat("?*", 500) + "b", strings.Repeat("*?", 500) + "c"},
	} {
		if err := Check(pair[:1]); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if Overlap(pair[:1], pair[1:]) {
			t.Errorf("%.20s… and %.20s… overlap", pair[0], pair[1])
		}
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("%.20s… and %.20s… took %v", pair[0], pair[1], took)
		}
	}
}

// What is in common is what either has: the same from both sides, and with itself.
func FuzzOverlap(f *testing.F) {
	for _, p := range []string{"src/auth/**", "**/*.go", "{a,b/[!c-d]?}*", "a\\*/**/x", "[]a]", "{{a,b},c/**}/d"} {
		f.Add(p, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, p, q string) {
		ok := Check([]string{p}) == nil
		if ok && Check([]string{q}) == nil && Overlap([]string{p}, []string{q}) != Overlap([]string{q}, []string{p}) {
			t.Errorf("%q and %q: it depends on the side", p, q)
		}
		if lit := Quote(q); Check([]string{lit}) == nil {
			if !Overlap([]string{lit}, []string{lit, p}) {
				t.Errorf("%q does not overlap with itself", q)
			}
			if path, literal := Literal(p); ok && literal && Overlap([]string{p}, []string{lit}) != (path == q) {
				t.Errorf("%q and %q are paths", p, q)
			}
		}
	})
}

func BenchmarkOverlap(b *testing.B) {
	for _, q := range []string{"src/billing/**", "src/auth/login.go", "**/*.go"} {
		b.Run(strings.ReplaceAll(q, "/", "_"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Overlap([]string{"src/auth/**"}, []string{q})
			}
		})
	}
}

func BenchmarkHostile(b *testing.B) {
	for b.Loop() {
		Overlap([]string{strings.Repeat("?*", 500) + "b"}, []string{strings.Repeat("*?", 500) + "c"})
	}
}
