package job

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/worker"
)

// jobCommand is a command that does a job.
type jobCommand struct {
	*workerRun
	run    *worker.Run
	result jsontext.Value
	long   bool // a report was longer than any may be
	skip   bool // until its end

	stopped bool        // it was told to end
	late    *time.Timer // kills the process that runs it, if that has not ended by then
	tail    tail
}

// outputPatience is how long what a command started, and left behind, is listened to after its end.
const outputPatience = 2 * time.Second

// execute runs the command to its end. The error is a *commandError unless the command could not be run.
func (c *jobCommand) execute(ctx context.Context) error {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.self, // which ends when it is told to, and has ended the command
		append([]string{cmdRunJob, "--"}, c.o.command...)...)
	cmd.Env = c.environment(c.run)
	over, finish := context.WithCancel(ctx)
	defer finish()
	c.workerRun = c.until(over.Done())
	apart(cmd)
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	ended, err := c.listen(cmd)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		ended()
		return err
	}
	var done sync.WaitGroup
	done.Go(func() { c.order(ctx, over, pipe, cmd.Process) })
	err = cmd.Wait()
	finish()         // what nobody reads waits no more
	_ = pipe.Close() // and so ends a write that nobody reads
	done.Wait()
	if c.late != nil {
		c.late.Stop() // its process ID may be another's from now on
	}
	ended()
	if code := cmd.ProcessState.ExitCode(); code < 0 { // the process that runs the command was killed, and cannot end it
		killGroup(cmd.Process.Pid)
		return &commandError{Message: "the process that runs the command was killed", Code: app.ExitError, Stderr: c.tail.String()}
	} else if code > 0 {
		return &commandError{Message: exitText(code), Code: code, Stderr: c.tail.String()}
	}
	switch {
	case err != nil:
		return err
	case c.long:
		return &commandError{Message: fmt.Sprintf("a line that begins with %q has more than %d bytes", reportPrefix, maxLine), Stderr: c.tail.String()}
	}
	return nil
}

// listen passes on what the command prints. What it returns is called when the command has ended, and returns when all is passed on
// that it has printed.
func (c *jobCommand) listen(cmd *exec.Cmd) (ended func(), err error) {
	var done sync.WaitGroup
	var ours, theirs []*os.File
	ended = func() {
		for i, r := range ours {
			_ = theirs[i].Close()
			if r.SetReadDeadline(time.Now().Add(outputPatience)) != nil { // this system has none for pipes
				time.AfterFunc(outputPatience, func() { _ = r.Close() })
			}
		}
		done.Wait()
	}
	for _, line := range []func([]byte){c.outLine, c.errLine} {
		r, w, err := os.Pipe()
		if err != nil {
			return ended, err
		}
		ours, theirs = append(ours, r), append(theirs, w)
		done.Go(func() { passOn(r, &lineWriter{line: line}) })
	}
	cmd.Stdout, cmd.Stderr = theirs[0], theirs[1]
	return ended, nil
}

// mostPiped is more than a pipe holds.
const mostPiped = 1 << 20

// passOn passes on what arrives until the deadline, and then what has arrived, as it may have while this process stood still.
func passOn(r *os.File, to *lineWriter) {
	defer r.Close()
	defer to.end()
	buf := make([]byte, 32<<10)
	for late := 0; late < mostPiped; {
		n, err := r.Read(buf)
		_, _ = to.Write(buf[:n]) // there is no error
		switch first := late == 0; {
		case first && errors.Is(err, os.ErrDeadlineExceeded):
			late = 1
		case err != nil:
			return
		case !first:
			late += n
		}
		if late > 0 {
			_ = r.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // it can be set
		}
	}
}

// exitText says in words how a command ended.
func exitText(code int) string {
	switch {
	case code > 128 && code < 128+65:
		return fmt.Sprintf("the command was ended by signal %d", code-128)
	case code == 126 || code == 127:
		return fmt.Sprintf("the command could not be run (exit status %d)", code)
	}
	return fmt.Sprintf("exit status %d", code)
}

// order tells the process that runs the command what to do, until it has ended (over) or must (ctx).
func (c *jobCommand) order(ctx, over context.Context, pipe io.Writer, runner *os.Process) {
	to := json.NewEncoder(pipe)
	first := news(c.run.Remaining())
	first.Payload, first.Grace = c.run.Job.Payload, c.grace().Milliseconds()
	if to.Encode(first) != nil {
		return // it has ended
	}
	tick := time.NewTicker(max(min(time.Second, c.life()/20), 10*time.Millisecond))
	defer tick.Stop()
	for told, heard := c.run.Until(), true; heard; {
		select {
		case <-over.Done(): // also if ctx is
			if c.stopped = ctx.Err() != nil && to.Encode(orders{}) == nil; c.stopped { // if that process is stopped itself, it ends nothing
				c.late = time.AfterFunc(c.latest(context.Cause(ctx)), func() { kill(runner) })
			}
			return
		case <-tick.C:
			if until := c.run.Until(); until != told {
				told, heard = until, to.Encode(news(c.run.Remaining())) == nil
			}
		}
	}
}

