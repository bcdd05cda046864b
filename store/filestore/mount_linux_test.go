package filestore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt"
)

// mountTiny mounts a file system in memory that holds little.
func mountTiny(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("lokt-test", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("only root can mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Promises S-54, S-57.
func TestOnAFullDiskLocksCanBeGivenBack(t *testing.T) {
	t.Parallel()
	for _, blocks := range []bool{true, false} { // or inodes
		options := "size=256k,nr_inodes=1000"
		if !blocks {
			options = "size=1m,nr_inodes=50"
		}
		dir := mountTiny(t, options)
		warned := 0
		s := open(t, filepath.Join(dir, "root"), Options{Warn: func(error) { warned++ }})
		m := lokt.NewManager(s)
		if _, err := m.Acquire(t.Context(), by("a")); err != nil {
			t.Fatal(err)
		}
		waiter := by("w")
		fill := func() {
			for i := 0; ; i++ {
				name := filepath.Join(dir, fmt.Sprint("full-", i))
				var err error
				if blocks {
					err = os.WriteFile(name, make([]byte, 4096), 0o600)
				} else {
					err = os.WriteFile(name, nil, 0o600)
				}
				if errors.Is(err, unix.ENOSPC) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		fill()
		for range 100 { // the log's last block, too
			if _, err := m.Acquire(t.Context(), by("b")); !errors.Is(err, lokt.ErrHeld) {
				t.Fatalf("acquire what is held: %v", err)
			}
		}
		other := by("c")
		other.Name = neighbour("x")
		if _, err := m.Acquire(t.Context(), other); !errors.Is(err, lokt.ErrUnavailable) || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("acquire: %v", err)
		}
		waiter.Wait = time.Minute
		if _, err := m.Acquire(t.Context(), waiter); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("wait: %v", err)
		}
		if _, err := m.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: "lease of a"}); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("renew: %v", err)
		}
		if got := holders(t, s); len(got) != 1 || got[0] != "a" {
			t.Errorf("held by %v", got)
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"}); err != nil {
			t.Errorf("release: %v", err)
		}
		if blocks && warned == 0 {
			t.Error("nobody was told of the audit log")
		}
		left, err := filepath.Glob(filepath.Join(dir, "full-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range left {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := m.Acquire(t.Context(), by("b")); err != nil {
			t.Errorf("with room again: %v", err)
		}
		data, err := os.ReadFile(filepath.Join(s.root, "audit.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"event":"release","name":"x","lock_id":"lease of a"`, `"event":"acquire","name":"x","lock_id":"lease of b"`} {
			if strings.Count(string(data), want) != 1 {
				t.Errorf("the log has not once %s", want)
			}
		}
	}
}

func TestOnAReadOnlyDiskTheErrorSaysSo(t *testing.T) {
	t.Parallel()
	dir := mountTiny(t, "size=256k")
	root := filepath.Join(dir, "root")
	before := open(t, root, Options{})
	recordOf(t, before, by("a"))
	if err := before.Close(); err != nil { // which leaves files open until then
		t.Fatal(err)
	}
	if err := unix.Mount("lokt-test", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=256k"); err != nil {
		t.Fatal(err)
	}
	s := open(t, root, Options{})
	m := lokt.NewManager(s)
	if got := holders(t, s); len(got) != 1 || got[0] != "a" {
		t.Errorf("held by %v", got)
	}
	waiter := by("w")
	waiter.Wait = time.Minute
	_, acquire := m.Acquire(t.Context(), by("b"))
	_, wait := m.Acquire(t.Context(), waiter)
	_, release := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"})
	_, self := s.Self()
	for what, err := range map[string]error{"acquire": acquire, "wait": wait, "release": release, "self": self} {
		if !errors.Is(err, lokt.ErrUnavailable) || !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), root) {
			t.Errorf("%s: %v", what, err)
		}
	}
	elsewhere := open(t, filepath.Join(dir, "none"), Options{})
	if _, err := lokt.NewManager(elsewhere).Acquire(t.Context(), by("b")); !errors.Is(err, lokt.ErrUnavailable) || !errors.Is(err, unix.EROFS) {
		t.Errorf("where there is no directory: %v", err)
	}
	if snap, err := elsewhere.View(t.Context(), "x"); err != nil || !snap.Lock.Free() {
		t.Errorf("where there is no directory: %+v, %v", snap, err)
	}
}
