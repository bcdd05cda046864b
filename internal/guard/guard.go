// Package guard runs a command while locks are held: it passes signals on, reports what becomes of the locks, stops the
// command for a lost lock if it is told to, and ends as the command did.
package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt"
)

// Exit codes of a command that never ran, as shells have them, and of one that was stopped for a lost lock.
const (
	ExitLost          = 5
	ExitNotExecutable = 126
	ExitNotFound      = 127
	exitSignal        = 128 // plus the signal's number
)

// Command is what to run, and how.
type Command struct {
	Path      string   // of the program, as Find returns it
	Args      []string // program, as it was called, and arguments
	Env       []string // of the command, all of it
	Inherit   *os.File // a further descriptor for the command to inherit; may be nil
	Stdin     *os.File // of the command; this process's if it is nil
	StopGrace time.Duration

	// Stop says to end the command when a lock is lost, or about to be: it gets SIGTERM, and SIGKILL before anybody else
	// can enter.
	Stop bool

	// Bound says that the command, though not what it starts in its turn, is killed if this process dies without waiting
	// for it. That is so on Linux only.
	Bound bool

	// Leash, if set, bounds the command's life as a lease does with Stop, but for Ending and Lost, which are not called for
	// it.
	Leash Leash

	// Started, if set, is called with the command's process ID once it runs.
	Started func(pid int)

	// Ending, if set, is called when the command is asked to end because a lease is about to be lost.
	Ending func(l *lokt.Lease)

	// Lost is called for each lease that is lost while the command runs; it may return another lease in its stead, which
	// is then watched too.
	Lost func(l *lokt.Lease, err error) *lokt.Lease
}

// Leash says for how long a command may run.
type Leash interface {
	// Done is closed when the command is to end at once: then it has StopGrace, if that much time is left.
	Done() <-chan struct{}

	// Remaining returns how much time is left. It may rise.
	Remaining() time.Duration
}

// NotFoundError says why a program cannot be run.
type NotFoundError struct {
	Program string
	Err     error
	Code    int // ExitNotFound or ExitNotExecutable
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("%s: %v", e.Program, e.Err) }
func (e *NotFoundError) Unwrap() error { return e.Err }

// Find returns the program's path, or a *NotFoundError.
func Find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err == nil || errors.Is(err, exec.ErrDot) {
		return path, nil // as a shell does: who has "." in PATH wants it
	}
	return "", notFound(program, err)
}

func notFound(program string, err error) error {
	e := &NotFoundError{Program: program, Err: err, Code: ExitNotExecutable}
	var inner *exec.Error
	if errors.As(err, &inner) {
		e.Err = inner.Err
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		e.Err = path.Err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOTDIR) {
		e.Code = ExitNotFound
	}
	return e
}

// Signals receives what is to be passed on to a command. Notify before the first lock is taken, so that no signal ends
// the program while it holds one.
type Signals struct {
	c     chan os.Signal
	ready chan struct{}
	tty   terminal
}

// Notify starts to receive the signals that a command should get: INT, TERM, HUP and QUIT, but none that this process was
// started to ignore. It takes effect when Ready returns, which lets other work go on meanwhile.
func Notify() *Signals {
	s := &Signals{c: make(chan os.Signal, 128), ready: make(chan struct{})}
	go func() {
		defer close(s.ready)
		s.tty = openTerminal()
		signal.Notify(s.c, slices.DeleteFunc(slices.Clone(passedOn), signal.Ignored)...)
		noteSenders()
	}()
	return s
}

// Ready waits until signals are received. One that came before has had its usual effect.
func (s *Signals) Ready() { <-s.ready }

// Stop gives the signals their usual effect again.
func (s *Signals) Stop() {
	s.Ready()
	signal.Stop(s.c)
	s.tty.close()
}

// Context returns a context that the first signal ends, with a *SignalError as its cause. It lasts until then: the returned
// function only makes the signals go to a command again.
func (s *Signals) Context(parent context.Context) (ctx context.Context, stop func()) {
	s.Ready()
	ctx, cancel := context.WithCancelCause(parent)
	enough, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case sig := <-s.c:
			cancel(&SignalError{sig.(syscall.Signal)})
		case <-enough:
		}
	}()
	return ctx, sync.OnceFunc(func() { close(enough); <-done })
}

// SignalError says that a signal ended something.
type SignalError struct{ Signal syscall.Signal }

func (e *SignalError) Error() string { return "got signal: " + e.Signal.String() }

// Code returns the exit code that shells have for a program that the signal ended.
func (e *SignalError) Code() int { return exitSignal + int(e.Signal) }

