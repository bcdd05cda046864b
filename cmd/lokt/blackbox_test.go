package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lokt-dev/lokt/internal/testkit/parallel"
	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// All tests run separate processes of the program as users get it: built without cgo, without the race detector. The
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
	if err := parallel.Default(atOnce); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(sig) { // as where a shell runs this in the background: what is tested must not inherit it
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	return s.m.Run()
}

// often returns n where LOKT_SOAK is set, and an eighth of it otherwise: how often something random is tried.
func often(n int) int {
	if os.Getenv("LOKT_SOAK") == "" {
		return n / 8
	}
	return n
}

// programDir returns the directory of lokt and loktd, which the first call builds, unless TEST_PROGRAMS names where a package
// has installed them.
func programDir() (string, error) {
	if installed := os.Getenv("TEST_PROGRAMS"); installed != "" {
		return installed, nil
	}
	return programs.Dir()
}

// program returns the path of lokt.
func program() (string, error) {
	dir, err := programDir()
	return filepath.Join(dir, "lokt"), err
}
