//go:build unix

package scenarios

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/testkit/parallel"
	"github.com/lokt-dev/lokt/jobs/worker"
)

// client is a program that uses one of the clients, in a process of its own.
type client interface {
	// acquire returns the token, or 0 and why not: held, frozen, unavailable, incompatible, forbidden, invalid.
	acquire(name string, ttl, wait time.Duration) (token int, why string)
	said() string  // the last refusal, as people read it
	state() string // held or lost
	release()
	work()
	drain()
	told() []string // of handlers of jobs: which began, and were stopped
	signal(s syscall.Signal)
}

// clients are the programs, by the name of their column: those of this module, or with LOKT_CLIENTS=1 those in other
// languages, whose interpreters and packages must be there then.
func clients(t *testing.T, p paths) map[string]func(t *testing.T, server, token string) client {
	if os.Getenv("LOKT_CLIENTS") == "" {
		return map[string]func(t *testing.T, server, token string) client{
			"go": func(t *testing.T, server, token string) client {
				return startLines(t, []string{"SERVER=" + server, "TOKEN=" + token, "SCENARIO_CLIENT=go"}, os.Args[0])
			},
			"shell": func(t *testing.T, server, token string) client {
				env := []string{"LOKT_SERVER=" + server, "LOKT_SERVER_TOKEN=" + token}
				return &shell{t: t, lokt: p.lokt, env: env, dir: t.TempDir()}
			},
		}
	}
	here, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(filepath.Dir(here))
	python, node := program(t, "python3"), program(t, "node")
	dist := filepath.Join(root, "typescript", "dist", "index.js")
	if _, err := os.Stat(dist); err != nil {
		t.Fatalf("the TypeScript client is not built: %v", err)
	}
	return map[string]func(t *testing.T, server, token string) client{
		"python": func(t *testing.T, server, token string) client {
			env := []string{"SERVER=" + server, "TOKEN=" + token, "PYTHONPATH=" + filepath.Join(root, "python", "src")}
			return startLines(t, env, python, "-W", "ignore", filepath.Join(here, "adapter.py"))
		},
		"typescript": func(t *testing.T, server, token string) client {
			env := []string{"SERVER=" + server, "TOKEN=" + token, "CLIENT=" + dist}
			return startLines(t, env, node, filepath.Join(here, "adapter.mjs"))
		},
	}
}

// program finds a program that a client needs.
func program(t *testing.T, name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// lines is a program that does what lines of JSON ask for, one answer each.
type lines struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	why string // the last refusal
}

func startLines(t *testing.T, env []string, name string, args ...string) *lines {
	t.Helper()
	l := &lines{t: t, cmd: exec.CommandContext(t.Context(), name, args...)}
	l.cmd.Env = append(clean(), env...)
	l.cmd.Stderr = os.Stderr
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.out = bufio.NewScanner(out)
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill() // it may have ended
		_ = l.cmd.Wait()
	})
	return l
}

// answer is what such a program says.
type answer struct {
	Token int      `json:"token"`
	Why   string   `json:"why"`
	Said  string   `json:"said"`
	State string   `json:"state"`
	Told  []string `json:"told"`
}

func (l *lines) do(ask map[string]any) (a answer) {
	l.t.Helper()
	b, err := json.Marshal(ask)
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.in.Write(append(b, '\n')); err != nil {
		l.t.Fatal(err)
	}
	if !l.out.Scan() {
		l.t.Fatalf("%v: no answer to %s: %v", l.cmd.Args, b, l.out.Err())
	}
	if err := json.Unmarshal(l.out.Bytes(), &a); err != nil {
		l.t.Fatalf("%s: %v", l.out.Bytes(), err)
	}
	return a
}

