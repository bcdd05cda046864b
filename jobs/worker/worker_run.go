package worker

import (
	"cmp"
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

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Run is one attempt at a job, as its handler sees it. Its methods may be called by any number of goroutines.
type Run struct {
	Job   jobs.Job   // as it was granted: with the checkpoint of the attempt before, if there is one
	Lease jobs.Lease // as it was granted

	w         *Worker
	ctx       context.Context
	cancel    context.CancelCauseFunc
	listening context.Context // ends when heartbeats need not wait for news
	until     atomic.Int64    // the lease may be relied on so long, by Worker.o.Elapsed
	runUntil  atomic.Int64    // the maximum runtime lasts so long, by the same
	gone      atomic.Bool     // the service has said that the lease is not there
	turn      chan struct{}   // closed when the handler may be called
	begun     atomic.Bool     // it is called, or was
	beat      *lokt.Heartbeat
	interval  atomic.Int64 // as proposed last

	mu        sync.Mutex
	news      jobs.Progress // the newest
	output    output
	fresh     chan struct{} // has something when there are news
	told      chan struct{} // closed when the last of them have been
	lostLocks []string      // that the service has told
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
	return r.Until() - r.w.o.Elapsed()
}

// Until returns until when the lease may be relied on, by the worker's clock: it rises with each heartbeat that is
// answered, up to the end of the maximum runtime, which comes a margin after the context's.
func (r *Run) Until() time.Duration { return time.Duration(min(r.until.Load(), r.runUntil.Load())) }

// Err returns why the run should stop, or nil. It is the cause of the context's end, but also says so when the lease's, or
// the job's, time is up and nobody has noticed yet.
func (r *Run) Err() error {
	if r.runLeft() <= 0 {
		r.cancel(ErrRuntime)
	}
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
	return cmp.Or(max(r.Lease.TTL, 0), time.Minute)
}

func (r *Run) margin() time.Duration {
	return cmp.Or(min(r.w.o.Margin, r.life()/2), min(r.life()/10, 5*time.Second))
}

// every returns the time between two heartbeats: as the service proposes, spread, and well below the lease's life.
func (r *Run) every() time.Duration {
	proposed := time.Duration(max(r.interval.Load(), 0))
	return min(spread(cmp.Or(proposed, min(15*time.Second, r.life()/3))), r.life()/2)
}

// crowded reports whether the service proposes more than usual, because it has many leases.
func (r *Run) crowded() bool { return time.Duration(r.interval.Load()) > r.life()/3 }

// work does the job: it has a deadline from the first moment, heartbeats while the handler runs and until its end is
// known, and then that end.
func (r *Run) work(asked time.Duration) {
	var listener sync.WaitGroup
	defer listener.Wait()
	leave := sync.OnceFunc(func() { r.w.leave(r) })
	defer leave() // also if Notify does not return
	r.ctx, r.cancel = context.WithCancelCause(r.w.hard)
	defer r.cancel(nil) // before that wait, also if Notify panics
	r.interval.Store(int64(r.Lease.Interval))
	r.until.Store(int64(asked + lokt.Usable(r.life(), r.margin())))
	late := r.life() / 4
	if r.runs(asked, r.Job.MaxRuntime); r.Job.MaxRuntime > 0 {
		late = min(late, r.Job.MaxRuntime/20)
	}
	if r.w.o.Elapsed()-asked > late { // the request has waited: when the lease began is not known well enough
		var err error
		if asked, err = r.confirm(); err != nil {
			leave()
			r.w.notify(Notice{Type: NoticeUntold, Run: r, Err: err})
			return
		}
	}
	listening, quiet := context.WithCancel(r.ctx)
	if r.listening = listening; r.w.o.Wait == 0 {
		quiet()
	}
	r.beat = &lokt.Heartbeat{Interval: r.pace(), Margin: r.margin(), Renew: r.renew, Lost: r.cancel}
	r.w.keeper.Keep(r.beat, asked, r.life())
	defer r.beat.Stop()
	listener.Go(r.listen)
	prints, printed := context.WithCancel(context.Background()) // also while it ends because r.ctx has
	defer printed()
	go r.report(prints)
	if r.Job.MaxRuntime > 0 {
		listener.Go(func() {
			for r.Err() == nil {
				r.w.rest(r.ctx, r.runLeft(), nil)
			}
		})
	}
	finish := func() (cause error) {
		cause = context.Cause(r.ctx)
		quiet()
		r.cancel(nil)
		printed()
		<-r.told
		return cause
	}
	if !r.begin() {
		leave()
		r.end(jobs.Completion{Status: jobs.Queued}, nil, finish())
		return
	}
	defer context.AfterFunc(r.ctx, func() {
		if cause := context.Cause(r.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			r.w.notify(Notice{Type: NoticeStop, Run: r, Err: cause})
		}
	})()
	r.w.notify(Notice{Type: NoticeStarted, Run: r})
	result, err := r.call()
	leave()
	r.complete(result, err, finish())
}

// begin waits until the handler may be called, and reports whether it may: otherwise the worker drains, or was stopped. Of a
// job that was leased ahead the service is told first, lest it count as not begun.
func (r *Run) begin() bool {
	if r.w.hard.Err() != nil {
		return false
	}
	select {
	case <-r.turn:
	default:
		select {
		case <-r.turn:
		case <-r.w.asks.Done():
		case <-r.ctx.Done(): // the job is to be cancelled, or its lease is lost
		}
		if r.w.asks.Err() != nil || r.ctx.Err() != nil {
			return false
		}
	}
	if r.begun.Store(true); !r.Lease.Ahead {
		return true
	}
	asked, err := r.confirm()
	if err == nil {
		r.beat.Extend(asked, r.life())
	}
	return err == nil
}

// runs takes in that so much of the maximum runtime, 0 if there is none, was left after that moment.
func (r *Run) runs(asked, left time.Duration) {
	until := lokt.Usable(left, 0)
	if left > 0 {
		until += asked
	}
	r.runUntil.Store(max(r.runUntil.Load(), int64(until)))
}

// runLeft returns how much of the maximum runtime is left for the handler.
func (r *Run) runLeft() time.Duration {
	return time.Duration(r.runUntil.Load()) - min(r.margin(), r.Job.MaxRuntime/10) - r.w.o.Elapsed()
}

// errExit is the failure of a handler that ended its goroutine.
var errExit = errors.New("the handler did not return: it called runtime.Goexit")

// call calls the handler, unless there is a reason already why it should stop, and encodes what it returns, which may panic, too.
func (r *Run) call() (result jsontext.Value, err error) {
	if err := r.Err(); err != nil {
		return nil, err
	}
	err = errExit
	var handler sync.WaitGroup
	handler.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				result, err = nil, &panicError{fmt.Sprint(p), string(debug.Stack())}
			}
		}()
		value, failure := r.w.handle(r.ctx, r)
		if failure == nil {
			result, failure = encoded(value)
		} else {
			failureJSON(failure)
		}
		err = failure
	})
	handler.Wait()
	return result, err
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

