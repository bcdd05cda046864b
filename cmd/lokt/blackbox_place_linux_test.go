package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// atMost is how long a test waits for something that must happen, before it fails. Nothing takes so long, but machines
// may be slow.
const atMost = time.Minute

// place is a directory of locks, and somebody who uses it.
type place struct {
	t    *testing.T
	root string
	dir  string // working directory of the programs, outside root
	env  []string
}

// newPlace returns an empty place, whose root does not exist yet, and lets the test run in parallel with others.
func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	return quietPlace(t)
}

// quietPlace is newPlace for tests that are parallel already.
func quietPlace(t *testing.T) *place {
	t.Helper()
	dir := t.TempDir()
	p := &place{t: t, root: filepath.Join(dir, "root"), dir: filepath.Join(dir, "cwd")}
	check(t, os.Mkdir(p.dir, 0o755))
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LOKT_") {
			p.env = append(p.env, kv)
		}
	}
	p.env = append(p.env, "LOKT_ROOT="+p.root)
	return p
}

// with returns the place for somebody with more, or other, environment variables.
func (p *place) with(env ...string) *place {
	q := *p
	q.env = append(slices.Clone(p.env), env...)
	return &q
}

// as returns the place for another owner.
func (p *place) as(owner string) *place { return p.with("LOKT_OWNER=" + owner) }

// in returns the place for another test, which is part of this one.
func (p *place) in(t *testing.T) *place {
	q := *p
	q.t = t
	return &q
}

// lokt returns the program, ready to start. It is killed when its time is over.
func (p *place) lokt(args ...string) *exec.Cmd {
	p.t.Helper()
	path, err := program()
	check(p.t, err)
	return p.command(path, args...)
}

// command returns any program, ready to start with the place's environment.
func (p *place) command(name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 2*atMost)
	p.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = p.env, p.dir
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// part returns a process of the test binary that plays a part.
func (p *place) part(name string, args ...string) *exec.Cmd {
	cmd := p.command(self(p.t), args...)
	cmd.Env = append(slices.Clone(p.env), helperVariable+"="+name)
	return cmd
}

// self returns the path of the test binary.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	check(t, err)
	return path
}

// result is how a program ended.
type result struct {
	code        int // 128+n for a signal
	out, stderr string
}

func (r result) String() string {
	return fmt.Sprintf("exit %d\nstdout: %s\nstderr: %s", r.code, r.out, r.stderr)
}

// run runs the program to its end.
func (p *place) run(args ...string) result {
	p.t.Helper()
	return p.finish(p.lokt(args...))
}

// sh runs a shell script to its end.
func (p *place) sh(script string, args ...string) result {
	p.t.Helper()
	return p.finish(p.command("sh", append([]string{"-c", script, "sh"}, args...)...))
}

func (p *place) finish(cmd *exec.Cmd) result {
	p.t.Helper()
	var out, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	cmd.Stderr = &stderr
	err := cmd.Run()
	return result{ended(p.t, cmd, err), out.String(), stderr.String()}
}

