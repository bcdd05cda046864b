// Command release builds all that is published of one version into a directory, the same bytes each time: archives,
// packages, a container image, a Homebrew formula, a Scoop manifest, bills of materials and checksums.
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// allPlatforms are what a release is built for.
const allPlatforms = "linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64"

// A release is what is built, from the checkout in the working directory into another.
type release struct {
	out      string // absolute
	version  string // without v
	programs []string
	commit   string
	at       time.Time // of the commit: the time of every file
	sums     map[string]string
}

func main() {
	r := release{sums: map[string]string{}}
	flag.StringVar(&r.version, "version", "", "version, as in 1.2.3 or 1.2.3-rc.1")
	checkout := flag.String("C", ".", "checkout to build")
	flag.StringVar(&r.out, "o", "dist", "directory to make anew")
	only := flag.String("platforms", allPlatforms, "what to build for; Homebrew and Scoop need all of it")
	flag.Parse()
	r.version = strings.TrimPrefix(r.version, "v")
	err := os.Chdir(*checkout)
	if err == nil {
		r.out, err = filepath.Abs(r.out)
	}
	if err == nil {
		err = r.build(strings.Fields(*only))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func (r *release) build(platforms []string) error {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(r.version) {
		return fmt.Errorf("%q is no version: say VERSION=1.2.3 or 1.2.3-rc.1", r.version)
	}
	described, err := r.run(nil, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	if changes, err := r.run(nil, "git", "status", "--porcelain"); err != nil || changes != "" {
		fmt.Fprintln(os.Stderr, "release: warning: there are changes that are not committed, and they are built too")
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(described), " ")
	epoch, err := strconv.ParseInt(cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), seconds), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	r.commit, r.at = commit, time.Unix(epoch, 0).UTC()
	programs, err := os.ReadDir("cmd")
	if err != nil {
		return err
	}
	for _, p := range programs {
		r.programs = append(r.programs, p.Name())
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	stage, err := os.MkdirTemp("", "lokt-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	if err := r.documents(stage); err != nil {
		return err
	}
	linux := map[string]string{} // directory by architecture
	for _, platform := range platforms {
		system, arch, _ := strings.Cut(platform, "/")
		name := fmt.Sprintf("lokt_%s_%s_%s", r.version, system, arch)
		dir := filepath.Join(stage, name)
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(stage, "documents"))); err != nil {
			return err
		}
		if platform == runtime.GOOS+"/"+runtime.GOARCH {
			err = os.CopyFS(dir, os.DirFS(filepath.Join(stage, "native")))
		} else {
			err = r.compile(dir, system, arch)
		}
		if err != nil {
			return err
		}
		if err := r.archive(name, dir, system == "windows"); err != nil {
			return err
		}
		if system == "linux" {
			linux[arch] = dir
			if err := r.packages(dir, arch); err != nil {
				return err
			}
		}
	}
	if err := r.image(linux, filepath.Join(stage, "image")); err != nil {
		return err
	}
	if err := r.materials(linux); err != nil {
		return err
	}
	if len(platforms) == len(strings.Fields(allPlatforms)) {
		if err := r.manifests(); err != nil {
			return err
		}
	}
	var list strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.sums)) {
		fmt.Fprintf(&list, "%s  %s\n", r.sums[name], name)
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(list.String()), 0o644)
}

// compile builds the programs into a directory, for an operating system and an architecture, or for this machine if
// both are empty.
func (r *release) compile(dir, system, arch string) error {
	return r.golang([]string{"GOOS=" + system, "GOARCH=" + arch}, "build", "-o", dir+string(filepath.Separator), "./cmd/...")
}

// golang builds or runs programs of the checkout as they are published.
func (r *release) golang(env []string, verb string, args ...string) error {
	const at = " -X github.com/lokt-dev/lokt/internal/version."
	flags := "-s -w" + at + "version=" + r.version + at + "commit=" + r.commit + at + "date=" + r.at.Format(time.RFC3339)
	_, err := r.run(append(env, "CGO_ENABLED=0"), "go", append([]string{verb, "-trimpath", "-buildvcs=false", "-ldflags", flags}, args...)...)
	return err
}

// documents makes what belongs to every archive, README, license, completions and manual pages, with programs for this
// machine.
func (r *release) documents(stage string) error {
	dir, native := filepath.Join(stage, "documents"), filepath.Join(stage, "native")
	if err := r.compile(native, "", ""); err != nil {
		return err
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, name), text); err != nil {
			return err
		}
	}
	for _, program := range r.programs {
		if strings.Contains(program, "-") { // lokt completes what it runs
			continue
		}
		for shell, name := range map[string]string{"bash": "%s", "zsh": "_%s", "fish": "%s.fish", "powershell": "%s.ps1"} {
			script, err := r.run(nil, filepath.Join(native, program), "completion", shell)
			if err != nil {
				return err
			}
			if err := write(filepath.Join(dir, "completions", shell, fmt.Sprintf(name, program)), []byte(script)); err != nil {
				return err
			}
		}
	}
	epoch := "SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.at.Unix(), 10)
	return r.golang([]string{epoch}, "run", "./internal/cli/man", filepath.Join(dir, "man", "man1"))
}

// run runs a program and returns what it wrote to standard output.
func (r *release) run(env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return out.String(), nil
}

// write writes a file and makes its directory.
func write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
