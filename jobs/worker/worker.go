// Package worker does jobs: it asks a service for leases, keeps them by heartbeats while handlers run, and says
// how that ended.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/jitter"
	"github.com/lokt-dev/lokt/jobs"
)

// Handler does one job. Its context ends when it should stop, and then has a cause: one that wraps lokt.ErrLost
// if the lease is gone or about to be, and with it the right to go on (and also ErrRevoked, if that is known);
// ErrLockLost if a lock of the job is; ErrCancelled, ErrRuntime or ErrStopped otherwise.
//
// What it returns completes the job: a nil error with a result, which is encoded as JSON; any other error fails
// the attempt, and is kept as its text, or as JSON if it implements json.Marshaler. So does a panic.
type Handler func(ctx context.Context, r *Run) (result any, err error)

// Why the context of a handler may end, beside the loss of its lease.
var (
	ErrCancelled = errors.New("the job is to be cancelled")
	ErrRuntime   = errors.New("the job's maximum runtime is over")
	ErrStopped   = errors.New("the worker was stopped")
)

// WorkerOptions say how to work. The zero value takes one job at a time, of any type and size.
type WorkerOptions struct {
	ID           string   // told to the service; one that nobody else has is made up if it is empty
	Types        []string // of jobs to take; empty for all
	Capabilities []string // see NeedsPrefix
	Concurrency  int      // most jobs at the same time; 0 means 1
	Units        int      // most units of jobs at the same time, and so of one job; 0 for any

	// Prefetch is how many jobs are leased ahead, beside those that handlers do, to be begun without asking: none with
	// locks, a maximum runtime or a worker of its own. Their leases are kept; when the worker drains they go back, and
	// count as no attempts.
	Prefetch int

	// Margin is how long before its lease may expire a handler's context ends, beside what the drift of clocks takes; 0
	// means a tenth of the lease's TTL, at most 5 s. It is half of that TTL at most.
	Margin time.Duration

	// Wait is how long a request may wait at the service, and a heartbeat that listens for news; 0 means 20 s,
	// negative that nothing waits there: then jobs are found by asking again, and a cancellation by the next
	// heartbeat.
	Wait time.Duration

	// KeepWithoutLocks has handlers go on when a lock of their job was lost: they look at Run.LostLocks, or rely
	// on fencing tokens.
	KeepWithoutLocks bool

	// StopGrace is how long handlers have, after Stop, until Run returns without them; 0 means 5 s.
	StopGrace time.Duration

	// Elapsed, if set, reads a clock that never goes back; it may count the time that the machine sleeps. If it is nil, it is that of
	// a service that is a lokt.Elapser.
	Elapsed func() time.Duration

	// Final, if set, reports whether an error of the service is about who asks, so that to ask again is in vain. Errors
	// of this package, and those of a service out of reach, need not be looked at.
	Final func(error) bool

	// Notify, if set, is told what happens, by any of the worker's goroutines. It should return soon.
	Notify func(Notice)
}

// Notice is something that happened to a worker.
type Notice struct {
	Type  NoticeType
	Run   *Run       // nil if it concerns none
	State jobs.State // of NoticeEnded: as it was reported
	Err   error      // what came in between; of NoticeEnded, what the handler returned
}

// NoticeType is what happened to a worker.
type NoticeType string

// What can happen to a worker.
const (
	NoticeStarted NoticeType = "started" // a handler was called
	NoticeStop    NoticeType = "stop"    // a handler's context ended: Err is the cause
	NoticeEnded   NoticeType = "ended"   // the service knows how a run ended: queued if it was not begun
	// a run has ended, but its lease had before, or the service could not be told: Err says why
	NoticeUntold   NoticeType = "untold"
	NoticeDoubt    NoticeType = "doubt"    // a heartbeat failed, and is tried again
	NoticeAway     NoticeType = "away"     // the service does not answer asks
	NoticeBack     NoticeType = "back"     // it does again
	NoticeDraining NoticeType = "draining" // no more jobs are asked for
)

// Worker asks a service for jobs and has them done. One Keeper sends the heartbeats of all its leases.
//
// It rides out a service that is away: leases in doubt are renewed until they may have ended, results are offered until
// they are answered. It promises that a handler's context ends before its lease can expire, if clock rates differ by
// less than 1 %. It does not promise that a handler looks.
type Worker struct {
	leaser jobs.Leaser
	handle Handler
	o      WorkerOptions
	keeper lokt.Keeper
	hard   context.Context // ends with Stop
	stop   context.CancelCauseFunc
	asks   context.Context // ends when no more jobs are begun but those whose handlers run
	enough context.CancelFunc

	under sync.WaitGroup // runs under way

	mu    sync.Mutex
	runs  int
	units int
	free  int             // handlers that could be called
	line  []*Run          // that wait for one, in the order of their grants
	grown context.Context // ends when a run does
	grow  context.CancelFunc
}

