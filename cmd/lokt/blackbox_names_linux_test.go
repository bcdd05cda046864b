package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestHostileNamesAreRefusedBeforeAnythingIsTouched(t *testing.T) {
	p := newPlace(t)
	check(t, os.Mkdir(p.root, 0o700))
	target := filepath.Join(filepath.Dir(p.root), "x.json")
	check(t, os.WriteFile(target, []byte(`{"version":1,"name":"x","owner":"secret","acquired_ts":"2020-01-01T00:00:00Z"}`), 0o600))
	before := tree(t, filepath.Dir(p.root))
	for i, name := range []string{
		"", ".", "..", "../x", "../../x", "a/b", "/etc/passwd", "a..b", "..a", strings.Repeat("n", 201), strings.Repeat("n", 10_000),
		"a\nb", "a\tb", "\x1b[31m", "a b", "a\x7f", "ä", "\xff", "a\\b", "a:b", "*", "a;b", "$x", "a'b", "%2e%2e",
	} {
		message := ""
		lines := [][]string{
			{"lock", name}, {"lock", name, "--wait"}, {"lock", name, "--json"}, {"unlock", name}, {"unlock", name, "--force"}, {"unlock", name, "--break-stale"},
			{"guard", name, "--", "touch", "ran"}, {"guard", "fine", name, "--", "touch", "ran"}, {"guard", name, "--wait", "--", "touch", "ran"},
			{"status", name}, {"status", name, "--prune-expired"}, {"exists", name}, {"why", name}, {"freeze", name, "--ttl", "1m"}, {"unfreeze", name},
			{"unfreeze", name, "--force"},
		}
		if i > 3 { // all commands have one check
			lines = lines[i%len(lines):][:1]
		}
		for _, args := range lines {
			r := p.run(args...)
			if r.code != 64 {
				t.Errorf("%.60q: want exit 64, got %v", args, r)
			}
			text := r.stderr
			if args[len(args)-1] == "--json" {
				contains(t, r.out, `"code":"invalid"`)
				continue
			}
			if message == "" {
				message = text
			}
			if text != message || strings.Count(text, "\n") != 1 {
				t.Errorf("%.60q: says %q, and others %q", args, text, message)
			}
			if strings.ContainsAny(strings.TrimSuffix(text, "\n"), "\x1b\n\t\x7f") {
				t.Errorf("%.60q: control characters in %q", args, text)
			}
		}
	}
	sameTree(t, "hostile names", before, tree(t, filepath.Dir(p.root)))
}

// The longest names, and odd ones that are fine.
func TestUnusualNamesWork(t *testing.T) {
	p := newPlace(t)
	for _, name := range []string{strings.Repeat("n", 200), "-x", ".hidden", "_", "A.b-c_9", "con", "x.json", "x.json.tmp", ".-"} {
		p.want(0, "lock", "--", name)
		if r := p.as("other").run("lock", "--", name); r.code != 2 {
			t.Errorf("%s: %v", name, r)
		}
		p.want(0, "unlock", "--", name)
	}
}

func TestWhatIsPlantedAtALocksPathIsRefusedAndNothingOutsideIsTouched(t *testing.T) {
	t.Parallel()
	plants := map[string]func(t *testing.T, outside, at string){
		"a link to a file": func(t *testing.T, outside, at string) {
			check(t, os.Symlink(filepath.Join(outside, "record.json"), at))
		},
		"a link to nowhere":     func(t *testing.T, outside, at string) { check(t, os.Symlink(filepath.Join(outside, "none"), at)) },
		"a link to a directory": func(t *testing.T, outside, at string) { check(t, os.Symlink(outside, at)) },
		"a link to a fifo":      func(t *testing.T, outside, at string) { check(t, os.Symlink(filepath.Join(outside, "fifo"), at)) },
		"a fifo":                func(t *testing.T, _, at string) { check(t, syscall.Mkfifo(at, 0o600)) },
		"a directory": func(t *testing.T, _, at string) {
			check(t, os.MkdirAll(filepath.Join(at, "sub"), 0o700))
			check(t, os.WriteFile(filepath.Join(at, "sub", "file"), []byte("kept"), 0o600))
		},
	}
	for what, plant := range plants {
		for _, dir := range []string{"locks", "freezes", "queue"} {
			t.Run(what+" in "+dir, func(t *testing.T) {
				p := newPlace(t)
				outside := outsideOf(t, p)
				check(t, os.MkdirAll(p.path(dir), 0o700))
				at := p.path(dir, "x.json")
				plant(t, outside, at)
				before := tree(t, outside)
				if dir == "queue" { // which only says who is next, and never keeps anybody out
					h := p.as("first").hold("x")
					for _, args := range [][]string{{"lock", "x"}, {"lock", "x", "--wait", "--timeout", "50ms"}, {"why", "x"}, {"status", "x"}, {"doctor"}} {
						r := p.as("other").run(args...)
						if r.code != 2 && args[0] != "status" && args[0] != "doctor" || strings.Contains(r.out+r.stderr, "secret") {
							t.Errorf("%v: %v", args, r)
						}
					}
					h.finish()
					p.free("x")
					sameTree(t, "what is outside", before, tree(t, outside))
					return
				}
				for _, args := range [][]string{
					{"lock", "x"}, {"lock", "x", "--wait", "--timeout", "50ms"}, {"guard", "x", "--", "touch", p.dir + "/ran"}, {"status", "x"},
					{"status"}, {"exists", "x"}, {"why", "x"}, {"unlock", "x"}, {"freeze", "x", "--ttl", "1m"}, {"unfreeze", "x"}, {"doctor"},
				} {
					r := p.run(args...)
					refused := r.code == 1 || r.code == 2 || args[0] == "unlock" && dir == "freezes" // then nobody holds it
					if !refused && args[0] != "status" && args[0] != "doctor" && args[0] != "exists" {
						t.Errorf("%v: %v", args, r)
					}
					if strings.Contains(r.out+r.stderr, "secret") {
						t.Errorf("%v read a file outside: %v", args, r)
					}
				}
				if _, err := os.Lstat(p.dir + "/ran"); err == nil {
					t.Error("the command ran")
				}
				sameTree(t, "what is outside", before, tree(t, outside))

				// By force it is moved away, and the lock is usable again.
				if dir == "freezes" {
					p.want(0, "unfreeze", "x", "--force")
				} else {
					p.want(0, "unlock", "x", "--force")
				}
				p.free("x")
				sameTree(t, "what is outside, after force", before, tree(t, outside))
			})
		}
	}
}

