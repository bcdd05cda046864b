package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Promise S-56.
func TestEveryEntryOfManyProcessesArrivesOnceAndInOrder(t *testing.T) {
	const writers, each = 3, 80
	dir := t.TempDir()
	o := Options{MaxSize: 2000, Keep: 1000, Poll: time.Millisecond}
	l := openAs(dir, o)
	f := follow(t, l, Query{})
	var all []*process
	counter := filepath.Join(t.TempDir(), "counter")
	for i := range writers {
		all = append(all,
			task{Dir: dir, Opts: o, Name: fmt.Sprint("own", i), Count: each}.start(t),
			task{Dir: dir, Opts: o, Name: "shared", Count: each, Counter: counter}.start(t))
	}
	for _, p := range all {
		go func() {
			for p.acks.Scan() { // nobody waits for this
			}
		}()
	}
	seen := map[string]int{}
	for range 2 * writers * each {
		e, err := f.next()
		if err != nil {
			t.Fatal(err)
		}
		if seen[e.Name]++; token(e) != fmt.Sprint(seen[e.Name]) {
			t.Fatalf("followed %s of %s, want %d", token(e), e.Name, seen[e.Name])
		}
	}
	for _, p := range all {
		if err := p.Wait(); err != nil {
			t.Fatalf("%v: %s", err, p.stderr.String())
		}
	}
	clear(seen)
	for e, err := range l.Read(context.Background(), Query{}) {
		if seen[e.Name]++; err != nil || token(e) != fmt.Sprint(seen[e.Name]) {
			t.Fatalf("read %s of %s, %v, want %d", token(e), e.Name, err, seen[e.Name])
		}
	}
	if seen["shared"] != writers*each || seen["own0"] != each || len(seen) != writers+1 {
		t.Fatalf("read %v", seen)
	}
	if n := files(t, l); n < 2 {
		t.Fatalf("there are %d files: the log was not rotated", n)
	}
}

func TestWhatIsReadWhileOldFilesAreDeletedIsWholeAndInOrder(t *testing.T) {
	const each = 400
	dir := t.TempDir()
	o := Options{MaxSize: 2000, Keep: 2, Poll: time.Millisecond}
	l := openAs(dir, o)
	f := follow(t, l, Query{})
	var all []*process
	for i := range 3 {
		all = append(all, task{Dir: dir, Opts: o, Name: fmt.Sprint("own", i), Count: each}.start(t))
	}
	ended := make(chan error, len(all))
	for _, p := range all {
		go func() {
			_, err := p.finish()
			ended <- err
		}()
	}
	last := map[string]int{}
	keep := func(e Entry, err error) {
		var n int
		if _, bad := fmt.Sscan(token(e), &n); err != nil || bad != nil || n <= last[e.Name] {
			t.Fatalf("followed %d of %s after %d, %v", n, e.Name, last[e.Name], err)
		}
		last[e.Name] = n
	}
	for running := len(all); running > 0; {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			if running--; running == 0 {
				appendTokens(t, l, 1) // of the lock "build": what the follower waits for in the end
			}
		case i := <-f.items:
			keep(i.entry, i.err)
		}
	}
	for last["build"] == 0 {
		keep(f.next())
	}
	if len(last) < 2 { // what was deleted before it was read is not missed, but not all of it was
		t.Errorf("followed were only %v", last)
	}
	if n := files(t, l); n > 3 {
		t.Fatalf("%d files are kept, want no more than 3", n)
	}
}

// Promise S-56.
func TestAcknowledgedEntriesSurviveKilledWriters(t *testing.T) {
	dir := t.TempDir()
	o := Options{MaxSize: 5000, Keep: 1000}
	acked := map[string]int{}
	for round := range 5 {
		var pair []*process
		for i := range 2 {
			p := task{Dir: dir, Opts: o, Name: fmt.Sprintf("r%d-%d", round, i), Batch: 3}.start(t)
			pair = append(pair, p)
			for p.acks.Scan() && p.acks.Text() != "60" {
			}
		}
		for i, p := range pair {
			_ = p.Process.Kill()
			n, err := p.finish()
			if err == nil {
				t.Fatal("the writer ended by itself")
			}
			acked[fmt.Sprintf("r%d-%d", round, i)] = 60 + n
		}
	}
	l := openAs(dir, o)
	appendTokens(t, l, 1)
	seen := map[string]int{}
	for e, err := range l.Read(context.Background(), Query{}) {
		if garbage := (*GarbageError)(nil); errors.As(err, &garbage) {
			continue // what a kill left
		}
		if seen[e.Name]++; err != nil || token(e) != fmt.Sprint(seen[e.Name]) {
			t.Fatalf("read %s of %s, %v, want %d", token(e), e.Name, err, seen[e.Name])
		}
	}
	for name, n := range acked {
		if seen[name] < n {
			t.Errorf("%s: %d entries acknowledged, %d there", name, n, seen[name])
		}
	}
	if seen["build"] != 1 {
		t.Error("the entry after the kills is not there")
	}
}

