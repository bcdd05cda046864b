package atomicfile

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/faultfs"
)

// eachWay runs the test with files that are opened each time, and with files that are kept open.
func eachWay(t *testing.T, test func(t *testing.T, pair *Pair)) {
	t.Helper()
	t.Run("opened each time", func(t *testing.T) { test(t, nil) })
	t.Run("kept open", func(t *testing.T) {
		pair := &Pair{}
		defer pair.Close()
		test(t, pair)
	})
}

// replaceWithSpare replaces the file at path, and returns what was done.
func replaceWithSpare(t *testing.T, path, data string, pair *Pair) (ops []string) {
	t.Helper()
	f := faultfs.New(faultfs.OS())
	if err := Replace(f, path, []byte(data), Options{Spare: path + ".spare", Pair: pair}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, path); got != data {
		t.Fatalf("content is %q, not %q", got, data)
	}
	return operations(f)
}

func TestASpareFileChangesPlacesAgainAndAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	replaceWithSpare(t, path, "one", nil) // there is nothing to keep
	replaceWithSpare(t, path, "two, which is longer", nil)
	if got := content(t, path+".spare"); got != "one" {
		t.Fatalf("the spare file has %q", got)
	}
	for i, data := range []string{"three", "", "four, the longest of them all", "5"} {
		ops := strings.Join(replaceWithSpare(t, path, data, nil), " ")
		if strings.Contains(ops, "remove") || strings.Contains(ops, "rename") || strings.Count(ops, "open") != 1 {
			t.Errorf("round %d: %s", i, ops)
		}
	}
	if left := temps(t, filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestAVersionThatSomebodyStillReadsIsNotOverwritten(t *testing.T) {
	eachWay(t, whatSomebodyReadsStays)
}

func whatSomebodyReadsStays(t *testing.T, pair *Pair) {
	path := filepath.Join(t.TempDir(), "x")
	replaceWithSpare(t, path, "one", pair)
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for i := range 5 {
		replaceWithSpare(t, path, fmt.Sprint("version ", i), pair)
	}
	if got, err := io.ReadAll(reader); err != nil || string(got) != "one" {
		t.Errorf("the reader of version one reads %q, %v", got, err)
	}
}

func TestWhatIsNoSpareFileIsNotWrittenTo(t *testing.T) {
	eachWay(t, noSpareNoWrite)
}

func noSpareNoWrite(t *testing.T, pair *Pair) {
	for what, make := range map[string]func(spare, other string) error{
		"a link":          func(spare, other string) error { return os.Symlink(other, spare) },
		"a second name":   func(spare, other string) error { return os.Link(other, spare) },
		"a directory":     func(spare, _ string) error { return os.Mkdir(spare, 0o700) },
		"another's right": func(spare, _ string) error { return os.WriteFile(spare, nil, 0o644) },
	} {
		dir := t.TempDir()
		path, other := filepath.Join(dir, "x"), filepath.Join(dir, "other")
		replaceWithSpare(t, path, "one", pair)
		if err := os.WriteFile(other, []byte("untouched"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := make(path+".spare", other); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			replaceWithSpare(t, path, fmt.Sprint("version ", i), pair)
		}
		if got := content(t, other); got != "untouched" {
			t.Errorf("%s: the other file has %q", what, got)
		}
	}
}

func TestReplaceWithASpareFileKeepsTheOldOrPublishesTheNew(t *testing.T) {
	eachWay(t, keepsTheOldOrPublishesTheNew)
}

func keepsTheOldOrPublishesTheNew(t *testing.T, pair *Pair) {
	done := 0
	for fault := range faultfs.Faults(8) {
		path := filepath.Join(t.TempDir(), "x")
		replaceWithSpare(t, path, "first", pair)
		replaceWithSpare(t, path, oldData, pair)
		f := faultfs.New(faultfs.OS())
		f.Inject(fault)
		err := Replace(f, path, []byte(newData), Options{Spare: path + ".spare", Pair: pair})
		want := oldData
		if err == nil {
			want = newData
			done++
		}
		if got := content(t, path); got != want {
			t.Errorf("%v: %v, and content is %q", fault, err, got)
		}
		replaceWithSpare(t, path, "and on", pair)
	}
	if done == 0 {
		t.Error("no fault was survived")
	}
}

// Promise S-8.
func TestReadersOfAFileWithASpareSeeWholeVersionsOnly(t *testing.T) {
	eachWay(t, readersSeeWholeVersionsOnly)
}

func readersSeeWholeVersionsOnly(t *testing.T, pair *Pair) {
	path := filepath.Join(t.TempDir(), "x")
	version := func(n int) string { return strings.Repeat(string(rune('a'+n)), 100*(n+1)) }
	replaceWithSpare(t, path, version(0), pair)
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			for {
				data, _, err := ReadRegular(faultfs.OS(), path, 4000)
				if err != nil || len(data) == 0 || !bytes.Equal(data, []byte(version(int(data[0]-'a')))) {
					t.Errorf("%q, %v", data, err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range 2000 {
		if err := Replace(faultfs.OS(), path, []byte(version(i%20)), Options{Spare: path + ".spare", Pair: pair}); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	readers.Wait()
}

// forking is a file system of a process that is just being forked whenever a file is opened: the child has every file open, too,
// until it runs another program.
type forking struct {
	faultfs.FS
	child []int
}

func (f *forking) OpenFile(name string, flag int, perm fs.FileMode) (faultfs.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err == nil {
		fd, err := unix.Dup(int(file.Fd()))
		if err != nil {
			return nil, err
		}
		f.child = append(f.child, fd)
	}
	return file, err
}

func TestAForkedChildKeepsNobodyFromOpeningTheFile(t *testing.T) {
	eachWay(t, func(t *testing.T, pair *Pair) {
		path := filepath.Join(t.TempDir(), "x")
		o := Options{Spare: path + ".spare", Pair: pair}
		for _, data := range []string{"one", "two"} {
			if err := Replace(faultfs.OS(), path, []byte(data), o); err != nil {
				t.Fatal(err)
			}
		}
		f := &forking{FS: faultfs.OS()}
		defer func() {
			for _, fd := range f.child {
				_ = unix.Close(fd)
			}
		}()
		if err := Replace(f, path, []byte("three"), o); err != nil {
			t.Fatal(err)
		}
		data, _, err := ReadRegular(faultfs.OS(), path, 100)
		if err != nil || string(data) != "three" {
			t.Errorf("read %q, %v", data, err)
		}
	})
}
