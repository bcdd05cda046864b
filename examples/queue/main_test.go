package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asProgram makes the test binary be the program.
const asProgram = "EXAMPLE_QUEUE_IN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asProgram); dir != "" {
		os.Args = []string{"queue", dir}
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestThreeProcessesDoEachFileOnce(t *testing.T) {
	dir := t.TempDir()
	const files = 30
	for _, sub := range []string{"in", "out"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, "in", fmt.Sprintf("file-%02d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var all []*exec.Cmd
	for range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), asProgram+"="+dir)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	done, err := os.ReadFile(filepath.Join(dir, "done"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(done)), "\n")
	if len(lines) != files {
		t.Errorf("%d files were done, not %d", len(lines), files)
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, fmt.Sprintf("file-%02d ", i)) {
			t.Errorf("number %d to be done was %s", i, line)
		}
	}
	if out, err := os.ReadDir(filepath.Join(dir, "out")); err != nil || len(out) != files {
		t.Errorf("%d files came out, error %v", len(out), err)
	}
}
