package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// Promise S-224. However many ask at once, it is done once in the period: also by those that waited for one that did it.
func TestOncePerPeriodIsOnceHoweverManyAskAtOnce(t *testing.T) {
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		".git/HEAD": "ref: refs/heads/main\n",
		"lokt.toml": "[[lock]]\nname = \"once\"\nevery = \"1h\"\n\n[[lock]]\nname = \"some\"\nrate = \"3/h\"\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		lock, flag string
		runs, ok   int // commands that ran, and guards that ended with 0
	}{
		{"once", "--wait", 1, 12},
		{"some", "--slots=12", 3, 3},
	} {
		var all sync.WaitGroup
		var mu sync.Mutex
		ok := 0
		for range 12 {
			all.Go(func() {
				g := exec.Command(filepath.Join(built, "lokt"), "guard", c.lock, c.flag, "--", "sh", "-c", "echo x >>"+c.lock)
				g.Dir, g.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
				out, err := g.CombinedOutput()
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					ok++
				} else if g.ProcessState.ExitCode() != 2 {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		all.Wait()
		log, err := os.ReadFile(filepath.Join(dir, c.lock))
		if n := strings.Count(string(log), "x"); err != nil || n != c.runs || ok != c.ok {
			t.Errorf("%s: %d commands ran and %d guards ended well, want %d and %d; %v", c.lock, n, ok, c.runs, c.ok, err)
		}
	}
}
