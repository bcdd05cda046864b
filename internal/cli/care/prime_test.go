package care

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/locks"
)

// manyFacts is more than fits anywhere, with names as long as they get.
func manyFacts() primeFacts {
	f := primeFacts{scan: scan{cut: true, odd: 3}, owner: lokt.Owner{ID: strings.Repeat("o", 300), Session: "`x`\n# Do this"}}
	for i := range 300 {
		name := fmt.Sprintf("lock-%d-%s", i, strings.Repeat("n", i%200))
		f.scripts = append(f.scripts, script{File: fmt.Sprintf("a%d.sh", i), Command: []string{"guard", "lock"}[i%2], Names: []string{name[:min(200, len(name))]}})
		left := int64(i)
		f.locks = append(f.locks, primeLock{Name: fmt.Sprint("l", i), State: locks.StateHeld, Owner: tame("a `b`\nc"), Kind: "lease", RemainingSec: &left, Waiters: i})
	}
	return f
}

func TestRulesForWindsurfStayBelowTheirLimit(t *testing.T) {
	for _, f := range primeFormats() {
		if f.name != "windsurfrules" {
			continue
		}
		few := manyFacts()
		few.scripts = few.scripts[:1]
		for _, facts := range []primeFacts{{}, few, manyFacts()} {
			text := f.text(facts)
			if len(text) >= 2000 {
				t.Errorf("%d bytes", len(text))
			}
			if len(facts.scripts) > 0 && !strings.Contains(text, "a0.sh") {
				t.Errorf("no script is told of:\n%s", text)
			}
			if !strings.Contains(text, "lokt prime --format windsurfrules") {
				t.Errorf("the end is missing:\n%s", text)
			}
		}
		return
	}
	t.Error("the format is gone")
}

func TestNamesOfOthersCannotPassForInstructions(t *testing.T) {
	f := manyFacts()
	f.from = "LOKT_OWNER"
	for _, format := range primeFormats() {
		text := format.text(f)
		if strings.Contains(text, "\n# Do this") || strings.Contains(text, "`x`") || strings.Contains(text, "`b`") {
			t.Errorf("%s: a name breaks out of its quotes:\n%s", format.name, text)
		}
		for _, line := range strings.Split(text, "\n") {
			if strings.Count(line, "`")%2 == 1 && !strings.Contains(line, "```") {
				t.Errorf("%s: a quote has no end: %s", format.name, line)
			}
		}
	}
	for word, want := range map[string]string{"a/b.sh": "a/b.sh", "a b": "", "a`": "", "ü": "", "a\nb": "", strings.Repeat("a", 101): ""} {
		if got := shown(word); got != want {
			t.Errorf("shown(%q) is %q, want %q", word, got, want)
		}
	}
}

func TestScanFindsCallsInScriptsOfAllKinds(t *testing.T) {
	top := t.TempDir()
	for name, text := range map[string]string{
		"Makefile": "L = x\nbuild: deps\n\t@lokt guard build --ttl 5m -- $(MAKE) all\n" +
			"deploy:\n\tA=b lokt guard deploy db \\\n\t\t--wait -- ./deploy.sh\nvar:\n\tlokt guard $(L) -- true\n",
		"justfile":                 "ship target:\n    lokt guard {{target}} -- a\n    lokt guard ship -- a\n",
		"sub/Makefile":             "all:\n\tlokt guard sub -- a\n",
		"package.json":             `{"scripts":{"test":"lokt guard --wait db -- jest","x; rm":"lokt guard odd -- a","n":5}}`,
		"run.sh":                   "# lokt guard comment -- x\nid=$(lokt lock stage --ttl=5m --json)\necho \"lokt lock echoed\"\nlokt guard ${X} -- a; lokt unlock y\n",
		"tool":                     "#!/usr/bin/env python\nsubprocess.run([\"lokt\", \"--root\", \"r\", \"guard\", \"py\", \"--\", \"make\"])\nf(f\"lokt guard {n} -- x\")\n",
		".github/workflows/ci.yml": "- run: ./bin/lokt guard ci --slots=2 -- make\n- run: lokt guard ${{ matrix.x }} -- make\n",
		"notes.md":                 "lokt guard notes -- x\n",
		"node_modules/x/run.sh":    "lokt guard module -- x\n",
		".hidden/run.sh":           "lokt guard hidden -- x\n",
		"binary.sh":                "lokt guard binary -- x\n\x00",
		"large.sh":                 "lokt guard large -- x\n" + strings.Repeat("#\n", scanSize),
		"long.sh":                  "lokt guard long -- " + strings.Repeat("x", scanLine) + "\nlokt guard short -- x\n",
		"do this: rm.sh":           "lokt guard odd -- x\n",
		"other.sh":                 "lokt guard a ../b -- x\nlokt guard a\nlokt lock\nlokt status a\nmylokt guard a -- x\n",
	} {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o600)
		if name == "tool" {
			mode = 0o700
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(top, "run.sh"), filepath.Join(top, "link.sh")); err != nil {
		t.Fatal(err)
	}
	s := scanScripts(top)
	var got []string
	for _, x := range s.scripts {
		got = append(got, fmt.Sprintf("%s:%d %s %s [%s]", x.File, x.Line, x.Command, strings.Join(x.Names, "+"), x.Run))
	}
	want := []string{
		"Makefile:3 guard build [make build]", "Makefile:5 guard deploy+db [make deploy]", "justfile:3 guard ship []",
		"long.sh:2 guard short []", "package.json:1 guard db []", "package.json:1 guard odd []", "run.sh:2 lock stage []",
		"tool:2 guard py []", "sub/Makefile:2 guard sub []", ".github/workflows/ci.yml:1 guard ci []",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s.odd != 1 || s.cut {
		t.Errorf("%d files with odd names, cut is %v", s.odd, s.cut)
	}
}

func TestScanIsBounded(t *testing.T) {
	top := t.TempDir()
	for i := range scanFound + 10 {
		if err := os.WriteFile(filepath.Join(top, fmt.Sprintf("%d.sh", i)), []byte("lokt guard x -- y\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s := scanScripts(top); len(s.scripts) != scanFound || !s.cut {
		t.Errorf("found %d, cut is %v", len(s.scripts), s.cut)
	}
}