// outsideOf makes a directory beside the root with things that must not be read, changed or deleted.
func outsideOf(t *testing.T, p *place) string {
	t.Helper()
	outside := filepath.Join(filepath.Dir(p.root), "outside")
	check(t, os.MkdirAll(outside, 0o700))
	check(t, os.WriteFile(filepath.Join(outside, "record.json"), fmt.Appendf(nil,
		`{"version":1,"name":"x","owner":"secret","host":"h","pid":1,"acquired_ts":%q,"reason":"secret"}`, time.Now().Format(time.RFC3339)), 0o600))
	check(t, os.WriteFile(filepath.Join(outside, "x.json"), []byte(`{"version":1,"name":"x","owner":"secret"}`), 0o600))
	check(t, syscall.Mkfifo(filepath.Join(outside, "fifo"), 0o600))
	return outside
}

func TestALinkInPlaceOfADirectoryOfTheRootIsRefused(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"locks", "queue", "freezes", "guards", "live", "wake", "damaged"} {
		for what, target := range map[string]string{"elsewhere": "outside", "nowhere": "none", "a file": "outside/record.json", "a fifo": "outside/fifo"} {
			t.Run(dir+" is a link to "+what, func(t *testing.T) {
				p := newPlace(t)
				outsideOf(t, p)
				check(t, os.Mkdir(p.root, 0o700))
				check(t, os.Symlink(filepath.Join(filepath.Dir(p.root), target), p.path(dir)))
				before := tree(t, filepath.Dir(p.root))
				for _, args := range [][]string{
					{"lock", "x"}, {"guard", "x", "--", "touch", p.dir + "/ran"}, {"guard", "x", "--wait", "--timeout", "1s", "--", "touch", p.dir + "/ran"},
					{"status"}, {"status", "x"}, {"exists", "x"}, {"why", "x"}, {"unlock", "x", "--force"}, {"freeze", "x", "--ttl", "1m"}, {"unfreeze", "x", "--force"},
				} {
					r := p.run(args...)
					if r.code != 1 {
						t.Errorf("%v: want exit 1, got %v", args, r)
					}
					if strings.Contains(r.out+r.stderr, "secret") {
						t.Errorf("%v read a file outside: %v", args, r)
					}
				}
				sameTree(t, "everything", before, tree(t, filepath.Dir(p.root)))
			})
		}
	}
}

func TestALinkInPlaceOfAFileThatLoktKeepsIsNotFollowed(t *testing.T) {
	p := newPlace(t)
	p.want(0, "lock", "x")
	p.want(0, "unlock", "x")
	outside := outsideOf(t, p)
	victim := filepath.Join(outside, "record.json")
	for _, dir := range []string{"guards", "live"} {
		check(t, os.RemoveAll(p.path(dir)))
		check(t, os.Mkdir(p.path(dir), 0o700))
		const hex = "0123456789abcdef"
		for _, a := range hex {
			if dir == "live" {
				check(t, os.Symlink(victim, p.path(dir, string(a))))
				continue
			}
			for _, b := range hex {
				check(t, os.Symlink(victim, p.path(dir, string(a)+string(b))))
			}
		}
		before := tree(t, outside)
		if r := p.run("guard", "x", "--", "touch", p.dir+"/ran"); r.code != 1 {
			t.Errorf("%s: %v", dir, r)
		}
		sameTree(t, dir, before, tree(t, outside))
		check(t, os.RemoveAll(p.path(dir)))
	}
	check(t, os.Remove(p.path("audit.log")))
	check(t, os.Symlink(victim, p.path("audit.log")))
	before := tree(t, outside)
	p.run("lock", "x")
	p.run("audit")
	sameTree(t, "audit.log", before, tree(t, outside))
	if _, err := os.Lstat(p.dir + "/ran"); err == nil {
		t.Error("the command ran")
	}
}