// send sends a heartbeat and takes in what its answer says. The lease counts from the sending.
func (r *Run) send(ctx context.Context, b jobs.Heartbeat) (asked time.Duration, err error) {
	b.LeaseID, b.WorkerID, b.Ahead = r.Lease.ID, r.w.o.ID, !r.begun.Load()
	asked = r.w.o.Elapsed()
	answer, err := r.w.leaser.Heartbeat(ctx, b)
	switch {
	case err == nil:
		r.until.Store(int64(asked + lokt.Usable(r.life(), r.margin())))
		if answer.Cancel {
			r.cancel(ErrCancelled)
		}
		r.hear(answer.LostLocks)
		if answer.Interval > 0 {
			r.interval.Store(int64(answer.Interval))
		}
		if answer.RunLeft > 0 {
			r.runs(asked, answer.RunLeft)
		}
	case errors.Is(err, jobs.ErrLeaseNotFound), errors.Is(err, jobs.ErrWorkerMismatch):
		r.gone.Store(true)
		r.cancel(fmt.Errorf("%w: %w", lokt.ErrLost, err))
	}
	return asked, err
}

// confirm extends the lease, and returns when that was asked for, once some of the maximum runtime is known to be left. It
// gives up when the lease may have ended.
func (r *Run) confirm() (asked time.Duration, err error) {
	ctx, cancel := context.WithTimeout(r.w.hard, r.life())
	defer cancel()
	for pause := firstRetry; ; pause = min(2*pause, r.life()/4) {
		asked, err = r.send(ctx, jobs.Heartbeat{})
		if err == nil && r.runLeft() > 0 || err != nil && !r.w.passing(err) || ctx.Err() != nil {
			return asked, err
		}
		r.w.rest(ctx, spread(pause), nil)
	}
}

