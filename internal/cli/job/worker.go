package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/worker"
)

type workerOptions struct {
	worker.WorkerOptions
	grace   time.Duration
	quiet   bool
	command []string
}

func newWorker(a cmd) *cobra.Command {
	var o workerOptions
	cmd := app.Describe("worker", &cobra.Command{
		RunE: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash < 0:
				return app.Usagef("put -- before the command: lokt worker -- COMMAND")
			case dash > 0:
				return app.Usagef("%q stands before the --: say what jobs to take with --type", args[0])
			case len(args) == 0:
				return app.Usagef("give the command behind the --: lokt worker -- COMMAND")
			}
			o.command = args
			if err := o.check(); err != nil {
				return err
			}
			return a.runWorker(o)
		},
	})
	fs := cmd.Flags()
	fs.StringArrayVar(&o.Types, "type", nil, "take jobs of this `TYPE`; may be given several times (default: of any type)")
	fs.StringArrayVar(&o.Capabilities, "capability", nil, "what jobs may need, such as gpu for the tag needs:gpu; may be given several times")
	fs.IntVar(&o.Units, "units", 0, "most `units` of capacity at the same time, and so of one job; 0 is any number")
	fs.IntVar(&o.Concurrency, "concurrency", 1, "most jobs at the same time")
	fs.IntVar(&o.Prefetch, "prefetch", 0, "`jobs` to lease ahead, beside those under way; they take capacity, too")
	fs.StringVar(&o.ID, "worker-id", "", "name of this worker, which no other may have (default: host, process and a random part)")
	fs.DurationVar(&o.grace, "grace", 0, "time between TERM and KILL when a command is ended (default: a quarter of the lease, at most 10s)")
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "do not tell of jobs that begin and end as they should")
	return cmd
}

func (o *workerOptions) check() error {
	switch {
	case o.Units < 0:
		return app.Usagef("--units %d is negative", o.Units)
	case o.Concurrency < 1:
		return app.Usagef("--concurrency is at least 1, not %d", o.Concurrency)
	case o.Prefetch < 0 || o.Prefetch > 100: // each lease listens over a connection of its own
		return app.Usagef("--prefetch is from 0 to 100, not %d", o.Prefetch)
	case o.grace < 0:
		return app.Usagef("--grace %v is negative", o.grace)
	case slices.Contains(o.Types, ""): // no job has such a type, and the worker would wait for ever
		return app.Usagef("--type is empty: leave it out to take jobs of any type")
	case slices.Contains(o.Capabilities, ""):
		return app.Usagef("--capability is empty: leave it out if there is none")
	}
	return nil
}

// workerName makes up a name for this worker.
func workerName() string {
	host, _ := os.Hostname()
	id := lokt.NewLeaseID()
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), id[len(id)-6:])
}

// workerRun is one run of a worker.
type workerRun struct {
	cmd
	o    workerOptions
	path string
	self string // the program that runs a command
	w    *worker.Worker

	out      chan func() // writes to standard output or error
	stopping chan struct{}
	over     <-chan struct{} // closed when nothing waits any more for who does not read; nil for never
	unread   *atomic.Bool    // nobody does, and it is
}

// until returns the same run, but what is written by it waits for who does not read until then only.
func (r *workerRun) until(over <-chan struct{}) *workerRun {
	own := *r
	own.over, own.unread = over, new(atomic.Bool)
	return &own
}

// write has f write, after what was to be written before. Who does not read makes the work wait, but not its end.
func (r *workerRun) write(f func()) {
	if r.unread.Load() {
		return
	}
	select {
	case r.out <- f:
		return
	case <-r.stopping:
	case <-r.over:
	}
	select {
	case r.out <- f:
	case <-time.After(100 * time.Millisecond):
		r.unread.Store(true)
	}
}

func (a cmd) runWorker(o workerOptions) error {
	signals := guard.Notify()                               // until the end of the process
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // whose output nobody reads any more goes on working
	service, err := a.jobsService()
	if err != nil {
		return err
	}
	path, err := guard.Find(o.command[0])
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("path of this program: %w", err)
	}
	if err := app.EnoughFiles(filesBeside + filesEach*o.Concurrency + o.Prefetch); err != nil {
		return err
	}
	o.ID = cmp.Or(o.ID, workerName())
	run := &workerRun{cmd: a, o: o, path: path, self: self, out: make(chan func()), stopping: make(chan struct{}), unread: new(atomic.Bool)}
	go func() {
		for f := range run.out {
			f()
		}
	}()
	o.StopGrace, o.Final, o.Notify = max(o.grace, defaultStopGrace)+stopReserve, inVain, run.notify
	if run.w, err = worker.NewWorker(service, run.do, o.WorkerOptions); err != nil {
		return err
	}
	if !o.quiet {
		run.log("worker %s asks %s for jobs", o.ID, strings.Join(a.ServerURLs(), ", "))
	}
	return run.work(signals)
}