// NewWorker returns a worker for the service. It does nothing until Run is called. The error wraps lokt.ErrInvalid.
func NewWorker(l jobs.Leaser, h Handler, o WorkerOptions) (*Worker, error) {
	o.ID, o.Concurrency = cmp.Or(o.ID, "worker-"+lokt.NewLeaseID()), cmp.Or(o.Concurrency, 1)
	o.StopGrace = cmp.Or(o.StopGrace, 5*time.Second)
	o.Wait = min(max(cmp.Or(o.Wait, 20*time.Second), 0), jobs.MaxWait)
	w := &Worker{leaser: l, handle: h, o: o}
	start := time.Now()
	switch e, ok := l.(lokt.Elapser); {
	case o.Elapsed != nil:
	case ok:
		w.o.Elapsed = e.Elapsed
	default:
		w.o.Elapsed = func() time.Duration { return time.Since(start) }
	}
	w.keeper.Elapsed = w.o.Elapsed
	w.hard, w.stop = context.WithCancelCause(context.Background())
	w.grown, w.grow = context.WithCancel(context.Background())
	w.asks, w.enough = context.WithCancel(w.hard)
	ask := w.askFor(0, false)
	if err := ask.Validate(); err != nil {
		return nil, err
	}
	if o.Concurrency < 0 || o.Units < 0 || o.Prefetch < 0 || o.Margin < 0 || o.StopGrace < 0 {
		return nil, fmt.Errorf("%w: a worker's numbers are not negative", lokt.ErrInvalid)
	}
	w.free = o.Concurrency
	return w, nil
}

// ID returns the name under which the worker asks.
func (w *Worker) ID() string { return w.o.ID }

// Stop ends the contexts of all handlers, with ErrStopped, and makes Run return within StopGrace. What they were
// at fails.
func (w *Worker) Stop() { w.stop(ErrStopped) }

// Run works until ctx ends, and then until the jobs under way have ended: it asks for no more, and keeps their
// leases. Stop cuts that short. It returns nil, or before that an error that asking again will not mend, such as
// lokt.ErrInvalid or that of a service that does not know this worker. It must be called once.
func (w *Worker) Run(ctx context.Context) error {
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.hard, func() { cancel(ErrStopped) })()
	err := w.ask(asking)
	w.enough()
	w.notify(Notice{Type: NoticeDraining, Err: err})
	w.drain()
	w.stop(ErrStopped) // for what is left behind
	return err
}

// drain waits for the runs under way.
func (w *Worker) drain() {
	ended, cancel := context.WithCancel(context.Background())
	go func() {
		w.under.Wait()
		cancel()
	}()
	select {
	case <-ended.Done():
	case <-w.hard.Done():
		w.rest(ended, w.o.StopGrace, nil)
	}
}

// room waits until another job may be taken, and returns of how many units at most (0 for any), whether it is ahead, and
// a context that ends when that changes.
func (w *Worker) room(ctx context.Context) (most int, ahead bool, grown context.Context, err error) {
	for {
		w.mu.Lock()
		n, units, grown := w.runs, w.units, w.grown
		w.mu.Unlock()
		if n-w.o.Concurrency < w.o.Prefetch && (w.o.Units == 0 || units < w.o.Units) {
			return max(w.o.Units-units, 0), n >= w.o.Concurrency, grown, nil
		}
		select {
		case <-grown.Done():
		case <-ctx.Done():
			return 0, false, nil, ctx.Err()
		}
	}
}

func (w *Worker) askFor(most int, ahead bool) jobs.Request {
	return jobs.Request{WorkerID: w.o.ID, MaxUnits: cmp.Or(most, w.o.Units), Types: w.o.Types, Capabilities: w.o.Capabilities,
		Wait: w.o.Wait, Ahead: ahead}
}

// Between two tries to reach a service that is away: doubled from the first to the last, and spread by a fifth.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// spread moves a duration by up to a fifth, so that many workers do not do the same thing at the same time.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*jitter.Float64()))
}