// ended returns the exit code of a program that was waited for with the given outcome.
func ended(t *testing.T, cmd *exec.Cmd, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", cmd, err)
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// want runs the program and fails the test unless it ends with the code.
func (p *place) want(code int, args ...string) result {
	p.t.Helper()
	r := p.run(args...)
	if r.code != code {
		p.t.Fatalf("lokt %s: want exit %d, got %v", strings.Join(args, " "), code, r)
	}
	return r
}

// free fails the test unless the lock can be had at once.
func (p *place) free(name string) {
	p.t.Helper()
	p.as("whoever").want(0, "guard", name, "--", "true")
}

// held fails the test unless another cannot have the lock now.
func (p *place) held(name string) {
	p.t.Helper()
	p.as("whoever").want(2, "guard", name, "--", "true")
}

// comesFree waits until the lock can be had. Whose guard and command are dead may have it for a moment yet: what the guard was about to
// start beside its command has its files until then.
func (p *place) comesFree(name string) {
	p.t.Helper()
	p.eventually("the lock comes free", func() bool {
		r := p.as("whoever").run("guard", name, "--", "true")
		if r.code != 0 && r.code != 2 {
			p.t.Fatalf("guard %s: %v", name, r)
		}
		return r.code == 0
	})
}

// eventually waits until what is to happen has happened.
func (p *place) eventually(what string, happened func() bool) {
	p.t.Helper()
	if !poll(atMost, happened) {
		p.t.Fatalf("waited %v in vain until: %s", atMost, what)
	}
}

// log is what a running program has written so far.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// holder is a running guard. Its command ends when it is told to, or when its standard input ends.
type holder struct {
	*place
	cmd    *exec.Cmd
	in     *os.File
	out    *bufio.Reader
	stderr log
	child  int           // process ID of the command
	waited chan struct{} // closed when the guard has ended
	heard  chan struct{} // closed when nobody can write to stderr any more
	code   int
}

// loop is a command that tells its process ID and then copies its input.
const loop = `echo $$; exec cat`

// hold starts a guard with the arguments and returns once its command runs.
func (p *place) hold(args ...string) *holder {
	p.t.Helper()
	return p.start(p.lokt(append(append([]string{"guard"}, args...), "--", "sh", "-c", loop)...)).running()
}

// start starts a guard, or something that ends in one.
func (p *place) start(cmd *exec.Cmd) *holder {
	p.t.Helper()
	h := &holder{place: p, cmd: cmd, waited: make(chan struct{}), heard: make(chan struct{})}
	// Pipes of our own: those of os/exec would make Wait wait for a command that outlives its guard.
	inR, in, err := os.Pipe()
	check(p.t, err)
	h.in = in
	if cmd.Stdin == nil {
		cmd.Stdin = inR
	}
	r, w, err := os.Pipe()
	check(p.t, err)
	h.out = bufio.NewReader(r)
	if cmd.Stdout == nil {
		cmd.Stdout = w
	}
	errR, errW, err := os.Pipe()
	check(p.t, err)
	if cmd.Stderr == nil {
		cmd.Stderr = errW
	}
	check(p.t, cmd.Start())
	check(p.t, errors.Join(inR.Close(), w.Close(), errW.Close()))
	go func() {
		defer close(h.heard)
		_, _ = io.Copy(&h.stderr, errR) // until it is closed
	}()
	p.t.Cleanup(func() {
		h.kill(syscall.SIGKILL)
		if h.child != 0 && h.childLives() {
			_ = syscall.Kill(h.child, syscall.SIGKILL)
		}
		<-h.waited
		in.Close()
		r.Close()
		errR.Close()
	})
	go func() {
		defer close(h.waited)
		_ = cmd.Wait() // see code
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			h.code = 128 + int(ws.Signal())
		} else {
			h.code = cmd.ProcessState.ExitCode()
		}
	}()
	return h
}

// running waits until the command has told its process ID.
func (h *holder) running() *holder {
	h.t.Helper()
	pid, err := strconv.Atoi(h.line())
	if err != nil {
		h.t.Fatalf("the command did not start: %v; stderr: %s", err, &h.stderr)
	}
	h.child = pid
	return h
}

// childLives reports whether the command's process ID is still that of its child. It is used again seldom, and later.
func (h *holder) childLives() bool {
	state := stateOf(h.child)
	return state != "" && state != "Z"
}

