package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Run is one attempt at a job, as its handler sees it. Its methods may be called by any number of goroutines.
type Run struct {
	Job   jobs.Job   // as it was granted: with the checkpoint of the attempt before, if there is one
	Lease jobs.Lease // as it was granted

	w        *Worker
	taken    time.Duration // when the grant arrived, by Worker.o.Elapsed
	ctx      context.Context
	cancel   context.CancelCauseFunc
	until    atomic.Int64 // the lease may be relied on so long, by Worker.o.Elapsed
	gone     atomic.Bool  // the service has said that the lease is not there
	beat     *lokt.Heartbeat
	interval atomic.Int64          // as proposed last
	failed   atomic.Pointer[error] // why the last heartbeat was in vain; nil if it was not

	mu      sync.Mutex
	news    jobs.Progress // not yet told
	fresh   bool          // there is something in it
	telling bool          // a goroutine is at it, or it is too late
	told    sync.WaitGroup

	lostLocks []string // that the service has told
}

// Payload decodes the job's payload into v.
func (r *Run) Payload(v any) error { return json.Unmarshal(r.Job.Payload, v) }

// Resume decodes the checkpoint that an earlier attempt left into v, and reports whether there is one.
func (r *Run) Resume(v any) (bool, error) {
	if r.Job.Output == nil || r.Job.Output.Checkpoint == nil {
		return false, nil
	}
	return true, json.Unmarshal(r.Job.Output.Checkpoint, v)
}

// Token returns the fencing token of the lease: writes that carry it can be told from those of earlier attempts.
func (r *Run) Token() uint64 { return r.Lease.Token }

// LockToken returns the fencing token of a lock that the job names, as it was when the job was granted: higher
// than that of every earlier holder of the lock, whether a job or not. It is 0 if the job does not name the
// lock, or the service does not tell.
func (r *Run) LockToken(name string) uint64 { return r.Lease.LockTokens[name] }

// Remaining returns for how long the lease may still be relied on without another heartbeat; it is not above 0
// once it is lost. It reads the clock, so that a process that was stopped can tell before it goes on.
func (r *Run) Remaining() time.Duration {
	if r.gone.Load() {
		return 0
	}
	return time.Duration(r.until.Load()) - r.w.o.Elapsed()
}

// Until returns until when the lease may be relied on, by the worker's clock: it rises with each heartbeat that is
// answered.
func (r *Run) Until() time.Duration { return time.Duration(r.until.Load()) }

// Err returns why the run should stop, or nil. It is the cause of the context's end, but also says so when the lease's
// time is up and nobody has noticed yet.
func (r *Run) Err() error {
	if err := context.Cause(r.ctx); err != nil {
		return err
	}
	if r.Remaining() <= 0 {
		return fmt.Errorf("%w: it could not be renewed in time", lokt.ErrLost)
	}
	return nil
}

// Progress tells how far the job is, from 0 to 1. It returns at once: what is newest is sent, at most once a
// second. What is no number is not.
func (r *Run) Progress(fraction float64) {
	if math.IsNaN(fraction) {
		return
	}
	fraction = min(max(fraction, 0), 1)
	r.tell(func(p *jobs.Progress) { p.Progress = &fraction })
}

// Message tells people what the job is at, as Progress does. What is no text in it is replaced, and what is
// beyond MaxTextLen bytes cut off.
func (r *Run) Message(text string) {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
	end := min(len(text), jobs.MaxTextLen)
	for end < len(text) && !utf8.RuneStart(text[end]) {
		end--
	}
	text = text[:end]
	r.tell(func(p *jobs.Progress) { p.Message = &text })
}

// Metrics tells numbers about the job, any value that can be encoded as JSON, as Progress does. If the service
// refuses them, because they are too large for it, the rest arrives all the same.
func (r *Run) Metrics(v any) error {
	b, err := toJSON(v)
	if err == nil {
		r.tell(func(p *jobs.Progress) { p.Metrics = b })
	}
	return err
}

// Checkpoint keeps a value, which is encoded as JSON, for the next attempt at the job. When it returns nil the
// service has it; the service may take a second to store it.
func (r *Run) Checkpoint(ctx context.Context, v any) error {
	b, err := toJSON(v)
	if err != nil {
		return err
	}
	_, err = r.send(ctx, jobs.Heartbeat{Checkpoint: b})
	return err
}

