package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// Promise S-137.
func TestADatabaseThatMustExistIsNotMade(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "typo", "lokt.db")
	if _, err := Open(t.Context(), "sqlite:"+path+"?mode=rw", Options{}); !errors.Is(err, lokt.ErrInvalid) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), "sqlite:"+path+"?mode=rw", Options{}); !errors.Is(err, lokt.ErrInvalid) {
		t.Errorf("with an empty file: %v", err)
	}
	db := start(t, path, Options{})
	if c, err := db.Contents(t.Context()); err != nil || c != (Contents{Created: true}) {
		t.Errorf("a new database has %+v, %v", c, err)
	}
	acquire(t, db, claim("x", "a", time.Minute))
	shut(t, db)
	again, err := Open(t.Context(), "sqlite:"+path+"?mode=rw", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := again.Contents(t.Context()); err != nil || c != (Contents{Locks: 1}) {
		t.Errorf("an old database has %+v, %v", c, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// Promise S-269. SQLite would mix the two.
func TestACopyBesideTheLogOfAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	acquire(t, db, claim("x", "a", time.Hour))
	saved := filepath.Join(t.TempDir(), "copy")
	if err := db.Backup(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	acquire(t, db, claim("y", "a", time.Hour))
	to := path + ".killed"
	asKilled(t, path, to)
	text, err := os.ReadFile(saved)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, loss := range []bool{false, true} {
		if _, err := Open(t.Context(), "sqlite:"+to, Options{AcceptLoss: loss}); !errors.Is(err, lokt.ErrInvalid) || !strings.Contains(err.Error(), "move all files") {
			t.Errorf("opened, with loss accepted %v: %v", loss, err)
		}
		if err := CheckFile(t.Context(), to); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("checked: %v", err)
		}
	}
	if now, err := os.ReadFile(to); err != nil || !bytes.Equal(now, text) {
		t.Errorf("the copy has %d bytes of %d, or others: %v", len(now), len(text), err)
	}
	if err := os.Remove(to + "-wal"); err != nil {
		t.Fatal(err)
	}
	restored := start(t, to, Options{})
	if v := view(t, restored, "x"); len(v.Lock.Holders) != 1 {
		t.Errorf("of the copy there is %+v", v)
	}
	// Killed at once it has a log of its own.
	asKilled(t, to, to+".again")
	shut(t, restored)
	shut(t, start(t, to+".again", Options{}))
}

// Promise S-269. Its log says how far all of them came, but has only the newest pages.
func TestAFileThatIsNotThatOfTheLogBesideItIsRefused(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db, another := start(t, path, Options{}), start(t, path+".another", Options{})
	grow := func(db *fileDB, name string, copyTo string) {
		t.Helper()
		for i := range 30 {
			acquire(t, db, claim(fmt.Sprint(name, i), "a", time.Hour))
		}
		if err := db.group.perform(t.Context(), &request{name: "x", change: func(s lokt.Snapshot) lokt.Change { db.checkpoint(); return lokt.Change{Lock: s.Lock} }}); err != nil {
			t.Fatal(err)
		}
		asKilled(t, db.path, copyTo)
	}
	grow(db, "early", path+".early")
	grow(another, "other", path+".other")
	grow(db, "late", path+".late")
	acquire(t, db, claim("last", "a", time.Hour))
	for _, file := range []string{".early", ".other", ".late", ".marked", ".behind"} {
		to := path + ".with" + file
		asKilled(t, path, to)
		replace := func(suffix, from string) {
			t.Helper()
			text, err := os.ReadFile(path + from + suffix)
			if err == nil {
				err = os.WriteFile(to+suffix, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		switch file {
		case ".marked": // all but the log is older
			replace("", ".early")
			replace("-mark", ".early")
		case ".behind": // the log is
			replace("-wal", ".early")
			replace("-mark", ".early")
		default:
			replace("", file)
		}
		checked := CheckFile(t.Context(), to)
		opened, err := Open(t.Context(), "sqlite:"+to, Options{})
		if file == ".late" {
			if err != nil || checked != nil {
				t.Fatalf("its own file is refused: %v, %v", err, checked)
			}
			if v := view(t, opened.backend.(*fileDB), "late29"); len(v.Lock.Holders) != 1 {
				t.Errorf("there is %+v", v)
			}
			shut(t, opened.backend.(*fileDB))
			continue
		}
		for _, err := range []error{err, checked} {
			if !errors.Is(err, lokt.ErrInvalid) || !strings.Contains(err.Error(), "move the log") {
				t.Errorf("with the file %s: %v", file, err)
			}
		}
	}
}

// neverClosed opens a database, in which one lock is held. It stays as it is until the process ends.
func neverClosed(t *testing.T, path string) *fileDB {
	t.Helper()
	opened, err := Open(t.Context(), "sqlite:"+path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	db := opened.backend.(*fileDB)
	acquire(t, db, claim("x", "a", time.Hour))
	return db
}

// Promise S-312. The log would be moved into the copy, so the process ends with everything as it is.
func TestACopyThatIsWrittenOverAnOpenDatabaseIsNoticed(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := neverClosed(t, path)
	saved := filepath.Join(t.TempDir(), "copy")
	if err := db.Backup(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	acquire(t, db, claim("y", "a", time.Hour))
	text, err := os.ReadFile(saved)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := lokt.NewManager(db.Locks())
	if _, err := m.Acquire(t.Context(), claim("z", "a", time.Hour)); !errors.Is(err, lokt.ErrUnavailable) || !errors.Is(err, errCopied) {
		t.Fatalf("a claim afterwards: %v", err)
	}
	<-db.Failed()
	if err := db.Close(); !errors.Is(err, errCopied) {
		t.Errorf("closed: %v", err)
	}
	to := path + ".ended"
	asKilled(t, path, to)
	if _, err := Open(t.Context(), "sqlite:"+to, Options{}); !errors.Is(err, lokt.ErrInvalid) || !strings.Contains(err.Error(), "move all files") {
		t.Errorf("opened again: %v", err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, text) {
		t.Errorf("the copy has %d bytes of %d, or others: %v", len(now), len(text), err)
	}
}

// Readers that are cancelled at any moment leave nothing behind for the next.
func TestReadersThatAreCancelled(t *testing.T) {
	t.Parallel()
	db := start(t, filepath.Join(t.TempDir(), "lokt.db"), Options{})
	for i := range 10_000 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range i % 20 {
				runtime.Gosched()
			}
			cancel()
		}()
		read := func(read look) error {
			return read("SELECT 1", nil, func(from row) error { return from.Scan(new(int)) })
		}
		if err := db.reading(ctx, "look", read); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("reader %d: %v", i, err)
		}
		<-done
	}
}
