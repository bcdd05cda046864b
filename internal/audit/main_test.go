package audit

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// role, if set in the environment, makes the test binary a process that one of the tests needs.
const role = "LOKT_AUDIT_TEST_ROLE"

// Options are what a test has a log do differently.
type Options struct {
	MaxSize int64
	Keep    int
	Poll    time.Duration
}

func openAs(dir string, o Options) *Log {
	l := Open(dir)
	l.maxSize, l.keep, l.poll = cmp.Or(o.MaxSize, l.maxSize), cmp.Or(o.Keep, l.keep), cmp.Or(o.Poll, l.poll)
	return l
}

// task is what such a process is to do, as JSON on its standard input.
type task struct {
	Dir     string
	Opts    Options
	Name    string // of the lock that its entries are about
	Count   int    // entries to append; 0 is without end
	Batch   int    // entries per Append
	Counter string // if set, a file with the last token, which is locked while the entry with the next one is appended
	Limit   uint64 // largest size of a file, if set
}

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "writer":
		var k task
		err := json.NewDecoder(os.Stdin).Decode(&k)
		if err == nil {
			err = k.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// run appends the entries and says on standard output which ones are in the log.
func (k task) run() error {
	if err := limitFileSize(k.Limit); err != nil {
		return err
	}
	l := openAs(k.Dir, k.Opts)
	for token := uint64(1); k.Count == 0 || token <= uint64(k.Count); {
		var lines []byte
		first := token
		for range max(k.Batch, 1) {
			lines = append(lines, entryLine(k.Name, token)...)
			token++
		}
		var err error
		if k.Counter != "" {
			err = k.inTurn(l)
		} else {
			err = l.Append(lines)
		}
		if err != nil {
			return err
		}
		for ; first < token; first++ {
			fmt.Println(first)
		}
	}
	return nil
}

// inTurn appends the entry whose token is next for all processes together.
func (k task) inTurn(l *Log) error {
	f, err := os.OpenFile(k.Counter, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for locked := false; !locked; {
		if locked, err = tryLock(f, true); err != nil {
			return err
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if err := l.Append(entryLine(k.Name, uint64(len(b))+1)); err != nil {
		return err
	}
	_, err = f.Write([]byte{'.'})
	return err
}

// process is a running task.
type process struct {
	*exec.Cmd
	stderr strings.Builder
	acks   *bufio.Scanner
}

func (k task) start(t *testing.T) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), role+"=writer")
	in, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	p.Stdin = strings.NewReader(string(in))
	p.Stderr = &p.stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.acks = bufio.NewScanner(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// finish reads the rest of what the process says and waits for it. It returns how many entries are in the log.
func (p *process) finish() (acks int, err error) {
	for p.acks.Scan() {
		acks++
	}
	if err := p.Wait(); err != nil {
		return acks, fmt.Errorf("%w: %s", err, p.stderr.String())
	}
	return acks, nil
}

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// event is an acquire of the named lock, as many seconds after noon as the token.
func event(name string, token uint64) lokt.Event {
	return lokt.Event{
		Time: noon.Add(time.Duration(token) * time.Second), Type: lokt.EventAcquire, Name: name, LeaseID: lokt.NewLeaseID(),
		Owner: lokt.Owner{ID: "ann", Host: "h1", Session: "s1", Process: lokt.Process{PID: 42}}, Token: token, TTL: time.Minute,
	}
}

func entryLine(name string, token uint64) []byte { return Encode([]lokt.Event{event(name, token)}) }

func token(e Entry) string { return fmt.Sprint(e.Extra[ExtraToken]) }

// appendTokens appends an entry for each token, one by one.
func appendTokens(t *testing.T, l *Log, tokens ...uint64) {
	t.Helper()
	for _, n := range tokens {
		if err := l.Append(entryLine("build", n)); err != nil {
			t.Fatal(err)
		}
	}
}

// addRaw writes to the log's current file as a program would that knows nothing of this package.
func addRaw(t *testing.T, l *Log, s string) {
	t.Helper()
	f, err := os.OpenFile(l.Path(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

// readAll returns the tokens of the entries, and the garbage.
func readAll(t *testing.T, l *Log, q Query) (tokens []string, garbage []*GarbageError) {
	t.Helper()
	for e, err := range l.Read(context.Background(), q) {
		if g := (*GarbageError)(nil); errors.As(err, &g) {
			garbage = append(garbage, g)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token(e))
	}
	return tokens, garbage
}

func wantTokens(t *testing.T, got []string, want ...uint64) {
	t.Helper()
	var w []string
	for _, n := range want {
		w = append(w, fmt.Sprint(n))
	}
	if strings.Join(got, " ") != strings.Join(w, " ") {
		t.Fatalf("read tokens %v, want %v", got, w)
	}
}

func upTo(n uint64) (all []uint64) {
	for i := uint64(1); i <= n; i++ {
		all = append(all, i)
	}
	return all
}

// follower is a Follow that runs in the background.
type follower struct {
	t     *testing.T
	items chan followed
}

type followed struct {
	entry Entry
	err   error
}

// follow begins to follow, with a first look already taken if there is anything to read.
func follow(t *testing.T, l *Log, q Query) *follower {
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{t: t, items: make(chan followed)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range l.Follow(ctx, q) {
			select {
			case f.items <- followed{e, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

func (f *follower) next() (Entry, error) {
	f.t.Helper()
	select {
	case i := <-f.items:
		return i.entry, i.err
	case <-time.After(5 * time.Minute):
		f.t.Fatal("nothing came from the follower in five minutes")
		return Entry{}, nil
	}
}

// want expects entries with these tokens next, and no others between them.
func (f *follower) want(tokens ...uint64) {
	f.t.Helper()
	for _, n := range tokens {
		if e, err := f.next(); err != nil || token(e) != fmt.Sprint(n) {
			f.t.Fatalf("followed token %s, %v; want %d", token(e), err, n)
		}
	}
}

// files returns how many files the log has.
func files(t *testing.T, l *Log) int {
	t.Helper()
	all, err := filepath.Glob(l.Path() + "*")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