// life returns how long the lease lasts after a heartbeat, as far as the worker is told. A service that does not
// tell is taken to have the default.
func (r *Run) life() time.Duration {
	if r.Lease.TTL > 0 {
		return r.Lease.TTL
	}
	return time.Minute
}

func (r *Run) margin() time.Duration {
	if r.w.o.Margin > 0 {
		return r.w.o.Margin
	}
	return min(r.life()/10, 5*time.Second)
}

// every returns the time between two heartbeats: as the service proposes, spread, and well below the lease's life.
func (r *Run) every() time.Duration {
	proposed := time.Duration(r.interval.Load())
	if proposed <= 0 {
		proposed = min(15*time.Second, r.life()/3)
	}
	return min(spread(proposed), r.life()/2)
}

// work does the job: it has a deadline from the first moment, heartbeats while the handler runs and until its end is
// known, and then that end.
func (r *Run) work(asked time.Duration) {
	r.ctx, r.cancel = context.WithCancelCause(r.w.hard)
	defer r.cancel(nil)
	r.beat = &lokt.Heartbeat{Margin: r.margin(), Lost: r.lost} // which watches over the lease's end
	r.interval.Store(int64(r.Lease.Interval))
	r.until.Store(int64(asked + lokt.Usable(r.life(), r.margin())))
	if r.w.o.Elapsed()-asked > r.life()/4 { // the request has waited: when the lease began is not known well enough
		var err error
		if asked, err = r.confirm(); err != nil {
			r.w.notify(Notice{Type: NoticeUntold, Run: r, Err: err})
			return
		}
	}
	r.w.keeper.Keep(r.beat, asked, r.life())
	defer r.beat.Stop()

	quiet, stop := r.heartbeats(asked)
	defer stop()
	unlimit := r.limit()
	defer context.AfterFunc(r.ctx, func() {
		if cause := context.Cause(r.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			r.w.notify(Notice{Type: NoticeStop, Run: r, Err: cause})
		}
	})()
	r.w.notify(Notice{Type: NoticeStarted, Run: r})
	result, err := r.call()
	unlimit()
	quiet()
	r.complete(result, err)
}

// call calls the handler, unless there is a reason already why it should stop.
func (r *Run) call() (result any, err error) {
	if err := r.Err(); err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{fmt.Sprint(p), string(debug.Stack())}
		}
	}()
	return r.w.handle(r.ctx, r)
}

// panicError is what is kept of a panic.
type panicError struct {
	Message string `json:"message"`
	Stack   string `json:"stack"`
}

func (e *panicError) Error() string { return "panic: " + e.Message }

// MarshalJSON implements json.Marshaler.
func (e *panicError) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"message": e.Error(), "stack": e.Stack[:min(len(e.Stack), 8<<10)]})
}

// send sends a heartbeat and takes in what its answer says.
func (r *Run) send(ctx context.Context, b jobs.Heartbeat) (asked time.Duration, err error) {
	b.LeaseID, b.WorkerID = r.Lease.ID, r.w.o.ID
	asked = r.w.o.Elapsed()
	answer, err := r.w.leaser.Heartbeat(ctx, b)
	switch {
	case err == nil:
		if answer.Cancel {
			r.cancel(ErrCancelled)
		}
		r.hear(answer.LostLocks)
		if answer.Interval > 0 {
			r.interval.Store(int64(answer.Interval))
		}
	case errors.Is(err, jobs.ErrLeaseNotFound), errors.Is(err, jobs.ErrWorkerMismatch):
		r.gone.Store(true)
	}
	return asked, err
}

// confirm extends the lease, and returns when that was asked for. It gives up when the lease may have ended.
func (r *Run) confirm() (asked time.Duration, err error) {
	ctx, cancel := context.WithTimeout(r.w.hard, r.life())
	defer cancel()
	for pause := firstRetry; ; pause = min(2*pause, r.life()/4) {
		if asked, err = r.send(ctx, jobs.Heartbeat{}); err == nil || !r.w.passing(err) || ctx.Err() != nil {
			r.until.Store(int64(asked + lokt.Usable(r.life(), r.margin())))
			return asked, err
		}
		r.w.rest(ctx, spread(pause), nil)
	}
}

// lost is what the keeper calls, with an error that wraps lokt.ErrLost, when the lease cannot be relied on any more.
func (r *Run) lost(cause error) {
	if failed := r.failed.Load(); failed != nil {
		cause = fmt.Errorf("%w: %w", cause, *failed)
	}
	r.cancel(cause)
}