func TestTornLastLineDoesNotSwallowTheNextEntry(t *testing.T) {
	half := string(entryLine("build", 7)[:50])
	whole := strings.TrimSuffix(string(entryLine("build", 7)), "\n")
	l := Open(t.TempDir())
	appendTokens(t, l, 1)
	addRaw(t, l, half)
	appendTokens(t, l, 2)
	addRaw(t, l, whole)
	appendTokens(t, l, 3)
	addRaw(t, l, "\x00\x00\x00\x00")
	appendTokens(t, l, 4)
	got, garbage := readAll(t, l, Query{})
	wantTokens(t, got, 1, 2, 3, 4)
	if len(garbage) != 3 {
		t.Fatalf("garbage %v, want the half line, the one without end and the zeros", garbage)
	}
}

func TestLineTornWhileAppendingDoesNotSwallowTheEntry(t *testing.T) {
	l := Open(t.TempDir())
	appendTokens(t, l, 1)
	f, _, err := l.openAppend()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	addRaw(t, l, "\n"+string(entryLine("build", 9)[:50])) // crashed after the file was opened
	if err := write(f, append(entryLine("build", 2), entryLine("build", 3)...), writeOnce); err != nil {
		t.Fatal(err)
	}
	got, garbage := readAll(t, l, Query{})
	wantTokens(t, got, 1, 3, 2)
	if len(garbage) != 1 {
		t.Fatalf("garbage %v, want the line that was swallowed", garbage)
	}
}

func TestSlowWriterWritesToAFileThatStays(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 1, Keep: 1, Poll: time.Millisecond})
	follower := follow(t, l, Query{})
	appendTokens(t, l, 1)
	follower.want(1)
	slow, _, err := l.openAppend()
	if err != nil {
		t.Fatal(err)
	}
	appendTokens(t, l, 2, 3, 4) // the first rotates; the others would delete the file that slow has open
	follower.want(2, 3, 4)
	if n := files(t, l); n != 2 {
		t.Fatalf("there are %d files, want 2", n)
	}
	if err := write(slow, entryLine("build", 5), writeOnce); err != nil {
		t.Fatal(err)
	}
	follower.want(5)
	got, _ := readAll(t, l, Query{})
	wantTokens(t, got, 1, 5, 2, 3, 4)
	slow.Close()
	appendTokens(t, l, 6, 7)
	follower.want(6, 7)
	got, _ = readAll(t, l, Query{})
	wantTokens(t, got, 6, 7)
}

func TestFileThatRotationDeletedIsNotWrittenTo(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 1, Keep: 1})
	appendTokens(t, l, 1)
	f, _, err := openRegular(l.Path(), os.O_RDWR|os.O_APPEND)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, pinned, err := pin(f); !pinned || err != nil {
		t.Fatalf("pinned: %v, %v", pinned, err)
	}
	f.Close()
	if f, _, err = openRegular(l.Path(), os.O_RDWR|os.O_APPEND); err != nil { // as a writer that has come no further
		t.Fatal(err)
	}
	appendTokens(t, l, 2, 3)
	if _, pinned, err := pin(f); pinned || err != nil {
		t.Fatalf("a deleted file was pinned: %v, %v", pinned, err)
	}
}

func TestSlowRotationFindsThatItIsNotNeededAnyMore(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 300, Keep: 9})
	appendTokens(t, l, 1)
	f, fi, err := l.openAppend()
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	appendTokens(t, l, 2) // rotates
	if moved, err := l.rotate(fi, 300); !moved || err != nil || !exists(l.Path()) || exists(l.path(2)) {
		t.Fatalf("moved is %v, %v; want the file that another rotation has made left alone", moved, err)
	}
}

