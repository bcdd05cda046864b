package shell_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/policy"
	"github.com/lokt-dev/lokt/internal/shell"
)

func rules(t testing.TB, text string) func(string) (*policy.Policy, error) {
	t.Helper()
	p, err := policy.Parse("lokt.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return func(string) (*policy.Policy, error) { return p, nil }
}

const build = "[[command]]\nrun = [\"make build\"]\nlock = \"build\"\n"

func finder(t testing.TB, env map[string]string) *shell.Finder {
	return &shell.Finder{
		Dir: "/repo", Getenv: func(k string) string { return env[k] }, Policy: rules(t, build),
		Root: func(dir string) string { return dir + "/.git/lokt" }, Lokt: "lokt",
	}
}

func TestGuardsStandWhereTheyAreNeeded(t *testing.T) {
	const g = "lokt guard build --wait -- "
	for line, want := range map[string]string{
		"make test":                                        "make test",
		"echo make build":                                  "echo make build",
		"echo 'make build' > notes":                        "echo 'make build' > notes",
		"make build":                                       g + "make build",
		"cd x && V=1 make -j8 build | tee log":             "cd x && V=1 " + g + "make -j8 build | tee log",
		"make build && make test; make build":              g + "make build && make test; " + g + "make build",
		"timeout 60 env A=b make build":                    g + "timeout 60 env A=b make build",
		"bash -c 'cd x && make build'":                     "bash -c 'cd x && " + g + "make build'",
		`bash -c "cd $X && make build"`:                    g + `bash -c "cd $X && make build"`,
		"exec make build":                                  "exec " + g + "make build",
		"strace -c make build":                             g + "strace -c make build",
		"lokt jobserver --tokens 2 -- make -j build":       g + "lokt jobserver --tokens 2 -- make -j build",
		"lokt guard build -- lokt jobserver -- make build": "lokt guard build -- lokt jobserver -- make build",
		"env -S '${X}' make build":                         g + "env -S '${X}' make build",
		"lokt guard build -- make build":                   "lokt guard build -- make build",
		"lokt guard a build --ttl 5m -- make build":        "lokt guard a build --ttl 5m -- make build",
		"lokt guard a -- make build":                       "lokt guard a -- " + g + "make build",
		"command -v make build":                            "command -v make build",
		"git commit -m 'make build'":                       "git commit -m 'make build'",
	} {
		r, err := finder(t, nil).Find(line)
		if err != nil || r.Line != want {
			t.Errorf("%s\n got %s (%v)\nwant %s", line, r.Line, err, want)
		}
		again, err := finder(t, nil).Find(r.Line)
		if err != nil || len(again.Needs) > 0 || again.Line != r.Line {
			t.Errorf("%s is not guarded enough: %v %v", r.Line, again.Needs, err)
		}
	}
}

func TestOneGuardAroundSeveralCommandsHasAllThatTheyNeed(t *testing.T) {
	f := finder(t, nil)
	f.Policy = rules(t, "[[command]]\nrun = [\"make a\"]\nlock = \"a\"\nslots = 2\nwait = \"0s\"\n[[command]]\nrun = [\"make b\"]\nlock = \"b\"\nttl = \"5m\"\n")
	for line, want := range map[string]string{
		`bash -c "make a $X"`:         `lokt guard a --slots 2 -- bash -c "make a $X"`,
		`bash -c "make a; make b $X"`: `lokt guard a b --wait --ttl 5m0s -- bash -c "make a; make b $X"`,
	} {
		if r, err := f.Find(line); err != nil || r.Line != want {
			t.Errorf("%s: %s (%v), want %s", line, r.Line, err, want)
		}
	}
}

func TestCallsOfLoktSayWhoCalls(t *testing.T) {
	f := finder(t, nil)
	f.Owner = "codex-1"
	for line, want := range map[string]string{
		"make build":                       "export LOKT_AGENT_ID=codex-1; lokt guard build --wait -- make build",
		"exec make build":                  "export LOKT_AGENT_ID=codex-1; exec lokt guard build --wait -- make build",
		"cd x; lokt reserve 'a/**' --wait": "export LOKT_AGENT_ID=codex-1; cd x; lokt reserve 'a/**' --wait",
		"LOKT_AGENT_ID=x lokt lock a":      "LOKT_AGENT_ID=x lokt lock a",
		"bash -c 'lokt lock a'":            "export LOKT_AGENT_ID=codex-1; bash -c 'lokt lock a'",
		"make test":                        "make test",

		"export LOKT_AGENT_ID=codex-1; lokt lock a": "export LOKT_AGENT_ID=codex-1; lokt lock a",
	} {
		if r, err := f.Find(line); err != nil || r.Line != want {
			t.Errorf("%s: %s (%v), want %s", line, r.Line, err, want)
		}
	}
}

func TestAnotherDirectorysPolicyAndLocksCount(t *testing.T) {
	here, err := policy.Parse("/repo/lokt.toml", []byte(build))
	if err != nil {
		t.Fatal(err)
	}
	there, err := policy.Parse("/other/lokt.toml", []byte("[[command]]\nrun = [\"make\"]\nlock = \"other\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	f := finder(t, nil)
	f.Policy = func(dir string) (*policy.Policy, error) {
		if strings.HasPrefix(dir, "/other") {
			return there, nil
		}
		return here, nil
	}
	for line, want := range map[string]string{
		"cd ../other && make test":       "cd ../other && lokt guard other --wait -- make test",
		"(cd /other/x; make t); make t":  "(cd /other/x; lokt guard other --wait -- make t); make t",
		"make -C /other test":            "lokt guard other --root /other/.git/lokt --wait -- make -C /other test",
		"sh -c 'cd ../other; make test'": "sh -c 'cd ../other; lokt guard other --wait -- make test'",
		"cd \"$(pwd)/../other\"; make t": "cd \"$(pwd)/../other\"; make t",
		"cd $UNSET/other; make test":     "cd $UNSET/other; lokt guard other --wait -- make test",
	} {
		if r, err := f.Find(line); err != nil || r.Line != want {
			t.Errorf("%s: %s (%v), want %s", line, r.Line, err, want)
		}
	}
}

func TestWhatIsNoShellIsAnError(t *testing.T) {
	if _, err := finder(t, nil).Find("make build && ("); err == nil {
		t.Error("an open parenthesis is taken for shell")
	}
}

// ways returns the ways of running make build, with the layer that sees each first.
func ways(t *testing.T) (list [][2]string) {
	t.Helper()
	text, err := os.ReadFile("testdata/ways.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		layer, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "#"):
		case slices.Contains([]string{"hook", "shim", "none"}, layer):
			list = append(list, [2]string{layer, rest})
		case len(list) > 0:
			list[len(list)-1][1] += line
		}
	}
	return list
}

// What the hook makes of each way is run by bash, with a make that takes note of whether a guard is around it.
func TestRewrittenLinesRunUnderTheirGuard(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the lines name programs of Linux")
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	makeit := "#!/bin/sh\ncase \" $* \" in *\" build \"*) if [ -e \"$LOG.held\" ]; then echo held; else echo bare; fi >>\"$LOG\" ;; esac\n"
	guard := "#!/bin/sh\ncase \" $* \" in *\" build \"*--*) : >\"$LOG.held\" ;; esac\nwhile [ \"$1\" != -- ]; do shift; done\nshift\n\"$@\"\nr=$?\nrm -f \"$LOG.held\"\nexit $r\n"
	for name, text := range map[string]string{
		"bin/make": makeit, "repo/tools/make": makeit, "bin/lokt": guard, "repo/build.sh": "#!/bin/sh\nmake build\n", "repo/sub/x": "", "repo/Makefile": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(dir, "log")
	env := map[string]string{"BIN": bin, "LOG": log, "PATH": bin + ":" + os.Getenv("PATH")}
	f := finder(t, env)
	f.Dir, f.Lokt = filepath.Join(dir, "repo"), filepath.Join(bin, "lokt")
	list := ways(t)
	if len(list) < 100 {
		t.Fatalf("there are %d ways", len(list))
	}
	for _, w := range list {
		layer, line := w[0], strings.ReplaceAll(w[1], "/usr/bin/make", bin+"/make")
		if slices.ContainsFunc([]string{"python3", "perl", "awk", "git", "flock", "stdbuf", "setsid"}, func(p string) bool {
			_, err := exec.LookPath(p)
			return err != nil && strings.Contains(line, p+" ")
		}) {
			continue // it is not installed here
		}
		r, err := f.Find(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		_ = os.Remove(log)
		c := exec.Command(bash, "-c", r.Line)
		c.Dir = f.Dir
		for k, v := range env {
			c.Env = append(c.Env, k+"="+v)
		}
		out, _ := c.CombinedOutput() // some of them fail on purpose
		noted, err := os.ReadFile(log)
		if err != nil {
			t.Errorf("%s\nran as %s\nand did not build: %s", line, r.Line, out)
			continue
		}
		bare := slices.Contains(strings.Fields(string(noted)), "bare")
		if bare != (layer != "hook") {
			t.Errorf("%s\nran as %s\nand built under %q; the layer is to be %s", line, r.Line, noted, layer)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add("cd x && make build | tee log")
	f.Add("bash -c 'make build' <<EOF\n$(make build)\nEOF")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := finder(t, nil).Find(line)
		if err != nil {
			return
		}
		again, err := finder(t, nil).Find(r.Line)
		if err != nil {
			t.Fatalf("%q became %q: %v", line, r.Line, err)
		}
		if len(again.Needs) > 0 {
			t.Fatalf("%q became %q, which still lacks %v", line, r.Line, again.Needs)
		}
	})
}

func BenchmarkFind(b *testing.B) {
	f := finder(b, nil)
	for b.Loop() {
		if _, err := f.Find("cd sub && FOO=1 make -j8 build 2>&1 | tee log"); err != nil {
			b.Fatal(err)
		}
	}
}
