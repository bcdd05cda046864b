// Package guard runs a command while locks are held: it passes signals on, reports what becomes of the locks, stops the
// command for a lost lock if it is told to, and ends as the command did.
package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
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

	// Ending is called when the command is asked to end, for Stop, because a lease is about to be lost.
	Ending func(l *lokt.Lease)

	// Lost is called for each lease that is lost while the command runs; it may return another lease in its stead, which
	// is then watched too.
	Lost func(l *lokt.Lease, err error) *lokt.Lease

	// Refused, if set, is called when the command cannot be sent a signal, because it has become another user's.
	Refused func(err error)
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
	if inner, ok := errors.AsType[*exec.Error](err); ok {
		e.Err = inner.Err
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
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
		if !signal.Ignored(syscall.SIGPIPE) { // or who warns where nobody reads dies beside the command; to ignore it would be inherited
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		}
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
// be started. Leases are left for the caller to release, once Run has returned. A command whose lease or leash has ended before it could
// begin, because this process stood still, does not begin.
func Run(c Command, leases lokt.Leases, signals *Signals) (code int, err error) {
	signals.Ready()
	select {
	case sig := <-signals.c: // it came while the last lock was taken
		return (&SignalError{sig.(syscall.Signal)}).Code(), nil
	default:
	}
	if errors.Is(leases.Err(), lokt.ErrLost) || c.Leash != nil && c.Leash.Remaining() <= 0 {
		return ExitLost, nil
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
	w := &watcher{c: c, p: p, tree: tree, signals: signals, steps: make(chan syscall.Signal, 2*len(leases)+2)} // as many as there can be
	w.watch(leases)
	code = p.wait() // here, and not in a goroutine: the end of the command is what everybody waits for
	w.stop()
	if <-w.relayed; w.stopped { // nothing is under way any more that could kill what is started next
		tree.killRest()
		code = ExitLost
	}
	w.done.Wait() // whoever deals with a loss has said so
	return code, nil
}

// watcher passes on to the command what comes for it while it runs, and follows the leases.
type watcher struct {
	c       Command
	p       *child
	tree    tree
	signals *Signals
	steps   chan syscall.Signal // to end the command for a lost lock
	ctx     context.Context     // ends with the command
	stop    context.CancelFunc
	done    sync.WaitGroup
	relayed chan struct{}
	stopped bool // the command was told to end for a lost lock; to be read when relayed is closed
}

// reapPause is how long what has lost its parent stays a zombie after its end, at most: to find such processes is to
// look at all there are.
const reapPause = time.Second

// witnessAfter is how long a command runs before it is worth a witness, which takes longer to start than many commands
// run.
const witnessAfter = 20 * time.Millisecond

func (w *watcher) relay() {
	defer close(w.relayed)
	deaths, enough := w.tree.deaths()
	defer enough()
	var reap <-chan time.Time
	var beside witness
	defer beside.end()
	worth := time.After(witnessAfter)
	for {
		select {
		case <-worth:
			beside.begin()
		case <-deaths:
			if reap == nil {
				reap = time.After(reapPause)
			}
		case <-reap:
			reap = nil
			w.tree.reap(w.p, &beside)
		case sig := <-w.signals.c:
			toAll := w.signals.tty.delivered(sig)
			if toAll {
				beside.begin() // again: it has got it, too
			} else {
				toAll = beside.saw(sig)
			}
			if !toAll || w.p.elsewhere() {
				w.send(sig.(syscall.Signal), w.p.signal)
			}
		case step := <-w.steps:
			w.stopped = true
			w.send(step, func(sig syscall.Signal) error { return w.tree.signal(w.p, sig) })
		case <-w.ctx.Done():
			return
		}
	}
}

// send sends a signal, and tells if that is refused.
func (w *watcher) send(sig syscall.Signal, send func(syscall.Signal) error) {
	if err := send(sig); errors.Is(err, syscall.EPERM) && w.c.Refused != nil {
		w.c.Refused(fmt.Errorf("the command, process %d, gets no %q: it is another user's by now, who has to end it", w.p.pid, sig))
	}
}

func (w *watcher) watch(leases lokt.Leases) {
	c := w.c
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.relayed = make(chan struct{})
	go w.relay()
	for _, l := range leases {
		w.done.Go(func() { w.follow(l) })
		if c.Stop {
			w.done.Go(func() { w.heel(lease{l}, func() { c.Ending(l) }) })
		}
	}
	if c.Leash != nil {
		w.done.Go(func() { w.heel(c.Leash, func() {}) })
	}
}

// follow tells of the loss of the lease, and of its replacement's.
func (w *watcher) follow(l *lokt.Lease) {
	for l != nil {
		select {
		case <-l.Context().Done():
		case <-w.ctx.Done():
			if !w.c.Stop { // for whose sake the command may have ended
				return
			}
		}
		if !errors.Is(l.Err(), lokt.ErrLost) {
			return
		}
		l = w.c.Lost(l, l.Err())
	}
}

// lease is a lease as a leash.
type lease struct{ l *lokt.Lease }

func (l lease) Done() <-chan struct{} { return l.l.Context().Done() }

// Remaining returns how long the lease lasts. One that somebody ended, so that somebody else may be in already, leaves the
// command its grace all the same.
func (l lease) Remaining() time.Duration {
	if _, ok := errors.AsType[*lokt.GoneError](l.l.Err()); ok {
		return math.MaxInt64
	}
	return l.l.Remaining()
}

const (
	// look is the shortest pause between two looks at a leash.
	look = 10 * time.Millisecond

	// killReserve is the part of the grace that is kept back: the command is killed that long before the leash ends, so that
	// it is gone by then even if the machine is busy.
	killReserve = 4
)

// heel ends the command in time for a leash. It is asked to end, as ending is told of, when no more than the grace is left,
// or when the leash says so, and killed when there is still some left.
func (w *watcher) heel(l Leash, ending func()) {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for asked := false; !asked; {
		tick.Reset(max(look, min(l.Remaining()-w.c.StopGrace, time.Second)))
		select {
		case <-l.Done():
			asked = true
		case <-w.ctx.Done():
			return
		case <-tick.C:
			if asked = l.Remaining() <= w.c.StopGrace; asked {
				w.done.Go(ending) // which may be slow
			}
		}
	}
	w.steps <- syscall.SIGTERM
	end := time.Now().Add(w.c.StopGrace)
	left := func() time.Duration { return min(time.Until(end), l.Remaining()-w.c.StopGrace/killReserve) }
	for left() > 0 {
		tick.Reset(min(left(), time.Second))
		select {
		case <-w.ctx.Done():
			return
		case <-tick.C:
		}
	}
	w.steps <- syscall.SIGKILL
}
