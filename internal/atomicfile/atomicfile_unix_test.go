//go:build unix

package atomicfile

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/lokt-dev/lokt/internal/vfs"
)

func TestReadRegularRefusesEverythingElseWithoutBlocking(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", at("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", at("dangling")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, path := range []string{at("link"), at("dangling"), at("dir"), at("fifo"), at("socket"), "/dev/null", "/dev/zero", dir} {
		if data, info, err := ReadRegular(vfs.OS(), path, 1<<20); !errors.Is(err, ErrNotRegular) || data != nil || info != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, _, err := ReadRegular(vfs.OS(), at("file"), 1<<20); err != nil {
		t.Errorf("a regular file: %v", err)
	}
}
