package glob_test

import (
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/glob"
)

func parse(t testing.TB, pattern string) *glob.Glob {
	t.Helper()
	g, err := glob.Parse(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestWhatAPatternMatches(t *testing.T) {
	for _, c := range []struct{ pattern, yes, no string }{
		{"src/auth", "src/auth src/auth/a src/auth/a/b", "src src/authx src/au"},
		{"src/auth/**", "src/auth src/auth/a src/auth/a/b", "src/authx src"},
		{"**", "a a/b .x", ""},
		{"**/x", "x a/x a/b/x", "xa a/xb x/a"},
		{"a/**/b", "a/b a/x/b a/x/y/b", "ab a/xb a/b/c"},
		{"*.go", "a.go .go", "a/b.go a.g"},
		{"a/*", "a/b", "a a/b/c"},
		{"a?", "ab aé", "a abc a/"},
		{"[a-c]x", "ax cx", "dx x"},
		{"[!a-c]x", "dx éx", "ax /x"},
		{"[]x]", "] x", "a"},
		{"{a,b/{c,d}}/e", "a/e b/c/e b/d/e", "b/e b/c"},
		{`\*`, "* */a", "a"},
		{"a**b", "ab axb", "a/b"},
	} {
		g := parse(t, c.pattern)
		for _, p := range strings.Fields(c.yes) {
			if !g.Match(p) {
				t.Errorf("%s does not match %s", c.pattern, p)
			}
		}
		for _, p := range strings.Fields(c.no) {
			if g.Match(p) {
				t.Errorf("%s matches %s", c.pattern, p)
			}
		}
	}
}

func TestWhatIsNoPatternIsRefused(t *testing.T) {
	for _, bad := range []string{
		"", "/a", "a/", "a//b", "./a", "a/../b", "[a", "[/]", "[b-a]", "{a", "a}", `a\`, "\xff", strings.Repeat("a", glob.MaxLen+1),
		"{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}",
	} {
		if _, err := glob.Parse(bad); err == nil {
			t.Errorf("%q is taken for a pattern", bad)
		}
	}
}

func TestOverlapsThatPrefixesGetWrong(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"src/**", "src/auth/*.go", true},
		{"src/*.go", "src/auth/*.go", false},
		{"**/*.go", "src/**", true},
		{"**/*.go", "src/*.ts", false},
		{"*a", "b*", true},
		{"a*b", "a*c", false},
		{"src/{a,b}/**", "src/c/**", false},
		{"src/{a,b}/**", "src/b", true},
		{"[a-m]*", "[n-z]*", false},
		{"[.]", "?", false},     // "." is no path
		{"[.][.]", "??", false}, // nor is ".."
		{"a/*/c", "a/**/b/c", true},
		{"**/x/**/y", "a/x/y", true},
		{"docs", "docs/api.md", true},
		{"doc?", "docs/api.md", false},
	} {
		for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			if witness, got := glob.Overlap(parse(t, pair[0]), parse(t, pair[1])); got != c.want {
				t.Errorf("%s and %s overlap: %v (%q)", pair[0], pair[1], got, witness)
			}
		}
	}
}

// matches is the meaning of a pattern written down again, by backtracking.
func matches(pattern, name string) bool {
	for _, p := range braces(pattern) {
		if segments(strings.Split(p, "/"), strings.Split(name, "/"), !strings.ContainsAny(p, `*?[`)) {
			return true
		}
	}
	return false
}

func braces(p string) []string {
	open := strings.IndexByte(p, '{')
	if open < 0 {
		return []string{p}
	}
	end := open + strings.IndexByte(p[open:], '}')
	var all []string
	for _, one := range strings.Split(p[open+1:end], ",") {
		all = append(all, braces(p[:open]+one+p[end+1:])...)
	}
	return all
}

func segments(pattern, name []string, below bool) bool {
	switch {
	case len(pattern) == 0:
		return len(name) == 0 || below
	case pattern[0] == "**":
		for i := range len(name) + 1 {
			if segments(pattern[1:], name[i:], below) {
				return true
			}
		}
		return false
	case len(name) == 0:
		return false
	}
	ok, err := path.Match(strings.ReplaceAll(pattern[0], "[!", "[^"), name[0])
	return err == nil && ok && segments(pattern[1:], name[1:], below)
}

// pattern makes a pattern of few letters, so that pairs are often close to overlapping.
func pattern(r *rand.Rand) string {
	atoms := []string{"a", "b", ".", "*", "?", "[ab]", "[!a]", "[!.]", "{a,b}", "{a,*b}", "{.,ab}"}
	for {
		var segs []string
		for range 1 + r.IntN(3) {
			if r.IntN(4) == 0 {
				segs = append(segs, "**")
				continue
			}
			var seg strings.Builder
			for range 1 + r.IntN(3) {
				seg.WriteString(atoms[r.IntN(len(atoms))])
			}
			segs = append(segs, seg.String())
		}
		if p := strings.Join(segs, "/"); !strings.Contains(p, "***") {
			if _, err := glob.Parse(p); err == nil {
				return p
			}
		}
	}
}

// paths returns all clean paths of these characters up to a length.
func paths(most int) []string {
	var all []string
	var grow func(string)
	grow = func(p string) {
		if p != "" && p == path.Clean(p) && p[0] != '/' && p != "." && !strings.HasPrefix(p, "..") {
			all = append(all, p)
		}
		if len(p) < most {
			for _, c := range "ab./" {
				grow(p + string(c))
			}
		}
	}
	grow("")
	return append(all, "..a", "...", "a/...", "..a/b", ".../a")
}

// check compares two patterns with brute force: every overlap has a path that both match, and paths that both match
// have patterns that overlap.
func check(t *testing.T, a, b string, tried []string) {
	t.Helper()
	ga, gb := parse(t, a), parse(t, b)
	witness, overlap := glob.Overlap(ga, gb)
	if overlap && !(matches(a, witness) && matches(b, witness) && witness == path.Clean(witness)) {
		t.Errorf("%s and %s overlap in %q, which they do not both match", a, b, witness)
	}
	for _, p := range tried {
		ma, mb := matches(a, p), matches(b, p)
		if ga.Match(p) != ma || gb.Match(p) != mb {
			t.Errorf("%s matches %q: %v, not %v; %s: %v, not %v", a, p, ga.Match(p), ma, b, gb.Match(p), mb)
		}
		if ma && mb && !overlap {
			t.Errorf("%s and %s both match %q, and are said not to overlap", a, b, p)
		}
	}
}

func TestOverlapIsExactByBruteForce(t *testing.T) {
	tried := paths(5)
	r := rand.New(rand.NewPCG(1, 2))
	overlaps := 0
	for range 1500 {
		a, b := pattern(r), pattern(r)
		check(t, a, b, tried)
		if _, ok := glob.Overlap(parse(t, a), parse(t, b)); ok {
			overlaps++
		}
	}
	if overlaps < 200 || overlaps > 1300 {
		t.Errorf("%d of 1500 pairs overlap: the patterns are not worth comparing", overlaps)
	}
}

func FuzzOverlap(f *testing.F) {
	for _, p := range []string{"src/**", "**/*.go", "a[!b]?c", "{a,b}/*", `\*`} {
		f.Add(p, "src/auth/*.go")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ga, errA := glob.Parse(a)
		gb, errB := glob.Parse(b)
		if errA != nil || errB != nil {
			return
		}
		witness, overlap := glob.Overlap(ga, gb)
		if overlap != (witness != "") || overlap && !(ga.Match(witness) && gb.Match(witness)) {
			t.Fatalf("%q and %q: %q, %v", a, b, witness, overlap)
		}
		if _, back := glob.Overlap(gb, ga); back != overlap {
			t.Fatalf("%q overlaps %q, or the other way round", a, b)
		}
		if _, own := glob.Overlap(ga, ga); overlap && !own {
			t.Fatalf("%q matches %q and nothing", a, witness)
		}
	})
}

func TestALiteralMatchesItselfAlone(t *testing.T) {
	for _, p := range []string{"a", "a/b", "[x]", "{a}", "a*b?", `b\c`, "é/,"} {
		if g := parse(t, glob.Literal(p)); !g.Match(p) || !g.Match(p+"/x") || g.Match(p+"x") {
			t.Errorf("%s, literally, does not match itself alone", p)
		}
	}
}

func TestTheLargestPatternsAreComparedInAMoment(t *testing.T) {
	a := parse(t, strings.Repeat("*a", 250))
	b := parse(t, strings.Repeat("a*", 255)+"b")
	if _, ok := glob.Overlap(a, b); ok {
		t.Error("one ends with a, the other with b")
	}
	if !slices.Contains([]string{"**"}, parse(t, "**").String()) {
		t.Error("a pattern is not what it was made of")
	}
}

func BenchmarkOverlap(b *testing.B) {
	x, y := parse(b, "src/auth/**/*.go"), parse(b, "src/{auth,login}/handlers/*_test.go")
	for b.Loop() {
		glob.Overlap(x, y)
	}
}