// How many files a worker has open: beside those of jobs, and for each that it does. One that it leased ahead has a connection.
const (
	filesBeside = 8
	filesEach   = 7 // five ends of pipes, a connection, and the process
)

// How long commands may take to end by themselves if the worker is stopped, and how long the server may then take to be
// told.
const (
	defaultStopGrace = 10 * time.Second
	stopReserve      = 3 * time.Second
)

// inVain reports whether an error is about who asks.
func inVain(err error) bool {
	switch code, _, _ := app.Classify(err); code {
	case "unauthenticated", "forbidden", "body_too_large", "no_jobs":
		return true
	}
	return false
}

// work works until signals end it: the first makes it take no more jobs, the second stops those under way.
func (r *workerRun) work(signals *guard.Signals) error {
	first, enough := signals.Context(context.Background())
	defer enough()
	ended, end := context.WithCancel(context.Background())
	defer end()
	stopped := make(chan *guard.SignalError, 1)
	context.AfterFunc(first, func() {
		second, enough := signals.Context(ended)
		defer enough()
		<-second.Done()
		if e, ok := errors.AsType[*guard.SignalError](context.Cause(second)); ok {
			stopped <- e
			close(r.stopping)
			r.w.Stop()
			r.log("stopping: commands under way are ended")
		}
	})
	err := r.w.Run(first)
	r.write(func() {}) // all the rest is written
	if err != nil {
		return r.jobsError(err)
	}
	select {
	case e := <-stopped:
		return app.Exit(e.Code())
	default:
		return nil
	}
}

// notice is what happens to a worker, as JSON.
type notice struct {
	Time     time.Time         `json:"time"`
	Event    worker.NoticeType `json:"event"`
	WorkerID string            `json:"worker_id"`
	JobID    string            `json:"job_id,omitzero"`
	JobType  string            `json:"job_type,omitzero"`
	Attempt  int               `json:"attempt,omitzero"`
	Token    uint64            `json:"token,omitzero"`
	State    jobs.State        `json:"state,omitzero"`
	Error    string            `json:"error,omitzero"`
}

// notify tells what happens to the worker.
func (r *workerRun) notify(n worker.Notice) {
	switch n.Type {
	case worker.NoticeStarted: // which the job tells
	case worker.NoticeDoubt: // the next heartbeat must not wait for who does not read
		now := make(chan struct{})
		close(now)
		r.until(now).tell(n)
	default:
		r.tell(n)
	}
}

// tell tells what happens.
func (r *workerRun) tell(n worker.Notice) {
	if r.JSON {
		v := notice{Time: time.Now().UTC(), Event: n.Type, WorkerID: r.w.ID(), State: n.State}
		if n.Run != nil {
			v.JobID, v.JobType, v.Attempt, v.Token = n.Run.Job.ID, n.Run.Job.Type, n.Run.Lease.Attempt, n.Run.Lease.Token
		}
		if n.Err != nil {
			v.Error = n.Err.Error()
		}
		r.write(func() { _ = r.Print(v) }) // who cannot be told goes on working
		return
	}
	about := ""
	if n.Run != nil {
		about = fmt.Sprintf("job %s (%s)", n.Run.Job.ID, n.Run.Job.Type)
	}
	switch quiet := r.o.quiet; {
	case n.Type == worker.NoticeStarted && !quiet:
		r.log("%s started, attempt %d", about, n.Run.Lease.Attempt)
	case n.Type == worker.NoticeEnded && n.Err != nil:
		r.log("%s %s: %v", about, n.State, n.Err)
	case n.Type == worker.NoticeEnded && n.State == jobs.Queued && !quiet:
		r.log("%s goes back to the queue: it was not begun", about)
	case n.Type == worker.NoticeEnded && !quiet:
		r.log("%s %s", about, n.State)
	case n.Type == worker.NoticeStop:
		r.log("%s is stopped: %v", about, n.Err)
	case n.Type == worker.NoticeUntold:
		r.log("warning: the end of %s counts for nothing: %v", about, n.Err)
	case n.Type == worker.NoticeDoubt:
		r.log("warning: %s: a heartbeat failed, trying again: %s", about, awayText(n.Err))
	case n.Type == worker.NoticeAway:
		r.log("warning: the server does not answer, trying again: %s", awayText(n.Err))
	case n.Type == worker.NoticeBack:
		r.log("the server answers again")
	case n.Type == worker.NoticeDraining && n.Err == nil && !quiet:
		r.log("taking no more jobs; a second signal ends those under way")
	}
}

// awayText says why a server does not answer, without saying that it does not.
func awayText(err error) string {
	return strings.TrimPrefix(err.Error(), lokt.ErrUnavailable.Error()+": ")
}

