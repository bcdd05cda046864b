package faultfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestFilesOfTheSystemBehaveAsThoseOfPackageOS(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	f, err := OS().OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.Write([]byte("0123456789")); n != 10 || err != nil {
		t.Errorf("Write = %d, %v", n, err)
	}
	if n, err := f.WriteAt([]byte("ab"), 3); n != 2 || err != nil {
		t.Errorf("WriteAt = %d, %v", n, err)
	}
	b := make([]byte, 4)
	if n, err := f.ReadAt(b, 2); string(b[:n]) != "2ab5" || err != nil {
		t.Errorf("ReadAt = %q, %v", b[:n], err)
	}
	if n, err := f.ReadAt(b, 8); string(b[:n]) != "89" || !errors.Is(err, io.EOF) {
		t.Errorf("ReadAt near the end = %q, %v", b[:n], err)
	}
	if n, err := f.Read(b); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("Read at the end = %d, %v", n, err)
	}
	if err := errors.Join(f.Truncate(5), f.Sync()); err != nil {
		t.Error(err)
	}
	want, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.Stat(); err != nil || got.Size() != 5 || got.Mode() != want.Mode() || !got.ModTime().Equal(want.ModTime()) || got.Name() != "a" || !os.SameFile(got, want) && got.Sys() == nil {
		t.Errorf("Stat = %+v, %v; want %+v", got, err, want)
	}
	if f.Name() != name {
		t.Errorf("Name = %q", f.Name())
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Close again: %v", err)
	}
	if _, err := f.Write(b); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	if OSFile(f) != nil && !errors.Is(OSFile(f).Close(), os.ErrClosed) {
		t.Error("a closed file can be inherited")
	}
}

func TestAFileForAChildIsTheSameFile(t *testing.T) {
	f, err := OS().OpenFile(filepath.Join(t.TempDir(), "a"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	before, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	own := OSFile(f)
	if own == nil {
		t.Fatal("no file")
	}
	defer own.Close()
	after, err := own.Stat()
	if err != nil || after.ModTime() != before.ModTime() || after.Name() != before.Name() {
		t.Errorf("%+v, %v; want %+v", after, err, before)
	}
}