const (
	listenAfter = 250 * time.Millisecond // how long a job must take to be worth a request that waits for news about it
	retryLeast  = 20 * time.Millisecond  // between two tries of a heartbeat that failed
)

// heartbeats keeps the lease, until stop is called. While the handler runs, their answers wait at the service
// for news, so that the worker learns soon that the job is to be stopped; after quiet is called they do not.
func (r *Run) heartbeats(asked time.Duration) (quiet, stop func()) {
	ctx, end := context.WithCancel(context.Background())
	listening, quiet := context.WithCancel(ctx)
	if r.w.o.Wait == 0 {
		quiet()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		due := asked + r.every()
		next := min(due, r.w.o.Elapsed()+listenAfter)
		for !r.gone.Load() {
			waits := listening
			if listening.Err() != nil {
				waits, next = ctx, due
			}
			r.w.rest(waits, next-r.w.o.Elapsed(), nil)
			switch {
			case ctx.Err() != nil:
				return
			case waits.Err() == nil:
				due = r.heartbeat(ctx, listening)
				next = due
			}
		}
	}()
	return quiet, func() { end(); <-done }
}

// heartbeat sends one, and returns when the next is due. Its answer may wait, but the lease counts from the sending.
func (r *Run) heartbeat(ctx, listening context.Context) time.Duration {
	every, left, wait := r.every(), r.Remaining(), time.Duration(0)
	if listening.Err() == nil && r.ctx.Err() == nil {
		every /= 2
		ctx, wait = listening, min(r.w.o.Wait, every, left/2)
	}
	sending, cancel := context.WithTimeout(ctx, max(left/3*2, retryLeast))
	defer cancel()
	asked, err := r.send(sending, jobs.Heartbeat{Wait: max(wait, 0)})
	switch {
	case err == nil:
		r.failed.Store(nil)
		r.until.Store(int64(asked + lokt.Usable(r.life(), r.margin())))
		r.beat.Extend(asked, r.life())
		return asked + every
	case ctx.Err() != nil: // it is not to wait any more
	case r.gone.Load():
		if listening.Err() == nil {
			r.cancel(fmt.Errorf("%w: %w", lokt.ErrLost, err))
		}
	default:
		r.failed.Store(&err)
		r.w.notify(Notice{Type: NoticeDoubt, Run: r, Err: err})
		return r.w.o.Elapsed() + max(retryLeast, min(every, r.Remaining())/4)
	}
	return asked + min(every, left/2)
}

// limit ends the context when the job's maximum runtime, which began with the grant, is about to be over. The
// returned function ends that.
func (r *Run) limit() (stop func()) {
	if r.Job.MaxRuntime <= 0 {
		return func() {}
	}
	spent := r.w.o.Elapsed() - r.taken
	t := time.AfterFunc(r.Job.MaxRuntime-min(r.margin(), r.Job.MaxRuntime/10)-spent, func() { r.cancel(ErrRuntime) })
	return func() { t.Stop() }
}

// tellEvery is the least time between two reports.
const tellEvery = time.Second

// tell notes news and sees to it that they are sent.
func (r *Run) tell(note func(*jobs.Progress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	note(&r.news)
	r.fresh = true
	if !r.telling && r.ctx.Err() == nil {
		r.telling = true
		r.told.Go(r.report)
	}
}

// report sends news until there are none. What cannot be sent is sent later with what is newer, or not at all.
func (r *Run) report() {
	for {
		r.mu.Lock()
		if !r.fresh || r.ctx.Err() != nil {
			r.telling = false
			r.mu.Unlock()
			return
		}
		p := r.takeNews()
		r.mu.Unlock()
		if err := r.sendReport(r.ctx, p); err != nil && r.w.passing(err) {
			r.untell(p)
		}
		r.w.rest(r.ctx, tellEvery, nil)
	}
}

// takeNews returns the news, to be sent. The run is locked.
func (r *Run) takeNews() jobs.Progress {
	p := r.news
	r.news, r.fresh = jobs.Progress{}, false
	return p
}

// untell puts back what could not be sent, but for what is outdated.
func (r *Run) untell(p jobs.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.news.Progress == nil {
		r.news.Progress = p.Progress
	}
	if r.news.Message == nil {
		r.news.Message = p.Message
	}
	if r.news.Metrics == nil {
		r.news.Metrics = p.Metrics
	}
	r.fresh = true
}

func (r *Run) sendReport(ctx context.Context, p jobs.Progress) error {
	p.LeaseID, p.WorkerID = r.Lease.ID, r.w.o.ID
	err := r.w.leaser.Report(ctx, p)
	if errors.Is(err, lokt.ErrInvalid) && p.Metrics != nil && (p.Progress != nil || p.Message != nil) {
		p.Metrics = nil // which alone can be what is refused
		err = r.w.leaser.Report(ctx, p)
	}
	return err
}

// lastReport bounds how long the end of a job waits for its last news.
const lastReport = 2 * time.Second

// flush sends the news that are left, once, and takes no more.
func (r *Run) flush() {
	r.told.Wait() // it ends with the context
	r.mu.Lock()
	p, fresh := r.news, r.fresh
	r.telling = true
	r.mu.Unlock()
	if fresh && !r.gone.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), lastReport)
		defer cancel()
		_ = r.sendReport(ctx, p) // the end counts, and is told anyway
	}
}

