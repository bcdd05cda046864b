//go:build unix

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/internal/testkit/parallel"
	"github.com/lokt-dev/lokt/internal/testkit/programs"
	"github.com/lokt-dev/lokt/store/filestore"
)

// An actor is a process that does with locks what it is told on standard input, one command a line, and answers each on
// standard output with a line: when it began and when it was done, on the clock that all processes of the host share, and
// what came of it.

const (
	envActor    = "LOKT_E2E_ACTOR" // the directory of the locks
	envTTL      = "LOKT_E2E_TTL"
	envInterval = "LOKT_E2E_INTERVAL"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(envActor); root != "" {
		if err := act(root); err != nil {
			fmt.Println("0 0 error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := parallel.Default(10); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func act(root string) error {
	ttl, err1 := time.ParseDuration(os.Getenv(envTTL))
	interval, err2 := time.ParseDuration(os.Getenv(envInterval))
	s, err3 := filestore.Open(root, filestore.Options{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	self, err := s.Self()
	if err != nil {
		return err
	}
	k, err := lokt.NewLocker(lokt.NewManager(s), lokt.Owner{Host: s.Host(), Process: self}, lokt.LockerOptions{
		Defaults: lokt.Options{TTL: ttl, Interval: interval},
	})
	if err != nil {
		return err
	}
	a := &actor{k: k, leases: map[string][]*lokt.Lease{}}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		begun, _ := process.Monotonic()
		answer := a.do(strings.Fields(in.Text()))
		done, _ := process.Monotonic()
		fmt.Println(int64(begun), int64(done), answer)
	}
	return in.Err()
}

type actor struct {
	k      *lokt.Locker
	leases map[string][]*lokt.Lease
}

func (a *actor) do(words []string) string {
	ctx := context.Background()
	verb, name := words[0], ""
	if len(words) > 1 {
		name = words[1]
	}
	switch verb {
	case "runner":
		return "ok " + a.k.Owner().ID
	case "try", "wait", "manual":
		o := lokt.Options{ManualHeartbeat: verb == "manual"}
		if verb == "wait" {
			o.Wait = time.Minute
		}
		l, err := a.k.Acquire(ctx, name, o)
		if err != nil {
			return failure(err)
		}
		a.leases[name] = append(a.leases[name], l)
		return fmt.Sprintf("ok %d", l.Token())
	case "all": // all TIMES NAME...: take and give back all of them, so many times
		var times int
		if _, err := fmt.Sscan(name, &times); err != nil {
			return failure(err)
		}
		for range times {
			ls, err := a.k.AcquireAll(ctx, words[2:], lokt.Options{Wait: time.Minute})
			if err != nil {
				return failure(err)
			}
			if err := ls.Release(ctx); err != nil {
				return failure(err)
			}
		}
		return "ok"
	case "spin": // compute without pause
		begun := time.Now()
		n := 0
		d, err := time.ParseDuration(name)
		if err != nil {
			return failure(err)
		}
		for time.Since(begun) < d {
			n++
		}
		return "ok"
	}
	held := a.leases[name]
	if len(held) == 0 {
		return "none"
	}
	l := held[len(held)-1]
	switch verb {
	case "release":
		a.leases[name] = held[:len(held)-1]
		if err := l.Release(ctx); err != nil {
			return failure(err)
		}
		return "ok " + l.State().String()
	case "renew":
		if err := l.Renew(ctx); err != nil {
			return failure(err)
		}
		return "ok"
	case "state":
		beating := "silent"
		if l.Beating() {
			beating = "beating"
		}
		context := "live"
		if l.Context().Err() != nil {
			context = "ended"
		}
		return "ok " + strings.ReplaceAll(l.State().String(), " ", "-") + " " + context + " " + beating
	}
	return "error unknown command " + verb
}

func failure(err error) string {
	switch {
	case errors.Is(err, lokt.ErrHeld):
		return "held"
	case errors.Is(err, lokt.ErrLost):
		return "lost"
	}
	return "error " + err.Error()
}

// proc is an actor as the test sees it.
type proc struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	ended chan struct{}
	once  sync.Once
}

// reply is an actor's answer.
type reply struct {
	begun, done time.Duration
	what        string
	rest        []string
}

func start(t *testing.T, root string, ttl, interval time.Duration) *proc {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &proc{t: t, cmd: exec.Command(self), lines: make(chan string, 16), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), envActor+"="+root, envTTL+"="+ttl.String(), envInterval+"="+interval.String())
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// tell sends a command without waiting for the answer.
func (p *proc) tell(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatalf("tell actor: %v", err)
	}
}

// hear waits for an answer.
func (p *proc) hear() reply {
	p.t.Helper()
	var r reply
	select {
	case line, ok := <-p.lines:
		f := strings.Fields(line)
		if !ok || len(f) < 3 {
			p.t.Fatalf("actor ended, or said %q", line)
		}
		if _, err := fmt.Sscan(f[0]+" "+f[1], (*int64)(&r.begun), (*int64)(&r.done)); err != nil {
			p.t.Fatalf("actor said %q: %v", line, err)
		}
		r.what, r.rest = f[2], f[3:]
	case <-time.After(5 * time.Minute):
		p.t.Fatal("actor does not answer")
	}
	if r.what == "error" {
		p.t.Fatalf("actor: %v", r.rest)
	}
	return r
}

func (p *proc) ask(format string, args ...any) reply {
	p.t.Helper()
	p.tell(format, args...)
	return p.hear()
}

func (p *proc) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// stop stops the actor between its turns.
func (p *proc) stop() {
	p.t.Helper()
	if err := programs.Stop(p.cmd.Process.Pid); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the actor as a crash does.
func (p *proc) kill() {
	p.once.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
}
