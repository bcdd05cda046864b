//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt/internal/testkit/ports"
	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// patience is how long a test waits for what should happen soon, on a machine that does much else.
const patience = 2 * time.Minute

// site is a server, and a directory in which its workers' commands are at home.
type site struct {
	t    *testing.T
	bin  string
	dir  string
	addr string
	ttl  time.Duration
	cmd  *exec.Cmd
}

// newSite starts a server whose leases last for the given time.
func newSite(t *testing.T, ttl time.Duration) *site {
	t.Helper()
	bin, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, bin: bin, dir: t.TempDir(), addr: addresses[0], ttl: ttl}
	t.Cleanup(func() { // what killed workers ran may write for a moment yet
		for end := time.Now().Add(patience); os.RemoveAll(s.dir) != nil && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
	})
	s.start()
	return s
}

// start starts the server, again if it was killed.
func (s *site) start() {
	s.t.Helper()
	s.cmd = exec.Command(filepath.Join(s.bin, "loktd"), "serve", "--listen", s.addr, "--store", "sqlite:"+filepath.Join(s.dir, "lokt.db"), "--lease-ttl", s.ttl.String())
	s.cmd.Env = s.environ()
	log := &bytes.Buffer{}
	s.cmd.Stderr = log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	cmd := s.cmd
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, "listening") {
		_, _ = cmd.Process.Kill(), cmd.Wait() // so that its log is whole
		s.t.Fatalf("loktd says %q, %v, %v: %s", line, err, cmd.ProcessState, log)
	}
}

// kill kills the server.
func (s *site) kill() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = s.cmd.Wait() // was killed
}

// environ returns the environment for a program that uses the server, and nothing of the surroundings of the tests.
func (s *site) environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LOKT") {
			env = append(env, kv)
		}
	}
	return append(env, "LOKT_SERVER=http://"+s.addr)
}

// metrics returns what the server counts.
func (s *site) metrics() string {
	s.t.Helper()
	resp, err := http.Get("http://" + s.addr + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// get reads JSON from the server.
func (s *site) get(path string, into any) {
	s.t.Helper()
	resp, err := http.Get("http://" + s.addr + path)
	s.take(resp, err, into)
}

// post sends JSON to the server.
func (s *site) post(path, body string, into any) {
	s.t.Helper()
	resp, err := http.Post("http://"+s.addr+path, "application/json", strings.NewReader(body))
	s.take(resp, err, into)
}

// take reads an answer, which must be good.
func (s *site) take(resp *http.Response, err error, into any) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("the server answered %s %s, %v", resp.Status, text, err)
	}
}

// run runs a command line of lokt to its end.
func (s *site) run(args ...string) (code int, out, errs string) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(s.bin, "lokt"), args...)
	cmd.Env, cmd.Dir = s.environ(), s.dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Error(err) // of whatever goroutine
		return -1, "", ""
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// must runs a command line that succeeds.
func (s *site) must(args ...string) string {
	s.t.Helper()
	code, out, errs := s.run(args...)
	if code != 0 {
		s.t.Fatalf("lokt %s: exit %d: %s%s", strings.Join(args, " "), code, out, errs)
	}
	return strings.TrimSuffix(out, "\n")
}

// submit submits a job and returns its ID.
func (s *site) submit(args ...string) string {
	s.t.Helper()
	return s.must(append([]string{"job", "submit"}, args...)...)
}

// seen is what a job looks like.
type seen struct {
	ID       string         `json:"job_id"`
	State    string         `json:"state"`
	Code     string         `json:"code"`
	Reason   string         `json:"reason"`
	Started  time.Time      `json:"started_at"`
	Attempt  int            `json:"attempt"`
	Progress *float64       `json:"progress"`
	Message  string         `json:"message"`
	Result   jsontext.Value `json:"result"`
	Waiting  string         `json:"waiting_for"`
	Error    jsontext.Value `json:"error"`
	Attempts []struct {
		State, Code string
		WorkerID    string         `json:"worker_id"`
		Error       jsontext.Value `json:"error"`
	} `json:"attempts"`
}

// exitNote is what a worker says about a command that failed.
type exitNote struct {
	Message string `json:"message"`
	Code    int    `json:"exit_code"`
	Stderr  string `json:"stderr"`
}

func (v seen) failure() (f exitNote) {
	_ = json.Unmarshal(v.Error, &f) // nothing else has these
	return f
}

func (s *site) see(id string) seen {
	s.t.Helper()
	var v seen
	if err := json.Unmarshal([]byte(s.must("job", "show", id, "--json")), &v); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// until waits until something is so.
func (s *site) until(what string, so func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// becomes waits until a job is in a state.
func (s *site) becomes(id, state string) seen {
	s.t.Helper()
	var v seen
	s.until("the job is "+state, func() bool {
		v = s.see(id)
		return v.State == state
	})
	return v
}

// script puts an executable script into the directory.
func (s *site) script(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// lines returns the lines of a file; none if it is not there.
func (s *site) lines(name string) []string {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil || len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// hand is a worker that runs.
type hand struct {
	s    *site
	cmd  *exec.Cmd
	log  string // the file that it writes to
	done chan struct{}
}

// worker starts a worker.
func (s *site) worker(args ...string) *hand { return s.workerTo(nil, args...) }

// workerTo starts one whose standard output goes elsewhere than to the log.
func (s *site) workerTo(stdout *os.File, args ...string) *hand {
	s.t.Helper()
	f, err := os.CreateTemp(s.dir, "worker-*.log")
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(filepath.Join(s.bin, "lokt"), append([]string{"worker"}, args...)...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = s.environ(), s.dir, cmp.Or(stdout, f), f
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	h := &hand{s, cmd, filepath.Base(f.Name()), make(chan struct{})}
	go func() {
		defer close(h.done)
		_ = cmd.Wait() // ends as it ends: see ProcessState
	}()
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-h.done
		if s.t.Failed() {
			s.t.Logf("worker: %.5000s", strings.Join(s.lines(h.log), "\n        "))
		}
	})
	return h
}

func (h *hand) signal(sig syscall.Signal) {
	h.s.t.Helper()
	if err := h.cmd.Process.Signal(sig); err != nil {
		h.s.t.Fatal(err)
	}
}

// ends waits for the worker's end and returns its exit code.
func (h *hand) ends() int {
	h.s.t.Helper()
	select {
	case <-h.done:
		return h.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		h.s.t.Fatal("the worker does not end")
		return 0
	}
}

// says waits until the worker has written something.
func (h *hand) says(what string) {
	h.s.t.Helper()
	h.s.until("the worker says "+what, func() bool { return strings.Contains(strings.Join(h.s.lines(h.log), "\n"), what) })
}
