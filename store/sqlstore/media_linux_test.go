package sqlstore

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestACheckOfADatabaseBesideWhichNothingCanBeWrittenSaysSo(t *testing.T) {
	path := spot(t)
	db := start(t, path, Options{})
	acquire(t, db, claim("x", "a", time.Hour))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if err := os.Chmod(file, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(path), 0o555); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(filepath.Dir(path), 0o700)
	if os.Getuid() == 0 { // whom permissions do not stop
		runtime.LockOSThread() // for good: the thread ends with the test
		if err := syscall.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer syscall.Setfsuid(0)
	}
	if err := CheckFile(t.Context(), path); err == nil || !strings.Contains(err.Error(), "if "+filepath.Dir(path)+" is read-only") {
		t.Error(err)
	}
}
