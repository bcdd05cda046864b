package faultfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/lokt-dev/lokt/internal/vfs"
)

// tour does one of everything in dir, and stops at the first error.
func tour(fsys vfs.FS, dir string) error {
	name := filepath.Join(dir, "a")
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { _, err := f.Write([]byte("12345678")); return err },
		func() error { _, err := f.WriteAt([]byte("abcd"), 8); return err },
		func() error { _, err := f.Read(make([]byte, 1)); return ignore(err, io.EOF) },
		func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err },
		func() error { _, err := f.Stat(); return err },
		f.Sync,
		f.Close,
		func() error { return fsys.Mkdir(filepath.Join(dir, "d"), 0o700) },
		func() error { return fsys.Rename(name, filepath.Join(dir, "b")) },
		func() error { _, err := fsys.Lstat(filepath.Join(dir, "b")); return err },
		func() error { _, err := fsys.ReadDir(dir); return err },
		func() error { return fsys.SyncDir(dir) },
		func() error { return fsys.Remove(filepath.Join(dir, "b")) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			f.Close()
			return err
		}
	}
	return nil
}

func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

var kinds = []string{
	"open", "write", "write", "read", "read", "stat", "sync", "close", "mkdir", "rename", "lstat", "readdir", "syncdir", "remove",
}

func TestEveryOperationIsCountedAndTraced(t *testing.T) {
	f := New(vfs.OS())
	dir := t.TempDir()
	if err := tour(f, dir); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range f.Trace() {
		kind, _, _ := strings.Cut(s, " ")
		got = append(got, kind)
	}
	if !slices.Equal(got, kinds) || len(f.Trace()) != len(kinds) {
		t.Errorf("%d operations: %v", len(f.Trace()), got)
	}
	if want := "rename " + dir + "/a " + dir + "/b"; f.Trace()[9] != want {
		t.Errorf("%q, want %q", f.Trace()[9], want)
	}
	f.Reset()
	if len(f.Trace()) != 0 {
		t.Error("Reset forgets nothing")
	}
}

func TestEveryOperationCanFailAndIsNotDoneThen(t *testing.T) {
	for n, kind := range kinds {
		dir := t.TempDir()
		f := New(vfs.OS())
		f.Inject(Fault{Op: n + 1, Err: syscall.EIO})
		if err := tour(f, dir); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", kind, err)
		}
		_, errA := os.Stat(filepath.Join(dir, "a"))
		_, errB := os.Stat(filepath.Join(dir, "b"))
		_, errD := os.Stat(filepath.Join(dir, "d"))
		if got, want := errA == nil, n >= 1 && n <= 9; got != want {
			t.Errorf("%s: first name there %v, want %v", kind, got, want)
		}
		if got, want := errB == nil, n > 9; got != want {
			t.Errorf("%s: second name there %v, want %v", kind, got, want)
		}
		if got, want := errD == nil, n > 8; got != want {
			t.Errorf("%s: directory there %v, want %v", kind, got, want)
		}
	}
}

func TestAShortWriteWritesHalf(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	f := New(vfs.OS())
	f.Inject(Fault{Op: 1, Err: syscall.EIO, Short: true}) // not a write: does not fail
	f.Inject(Fault{Op: 2, Err: syscall.ENOSPC, Short: true})
	file, err := f.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if n, err := file.Write([]byte("12345678")); n != 4 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Write = %d, %v", n, err)
	}
	if data, err := os.ReadFile(name); err != nil || string(data) != "1234" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := file.Write([]byte("x")); err != nil {
		t.Errorf("the write after it: %v", err)
	}
}

func TestACrashEndsEverythingAndClosesFiles(t *testing.T) {
	dir := t.TempDir()
	f := New(vfs.OS())
	file, err := f.OpenFile(filepath.Join(dir, "a"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	real := file.(*faultyFile).File
	f.Inject(Fault{Op: 3})
	if _, err := file.Write([]byte("x")); err != nil {
		t.Fatalf("before the crash: %v", err)
	}
	for _, op := range []func() error{
		func() error { _, err := file.Write([]byte("y")); return err },
		file.Close,
		func() error { return f.Mkdir(filepath.Join(dir, "d"), 0o700) },
		func() error { _, err := f.OpenFile(filepath.Join(dir, "b"), os.O_CREATE, 0o600); return err },
	} {
		if err := op(); !errors.Is(err, ErrCrashed) {
			t.Errorf("after the crash: %v", err)
		}
	}
	if _, err := real.Stat(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("the file is still open: %v", err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("%v", names)
	}
	f.Reset()
	if err := f.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Errorf("after Reset: %v", err)
	}
}

func TestCrashClosesFilesAtOnce(t *testing.T) {
	f := New(vfs.OS())
	file, err := f.OpenFile(filepath.Join(t.TempDir(), "a"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Crash()
	if _, err := file.(*faultyFile).File.Stat(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("the file is still open: %v", err)
	}
	if _, err := f.Lstat("/"); !errors.Is(err, ErrCrashed) {
		t.Errorf("%v", err)
	}
}

func TestAFailedCloseClosesTheFile(t *testing.T) {
	f := New(vfs.OS())
	f.Inject(Fault{Op: 2, Err: syscall.EIO})
	file, err := f.OpenFile(filepath.Join(t.TempDir(), "a"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Close = %v", err)
	}
	if _, err := file.(*faultyFile).File.Stat(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("the file is still open: %v", err)
	}
}

func TestBeforeLetsOthersInBetweenTwoSteps(t *testing.T) {
	dir := t.TempDir()
	f := New(vfs.OS())
	f.Inject(Fault{Op: 2, Before: func() { _ = f.Mkdir(filepath.Join(dir, "d"), 0o700) }})
	if _, err := f.Lstat(dir); err != nil {
		t.Fatal(err)
	}
	if err := f.Mkdir(filepath.Join(dir, "d"), 0o700); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the other was not first: %v", err)
	}
}

func TestFaultsCoverEveryOperation(t *testing.T) {
	var got []string
	for fault := range Faults(len(kinds)) {
		f := New(vfs.OS())
		f.Inject(fault)
		err := tour(f, t.TempDir())
		want := fault.Err
		if want == nil {
			want = ErrCrashed
		}
		if fault.Short && kinds[fault.Op-1] != "write" {
			want = nil
		}
		if !errors.Is(err, want) {
			t.Errorf("%v: %v", fault, err)
		}
		got = append(got, fault.String())
	}
	if len(got) != 4*len(kinds) || len(slices.Compact(got)) != len(got) {
		t.Errorf("%v", got)
	}
}

func TestOperationsAreCountedFromManyGoroutines(t *testing.T) {
	dir := t.TempDir()
	f := New(vfs.OS())
	f.Inject(Fault{Op: 8*20 - 5})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				if file, err := f.OpenFile(filepath.Join(dir, fmt.Sprint(i, j)), os.O_CREATE, 0o600); err == nil {
					defer file.Close()
				}
				_, _ = f.Lstat(dir)
			}
		})
	}
	wg.Wait()
	if len(f.Trace()) < 8*20 {
		t.Errorf("%d operations", len(f.Trace()))
	}
	if len(f.open) > 0 {
		t.Errorf("%d files open after the crash", len(f.open))
	}
}

func TestOSGivesRealFilesAndNoNilInDisguise(t *testing.T) {
	f, err := vfs.OS().OpenFile(filepath.Join(t.TempDir(), "none"), os.O_RDONLY, 0)
	if f != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v", f, err)
	}
	if err := vfs.OS().SyncDir(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("SyncDir = %v", err)
	}
}
