package agent

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

const head = `# What only one may do at a time in this repository, for ` + "`lokt hook`" + ` and the shims of ` + "`lokt init`" + `.
#
# The first rule that matches a command counts. The words of a rule follow the program in their order, with others
# between them: "make build" matches make -j8 build. * stands for any part of a word.
#
#   run    = ["make build"]   commands
#   lock   = "build"          the lock that they need; several, separated by spaces, all or none
#   wait   = "10m"            how long they wait for it; "0s" does not
#   ttl    = "5m"             frees the lock when the whole machine dies; none unless it is said
#   slots  = 2                so many at once; or: shared = true

# What hooks and shims cannot judge is let through ("open") or refused ("closed").
on-error = "open"
`

// rule is proposed if there is the file.
type rule struct {
	file, lock, why string
	run             []string
}

var (
	target = regexp.MustCompile(`(?m)^([A-Za-z0-9][A-Za-z0-9_./-]*)[ \t]*:(?:[^=]|$)`)
	step   = regexp.MustCompile(`(?m)^\s*(?:- )?run:\s*([^|>\s#].*)$`)
)

func rules(dir string) []rule {
	there := func(name string) bool { return exists(filepath.Join(dir, name)) }
	text := func(name string) []byte {
		text, _ := read(filepath.Join(dir, name)) // what cannot be read has nothing in it
		return text
	}
	file := "GNUmakefile" // the first that is there is the one that make reads
	for _, name := range []string{"Makefile", "makefile", "GNUmakefile"} {
		if there(name) {
			file = name
		}
	}
	targets := func(words string) (run []string) {
		for _, m := range target.FindAllSubmatch(text(file), -1) {
			name := string(m[1])
			if slices.ContainsFunc(strings.Fields(words), func(w string) bool { return strings.Contains(name, w) }) && !slices.Contains(run, "make "+name) {
				run = append(run, "make "+name)
			}
		}
		return run
	}
	npm := "npm"
	for name, lock := range map[string]string{"pnpm": "pnpm-lock.yaml", "yarn": "yarn.lock", "bun": "bun.lock"} {
		if there(lock) || there(lock+"b") {
			npm = name
		}
	}
	installs := []string{npm + " install", npm + " add"}
	if npm == "npm" {
		installs = append(installs, "npm ci")
	}
	var pack struct {
		Scripts map[string]jsontext.Value `json:"scripts"`
	}
	_ = unmarshal(text("package.json"), &pack) // what is no JSON has no scripts
	var scripts []string
	for _, name := range slices.Sorted(maps.Keys(pack.Scripts)) {
		if first, _, _ := strings.Cut(name, ":"); slices.Contains([]string{"build", "compile", "bundle", "dist", "prepare"}, first) {
			scripts = append(scripts, npm+" run "+name)
		}
	}
	return []rule{
		{file, "deploy", "targets that reach beyond the repository", targets("deploy release publish")},
		{file, "db", "targets that reach beyond the repository", targets("migrat seed")},
		{file, "build", "two runs of make in one directory write the same files", []string{"make"}},
		{"justfile", "build", "two runs of just in one directory write the same files", []string{"just"}},
		{"Cargo.toml", "build", "cargo blocks the second one anyway, without saying who has the directory", []string{"cargo build", "cargo test", "cargo check", "cargo clippy", "cargo run", "cargo bench"}},
		{"go.mod", "go", "these change go.mod and the source; builds and tests of Go can run side by side", []string{"go generate", "go mod tidy", "go get"}},
		{"package.json", "build", "scripts of package.json that write what they build", scripts},
		{"package.json", "packages", "two installations spoil node_modules for each other", installs},
	}
}

// propose returns a policy for what is found in a directory.
func propose(dir string) []byte {
	out := head
	for _, r := range rules(dir) {
		if fi, err := os.Stat(filepath.Join(dir, r.file)); err == nil && fi.Mode().IsRegular() && len(r.run) > 0 {
			out += fmt.Sprintf("\n# %s\n[[command]]\nrun  = [\"%s\"]\nlock = %q\n", r.why, strings.Join(r.run, `", "`), r.lock)
		}
	}
	if lines := workflows(dir); len(lines) > 0 {
		out += "\n# What the workflows run: some of it may need a rule, too.\n#   " + strings.Join(lines, "\n#   ") + "\n"
	}
	return []byte(out)
}

// workflows returns commands that the workflows of the repository run, without those that say nothing.
func workflows(dir string) (lines []string) {
	files, _ := filepath.Glob(filepath.Join(dir, ".github", "workflows", "*.y*ml")) // the pattern is a good one
	for _, file := range files {
		text, _ := read(file)
		for _, m := range step.FindAllStringSubmatch(string(text), -1) {
			if line := strings.TrimSpace(m[1]); len(line) < 100 && len(lines) < 12 && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