// line reads a line of the command's output; it is empty at the end.
func (h *holder) line() string {
	h.t.Helper()
	line, err := h.out.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		h.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

// say writes a line to the command.
func (h *holder) say(line string) {
	h.t.Helper()
	_, err := io.WriteString(h.in, line+"\n")
	check(h.t, err)
}

// end lets the command end, and returns how the guard did.
func (h *holder) end() result {
	h.t.Helper()
	check(h.t, h.in.Close())
	return h.wait()
}

// waitNote is what a claim that waits says of it.
var waitNote = regexp.MustCompile(`(?m)^lokt: waiting, .*\n`)

// finish lets the command end and fails the test unless all went well.
func (h *holder) finish() {
	h.t.Helper()
	if r := h.end(); r.code != 0 || waitNote.ReplaceAllString(r.stderr, "") != "" {
		h.t.Fatalf("guard: %v", r)
	}
}

// wait waits for the end of the guard, and of everything that could write to its standard error.
func (h *holder) wait() result {
	h.t.Helper()
	h.died()
	select {
	case <-h.heard:
	case <-time.After(atMost):
		h.t.Fatalf("something of the guard did not end; stderr: %s", &h.stderr)
	}
	return result{h.code, "", h.stderr.String()}
}

// died waits for the end of the guard alone, and returns its exit code.
func (h *holder) died() int {
	h.t.Helper()
	select {
	case <-h.waited:
	case <-time.After(atMost):
		h.t.Fatalf("the guard did not end; stderr: %s", &h.stderr)
	}
	return h.code
}

// kill sends the guard, and nobody else, a signal.
func (h *holder) kill(sig syscall.Signal) { _ = h.cmd.Process.Signal(sig) }

// stop stops the guard, and nobody else, between its turns.
func (h *holder) stop() {
	h.t.Helper()
	check(h.t, programs.Stop(h.cmd.Process.Pid))
}

// tells waits until the guard has said something on standard error that contains the text.
func (h *holder) tells(text string) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("standard error contains %q", text), func() bool { return strings.Contains(h.stderr.String(), text) })
}

// record is what the tests look at in a lock's record.
type record struct {
	Version    int       `json:"version"`
	Name       string    `json:"name"`
	LockID     string    `json:"lock_id"`
	Owner      string    `json:"owner"`
	Host       string    `json:"host"`
	PID        int       `json:"pid"`
	PIDStart   int64     `json:"pid_start_ns"`
	AgentID    string    `json:"agent_id"`
	AcquiredTS time.Time `json:"acquired_ts"`
	TTLSec     int64     `json:"ttl_sec"`
	ExpiresAt  time.Time `json:"expires_at"`
	Kind       string    `json:"kind"`
	HeldSince  time.Time `json:"held_since"`
	Renewals   int       `json:"renewals"`
	Token      uint64    `json:"token"`
	ChildPID   int       `json:"child_pid"`
	BootID     string    `json:"boot_id"`
	Holders    []record  `json:"holders"`
}

func (p *place) path(elem ...string) string {
	return filepath.Join(append([]string{p.root}, elem...)...)
}

// lockPath is where the lock's record is, if the lock is held.
func (p *place) lockPath(name string) string { return p.path("locks", name+".json") }

// record returns the lock's record, which must be there.
func (p *place) record(name string) record {
	p.t.Helper()
	var r record
	check(p.t, json.Unmarshal(p.bytes(name), &r))
	return r
}

// bytes returns the lock's record as it is.
func (p *place) bytes(name string) []byte {
	p.t.Helper()
	data, err := os.ReadFile(p.lockPath(name))
	check(p.t, err)
	return data
}

// current reports whether there is a record of the lock, which may be removed at any moment, and it has not expired.
func (p *place) current(name string) bool {
	var r record
	data, err := os.ReadFile(p.lockPath(name))
	return err == nil && json.Unmarshal(data, &r) == nil && r.ExpiresAt.After(time.Now())
}

// absent reports whether there is no record of the lock.
func (p *place) absent(name string) bool {
	_, err := os.Lstat(p.lockPath(name))
	return errors.Is(err, fs.ErrNotExist)
}

// plant writes a file below the root, as another program would: whole.
func (p *place) plant(path string, data []byte) {
	p.t.Helper()
	full := p.path(path)
	check(p.t, os.MkdirAll(filepath.Dir(full), 0o700))
	temp := filepath.Join(p.dir, "planted")
	check(p.t, os.WriteFile(temp, data, 0o600))
	check(p.t, os.Rename(temp, full))
}

