package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// All tests run separate processes of the program as users get it: built once, without cgo, without the race detector. The
// black-box tests know nothing of its insides but the files that docs/protocol.md describes.

// helperVariable makes the test binary play one of the parts that a test needs a process for.
const helperVariable = "LOKT_TEST_HELPER"

func TestMain(m *testing.M) {
	if part := os.Getenv(helperVariable); part != "" {
		os.Exit(playPart(part))
	}
	testscript.Main(suite{m}, map[string]func(){"hold": hold})
}

// suite is all tests of the package, and what must be done before and after them.
type suite struct{ m *testing.M }

// atOnce is how many tests run in parallel: most of them wait for something most of the time.
const atOnce = 12

func (s suite) Run() int {
	flag.Parse()
	if given := flag.Lookup("test.parallel"); given != nil && given.Value.String() == given.DefValue {
		if err := given.Value.Set(strconv.Itoa(atOnce)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	code := s.m.Run()
	if dir, err := buildDir(); err == nil {
		_ = os.RemoveAll(dir) // a temporary directory, and nobody to tell
	}
	return code
}

// buildDir is where the program is built. Other users may enter it.
var buildDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lokt-blackbox-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
})

// program returns the path of the program, which the first call builds.
var program = sync.OnceValues(func() (string, error) {
	dir, err := buildDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "lokt")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})
