//go:build unix

package programs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Stop stops a process that keeps locks in files, but not while it has its turn at one: it would keep everybody out. Where the kernel
// does not tell that, it stops at once.
func Stop(pid int) error {
	turn := regexp.MustCompile(fmt.Sprintf(`FLOCK .* %d [0-9a-f]+:`, pid)) // what it holds for as long as it lives is an OFDLCK
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		for !still(pid) && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if locks, _ := os.ReadFile("/proc/locks"); !turn.Match(locks) {
			return nil
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			return err
		}
	}
	return errors.New("it has its turn whenever it is stopped")
}

// still reports whether no thread of a process runs, as far as can be seen.
func still(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, t := range threads {
		if stat, err := os.ReadFile(t); err == nil && !strings.Contains(string(stat), ") T ") {
			return false
		}
	}
	return true
}
