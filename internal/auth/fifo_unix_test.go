//go:build unix

package auth_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/auth"
)

// Promise S-98.
func TestATokenFileThatBecomesAPipeKeepsNobodyWaiting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := auth.ReadFile(path, time.Now())
		failed <- err
	}()
	select {
	case err := <-failed:
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it is waited for")
	}
}
