//go:build unix

package audit

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func limitFileSize(n uint64) error {
	if n == 0 {
		return nil
	}
	limit := syscall.Rlimit{Cur: n, Max: n}
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
}

func TestWriteCutShortLosesNoEntryButTheOneThatFailed(t *testing.T) {
	dir := t.TempDir()
	size := len(entryLine("build", 1))
	p := task{Dir: dir, Name: "build", Count: 20, Batch: 2, Limit: uint64(5*size + size/2)}.start(t)
	acks, err := p.finish()
	if err == nil || acks != 4 {
		t.Fatalf("%d entries acknowledged, %v; want 4 and an error", acks, err)
	}
	l := Open(dir)
	appendTokens(t, l, 100)
	got, garbage := readAll(t, l, Query{})
	wantTokens(t, got, 1, 2, 3, 4, 5, 100)
	if len(garbage) != 1 || garbage[0].Offset != int64(5*size) {
		t.Fatalf("garbage %v, want the half line, with the one after it", garbage)
	}
}

func TestWhatIsNotARegularFileIsNeitherFollowedNorWaitedFor(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(elsewhere, entryLine("build", 1), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, make := range map[string]func(path string) error{
		"symbolic link":          func(path string) error { return os.Symlink(elsewhere, path) },
		"dangling symbolic link": func(path string) error { return os.Symlink(elsewhere+".none", path) },
		"directory":              func(path string) error { return os.Mkdir(path, 0o700) },
		"named pipe":             func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		t.Run(what, func(t *testing.T) {
			l := openAs(t.TempDir(), Options{MaxSize: 1, Keep: 2})
			if err := make(l.Path()); err != nil {
				t.Fatal(err)
			}
			if err := l.Append(entryLine("build", 2)); !errors.Is(err, ErrNotRegular) {
				t.Errorf("Append: %v", err)
			}
			n := 0
			for e, err := range l.Read(t.Context(), Query{}) {
				n++
				if !errors.Is(err, ErrNotRegular) {
					t.Errorf("Read: %v, %v", e, err)
				}
			}
			if n != 1 {
				t.Errorf("Read gave %d items, want the error", n)
			}
			if _, err := os.Lstat(elsewhere + ".none"); err == nil {
				t.Error("the link's target was made")
			}
			if b, err := os.ReadFile(elsewhere); err != nil || string(b[len(b)-2:]) != "}\n" || files(t, l) != 1 {
				t.Errorf("something was written: %q, %v", b, err)
			}
		})
	}
}

func TestFollowerReportsAFileItCannotReadOnceAndGoesOn(t *testing.T) {
	l := openAs(t.TempDir(), Options{Poll: 1e6})
	appendTokens(t, l, 1)
	if err := syscall.Mkfifo(l.path(1), 0o600); err != nil {
		t.Fatal(err)
	}
	f := follow(t, l, Query{})
	if _, err := f.next(); !errors.Is(err, ErrNotRegular) {
		t.Fatalf("followed %v, want what is wrong with the rotated file", err)
	}
	f.want(1)
	appendTokens(t, l, 2)
	f.want(2)
}

func TestLogThatCannotBeRotatedIsAppendedToAllTheSame(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 1, Keep: 1})
	appendTokens(t, l, 1)
	if err := os.MkdirAll(filepath.Join(l.path(1), "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(entryLine("build", 2)); !errors.Is(err, ErrNotRotated) {
		t.Fatalf("Append: %v, want ErrNotRotated", err)
	}
	if err := os.RemoveAll(l.path(1)); err != nil {
		t.Fatal(err)
	}
	got, _ := readAll(t, l, Query{})
	wantTokens(t, got, 1, 2)
}

func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "root")
	l := openAs(dir, Options{MaxSize: 1})
	if files, err := filepath.Glob(filepath.Dir(dir) + "*"); err != nil || files != nil {
		t.Fatalf("opening the log made %v, %v", files, err)
	}
	if got, _ := readAll(t, l, Query{}); got != nil {
		t.Fatalf("read %v from no log", got)
	}
	appendTokens(t, l, 1, 2)
	for path, want := range map[string]os.FileMode{
		dir: os.ModeDir | 0o700, l.path(0): 0o600, l.path(1): 0o600, filepath.Join(dir, lockName): 0o600,
	} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, fi, err, want)
		}
	}
}
