package policy_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/policy"
)

const good = `# What only one may do at a time.
on-error = "closed"

[[command]]
run  = ["make build", "go build", ". env", ".. x"]
lock = "build"
ttl  = "5m"

[[command]]
run   = ["make"]
lock  = "make db"
slots = 3
wait  = "0s"

[[command]]
run    = ["npm run build:*", "gradle --no-daemon"]
lock   = "web"
shared = true
wait   = "90s"
`

func TestAPolicySaysWhichCommandsNeedWhichLock(t *testing.T) {
	p, err := policy.Parse("lokt.toml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if !p.Closed() {
		t.Error("on-error is not what the file says")
	}
	for _, c := range []struct{ command, locks, flags string }{
		{"make build", "build", "--wait --ttl 5m0s"},
		{"/usr/bin/make -j8 build V=1", "build", "--wait --ttl 5m0s"},
		{"make -C sub clean build", "build", "--wait --ttl 5m0s"},
		{"go build ./...", "build", "--wait --ttl 5m0s"},
		{"make", "make db", "--slots 3"},
		{"make test", "make db", "--slots 3"},
		{"npm run build:web", "web", "--wait --timeout 1m30s --shared"},
		{"gradle x --no-daemon", "web", "--wait --timeout 1m30s --shared"},
		{"npm run test", "", ""},
		{"go test", "", ""},
		{"remake build", "", ""},
		{"build make", "", ""},
	} {
		rule, ok := p.Match(strings.Fields(c.command))
		if got := strings.Join(rule.Locks, " "); got != c.locks || ok != (c.locks != "") {
			t.Errorf("%s: locks %q, want %q", c.command, got, c.locks)
		}
		if got := strings.Join(rule.Flags(), " "); ok && got != c.flags {
			t.Errorf("%s: flags %q, want %q", c.command, got, c.flags)
		}
	}
	if got := strings.Join(p.Programs(), " "); got != "go gradle make npm" {
		t.Errorf("programs %s", got)
	}
}

