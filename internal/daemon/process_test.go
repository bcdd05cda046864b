//go:build unix

package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/daemon"
	"github.com/lokt-dev/lokt/internal/testkit/parallel"
)

// The daemon under test is this test's own binary, run as loktd: so it is a real process, and one that the race detector
// looks at too.
const envAsDaemon = "LOKT_TEST_AS_DAEMON"

func TestMain(m *testing.M) {
	if os.Getenv(envAsDaemon) != "" {
		faults, err := failOn(os.Getenv(envFaults))
		if err != nil {
			panic(err)
		}
		code := daemon.Main(os.Args[1:], daemon.System())
		runtime.KeepAlive(faults)
		os.Exit(code)
	}
	os.Exit(parallel.Run(m, 4))
}

// patience is how long anything may take on a machine that is busy with other things.
const patience = 5 * time.Minute

// proc is a daemon.
type proc struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	log  *buffer // standard error
	done chan struct{}
	code int // to be read after done
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// unlessRaced skips a test of memory under the race detector, which takes some of its own.
func unlessRaced(t *testing.T) {
	t.Helper()
	if info, _ := debug.ReadBuildInfo(); slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector takes memory of its own")
	}
}

// command returns the daemon, not started, with nothing in its environment that would set it up.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = []string{envAsDaemon + "=1", "HOME=" + t.TempDir()}
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "PATH=") || strings.HasPrefix(e, "TMPDIR=") || strings.HasPrefix(e, "GO") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// run runs a command to its end.
func run(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := command(t, env, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Start()
	if err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// start starts a daemon on a free port and waits until it is ready.
func start(t *testing.T, args ...string) *proc {
	t.Helper()
	return startWith(t, nil, args...)
}

func startWith(t *testing.T, env []string, args ...string) *proc {
	t.Helper()
	return launch(t, command(t, env, append([]string{"--listen", "127.0.0.1:0"}, args...)...), nil)
}

// launch starts a daemon and waits for its ready line. Its log is kept, or written to a file.
func launch(t *testing.T, cmd *exec.Cmd, log *os.File) *proc {
	t.Helper()
	p := &proc{t: t, cmd: cmd, log: &buffer{}, done: make(chan struct{})}
	if cmd.Stderr = p.log; log != nil {
		cmd.Stderr = log
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		<-p.done
	})
	ready := make(chan string, 1)
	go func() {
		defer close(p.done)
		lines := bufio.NewReader(out)
		line, _ := lines.ReadString('\n')
		ready <- line
		_, _ = io.Copy(io.Discard, lines)
		_ = cmd.Wait()
		p.code = cmd.ProcessState.ExitCode()
	}()
	select {
	case line := <-ready:
		_, url, found := strings.Cut(strings.TrimSpace(line), " listening on ")
		if !found || !strings.HasPrefix(line, "loktd ") {
			<-p.done
			t.Fatalf("the first line is %q, the exit code %d, the log:\n%s", line, p.code, p.log)
		}
		p.url = url
	case <-time.After(patience):
		t.Fatalf("not ready in time; the log:\n%s", p.log)
	}
	return p
}

// signal sends a signal.
func (p *proc) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits for the end and returns the exit code.
func (p *proc) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("has not ended in time; the log:\n%s", p.log)
	}
	return p.code
}

// kill ends the daemon as the kernel would.
func (p *proc) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.wait()
}

// stop ends the daemon in order.
func (p *proc) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		p.t.Errorf("exit code %d; the log:\n%s", code, p.log)
	}
}

// address is where the daemon listens.
func (p *proc) address() string {
	_, address, _ := strings.Cut(p.url, "://")
	return address
}

// dial opens a connection of which nobody else knows.
func (p *proc) dial() net.Conn {
	p.t.Helper()
	c, err := net.DialTimeout("tcp", p.address(), patience)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	return c
}

// eventually waits until ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to pass that %s", what)
		}
	}
}

// api talks to a daemon in the words of the wire.
type api struct {
	url    string
	token  string
	client *http.Client
}

func (p *proc) api() *api {
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	p.t.Cleanup(transport.CloseIdleConnections)
	return &api{url: p.url, client: &http.Client{Transport: transport, Timeout: patience}}
}

// answer is a decoded answer.
type answer struct {
	status int
	header http.Header
	body   string
	json   map[string]any
}

// try makes a request; body may be nil.
func (a *api) try(method, path string, body any) (answer, error) {
	var reader io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		reader = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(context.Background(), method, a.url+path, reader)
	if err != nil {
		return answer{}, err
	}
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	ans := answer{status: resp.StatusCode, header: resp.Header, body: string(text)}
	_ = json.Unmarshal(text, &ans.json) // not every answer is an object
	return ans, nil
}

// do makes a request that must be answered with the status.
func (a *api) do(t *testing.T, status int, method, path string, body any) answer {
	t.Helper()
	ans, err := a.try(method, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if ans.status != status {
		t.Fatalf("%s %s was answered with %d %s, not %d", method, path, ans.status, ans.body, status)
	}
	return ans
}

// text returns a member of an answer, by a path of member names.
func (a answer) text(path ...string) string {
	var v any = a.json
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	if v == nil {
		return ""
	}
	if f, ok := v.(float64); ok {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprint(v)
}

// number returns a member that is a number, and 0 if there is none.
func (a answer) number(path ...string) uint64 {
	n, _ := strconv.ParseUint(a.text(path...), 10, 64)
	return n
}

// Paths of the API.
const (
	scheduler = "/api/system/scheduler"
	locks     = "/v1/locks/"
)

type body = map[string]any

// publicID is what others see of a lease ID.
func publicID(leaseID string) string { return lokt.PublicID(leaseID) }
