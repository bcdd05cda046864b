package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// tool is a kind of build that is found by a file.
type tool struct {
	file string
	rule func(dir, file string) (run []string, why string)
	lock string
}

func always(why string, run ...string) func(string, string) ([]string, string) {
	return func(string, string) ([]string, string) { return run, why }
}

func tools(dir string) []tool {
	made := func(words ...string) func(string, string) ([]string, string) {
		return func(dir, file string) ([]string, string) {
			text, _ := os.ReadFile(filepath.Join(dir, file)) // what cannot be read has no targets
			var run []string
			for _, m := range target.FindAllStringSubmatch(string(text), -1) {
				if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m[1], w) }) && !slices.Contains(run, "make "+m[1]) {
					run = append(run, "make "+m[1])
				}
			}
			return run, "targets of " + file + " that reach beyond the repository"
		}
	}
	file := "GNUmakefile" // the first that is there is the one that make reads
	for _, name := range []string{"Makefile", "makefile", "GNUmakefile"} {
		if exists(filepath.Join(dir, name)) {
			file = name
		}
	}
	return []tool{
		{file, made("deploy", "release", "publish"), "deploy"},
		{file, made("migrat", "seed"), "db"},
		{file, always("two runs of make in one directory write the same files", "make"), "build"},
		{"justfile", always("two runs of just in one directory write the same files", "just"), "build"},
		{"Cargo.toml", always("cargo blocks the second one anyway, without saying who has the directory", "cargo build", "cargo test", "cargo check", "cargo clippy", "cargo run", "cargo bench"), "build"},
		{"go.mod", always("these change go.mod and the source; builds and tests of Go can run side by side", "go generate", "go mod tidy", "go get"), "go"},
		{"package.json", packages, "build"},
		{"package.json", installs, "packages"},
	}
}

var (
	target = regexp.MustCompile(`(?m)^([A-Za-z0-9][A-Za-z0-9_./-]*)[ \t]*:(?:[^=]|$)`)
	script = regexp.MustCompile(`"([A-Za-z0-9:_-]+)"\s*:\s*"`)
	runs   = regexp.MustCompile(`(?m)^\s*(?:- )?run:\s*([^|>\s#].*)$`)
)

// manager returns the program that manages the packages.
func manager(dir string) string {
	for file, name := range map[string]string{"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun", "bun.lockb": "bun"} {
		if exists(filepath.Join(dir, file)) {
			return name
		}
	}
	return "npm"
}

func packages(dir, file string) (run []string, why string) {
	text, _ := os.ReadFile(filepath.Join(dir, file))
	_, scripts, _ := strings.Cut(string(text), `"scripts"`)
	scripts, _, _ = strings.Cut(scripts, "}")
	for _, m := range script.FindAllStringSubmatch(scripts, -1) {
		if first, _, _ := strings.Cut(m[1], ":"); slices.Contains([]string{"build", "compile", "bundle", "dist", "prepare"}, first) {
			run = append(run, manager(dir)+" run "+m[1])
		}
	}
	return run, "scripts of package.json that write what they build"
}

func installs(dir, _ string) (run []string, why string) {
	name := manager(dir)
	run = []string{name + " install", name + " add"}
	if name == "npm" {
		run = append(run, "npm ci")
	}
	return run, "two installations spoil node_modules for each other"
}

// propose returns a policy for what is found in a directory.
func propose(dir string) []byte {
	var out strings.Builder
	out.WriteString(head)
	for _, t := range tools(dir) {
		fi, err := os.Stat(filepath.Join(dir, t.file))
		if err != nil || !fi.Mode().IsRegular() {
			continue
		}
		run, why := t.rule(dir, t.file)
		if len(run) == 0 {
			continue
		}
		quoted := make([]string, len(run))
		for i, r := range run {
			quoted[i] = fmt.Sprintf("%q", r)
		}
		fmt.Fprintf(&out, "\n# %s\n[[command]]\nrun  = [%s]\nlock = %q\n", why, strings.Join(quoted, ", "), t.lock)
	}
	if lines := workflows(dir); len(lines) > 0 {
		out.WriteString("\n# What the workflows run: some of it may need a rule, too.\n")
		for _, l := range lines {
			out.WriteString("#   " + l + "\n")
		}
	}
	return []byte(out.String())
}

// workflows returns commands that the workflows of the repository run, without those that say nothing.
func workflows(dir string) (lines []string) {
	files, _ := filepath.Glob(filepath.Join(dir, ".github", "workflows", "*.y*ml")) // the pattern is a good one
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, m := range runs.FindAllStringSubmatch(string(text), -1) {
			if line := strings.TrimSpace(m[1]); len(line) < 100 && len(lines) < 12 && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