// kill kills the process that runs the command, and before that what it has started: what has detached itself from that is not
// found any more when the process is gone.
func kill(runner *os.Process) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	process.KillDescendants(ctx, runner.Pid)
	_ = runner.Kill()
}

// latest is how long the process that runs the command has, from when it is told to end it for that cause.
func (c *jobCommand) latest(cause error) time.Duration {
	most := c.grace() + time.Second
	if errors.Is(cause, jobs.ErrLeaseNotFound) || errors.Is(cause, jobs.ErrWorkerMismatch) { // it is over already
		return most
	}
	return max(0, min(most, c.run.Remaining()))
}

// life is how long a lease lasts.
func (c *jobCommand) life() time.Duration { return cmp.Or(c.run.Lease.TTL, time.Minute) }

// grace is how long the command has to end by itself: at most a tenth of the job's maximum runtime.
func (c *jobCommand) grace() time.Duration {
	d := min(c.life()/4, defaultStopGrace)
	if c.o.grace > 0 {
		d = min(c.o.grace, c.life()/2)
	}
	if most := c.run.Job.MaxRuntime; most > 0 {
		d = min(d, most/10)
	}
	return d
}

// reportPrefix begins the lines on standard output that are for the server.
const reportPrefix = "::lokt "

// outLine takes in a line of the command's standard output, or a piece of one that is too long.
func (c *jobCommand) outLine(line []byte) {
	whole := line[len(line)-1] == '\n'
	if c.skip {
		c.skip = !whole
		return
	}
	if report, ok := bytes.CutPrefix(line, []byte(reportPrefix)); ok {
		if !whole {
			c.long, c.skip = true, true
			return
		}
		if err := c.report(strings.TrimSpace(string(report))); err != nil {
			c.log("warning: job %s (%s): %q: %v", c.run.Job.ID, c.run.Job.Type, strings.TrimSpace(string(line)), err)
		}
		return
	}
	to := c.Out
	if c.JSON { // which is for notices then
		to = c.Err
	}
	c.pass(to, line)
}

// pass passes on a line, here and to the server.
func (c *jobCommand) pass(to io.Writer, line []byte) {
	_, _ = c.run.Write(line)
	line = bytes.Clone(line)
	c.write(func() { _, _ = to.Write(line) }) // where nobody reads any more it is gone
}

// errLine takes in a line of the command's standard error.
func (c *jobCommand) errLine(line []byte) {
	c.tail.add(line)
	c.pass(c.Err, line)
}

// report passes on what a command says about its job.
func (c *jobCommand) report(text string) error {
	what, rest, _ := strings.Cut(text, " ")
	rest = strings.TrimSpace(rest)
	switch what {
	case "progress":
		number, message, _ := strings.Cut(rest, " ")
		f, err := fraction(number)
		if err != nil {
			return err
		}
		c.run.Progress(f)
		if message = strings.TrimSpace(message); message != "" {
			c.run.Message(message)
		}
	case "message":
		c.run.Message(rest)
	case "metrics":
		return c.run.Metrics(value(rest))
	case "checkpoint":
		ctx, cancel := context.WithTimeout(context.Background(), c.life()/2)
		defer cancel()
		return c.run.Checkpoint(ctx, value(rest))
	case "result":
		c.result = value(rest)
	default:
		return errors.New("say progress, message, metrics, checkpoint or result")
	}
	return nil
}

// fraction reads a number from 0 to 1, or of percent.
func fraction(s string) (float64, error) {
	number, percent := strings.CutSuffix(s, "%")
	f, err := strconv.ParseFloat(number, 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f >= 0 && f <= 1) {
		return 0, errors.New("progress is a number from 0 to 1, or from 0% to 100%")
	}
	return f, nil
}

// value returns a word of a script as JSON: as it is if it is JSON, as a string otherwise.
func value(s string) jsontext.Value {
	if json.Valid([]byte(s)) {
		return jsontext.Value(s)
	}
	b, _ := json.Marshal(s) // strings always encode
	return b
}

// maxLine is the longest line that is kept together.
const maxLine = 1 << 20