// renew is what the keeper calls when a heartbeat is due.
func (r *Run) renew(ctx context.Context) (life time.Duration, err error) {
	_, err = r.send(ctx, jobs.Heartbeat{})
	r.beat.Interval = r.pace()
	if r.gone.Load() {
		err = fmt.Errorf("%w: %w", lokt.ErrNotFound, err)
	}
	r.doubt(ctx, err)
	return r.life(), err
}

// doubt tells of a heartbeat that failed, and is tried again.
func (r *Run) doubt(ctx context.Context, err error) {
	if err != nil && !r.gone.Load() && ctx.Err() != context.Canceled {
		r.w.notify(Notice{Type: NoticeDoubt, Run: r, Err: err})
	}
}

// listenAfter is how long a job must take to be worth requests that wait for news about it.
const listenAfter = 250 * time.Millisecond

// pace returns the time between two heartbeats of the keeper: none is due while others wait for news.
func (r *Run) pace() time.Duration {
	if r.listening.Err() == nil {
		return r.life() / 2
	}
	return r.every()
}

// listen sends heartbeats whose answers wait at the service while the handler runs, so that the worker learns soon that
// the job is to be stopped.
func (r *Run) listen() {
	for ctx, next := r.listening, listenAfter; ; {
		r.w.rest(ctx, next, nil)
		if ctx.Err() != nil {
			return
		}
		every, left := r.every(), r.Remaining()
		if !r.crowded() {
			every /= 2
		}
		waiting, cancel := context.WithTimeout(ctx, max(left/3*2, firstRetry))
		asked, err := r.send(waiting, jobs.Heartbeat{Wait: max(min(r.w.o.Wait, every, left/2), 0)})
		cancel()
		if r.doubt(ctx, err); err == nil {
			r.beat.Extend(asked, r.life())
		}
		next = asked + every - r.w.o.Elapsed()
	}
}

// completePatience is for how long an end is offered to a service that is away, beyond the time for which the lease may
// be relied on: a service that comes back keeps the leases that it had.
const completePatience = 10 * time.Minute

// complete tells the service how the run ended. The cause is that of the context's end, before.
func (r *Run) complete(result jsontext.Value, failure, cause error) {
	c := jobs.Completion{Status: jobs.Completed, Result: result}
	if failure != nil {
		failure = forLocks(cause, failure)
		c.Status, c.Error = jobs.Failed, failureJSON(failure)
	}
	r.end(c, failure, cause)
}

// end ends the lease, with an offer that is made again and again until it is answered, the lease is known to be over, or
// there is no hope left.
func (r *Run) end(c jobs.Completion, failure, cause error) {
	c.LeaseID, c.WorkerID = r.Lease.ID, r.w.o.ID
	switch {
	case r.gone.Load() && c.Status == jobs.Queued:
		r.w.notify(Notice{Type: NoticeEnded, Run: r, State: c.Status})
		return
	case r.gone.Load():
		r.w.notify(Notice{Type: NoticeUntold, Run: r, Err: cmp.Or(cause, jobs.ErrLeaseNotFound)})
		return
	case errors.Is(cause, ErrRuntime) && failure != nil:
		r.w.notify(Notice{Type: NoticeUntold, Run: r, Err: cause})
		return // the service ends it, and says why
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(r.w.hard, func() { time.AfterFunc(r.w.o.StopGrace*19/20, cancel) })() // so that it is told before Run returns
	var away error                                                                                // why it was not told
	refused := false                                                                              // what the handler returned
	patience := map[bool]time.Duration{false: completePatience}[c.Status == jobs.Queued]          // a job that was not begun goes back by itself
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
			if c.Status == jobs.Queued || r.applied(ctx, c.Status) {
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
		case !r.w.passing(err), ctx.Err() != nil, r.Remaining() < -patience, r.gone.Load():
			if ctx.Err() != nil {
				err = cmp.Or(away, err)
			}
			r.w.notify(Notice{Type: NoticeUntold, Run: r, Err: err})
			return
		}
		away = err
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
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
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
