package sim

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// bug is a patch that breaks a promise.
type bug struct {
	path, what, world, seeds string
}

func readBug(t *testing.T, path string) bug {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b := bug{path: path}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "What":
			b.what = value
		case "World":
			b.world = value
		case "Seeds":
			b.seeds = value
		}
	}
	if _, err := strconv.Atoi(b.seeds); err != nil || b.what == "" || !slices.Contains(Worlds(), b.world) {
		t.Fatalf("%s does not say what it breaks, in which world, and within how many seeds it is found", path)
	}
	return b
}

// build builds lokt-sim with the patch.
func (b bug) build(t *testing.T) string {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(in, name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = in
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	patch, _ := filepath.Abs(b.path)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for line := range strings.Lines(run(dir, "git", "apply", "--numstat", patch)) {
		name := strings.Fields(line)[2]
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, name)] = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(dir, "git", "apply", "-C1", patch) // what stands near may change
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	run(root, "go", "build", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", filepath.Join(dir, "lokt-sim"), "./cmd/lokt-sim")
	return filepath.Join(dir, "lokt-sim")
}

// quick are the bugs that make check looks for: each is a program to be built.
var quick = []string{
	"early-expiry", "files-block-not-skipped", "files-lock-not-held", "job-lease-ends-early", "last-come-first-served", "limit-off-by-one", "loss-not-told", "queue-not-served", "reclaimed-lease-is-released", "release-of-anothers",
	"renewal-overwrites-thief", "restart-ends-leases", "ticket-late-request", "token-not-raised",
}

func TestPlantedBugsAreFound(t *testing.T) {
	all, err := filepath.Glob("planted/*.patch")
	if err != nil || len(all) == 0 {
		t.Fatalf("%d patches, %v", len(all), err)
	}
	soak := os.Getenv("LOKT_SOAK") != ""
	if !soak && os.Getenv("LOKT_PLANTED") == "" {
		t.Skip("builds a program for each: make check does some, make soak all")
	}
	for _, path := range all {
		name := strings.TrimSuffix(filepath.Base(path), ".patch")
		b := readBug(t, path)
		if !soak && !slices.Contains(quick, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			out, err := exec.CommandContext(context.WithoutCancel(t.Context()), b.build(t), "sim", "--world", b.world, "--seeds", b.seeds, "--shrink", "0").CombinedOutput()
			if exit := (*exec.ExitError)(nil); err == nil || !strings.Contains(string(out), "breaks a promise") {
				t.Errorf("%s: not found within %s seeds: %v\n%s", b.what, b.seeds, exit, out)
			}
			t.Logf("%s: %s", b.what, out)
		})
	}
}