// log writes a line for people, whole.
func (r *workerRun) log(format string, args ...any) {
	r.write(func() { r.Tell(format, args...) })
}

// errLate is why a command was ended for the sake of a lease that is about to be lost.
var errLate = errors.New("the lease could not be renewed in time, and the command was ended")

// do runs the command for one job.
func (r *workerRun) do(ctx context.Context, run *worker.Run) (any, error) {
	r.until(ctx.Done()).tell(worker.Notice{Type: worker.NoticeStarted, Run: run})
	c := &jobCommand{workerRun: r, run: run}
	err := c.execute(ctx)
	var failed *commandError
	cause := context.Cause(ctx)
	if cause == nil && err != nil && run.Remaining() <= c.grace() { // the command is ended before the context is
		if run.Job.MaxRuntime > 0 { // which tells whether the time of the lease is over or that of the job
			select {
			case <-ctx.Done():
			case <-time.After(run.Remaining()):
			}
		}
		if cause = run.Err(); cause == nil {
			cause = errLate
			r.tell(worker.Notice{Type: worker.NoticeStop, Run: run, Err: cause})
		}
	}
	if lost, ok := errors.AsType[*worker.LockLostError](cause); ok {
		if err == nil && c.stopped { // it may have left something undone
			err = &commandError{}
		}
		if errors.As(err, &failed) {
			failed.Kind, failed.Lost = worker.CodeLostLocks, lost.Names
		}
	}
	if errors.As(err, &failed) && cause != nil {
		failed.Message = cause.Error()
		if failed.Code != guard.ExitLost && failed.Code != 0 {
			failed.Message += " (" + exitText(failed.Code) + ")"
		}
	}
	if err != nil || c.result == nil {
		return nil, err
	}
	return c.result, nil
}

// commandError is how a command failed, as it is kept with the job.
type commandError struct {
	Kind    string   `json:"code,omitempty"`
	Message string   `json:"message"`
	Code    int      `json:"exit_code"` // as shells have it
	Stderr  string   `json:"stderr,omitempty"`
	Lost    []string `json:"lost_locks,omitempty"` // because of which the command was ended
}

func (e *commandError) Error() string { return e.Message }

// MarshalJSON implements json.Marshaler: that makes a worker keep more of the error than its text.
func (e *commandError) MarshalJSON() ([]byte, error) {
	type fields commandError
	return lokt.Marshal((*fields)(e))
}

// maxVariable is the longest checkpoint that is put in a variable: systems bound what an environment may hold.
const maxVariable = 100 << 10

// lockTokens returns the fencing tokens of the job's locks, in the order in which it names them; nothing if there is one
// that the service does not tell.
func lockTokens(run *worker.Run) string {
	tokens := make([]string, len(run.Job.Locks))
	for i, name := range run.Job.Locks {
		t := run.LockToken(name)
		if t == 0 {
			return ""
		}
		tokens[i] = strconv.FormatUint(t, 10)
	}
	return strings.Join(tokens, ",")
}

// environment returns what a command is told of its job.
func (r *workerRun) environment(run *worker.Run) []string {
	var env []string
	for _, kv := range r.Environ() {
		if !strings.HasPrefix(kv, "LOKT_JOB_") {
			env = append(env, kv)
		}
	}
	j, l := &run.Job, &run.Lease
	env = append(env, "LOKT_JOB_ID="+j.ID, "LOKT_JOB_TYPE="+j.Type, "LOKT_JOB_PRIORITY="+string(j.Priority),
		"LOKT_JOB_UNITS="+strconv.Itoa(l.Units), "LOKT_JOB_TAGS="+strings.Join(j.Tags, ","), "LOKT_JOB_LOCKS="+strings.Join(j.Locks, ","),
		"LOKT_JOB_ATTEMPT="+strconv.Itoa(l.Attempt), "LOKT_JOB_MAX_ATTEMPTS="+strconv.Itoa(j.MaxAttempts),
		"LOKT_JOB_TOKEN="+strconv.FormatUint(l.Token, 10), "LOKT_JOB_LEASE="+l.ID, "LOKT_JOB_WORKER="+r.o.ID,
		"LOKT_JOB_LOCK_TOKENS="+lockTokens(run))
	if t := j.Extras().Ticks; t != nil {
		env = append(env, "LOKT_JOB_TICK="+t.Tick.Format(time.RFC3339))
	}
	if o := j.Output; o != nil && o.Checkpoint != nil {
		if len(o.Checkpoint) <= maxVariable {
			env = append(env, "LOKT_JOB_CHECKPOINT="+string(o.Checkpoint))
		} else {
			r.log("warning: job %s (%s): its checkpoint of %d bytes is too long for a variable", j.ID, j.Type, len(o.Checkpoint))
		}
	}
	return env
}
