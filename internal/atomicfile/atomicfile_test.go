package atomicfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/faultfs"
	"github.com/lokt-dev/lokt/internal/vfs"
)

const (
	oldData = "the old content"
	newData = "something else, and longer than before"
)

func temps(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if IsTemp(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, _, err := ReadRegular(vfs.OS(), path, 1<<20)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

func operations(f *faultfs.Faulty) (kinds []string) {
	for _, s := range f.Trace() {
		kind, _, _ := strings.Cut(s, " ")
		kinds = append(kinds, kind)
	}
	return kinds
}

func TestReplaceDoesNoMoreThanItMust(t *testing.T) {
	for _, test := range []struct {
		before string
		o      Options
		want   string
	}{
		{"", Options{}, "open write close rename"},
		{oldData, Options{}, "open write close rename"},
		{"", Options{Sync: true}, "open write sync close rename"},
		{oldData, Options{Sync: true}, "open write sync close rename"},
		{oldData, Options{Durable: true}, "open write sync close rename syncdir"},
	} {
		path := prepare(t, test.before)
		f := faultfs.New(vfs.OS())
		if err := Replace(f, path, []byte(newData), test.o); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(operations(f), " "); got != test.want {
			t.Errorf("%+v: %s, want %s", test.o, got, test.want)
		}
		if got := content(t, path); got != newData {
			t.Errorf("content %q", got)
		}
		if left := temps(t, filepath.Dir(path)); len(left) > 0 {
			t.Errorf("left %v", left)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
}

// prepare returns the path of a file with the content, or of none.
func prepare(t *testing.T, before string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.json")
	if before != "" {
		if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// Every fault at every operation, with an old file and without: what the error says is what has happened.
func TestReplaceKeepsTheOldOrPublishesTheNew(t *testing.T) {
	doubts := 0
	for _, before := range []string{"", oldData} {
		for fault := range faultfs.Faults(6) {
			path := prepare(t, before)
			f := faultfs.New(vfs.OS())
			f.Inject(fault)
			err := Replace(f, path, []byte(newData), Options{Durable: true})
			want := before
			switch {
			case err == nil && !fault.Short:
				t.Errorf("%v: no error", fault)
			case err == nil:
				want = newData
			case errors.Is(err, ErrInDoubt):
				doubts++
				want = newData
			}
			checkOutcome(t, fault, err, path, want)
		}
	}
	if doubts != 2*3 { // crash, EIO and ENOSPC at the last operation
		t.Errorf("%d outcomes in doubt", doubts)
	}
}

func TestReplaceThatWaitsForNoDiskKeepsTheOldOrPublishesTheNew(t *testing.T) {
	for _, before := range []string{"", oldData} {
		for fault := range faultfs.Faults(4) {
			path := prepare(t, before)
			f := faultfs.New(vfs.OS())
			f.Inject(fault)
			err := Replace(f, path, []byte(newData), Options{})
			want := newData
			if err != nil {
				want = before
			}
			if early := !fault.Short; early && err == nil || errors.Is(err, ErrInDoubt) {
				t.Errorf("%v: %v", fault, err)
			}
			checkOutcome(t, fault, err, path, want)
		}
	}
}

func checkOutcome(t *testing.T, fault faultfs.Fault, err error, path, want string) {
	t.Helper()
	if got := content(t, path); got != want {
		t.Errorf("%v: %v, and content is %q", fault, err, got)
	}
	var detail *Error
	if err != nil && (!errors.As(err, &detail) || detail.Path != path || !strings.Contains(err.Error(), detail.Step)) {
		t.Errorf("%v: %v", fault, err)
	}
	crashed := fault.Err == nil
	if left := temps(t, filepath.Dir(path)); len(left) > 0 && !crashed {
		t.Errorf("%v: left %v", fault, left)
	}
}

func TestACrashLeavesOnlyWhatIsRecognisedAsTemporary(t *testing.T) {
	dir := t.TempDir()
	f := faultfs.New(vfs.OS())
	f.Inject(faultfs.Fault{Op: 3})
	if err := Replace(f, filepath.Join(dir, "x.json"), []byte(newData), Options{}); !errors.Is(err, faultfs.ErrCrashed) {
		t.Errorf("%v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || !IsTemp(entries[0].Name()) || strings.HasSuffix(entries[0].Name(), ".json") {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestTemporaryNamesDifferFitAndAreRecognised(t *testing.T) {
	seen := map[string]bool{}
	for _, base := range []string{"x", "x.json", ".hidden", "a.tmp-b", strings.Repeat("n", 205), strings.Repeat("n", 255)} {
		for range 100 {
			name := filepath.Base(tempName("/some/dir/" + base))
			if !IsTemp(name) || len(name) > 255 || seen[name] {
				t.Fatalf("%q for %q", name, base)
			}
			seen[name] = true
		}
	}
	if dir := filepath.Dir(tempName("/some/dir/x")); dir != "/some/dir" {
		t.Errorf("in %s", dir)
	}
	for _, name := range []string{"", ".", "x.json", "x.json.tmp-0000000000000", ".x.tmp-", ".x.tmp-00000000000", ".tmp-0000000000", ".x.tmp_0000000000000", ".x.tmp-000000000000!"} {
		if IsTemp(name) {
			t.Errorf("%q is taken for a temporary file", name)
		}
	}
}

func TestReplaceDoesNotFollowALink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.WriteFile(target, []byte(oldData), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := Replace(vfs.OS(), link, []byte(newData), Options{Perm: 0o644}); err != nil {
		t.Fatal(err)
	}
	if content(t, target) != oldData || content(t, link) != newData {
		t.Errorf("target %q, link %q", content(t, target), content(t, link))
	}
}

func TestReplaceOfADirectoryFailsAndLeavesNothing(t *testing.T) {
	for _, o := range []Options{{}, {Sync: true}, {Durable: true}} {
		dir := t.TempDir()
		path := filepath.Join(dir, "x")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		err := Replace(vfs.OS(), path, nil, o)
		var detail *Error
		if !errors.As(err, &detail) || detail.Step != "rename" || errors.Is(err, ErrInDoubt) {
			t.Errorf("%+v: %v", o, err)
		}
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			t.Errorf("%+v: the directory is gone: %v", o, err)
		}
		if left := temps(t, dir); len(left) > 0 {
			t.Errorf("%+v: left %v", o, left)
		}
		err = Replace(vfs.OS(), filepath.Join(dir, "none", "x"), nil, o)
		if !errors.As(err, &detail) || detail.Step != "create" || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without directory: %v", err)
		}
	}
}

// Promise S-8.
func TestReadersSeeWholeVersionsOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	version := func(n int) []byte { return bytes.Repeat([]byte{byte('a' + n)}, 100*(n+1)) }
	if err := Replace(vfs.OS(), path, version(0), Options{}); err != nil {
		t.Fatal(err)
	}
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	for w := range 3 {
		writers.Go(func() {
			for i := range 200 {
				if err := Replace(vfs.OS(), path, version((w+i)%20), Options{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 3 {
		readers.Go(func() {
			for {
				data, info, err := ReadRegular(vfs.OS(), path, 4000)
				if err != nil || len(data) == 0 || !bytes.Equal(data, version(int(data[0]-'a'))) || info.Size() != int64(len(data)) {
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
	writers.Wait()
	close(done)
	readers.Wait()
}

func TestRemoveCanBeRepeatedAndTellsDoubt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	f := faultfs.New(vfs.OS())
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.Inject(faultfs.Fault{Op: 1, Err: fs.ErrPermission})
	if err := Remove(f, path, true); !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrInDoubt) {
		t.Errorf("refused: %v", err)
	}
	f.Inject(faultfs.Fault{Op: 3, Err: fs.ErrPermission})
	if err := Remove(f, path, true); !errors.Is(err, fs.ErrPermission) || !errors.Is(err, ErrInDoubt) {
		t.Errorf("directory not synced: %v", err)
	}
	f.Reset()
	if err := Remove(f, path, true); err != nil || !slices.Equal(operations(f), []string{"remove", "syncdir"}) {
		t.Errorf("again: %v, %v", err, f.Trace())
	}
	f.Reset()
	if err := Remove(f, path, false); err != nil || len(f.Trace()) != 1 {
		t.Errorf("not durably: %v, %v", err, f.Trace())
	}
}

func TestReadRegularReadsUpToItsLimit(t *testing.T) {
	dir := t.TempDir()
	for _, size := range []int{0, 1, 511, 512, 513, 4096, 100_000} {
		path := filepath.Join(dir, "x")
		want := bytes.Repeat([]byte("x"), size)
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		f := faultfs.New(vfs.OS())
		data, info, err := ReadRegular(f, path, int64(size))
		if err != nil || !bytes.Equal(data, want) || info.Size() != int64(size) {
			t.Errorf("%d bytes: %d, %v", size, len(data), err)
		}
		if len(f.Trace()) > 5 { // open, stat, read, and whether that was all, close
			t.Errorf("%d bytes: %v", size, f.Trace())
		}
		if _, _, err := ReadRegular(f, path, int64(size)-1); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d bytes, one too many: %v", size, err)
		}
	}
	if _, _, err := ReadRegular(vfs.OS(), filepath.Join(dir, "none"), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// growing says that it is shorter than it is, as a file that grows while it is read.
type growing struct {
	vfs.FS
	size int64
}

type growingFile struct {
	vfs.File
	size int64
}

type sized struct {
	fs.FileInfo
	size int64
}

func (g growing) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	f, err := g.FS.OpenFile(name, flag, perm)
	return growingFile{f, g.size}, err
}

func (f growingFile) Stat() (fs.FileInfo, error) {
	info, err := f.File.Stat()
	return sized{info, f.size}, err
}

func (s sized) Size() int64 { return s.size }

func TestReadRegularKeepsItsLimitWhileTheFileGrowsOrShrinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	want := bytes.Repeat([]byte("0123456789"), 500)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 1, 10, 4999, 5001, 6000} {
		data, _, err := ReadRegular(growing{vfs.OS(), size}, path, 6000)
		if err != nil || !bytes.Equal(data, want) {
			t.Errorf("size said to be %d: %d bytes, %v", size, len(data), err)
		}
	}
	for _, size := range []int64{0, 10, 4999} {
		if _, _, err := ReadRegular(growing{vfs.OS(), size}, path, 4999); !errors.Is(err, ErrTooLarge) {
			t.Errorf("size said to be %d: %v", size, err)
		}
	}
}

func TestReadRegularReportsEveryFault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte(oldData), 0o600); err != nil {
		t.Fatal(err)
	}
	for fault := range faultfs.Faults(3) { // the fourth, close, cannot change what was read
		f := faultfs.New(vfs.OS())
		f.Inject(fault)
		data, _, err := ReadRegular(f, path, 100)
		if fault.Short {
			if err != nil || string(data) != oldData {
				t.Errorf("%v: %q, %v", fault, data, err)
			}
		} else if err == nil || data != nil {
			t.Errorf("%v: %q, %v", fault, data, err)
		}
	}
}

func BenchmarkReplace(b *testing.B) {
	path := filepath.Join(b.TempDir(), "x.json")
	data := bytes.Repeat([]byte("x"), 600)
	for b.Loop() {
		if err := Replace(vfs.OS(), path, data, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadRegular(b *testing.B) {
	path := filepath.Join(b.TempDir(), "x.json")
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 600), 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := ReadRegular(vfs.OS(), path, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
}

func TestANameThatMayNotOutliveAPowerFailureIsTold(t *testing.T) {
	for n, want := range map[int]struct {
		step    string
		inDoubt bool
	}{1: {"rename", false}, 2: {"sync directory", true}, 3: {}} {
		path := prepare(t, "")
		part := path + ".part"
		if err := os.WriteFile(part, []byte(newData), 0o600); err != nil {
			t.Fatal(err)
		}
		f := faultfs.New(vfs.OS())
		f.Inject(faultfs.Fault{Op: n, Err: fs.ErrPermission})
		err := Publish(f, part, path)
		var detail *Error
		if errors.As(err, &detail) != (want.step != "") || detail != nil && (detail.Step != want.step || detail.InDoubt != want.inDoubt) {
			t.Errorf("fault %d: %v", n, err)
		}
		if got, there := content(t, path), content(t, part); (got == newData) != (want.step != "rename") || (there == newData) != (want.step == "rename") {
			t.Errorf("fault %d: %q is there, and %q beside it", n, got, there)
		}
	}
}