// edit changes fields of the lock's record, as a person would with an editor. A nil value removes a field.
func (p *place) edit(name string, fields map[string]any) {
	p.t.Helper()
	var all map[string]any
	d := json.NewDecoder(bytes.NewReader(p.bytes(name)))
	d.UseNumber()
	check(p.t, d.Decode(&all))
	maps.Copy(all, fields)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	data, err := json.Marshal(all)
	check(p.t, err)
	p.plant(filepath.Join("locks", name+".json"), data)
}

// noted waits until the guard's record names the command's process.
func (h *holder) noted(name string) {
	h.t.Helper()
	h.eventually("the record names the command", func() bool { return !h.absent(name) && h.record(name).ChildPID == h.child })
}

// queued waits until so many claims wait for the lock.
func (p *place) queued(name string, n int) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%d wait for %s", n, name), func() bool { return len(p.queue(name)) == n })
}

// queue returns the owners who wait for the lock, next first.
func (p *place) queue(name string) []string {
	p.t.Helper()
	data, err := os.ReadFile(p.path("queue", name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	check(p.t, err)
	var q struct {
		Waiters []struct {
			Owner string `json:"owner"`
		} `json:"waiters"`
	}
	check(p.t, json.Unmarshal(data, &q))
	var owners []string
	for _, w := range q.Waiters {
		owners = append(owners, w.Owner)
	}
	return owners
}

// entry is a line of the audit log.
type entry struct {
	TS     time.Time      `json:"ts"`
	Event  string         `json:"event"`
	Name   string         `json:"name"`
	LockID string         `json:"lock_id"`
	Owner  string         `json:"owner"`
	PID    int            `json:"pid"`
	Extra  map[string]any `json:"extra"`
}

// audit returns what the audit log says about a lock: all of it, or the given kinds of event.
func (p *place) audit(name string, events ...string) []entry {
	p.t.Helper()
	var found []entry
	for line := range strings.Lines(p.auditLog()) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			p.t.Fatalf("audit log: %v: %s", err, line)
		}
		if e.Name == name && (len(events) == 0 || slices.Contains(events, e.Event)) {
			found = append(found, e)
		}
	}
	return found
}

// auditLog returns the whole audit log.
func (p *place) auditLog() string {
	p.t.Helper()
	data, err := os.ReadFile(p.path("audit.log"))
	if !errors.Is(err, fs.ErrNotExist) {
		check(p.t, err)
	}
	return string(data)
}

// tree returns the files below a directory: their types, and the contents of the regular ones.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		files[path] = d.Type().String()
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			files[path] += " " + string(data)
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			files[path] += " " + target
			return err
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return files
}

// sameTree fails the test if the two trees differ.
func sameTree(t *testing.T, what string, before, after map[string]string) {
	t.Helper()
	for path, had := range before {
		if has, ok := after[path]; !ok {
			t.Errorf("%s: %s is gone", what, path)
		} else if has != had {
			t.Errorf("%s: %s was %q and is %q", what, path, had, has)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("%s: %s appeared", what, path)
		}
	}
}

// gate keeps programs back until it is opened, and then lets them all go at once.
type gate struct {
	t    *testing.T
	r, w *os.File
}

func newGate(t *testing.T) *gate {
	t.Helper()
	r, w, err := os.Pipe()
	check(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	return &gate{t, r, w}
}

// behind makes the command wait at the gate, as a shell that becomes the command.
func (g *gate) behind(p *place, cmd *exec.Cmd) *exec.Cmd {
	args := append([]string{"-c", `read go <&3; exec "$@" 3<&-`, "sh", cmd.Path}, cmd.Args[1:]...)
	late := p.command("sh", args...)
	late.Env = cmd.Env
	late.ExtraFiles = []*os.File{g.r}
	return late
}

func (g *gate) open() {
	g.t.Helper()
	check(g.t, g.w.Close())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// contains fails the test unless the text has all the parts.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("want %q in: %s", part, text)
		}
	}
}

// file returns the contents of a file below the root.
func (p *place) file(path string) []byte {
	p.t.Helper()
	data, err := os.ReadFile(p.path(path))
	check(p.t, err)
	return data
}