// ask asks for jobs and starts them, until ctx ends. A request that was not answered is made again under the
// same request ID, lest a lease be granted to nobody.
func (w *Worker) ask(ctx context.Context) error {
	request, pause, first := lokt.NewLeaseID(), time.Duration(0), time.Duration(0) // when the request was first made, or 0
	for {
		most, ahead, grown, err := w.room(ctx)
		if err != nil {
			return nil
		}
		asked := w.o.Elapsed()
		first = cmp.Or(first, asked)
		a := w.askFor(most, ahead)
		a.RequestID = request
		if pause > 0 || ahead {
			a.Wait = 0 // to know soon whether the service is back, or to ask for any job as soon as there is a slot for it
		}
		g, err := w.askOnce(ctx, a, grown)
		switch {
		case err == nil:
			if pause > 0 {
				w.notify(Notice{Type: NoticeBack})
			}
			since := first // the lease may be the answer to an earlier try
			request, pause, first = lokt.NewLeaseID(), 0, 0
			if g.Denied == nil {
				w.take(g, since)
				continue
			}
			if a.Wait > 0 && w.o.Elapsed()-asked >= a.Wait/2 {
				continue // it has waited there
			}
			w.rest(ctx, g.Denied.RetryAfter, grown.Done())
		case ctx.Err() != nil:
			w.collect(a, first)
			return nil
		case errors.Is(err, errGrew):
		case !w.passing(err):
			return err
		default:
			if pause == 0 {
				w.notify(Notice{Type: NoticeAway, Err: err})
			}
			pause = min(max(2*pause, firstRetry), lastRetry)
			w.rest(ctx, spread(pause), nil)
		}
	}
}

// errGrew says that a request was given up because there is room for larger jobs now.
var errGrew = errors.New("there is more room")

// askOnce asks. If there comes to be more room while the request waits, it is given up: it said how much there was.
func (w *Worker) askOnce(ctx context.Context, a jobs.Request, grown context.Context) (g jobs.Grant, err error) {
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if w.o.Units > 0 && a.MaxUnits < w.o.Units {
		defer context.AfterFunc(grown, func() { cancel(errGrew) })()
	}
	g, err = w.leaser.Request(asking, a)
	if cause := context.Cause(asking); err != nil && errors.Is(cause, errGrew) && ctx.Err() == nil {
		err = cause
	}
	return g, err
}

// collectPatience is how long a worker that was told to end looks for a lease that it may have been granted meanwhile.
const collectPatience = 2 * time.Second

// collect takes the lease that a request without an answer may have been granted, and no other: it asks for jobs
// that there are not, under the same request ID. It was first made at that moment.
func (w *Worker) collect(a jobs.Request, first time.Duration) {
	ctx, cancel := context.WithTimeout(w.hard, collectPatience)
	defer cancel()
	a.Types, a.Wait = []string{"none-" + a.RequestID}, 0
	if g, err := w.leaser.Request(ctx, a); err == nil && g.Denied == nil {
		w.take(g, first)
	}
}

// rest waits, at most until there is more room or ctx ends.
func (w *Worker) rest(ctx context.Context, d time.Duration, grew <-chan struct{}) {
	select {
	case <-time.After(d):
	case <-grew:
	case <-ctx.Done():
	}
}

// passing reports whether an error may pass: what the request was about is not decided by it.
func (w *Worker) passing(err error) bool {
	switch jobs.Code(err) {
	case "internal":
		return w.o.Final == nil || !w.o.Final(err)
	case "unavailable":
		return true
	}
	return false
}

// take begins to do a job that was granted. It was asked for at that moment, or later.
func (w *Worker) take(g jobs.Grant, asked time.Duration) {
	r := &Run{
		Job: g.Job, Lease: g.Lease, w: w, fresh: make(chan struct{}, 1), told: make(chan struct{}), turn: make(chan struct{}),
	}
	r.output.offset = g.Job.Report().Printed
	w.count(1, g.Lease.Units)
	w.mu.Lock()
	w.line = append(w.line, r)
	w.serve()
	w.mu.Unlock()
	w.under.Go(func() {
		defer w.count(-1, -g.Lease.Units)
		r.work(asked)
	})
}

// count counts jobs and their units in, or out, which makes room for others.
func (w *Worker) count(n, units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs += n
	w.units += units
	if n < 0 {
		w.grow()
		w.grown, w.grow = context.WithCancel(context.Background())
	}
}

// serve lets the first in line call their handlers while some are free. The worker is locked.
func (w *Worker) serve() {
	for ; w.free > 0 && len(w.line) > 0; w.free-- {
		close(w.line[0].turn)
		w.line = w.line[1:]
	}
}

// leave takes a run out of the line, or frees its handler.
func (w *Worker) leave(r *Run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.line, r); i >= 0 {
		w.line = slices.Delete(w.line, i, i+1)
		return
	}
	w.free++
	w.serve()
}

func (w *Worker) notify(n Notice) {
	if w.o.Notify != nil {
		w.o.Notify(n)
	}
}