// Run runs the command under the leases and returns its exit code. The error is a *NotFoundError if the command could not
// be started. Leases are left for the caller to release, once Run has returned.
func Run(c Command, leases lokt.Leases, signals *Signals) (code int, err error) {
	signals.Ready()
	select {
	case sig := <-signals.c: // it came while the last lock was taken
		return (&SignalError{sig.(syscall.Signal)}).Code(), nil
	default:
	}
	if c.Bound { // a command is told of the death of the thread that started it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	tree := newTree(c.Stop || c.Leash != nil)
	p, err := start(c)
	if err != nil {
		return 0, notFound(c.Args[0], err)
	}
	if c.Started != nil {
		c.Started(p.pid)
	}
	w := watch(c, leases)
	relay := &relay{p: p, tree: tree, signals: signals, steps: w.steps, ended: make(chan struct{}), done: make(chan struct{})}
	go relay.run()
	code = p.wait() // here, and not in a goroutine: the end of the command is what everybody waits for
	w.stop()
	if relay.end() {
		tree.killRest()
		code = ExitLost
	}
	w.done.Wait() // whoever deals with a loss has said so
	return code, nil
}

// relay passes on to the command what comes for it while it runs.
type relay struct {
	p       *child
	tree    tree
	signals *Signals
	steps   chan syscall.Signal
	ended   chan struct{}
	done    chan struct{}
	stopped bool // the command was told to end for a lost lock; to be read when done is closed
}

// reapPause is how long what has lost its parent stays a zombie after its end, at most: to find such processes is to look at all there
// are.
const reapPause = time.Second

func (r *relay) run() {
	defer close(r.done)
	deaths, enough := r.tree.deaths()
	defer enough()
	var reap <-chan time.Time
	for {
		select {
		case <-deaths:
			if reap == nil {
				reap = time.After(reapPause)
			}
		case <-reap:
			reap = nil
			r.tree.reap(r.p)
		case sig := <-r.signals.c:
			if !r.signals.tty.delivered(sig) {
				r.p.signal(sig.(syscall.Signal))
			}
		case step := <-r.steps:
			r.stopped = true
			r.tree.signal(r.p, step)
		case <-r.ended:
			return
		}
	}
}

// end stops passing things on and reports whether the command was told to end for a lost lock. When it returns, nothing is
// under way that could kill what is started next.
func (r *relay) end() bool {
	close(r.ended)
	<-r.done
	return r.stopped
}

// watcher follows the leases while the command runs.
type watcher struct {
	c     Command
	steps chan syscall.Signal
	ctx   context.Context
	stop  context.CancelFunc
	done  sync.WaitGroup
}

func watch(c Command, leases lokt.Leases) *watcher {
	w := &watcher{c: c, steps: make(chan syscall.Signal, 4*len(leases)+4)} // as many as there can be
	w.ctx, w.stop = context.WithCancel(context.Background())
	for _, l := range leases {
		if l.Holder().TTL > 0 || l.Holder().MaxHold > 0 || c.Stop { // others are lost only if somebody ends them
			w.done.Go(func() { w.follow(l) })
		}
	}
	if c.Leash != nil {
		w.done.Go(w.heel)
	}
	return w
}

// heel ends the command in time for the leash: it is asked to end when no more than the grace is left, or at once if it is
// to, and killed when there is still some left.
func (w *watcher) heel() {
	reserve := w.c.StopGrace / killReserve
	tick := time.NewTimer(0)
	defer tick.Stop()
	for asked := false; !asked; {
		tick.Reset(max(look, min(w.c.Leash.Remaining()-w.c.StopGrace, time.Second)))
		select {
		case <-w.c.Leash.Done():
			asked = true
		case <-w.ctx.Done():
			return
		case <-tick.C:
			asked = w.c.Leash.Remaining() <= w.c.StopGrace
		}
	}
	w.steps <- syscall.SIGTERM
	for end := time.Now().Add(w.c.StopGrace); ; {
		left := min(time.Until(end), w.c.Leash.Remaining()-reserve)
		if left <= 0 {
			break
		}
		tick.Reset(min(left, time.Second))
		select {
		case <-w.ctx.Done():
			return
		case <-tick.C:
		}
	}
	w.steps <- syscall.SIGKILL
}

// look is the shortest pause between two looks at a lease that may have to be given up.
const look = 10 * time.Millisecond

// follow waits for the loss of the lease, and for its replacement's.
func (w *watcher) follow(l *lokt.Lease) {
	for l != nil && w.until(l) {
		if w.c.Stop {
			w.end(l)
			return
		}
		l = w.c.Lost(l, l.Err())
	}
}

// killReserve is the part of the grace that is kept back: the command is killed that long before the lease ends, so that
// it is gone by then even if the machine is busy.
const killReserve = 4

// until waits for the loss of the lease and reports whether it came. If the command is to be stopped for it, it is asked
// to end while there is still time, and killed while there is still some.
func (w *watcher) until(l *lokt.Lease) bool {
	ladder := []struct {
		left time.Duration // of the lease
		step syscall.Signal
	}{{w.c.StopGrace, syscall.SIGTERM}, {w.c.StopGrace / killReserve, syscall.SIGKILL}}
	if !w.c.Stop {
		ladder = nil
	}
	tick := time.NewTimer(time.Minute)
	defer tick.Stop()
	for {
		pause := time.Minute
		if len(ladder) > 0 {
			pause = max(look, min(l.Remaining()-ladder[0].left, pause))
		}
		tick.Reset(pause)
		select {
		case <-l.Context().Done():
			return errors.Is(l.Err(), lokt.ErrLost)
		case <-w.ctx.Done():
			return false
		case <-tick.C:
			if len(ladder) > 0 && l.Remaining() <= ladder[0].left {
				w.steps <- ladder[0].step
				if ladder = ladder[1:]; len(ladder) == 1 && w.c.Ending != nil {
					w.done.Go(func() { w.c.Ending(l) }) // which may be slow
				}
			}
		}
	}
}

// end ends the command for a lease that is lost, and then tells of it: whoever is told may be slow. If the loss came
// without warning, the command gets its grace all the same, but somebody else may be in already.
func (w *watcher) end(l *lokt.Lease) {
	var gone *lokt.GoneError
	if !errors.As(l.Err(), &gone) {
		w.steps <- syscall.SIGKILL
		w.c.Lost(l, l.Err())
		return
	}
	t := time.NewTimer(w.c.StopGrace)
	defer t.Stop()
	w.steps <- syscall.SIGTERM
	told := make(chan struct{})
	go func() {
		defer close(told)
		w.c.Lost(l, l.Err())
	}()
	select {
	case <-t.C:
		w.steps <- syscall.SIGKILL
	case <-w.ctx.Done():
	}
	<-told
}
