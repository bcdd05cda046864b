//go:build unix

package vfs

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Promise S-390.
func TestWhatRootMakesBelongsToTheOwnerOfTheDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes files for others")
	}
	const nobody = 65534
	owner := func(path string) uint32 {
		t.Helper()
		fi, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Sys().(*syscall.Stat_t).Uid
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	make := func(path string, flag int) error {
		f, err := OS().OpenFile(path, flag|os.O_RDWR, 0o600)
		if err == nil {
			err = f.Close()
		}
		return err
	}
	secret := filepath.Join(dir, "secret")
	must(make(secret, os.O_CREATE))
	theirs := filepath.Join(dir, "theirs")
	must(os.Mkdir(theirs, 0o700))
	must(os.Chown(theirs, nobody, nobody))
	must(MkdirAll(filepath.Join(theirs, "a", "b"), 0o700))
	must(MkdirAll(filepath.Join(theirs, "a", "b"), 0o700))
	for name, flag := range map[string]int{"new": os.O_CREATE, "a/b/alone": os.O_CREATE | os.O_EXCL} {
		must(make(filepath.Join(theirs, name), flag))
	}
	for _, name := range []string{"a", "a/b", "new", "a/b/alone"} {
		if uid := owner(filepath.Join(theirs, name)); uid != nobody {
			t.Errorf("%s is user %d's", name, uid)
		}
	}
	if err := make(filepath.Join(theirs, "new"), os.O_CREATE|os.O_EXCL); !os.IsExist(err) {
		t.Errorf("made again: %v", err)
	}
	if err := MkdirAll(filepath.Join(theirs, "new", "x"), 0o700); err == nil {
		t.Error("made a directory in a file")
	}

	// What was there stays root's, wherever somebody has put it.
	must(os.Link(secret, filepath.Join(theirs, "linked")))
	must(os.Symlink(secret, filepath.Join(theirs, "led")))
	must(os.Symlink(filepath.Join(dir, "nothing"), filepath.Join(theirs, "away"))) // which the system makes
	for _, name := range []string{"linked", "led", "away"} {
		must(make(filepath.Join(theirs, name), os.O_CREATE))
	}
	if err := make(filepath.Join(theirs, "led"), os.O_CREATE|syscall.O_NOFOLLOW); err == nil {
		t.Error("a link was followed")
	}
	if owner(secret) != 0 || owner(filepath.Join(dir, "nothing")) != 0 {
		t.Error("root's file was given away")
	}
}