// completePatience is for how long an end is offered to a service that is away, beyond the time for which the lease may
// be relied on: a service that comes back keeps the leases that it had.
const completePatience = 10 * time.Minute

// complete tells the service how the run ended, again and again until it is answered, the lease is known to be over, or
// there is no hope left.
func (r *Run) complete(result any, failure error) {
	c := jobs.Completion{LeaseID: r.Lease.ID, WorkerID: r.w.o.ID, Status: jobs.Completed}
	if failure == nil {
		c.Result, failure = encoded(result)
	}
	cause := context.Cause(r.ctx)
	if failure != nil {
		failure = forLocks(cause, failure)
		c.Status, c.Error = jobs.Failed, failureJSON(failure)
	}
	r.cancel(nil)
	r.flush()
	switch {
	case r.gone.Load():
		if cause == nil {
			cause = jobs.ErrLeaseNotFound
		}
		r.w.notify(Notice{Type: NoticeUntold, Run: r, Err: cause})
		return
	case errors.Is(cause, ErrRuntime) && failure != nil:
		r.w.notify(Notice{Type: NoticeUntold, Run: r, Err: cause})
		return // the service ends it, and says why
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(r.w.hard, func() { time.AfterFunc(r.w.o.StopGrace, cancel) })()
	refused := false // what the handler returned
	for pause := firstRetry; ; pause = min(2*pause, r.life()/4, 2*time.Second) {
		try, end := context.WithTimeout(ctx, max(r.life()/2, time.Second))
		applied, err := r.w.leaser.Complete(try, c)
		end()
		switch {
		case err == nil && applied:
			r.w.notify(Notice{Type: NoticeEnded, Run: r, State: c.Status, Err: failure})
			return
		case err == nil:
			n := Notice{Type: NoticeUntold, Run: r, Err: jobs.ErrLeaseNotFound}
			if r.applied(ctx, c.Status) {
				n = Notice{Type: NoticeEnded, Run: r, State: c.Status, Err: failure}
			}
			r.gone.Store(true)
			r.w.notify(n)
			return
		case !r.w.passing(err) && !errors.Is(err, jobs.ErrWorkerMismatch) && !refused:
			refused = true
			failure = refusal(failure, err)
			c.Status, c.Result, c.Error = jobs.Failed, nil, failureJSON(failure)
			continue
		case !r.w.passing(err), ctx.Err() != nil, r.Remaining() < -completePatience, r.gone.Load():
			r.w.notify(Notice{Type: NoticeUntold, Run: r, Err: err})
			return
		}
		r.w.rest(ctx, spread(pause), nil)
	}
}

// refusal returns what is told instead of a result, or of what a failure says of itself, that the service refused.
func refusal(failure, refused error) error {
	if failure == nil {
		return fmt.Errorf("the result was refused: %w", refused)
	}
	text := failure.Error() // and no more of it: its JSON was refused
	return fmt.Errorf("%s (what more it says was refused: %w)", text, refused)
}

// applied reports whether the run is known to have ended as it was offered: an offer whose answer was lost may
// have been the one that counts.
func (r *Run) applied(ctx context.Context, as jobs.State) bool {
	reader, ok := r.w.leaser.(jobs.Reader)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lastReport)
	defer cancel()
	v, err := reader.Get(ctx, r.Job.ID)
	if err != nil {
		return false
	}
	for _, a := range v.Attempts {
		if a.Token == r.Lease.Token {
			return a.State == as && (a.Code == jobs.CodeCompleted || a.Code == jobs.CodeFailed)
		}
	}
	return false
}