func TestWriteCutShortAnywhereGoesOnWithTheLineThatWasCut(t *testing.T) {
	lines := slices.Concat(entryLine("build", 1), entryLine("build", 2), entryLine("build", 3))
	for cut := range lines {
		l := Open(t.TempDir())
		f, _, err := l.openAppend()
		if err != nil {
			t.Fatal(err)
		}
		first := true
		err = write(f, lines, func(f *os.File, b []byte) (int, error) {
			if first {
				first = false
				b = b[:cut]
			}
			return writeOnce(f, b)
		})
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		got, garbage := readAll(t, l, Query{})
		wantTokens(t, got, 1, 2, 3)
		if len(garbage) > 1 {
			t.Fatalf("cut at %d: garbage %v", cut, garbage)
		}
	}
}

func TestWriteThatIsAlwaysCutShortIsGivenUp(t *testing.T) {
	l := Open(t.TempDir())
	f, _, err := l.openAppend()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = write(f, entryLine("build", 1), func(f *os.File, b []byte) (int, error) { return writeOnce(f, b[:5]) })
	if !errors.Is(err, io.ErrShortWrite) {
		t.Fatalf("write: %v", err)
	}
}

func TestStoppedRotationHoldsUpNobodyAndIsTakenUpLater(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 1, Keep: 9})
	appendTokens(t, l, 1, 2)
	other, _, err := openRegular(filepath.Join(l.dir, lockName), 2)
	if err != nil {
		t.Fatal(err)
	}
	if mine, err := tryLock(other, true); !mine || err != nil {
		t.Fatal(mine, err)
	}
	appendTokens(t, l, 3, 4)
	if n := files(t, l); n != 2 {
		t.Fatalf("there are %d files, want 2: rotation is somebody else's", n)
	}
	other.Close()
	appendTokens(t, l, 5)
	if n := files(t, l); n != 3 {
		t.Fatalf("there are %d files, want 3", n)
	}
	got, _ := readAll(t, l, Query{})
	wantTokens(t, got, upTo(5)...)
}

func TestRotationFillsTheGapThatACrashedOneLeft(t *testing.T) {
	l := openAs(t.TempDir(), Options{MaxSize: 1, Keep: 3})
	appendTokens(t, l, 1, 2, 3, 4)
	// As if a process had died with 3 already moved up, and 1 deleted for it.
	rename(t, l.path(2), l.path(3))
	appendTokens(t, l, 5)
	got, _ := readAll(t, l, Query{})
	wantTokens(t, got, 2, 3, 4, 5)
	appendTokens(t, l, 6)
	got, _ = readAll(t, l, Query{})
	wantTokens(t, got, 3, 4, 5, 6)
}

func TestOnlyAnAppendThatIsLargerItselfExceedsTheSize(t *testing.T) {
	size := int64(len(entryLine("build", 1)))
	l := openAs(t.TempDir(), Options{MaxSize: 2 * size, Keep: 9})
	appendTokens(t, l, 1, 2, 3)
	if n := files(t, l); n != 2 {
		t.Fatalf("there are %d files, want two entries in one and one in the other", n)
	}
	if err := l.Append([]byte(strings.Repeat(string(entryLine("build", 4)), 5))); err != nil {
		t.Fatal(err)
	}
	if n := files(t, l); n != 3 {
		t.Fatalf("there are %d files, want the large batch in its own", n)
	}
	got, _ := readAll(t, l, Query{})
	wantTokens(t, got, 1, 2, 3, 4, 4, 4, 4, 4)
}

func BenchmarkAppend(b *testing.B) {
	l := Open(b.TempDir())
	line := entryLine("build", 1)
	for b.Loop() {
		if err := l.Append(line); err != nil {
			b.Fatal(err)
		}
	}
}

// Another's append of a line is under way: the part of it that is there ends where its page does.
func TestALineThatIsBeingWrittenIsNotTakenForATornOne(t *testing.T) {
	l := Open(t.TempDir())
	other, own := entryLine("build", 1), entryLine("build", 2)
	want := string(other) + string(own)
	addRaw(t, l, string(other[:50]))
	f, _, err := l.openAppend()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = write(f, own, func(f *os.File, b []byte) (int, error) {
		if len(other) > 50 { // the system lets the other write end first
			addRaw(t, l, string(other[50:]))
			other = nil
		}
		return writeOnce(f, b)
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(l.Path())
	if err != nil || string(data) != want {
		t.Errorf("%v: the log is\n%swant\n%s", err, data, want)
	}
}