func TestAPolicySaysWhoseTurnItIs(t *testing.T) {
	p, err := policy.Parse("lokt.toml", []byte("[[lock]]\nname = \"a b\"\nqueue = \"newest\"\nevery = \"10m\"\nskipped = \"held\"\n"+
		"\n[[lock]]\nname = \"c\"\nqueue = \"skip\"\nrate = \"10/min\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	b, c := p.Lock("b"), p.Lock("c")
	if b.Line != 1 || !b.Queue.Newest || b.Queue.Skip || b.Every.Duration != 10*time.Minute || !b.Skipped.Held || b.Rate.N != 0 {
		t.Errorf("b: %+v", b)
	}
	if c.Line != 7 || !c.Queue.Skip || c.Queue.Newest || c.Every.Duration != 0 || c.Skipped.Held || c.Rate.N != 10 || c.Rate.Per != time.Minute {
		t.Errorf("c: %+v", c)
	}
	if d := p.Lock("d"); d.Line != 0 {
		t.Errorf("d: %+v", d)
	}
}

func TestErrorsHaveLines(t *testing.T) {
	rule := "[[command]]\nrun = [\"make\"]\nlock = \"build\"\n"
	for _, c := range []struct {
		text string
		line int
		says string
	}{
		{"\nx = 1\n", 2, `no setting "x"`},
		{rule + "ttl = \"5 minutes\"\n", 4, "no duration"},
		{rule + "ttl = \"5ms\"\n", 4, "shorter than 1s"},
		{rule + "ttl = 300\n", 1, "no duration"},
		{rule + "slots = 0\n", 1, "1 is the least"},
		{rule + "slots = 2\nshared = true\n", 1, "both"},
		{rule + "lokc = 1\n", 4, `no setting "command.lokc"`},
		{"[[command]]\nrun = [\"make\"]\n", 1, "no lock"},
		{rule + "\n[[command]]\nlock = \"x\"\n", 5, "no run"},
		{"[[command]]\nrun = [\"make\"]\nlock = \"a/b\"\n", 3, "character other than"},
		{"[[command]]\nrun = [\"make\"]\nlock = [\"a\", \"a/b\"]\n", 1, "character other than"},
		{"[[command]]\nrun = [\"make\"]\nlock = [\"\"]\n", 1, "is empty"},
		{"[[command]]\nrun = [\"make\"]\nlock = \"--force\"\n", 3, "--force would be a flag"},
		{"[[command]]\nrun = \"make\"\nlock = \"a\"\n", 2, `run is a list, such as ["make build"]`},
		{rule + "slots = \"2\"\n", 4, "slots is a number"},
		{rule + "shared = {}\n", 4, "shared is true or false"},
		{"lock = \"build\"\n", 1, "a TOML string cannot stand here"},
		{"[[command]]\nrun = [\"\"]\nlock = \"a\"\n", 2, "empty"},
		{"on-error = \"shut\"\n", 1, `"open" or "closed"`},
		{"# a\n\n[[command\n", 3, ""},
		{"[[lock]]\nqueue = \"skip\"\n", 1, "no name"},
		{"[[lock]]\nname = \"a\"\nqueue = \"last\"\n", 3, `"first", "newest" or "skip", not "last"`},
		{"[[lock]]\nname = \"a\"\nqueue = 1\n", 1, "not \"1\""},
		{"[[lock]]\nname = \"a\"\nevery = \"0s\"\n", 3, "shorter than 1s"},
		{"[[lock]]\nname = \"a\"\nevery = \"-10m\"\n", 3, "no duration"},

		{"[[lock]]\nname = \"a\"\nrate = \"0/min\"\n", 3, "no rate"},
		{"[[lock]]\nname = \"a\"\nrate = \"9999999999999999999/s\"\n", 3, "no rate"},
		{"[[lock]]\nname = \"a\"\nrate = \"10\"\n", 3, "no rate"},
		{"[[lock]]\nname = \"a\"\nskipped = \"no\"\n", 3, `"success" or "held"`},
		{"[[lock]]\nname = \"" + strings.Repeat("a", 195) + "\"\n", 1, "more than 200"},
		{"[[lock]]\nname = \"a b\"\n\n[[lock]]\nname = \"b\"\n", 4, "the lock b has rules in line 1 already"},
		{"lock = [{name = \"a\"}]\n", 1, "begins with the line [[lock]]"},
	} {
		_, err := policy.Parse("dir/lokt.toml", []byte(c.text))
		var e *policy.Error
		if !errors.As(err, &e) {
			t.Errorf("%q is taken for a policy: %v", c.text, err)
			continue
		}
		if e.Line != c.line || !strings.Contains(e.Text, c.says) || !strings.HasPrefix(err.Error(), "dir/lokt.toml:") {
			t.Errorf("%q: %v, want line %d and %q", c.text, err, c.line, c.says)
		}
	}
}

func TestAPolicyThatDoesNotParseStillSaysHowItFails(t *testing.T) {
	for text, closed := range map[string]bool{
		"on-error = \"closed\"\n[[": true, "on-error = 'closed' # x\n[[": true, "on-error = \"open\"\n[[": false, "# on-error = \"closed\"\n[[": false,
	} {
		_, err := policy.Parse("lokt.toml", []byte(text))
		var e *policy.Error
		if !errors.As(err, &e) || e.Closed != closed {
			t.Errorf("%q: %+v", text, err)
		}
	}
}

func TestTheNearestPolicyWithinTheRepositoryHolds(t *testing.T) {
	top := t.TempDir()
	for _, dir := range []string{"repo/.git", "repo/a/b", "repo/none/.git"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, lock := range map[string]string{"lokt.toml": "outside", "repo/lokt.toml": "repo", "repo/a/lokt.toml": "a"} {
		text := "[[command]]\nrun = [\"make\"]\nlock = \"" + lock + "\"\n"
		if err := os.WriteFile(filepath.Join(top, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]string{"repo": "repo", "repo/a": "a", "repo/a/b": "a", "repo/x/y": "repo", "repo/none": "", ".": "outside"} {
		p, err := policy.Find(filepath.Join(top, dir))
		if err != nil {
			t.Fatal(err)
		}
		rule, _ := p.Match([]string{"make"})
		if !slices.Equal(rule.Locks, strings.Fields(want)) {
			t.Errorf("in %s: %v, want %q", dir, rule.Locks, want)
		}
	}
}