func (l *lines) acquire(name string, ttl, wait time.Duration) (int, string) {
	a := l.do(map[string]any{"do": "acquire", "name": name, "ttl": ttl.Seconds(), "wait": wait.Seconds()})
	l.why = a.Said
	return a.Token, a.Why
}
func (l *lines) said() string            { return l.why }
func (l *lines) state() string           { return l.do(map[string]any{"do": "state"}).State }
func (l *lines) release()                { l.do(map[string]any{"do": "release"}) }
func (l *lines) work()                   { l.do(map[string]any{"do": "work"}) }
func (l *lines) drain()                  { l.do(map[string]any{"do": "drain"}) }
func (l *lines) told() []string          { return l.do(map[string]any{"do": "told"}).Told }
func (l *lines) signal(s syscall.Signal) { _ = l.cmd.Process.Signal(s) }

// shell uses lokt: a hold is a guard whose command waits for a line, a worker is lokt worker.
type shell struct {
	t    *testing.T
	lokt string
	env  []string
	dir  string

	guard  *exec.Cmd
	in     io.WriteCloser
	child  int           // the command of the guard
	ended  chan struct{} // closed when the guard has ended
	worker *exec.Cmd
	why    strings.Builder // what the guard says
}

func (s *shell) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.t.Context(), s.lokt, args...)
	cmd.Env = append(clean(), s.env...)
	cmd.Dir = s.dir
	return cmd
}

func (s *shell) acquire(name string, ttl, wait time.Duration) (int, string) {
	s.t.Helper()
	args := []string{"guard", name, "--ttl", ttl.String()}
	if wait > 0 {
		args = append(args, "--wait", "--timeout", wait.String())
	}
	s.guard = s.command(append(args, "--", "sh", "-c", `echo "$LOKT_TOKEN $$"; read -r line`)...)
	s.why.Reset()
	s.guard.Stderr = &s.why
	in, err := s.guard.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := s.guard.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.guard.Start(); err != nil {
		s.t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n') // none if it was refused
	guard, ended := s.guard, make(chan struct{})
	go func() {
		defer close(ended)
		_ = guard.Wait() // how it ends says its command
	}()
	s.t.Cleanup(func() {
		_ = guard.Process.Kill()
		<-ended
	})
	s.in, s.ended = in, ended
	token := 0
	if _, err := fmt.Sscan(line, &token, &s.child); err == nil {
		return token, ""
	}
	<-ended
	for _, known := range [][2]string{
		{"frozen", "frozen"}, {"who asks is not known", "forbidden"}, {notLoktd, "incompatible"}, {noRoute, "incompatible"},
		{"unavailable", "unavailable"}, {"held", "held"}, {"invalid request", "invalid"},
	} {
		if strings.Contains(s.said(), known[0]) {
			return 0, known[1]
		}
	}
	return 0, s.said()
}

// What the Go client says of a server that is no loktd, or of another version.
const (
	notLoktd = "the answer is not one of loktd's"
	noRoute  = "no such route"
)

func (s *shell) said() string { return strings.TrimSuffix(s.why.String(), "\n") }

func (s *shell) state() string {
	if syscall.Kill(s.child, 0) != nil {
		return "lost" // nobody has sent it a line
	}
	return "held"
}

func (s *shell) release() {
	_ = s.in.Close()
	<-s.ended
}

func (s *shell) work() {
	s.t.Helper()
	script := `
seconds=$(sed -n 's/.*"seconds":\([0-9]*\).*/\1/p')
trap '' TERM # or its end might come first
sleep "${seconds:-0}" &
trap 'echo stopped >> told; kill -KILL $!; exit 1' TERM
echo began >> told
wait $!
echo '::lokt result "done"'`
	s.worker = s.command("worker", "--", "sh", "-c", script)
	if err := s.worker.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = s.worker.Process.Kill()
		_ = s.worker.Wait()
	})
}

func (s *shell) drain() {
	_ = s.worker.Process.Signal(syscall.SIGTERM)
	_ = s.worker.Wait()
}

func (s *shell) told() []string {
	b, _ := os.ReadFile(filepath.Join(s.dir, "told"))
	return strings.Fields(string(b))
}

func (s *shell) signal(sig syscall.Signal) {
	if s.worker != nil {
		_ = s.worker.Process.Signal(sig)
	} else {
		_ = s.guard.Process.Signal(sig)
	}
}