// lineWriter passes on what is written to it by whole lines, with their ends.
type lineWriter struct {
	line func([]byte)
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		switch {
		case i < 0 && len(w.rest) <= maxLine:
			return len(p), nil
		case i < 0:
			i = len(w.rest) - 1
		}
		w.line(w.rest[:i+1])
		w.rest = w.rest[i+1:]
	}
}

// end passes on a last line that has no end, with one.
func (w *lineWriter) end() {
	if len(w.rest) > 0 {
		w.line(append(w.rest, '\n'))
		w.rest = nil
	}
}

// How much of a command's standard error is kept with a job that failed.
const (
	tailLines = 20
	tailBytes = 4 << 10
)

// tail is the end of an output.
type tail []byte

func (t *tail) add(line []byte) {
	*t = append(append(*t, bytes.ToValidUTF8(bytes.TrimRight(line, "\r\n"), []byte("\uFFFD"))...), '\n')
	*t = (*t)[max(0, len(*t)-tailBytes-1):]
}

// String returns the last lines.
func (t tail) String() string {
	lines := strings.Split(strings.TrimSuffix(strings.ToValidUTF8(string(t), ""), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// Each command of a worker is run by a process of its own, which ends the command, and all that it has started, when the
// lease is about to end: also if the worker is stopped or killed. The worker tells it what to do on its standard input.
// When that ends, so has the worker.

const cmdRunJob = "__run-job"

// orders is what a worker tells the process that runs a command: first the payload and the grace, and the news about the
// lease then and later. Orders without content say stop.
type orders struct {
	Payload []byte `json:"payload,omitempty"`
	Grace   int64  `json:"grace,omitempty"` // milliseconds between TERM and KILL

	// For how long the lease may be relied on, in milliseconds: until a reading of the host's monotonic clock if there is
	// one, and for so long from when it is heard otherwise.
	Until int64 `json:"until"`
	Left  int64 `json:"left"`
}

// news returns the news about a lease that may be relied on for so long.
func news(left time.Duration) orders {
	n := orders{Left: left.Milliseconds()}
	if now, ok := process.Monotonic(); ok {
		n.Until = (now + left).Milliseconds()
	}
	return n
}

func newRunJob(a cmd) *cobra.Command {
	return &cobra.Command{
		Use:    cmdRunJob + " -- COMMAND [ARG...]",
		Short:  "Run a command for a worker",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			signals := guard.Notify() // until the end of the process
			path, err := guard.Find(args[0])
			if err != nil {
				return err
			}
			in := json.NewDecoder(a.In)
			var first orders
			if err := in.Decode(&first); err != nil {
				return fmt.Errorf("orders of the worker: %w", err)
			}
			stdin, err := feed(first.Payload)
			if err != nil {
				return err
			}
			l := newLeash(first)
			go l.follow(in)
			code, err := guard.Run(guard.Command{
				Path: path, Args: args, Env: a.Environ(), Stdin: stdin, StopGrace: time.Duration(first.Grace) * time.Millisecond, Leash: l, Bound: true,
				Refused: func(err error) { a.Tell("warning: %v", err) },
			}, nil, signals)
			if err != nil {
				return err
			}
			return app.Exit(code)
		},
	}
}

// feed returns a file from which the payload can be read.
func feed(payload []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	go func() {
		_, _ = w.Write(payload) // fails if the command does not read it all, which is its business
		_ = w.Close()
	}()
	return r, nil
}

// leash is how long the command may run, as the worker tells.
type leash struct {
	start time.Time
	until atomic.Int64 // by now
	done  chan struct{}
}

func newLeash(n orders) *leash {
	l := &leash{start: time.Now(), done: make(chan struct{})}
	l.hear(n)
	return l
}

// now reads the clock that the processes of this host share, or if there is none, one of this process.
func (l *leash) now() time.Duration {
	if now, ok := process.Monotonic(); ok {
		return now
	}
	return time.Since(l.start)
}

// hear takes in news.
func (l *leash) hear(n orders) {
	until := time.Duration(n.Until) * time.Millisecond
	if until == 0 {
		until = l.now() + time.Duration(n.Left)*time.Millisecond
	}
	l.until.Store(int64(until))
}

// Done implements guard.Leash.
func (l *leash) Done() <-chan struct{} { return l.done }

// Remaining implements guard.Leash.
func (l *leash) Remaining() time.Duration { return time.Duration(l.until.Load()) - l.now() }

// follow does what the worker tells, until it says stop or nothing any more: then it is gone, and with it whoever keeps
// the lease.
func (l *leash) follow(in *json.Decoder) {
	defer close(l.done)
	for {
		var n orders
		if in.Decode(&n) != nil || n.Until == 0 && n.Left == 0 {
			return
		}
		l.hear(n)
	}
}