// clean is the environment without what would lead a client elsewhere.
func clean() (env []string) {
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LOKT") && !strings.HasPrefix(e, "SERVER=") && !strings.HasPrefix(e, "TOKEN=") {
			env = append(env, e)
		}
	}
	return env
}

// TestMain is also the program that uses the Go client.
func TestMain(m *testing.M) {
	if os.Getenv("SCENARIO_CLIENT") == "" {
		os.Exit(parallel.Run(m, 8))
	}
	if err := serveLines(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveLines(in io.Reader, out io.Writer) error {
	o := httpapi.ClientOptions{Token: os.Getenv("TOKEN"), Attempt: 10 * time.Second, Patience: 10 * time.Second}
	c, err := httpapi.New(os.Getenv("SERVER"), o)
	scan := bufio.NewScanner(in)
	if err != nil {
		scan.Scan() // who asks must not find the pipe closed
		return json.NewEncoder(out).Encode(answer{Why: why(err), Said: err.Error()})
	}
	locker, err := lokt.NewLocker(c, lokt.Owner{ID: "go-" + strconv.Itoa(os.Getpid())}, lokt.LockerOptions{})
	if err != nil {
		return err
	}
	ctx, drain := context.WithCancel(context.Background())
	defer drain()
	var leases []*lokt.Lease
	var mu sync.Mutex
	told := []string{}
	w, err := worker.NewWorker(c.Jobs(), func(ctx context.Context, r *worker.Run) (any, error) {
		var p struct {
			Seconds int
			Echo    any
		}
		mu.Lock()
		told = append(told, "began")
		mu.Unlock()
		if err := json.Unmarshal(r.Job.Payload, &p); err != nil {
			return nil, err
		}
		select {
		case <-time.After(time.Duration(p.Seconds) * time.Second):
			return p.Echo, nil
		case <-ctx.Done():
			mu.Lock()
			defer mu.Unlock()
			told = append(told, "stopped")
			return nil, context.Cause(ctx)
		}
	}, worker.WorkerOptions{})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	for scan.Scan() {
		var ask struct {
			Do, Name  string
			TTL, Wait float64
		}
		if err := json.Unmarshal(scan.Bytes(), &ask); err != nil {
			return err
		}
		a := answer{}
		switch ask.Do {
		case "acquire":
			l, err := locker.Acquire(context.Background(), ask.Name, lokt.Options{
				TTL: time.Duration(ask.TTL * float64(time.Second)), Wait: time.Duration(ask.Wait * float64(time.Second)), Strict: true,
			})
			if err != nil {
				a.Why, a.Said = why(err), err.Error()
			} else {
				leases, a.Token = append(leases, l), int(l.Token())
			}
		case "state":
			if a.State = leases[len(leases)-1].State().String(); a.State == lokt.InDoubt.String() {
				a.State = "held"
			}
		case "release":
			if err := leases[len(leases)-1].Release(context.Background()); err != nil {
				return err
			}
			leases = leases[:len(leases)-1]
		case "work":
			go func() { done <- w.Run(ctx) }()
		case "drain":
			drain()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
		case "told":
			mu.Lock()
			a.Told = told
			mu.Unlock()
		}
		b, err := json.Marshal(a)
		if err != nil {
			return err
		}
		if _, err := out.Write(append(b, '\n')); err != nil {
			return err
		}
	}
	return scan.Err()
}

func why(err error) string {
	switch {
	case errors.Is(err, lokt.ErrFrozen):
		return "frozen"
	case errors.Is(err, lokt.ErrHeld):
		return "held"
	case strings.Contains(err.Error(), notLoktd), strings.Contains(err.Error(), noRoute):
		return "incompatible"
	case errors.Is(err, lokt.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, lokt.ErrInvalid):
		return "invalid"
	case errors.Is(err, httpapi.ErrForbidden), errors.Is(err, httpapi.ErrUnauthenticated):
		return "forbidden"
	}
	return err.Error()
}
