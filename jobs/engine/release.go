package engine

// Leases: how heartbeats keep them, how they end, and what becomes of their jobs.

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/jobs"
)

// addLease makes a lease count.
func (e *Engine) addLease(l *jobs.Lease, en *entry, w *worker, expires, runUntil time.Duration) {
	en.Lease, en.tenure = l, &tenure{worker: w, expires: expires, runUntil: runUntil, runTold: runUntil, alarm: min(expires, runUntil)}
	e.leases[l.ID] = en
	e.deadlines.Push(en)
	if runUntil != Never {
		i, _ := slices.BinarySearchFunc(e.limits, runUntil, func(en *entry, t time.Duration) int { return cmp.Compare(en.runUntil, t) })
		e.limits = slices.Insert(e.limits, i, en)
	}
	if l.RequestID != "" {
		e.granted[requestKey{l.WorkerID, l.RequestID}] = en
	}
	e.leased += l.Units
	w.leases++
}

// dropLease makes a job's lease count no more, for a reason, if it is known, and returns it.
func (e *Engine) dropLease(en *entry, code string) *jobs.Lease {
	why := jobs.ErrLeaseNotFound
	if code == jobs.CodeRevoked {
		why = jobs.ErrRevoked
	}
	for _, w := range slices.Clone(en.beats) {
		e.settle(w, Reply{Err: why})
	}
	l := en.Lease
	delete(e.leases, l.ID)
	e.deadlines.Remove(en)
	if en.runUntil != Never {
		i := slices.Index(e.limits, en)
		e.limits = slices.Delete(e.limits, i, i+1)
	}
	if key := (requestKey{l.WorkerID, l.RequestID}); e.granted[key] == en {
		delete(e.granted, key)
	}
	e.leased -= l.Units
	en.worker.leases--
	en.worker.busy--
	en.Lease, en.tenure = nil, nil
	e.wake = true
	return l
}

// deadline returns when the job's lease ends by itself.
func (en *entry) deadline() time.Duration { return min(en.expires, en.runUntil) }

// attempt returns what is shown, and in the end kept, of the job's lease.
func (en *entry) attempt(s jobs.State) jobs.Attempt {
	l := en.Lease
	return jobs.Attempt{
		JobID: l.JobID, Number: l.Attempt, Token: l.Token, LeaseID: l.ID, WorkerID: l.WorkerID, Units: l.Units,
		State: s, IssuedAt: l.IssuedAt, FirstHeartbeat: l.FirstHeartbeat,
	}
}

// firstDeadline returns the job whose lease ends first, or nil.
func (e *Engine) firstDeadline() *entry {
	for e.deadlines.Len() > 0 {
		en := e.deadlines.Top()
		if en.alarm >= en.deadline() {
			return en
		}
		en.alarm = en.deadline()
		e.deadlines.Fix(en)
	}
	return nil
}

// expire ends the leases whose time is up.
func (e *Engine) expire() {
	for en := e.firstDeadline(); en != nil && en.deadline() <= e.Now.Mono && !e.full(); en = e.firstDeadline() {
		if en.Lease.Ahead {
			e.handBack(en)
			continue
		}
		how, code := jobs.Expired, jobs.CodeExpired
		if en.runUntil <= en.expires {
			how, code = jobs.Failed, jobs.CodeRuntime
		}
		e.end(en, how, code, nil, quoted(code))
	}
}

// leaseOf returns the job of an active lease, for its worker.
func (e *Engine) leaseOf(leaseID, workerID string) (*entry, error) {
	en := e.leases[leaseID]
	switch {
	case en == nil:
		return nil, jobs.ErrLeaseNotFound
	case en.worker.id != workerID:
		return nil, jobs.ErrWorkerMismatch
	}
	return en, nil
}

// Heartbeat extends leases of one worker, all in the same way, and is answered with []jobs.LeaseAnswer. Only a single one
// may wait.
type Heartbeat struct {
	jobs.Heartbeat // but for LeaseID
	LeaseIDs       []string
}

func (o Heartbeat) answer(e *Engine, id uint64) Reply {
	answers := make([]jobs.LeaseAnswer, len(o.LeaseIDs))
	for i, leaseID := range o.LeaseIDs {
		en, err := e.leaseOf(leaseID, o.WorkerID)
		if err != nil {
			answers[i] = jobs.LeaseAnswer{LeaseID: leaseID, Err: err}
			continue
		}
		e.see(en.worker)
		e.beat(en, &o.Heartbeat, &answers[i])
		if o.Wait > 0 && !en.Cancel && !e.draining && len(e.waiters) < e.cfg.MaxParked {
			w := &waiter{id: id, calls: []uint64{id}, until: plus(e.Now.Mono, o.Wait), beat: en}
			en.beats = append(en.beats, w)
			e.waiters[id] = w
			e.ends.Push(w)
			return Reply{later: true}
		}
	}
	return Reply{Result: answers}
}

// Quick applies heartbeats outside of a turn, if nothing else has to be done or stored for any of them, and reports
// whether it did.
func (e *Engine) Quick(now Instant, o *Heartbeat) ([]jobs.LeaseAnswer, bool) {
	if o.Wait > 0 || e.cfg.Shared || len(o.LeaseIDs) == 0 {
		return nil, false
	}
	e.found = e.found[:0]
	for _, id := range o.LeaseIDs {
		en, err := e.leaseOf(id, o.WorkerID)
		if err != nil || en.deadline() <= now.Mono || en.Lease.Ahead && !o.Ahead {
			return nil, false
		}
		e.found = append(e.found, en)
	}
	e.setNow(now)
	e.see(e.found[0].worker)
	answers := make([]jobs.LeaseAnswer, len(e.found))
	for i, en := range e.found {
		e.beat(en, &o.Heartbeat, &answers[i])
	}
	clear(e.found)
	return answers, true
}

// beat applies a heartbeat, and answers it.
func (e *Engine) beat(en *entry, b *jobs.Heartbeat, answer *jobs.LeaseAnswer) {
	l := en.Lease
	en.expires = max(en.expires, plus(e.Now.Mono, e.life(l)))
	if until := e.Now.Wall.Add(e.life(l)); until.After(l.ExpiresAt) {
		l.ExpiresAt = until
	}
	if e.Now.Wall.After(l.LastHeartbeat) {
		l.LastHeartbeat = e.Now.Wall
	}
	if b.Ahead {
		e.mark(en)
	} else {
		e.start(en)
	}
	if b.Progress != nil || b.Checkpoint != nil {
		r := en.Report()
		r.Progress = cmp.Or(b.Progress, r.Progress)
		if b.Checkpoint != nil {
			r.Checkpoint = b.Checkpoint
		}
		e.mark(en)
	}
	if e.cfg.Shared {
		e.store(en)
	}
	e.say(en, answer)
}

// start notes the first heartbeat, or an end that stands for it.
func (e *Engine) start(en *entry) {
	if en.State == jobs.Leased {
		e.must = e.must || en.Lease.Ahead // from here on it counts as an attempt
		en.Lease.FirstHeartbeat, en.Lease.Ahead, en.State = e.Now.Wall, false, jobs.Running
		e.mark(en)
		e.note(en, jobs.Event{Type: jobs.EventRunning})
	}
}

// say answers a heartbeat.
func (e *Engine) say(en *entry, answer *jobs.LeaseAnswer) {
	answer.LeaseID, answer.ExpiresAt, answer.Cancel = en.LeaseID, en.Lease.ExpiresAt, en.Cancel
	answer.Drain, answer.Interval = e.draining, e.cfg.Interval(len(e.leases))
	if en.runUntil != Never {
		answer.RunLeft = max(en.runTold-e.Now.Mono, 0)
	}
}

// tell answers a heartbeat that waits.
func (e *Engine) tell(w *waiter) {
	answers := make([]jobs.LeaseAnswer, 1)
	e.say(w.beat, &answers[0])
	e.settle(w, Reply{Result: answers})
}

// tellAll answers the heartbeats that wait on a lease.
func (e *Engine) tellAll(en *entry) {
	for _, w := range slices.Clone(en.beats) {
		e.tell(w)
	}
}

// Complete ends a lease as its worker says, and is answered with whether it did.
type Complete struct{ jobs.Completion }

func (o Complete) answer(e *Engine, id uint64) Reply {
	en, err := e.leaseOf(o.LeaseID, o.WorkerID)
	if errors.Is(err, jobs.ErrLeaseNotFound) {
		return Reply{Result: false}
	} else if err != nil {
		return Reply{Err: err}
	}
	e.see(en.worker)
	if o.Status == jobs.Queued {
		e.handBack(en)
	} else {
		e.start(en)
		e.end(en, o.Status, string(o.Status), o.Result, o.Error) // CodeCompleted or CodeFailed
	}
	if u := e.unlocking[o.LeaseID]; u != nil {
		u.call = id
		return Reply{later: true}
	}
	return Reply{Result: true}
}

// Report keeps what a worker tells about its job.
type Report struct{ jobs.Progress }

func (o Report) answer(e *Engine, _ uint64) Reply {
	en, err := e.leaseOf(o.LeaseID, o.WorkerID)
	if err != nil {
		return Reply{Err: err}
	}
	e.see(en.worker)
	r := en.Report()
	r.Progress = cmp.Or(o.Progress.Progress, r.Progress)
	if o.Message != nil {
		r.Message = *o.Message
	}
	if o.Metrics != nil {
		r.Metrics = o.Metrics
	}
	e.print(en, r, o.Text, o.Offset)
	e.touch(en)
	return Reply{}
}

// print keeps what a job printed, from an offset on, but for what is kept already. The lease ID, which a command may print
// with its environment, is not shown.
func (e *Engine) print(en *entry, r *jobs.Report, text string, offset int64) {
	known := min(max(r.Printed-offset, 0), int64(len(text)))
	if text = text[known:]; text == "" || !utf8.RuneStart(text[0]) { // no worker ends within a character
		return
	}
	text = strings.ReplaceAll(text, en.LeaseID, strings.Repeat("*", len(en.LeaseID)))
	p := jobs.Piece{JobID: en.ID, Attempt: en.Attempt, Offset: offset + known, Text: text}
	e.output, r.Printed = append(e.output, p), p.End()
	e.moved += len(text)
}

// Cancel ends a queued job, or asks the worker of a leased one to stop. It is answered with the job's state.
type Cancel struct{ JobID, Reason string }

func (o Cancel) answer(e *Engine, _ uint64) Reply {
	en := e.jobs[o.JobID]
	switch {
	case en == nil:
		return Reply{Err: jobs.ErrJobNotFound}
	case en.Lease == nil:
		en.Cancel, en.Reason = true, o.Reason
		e.endJob(en, jobs.Cancelled, jobs.Event{Code: jobs.CodeCancelled})
	case !en.Cancel:
		en.Cancel, en.Reason = true, o.Reason
		e.touch(en)
		e.note(en, jobs.Event{Type: jobs.EventCancelRequest, Reason: o.Reason})
		e.tellAll(en)
	}
	return Reply{Result: en.State}
}

// Revoke ends a lease, and fails its job for good.
type Revoke struct{ LeaseID, Reason string }

func (o Revoke) answer(e *Engine, _ uint64) Reply {
	en := e.leases[o.LeaseID]
	if en == nil {
		return Reply{Err: jobs.ErrLeaseNotFound}
	}
	en.Reason = o.Reason
	why, _ := json.Marshal(cmp.Or(o.Reason, jobs.CodeRevoked)) // a string can be
	e.end(en, jobs.Failed, jobs.CodeRevoked, nil, why)
	return Reply{}
}

// end ends a job's lease: how and for what reason the attempt ended, and what the worker left.
func (e *Engine) end(en *entry, how jobs.State, code string, result, failure jsontext.Value) {
	a := en.attempt(how)
	a.Code, a.EndedAt, a.Error = code, e.Now.Wall, failure
	en.Attempts = append(en.Attempts, a)
	l := e.dropLease(en, code)
	e.rememberRequest(l)
	e.freeLocks(en, l.ID)
	if result != nil || failure != nil {
		r := en.Report()
		r.Result, r.Error = result, failure
	}
	en.LeaseID = ""
	ended := jobs.Event{LeaseID: l.ID, WorkerID: l.WorkerID, Code: code, Took: e.Now.Wall.Sub(l.IssuedAt)}
	final, again := outcome(&en.Job, how, code)
	if !again {
		if final == jobs.Cancelled {
			ended.Code = jobs.CodeCancelled
		}
		e.endJob(en, final, ended)
		return
	}
	en.State, en.Code = jobs.Queued, code
	wait := backoff(en.RetryBackoff, en.Attempt)
	en.ReadyAt = e.Now.Wall.Add(wait)
	e.touch(en)
	ended.Type = jobs.EventRetry
	e.note(en, ended)
	e.queue(en, plus(e.Now.Mono, wait), false)
}

// rememberRequest remembers what the request was granted whose lease ends.
func (e *Engine) rememberRequest(l *jobs.Lease) {
	if l.RequestID != "" {
		e.remember(jobs.Memo{ID: requestKey{l.WorkerID, l.RequestID}.memo(), JobID: l.JobID, Lease: l}, jobs.RequestLife)
	}
}

// handBack ends a lease whose worker has not begun.
func (e *Engine) handBack(en *entry) {
	e.rememberRequest(en.Lease)
	e.giveBack(en)
}

// takeBack ends a lease that nobody was told of.
func (e *Engine) takeBack(leaseID string) bool {
	en := e.leases[leaseID]
	if en == nil || en.State != jobs.Leased {
		return false
	}
	e.giveBack(en)
	return true
}

// giveBack ends a lease under which nothing was begun: the job is queued at its old place, and there was no attempt. Its
// token is used up.
func (e *Engine) giveBack(en *entry) {
	l := e.dropLease(en, "")
	e.freeLocks(en, l.ID)
	en.State, en.LeaseID = jobs.Queued, ""
	if en.Attempt--; en.Attempt == 0 {
		en.StartedAt = time.Time{}
	}
	if en.Cancel {
		e.endJob(en, jobs.Cancelled, jobs.Event{Code: jobs.CodeCancelled})
		return
	}
	if en.ReadyAt.After(e.Now.Wall) { // the wall clock was set back; the job's time had come
		en.ReadyAt = e.Now.Wall
	}
	e.touch(en)
	e.note(en, jobs.Event{Type: jobs.EventReturn, LeaseID: l.ID, WorkerID: l.WorkerID})
	e.queue(en, 0, false)
}

// freeLocks lets go of the locks of a lease that ended.
func (e *Engine) freeLocks(en *entry, leaseID string) {
	switch {
	case len(en.Locks) == 0:
	case e.cfg.Locking:
		e.order(en.locksFor(leaseID), FreeLocks)
	default:
		e.leave(en.Locks, leaseID)
	}
}

// endJob ends a job that has no lease any more. The event, but for its type and reason, says of which one it is the end.
func (e *Engine) endJob(en *entry, s jobs.State, ended jobs.Event) {
	sum := e.statistic(en.Type, "")
	if ended.LeaseID != "" {
		sum.Runs.Observe(ended.Took)
	}
	ready := en.CreatedAt
	if en.RunAt.After(ready) {
		ready = en.RunAt
	}
	if len(en.Extras().After) > 0 {
		ready = en.ReadyAt // of the last try: those that were tried again do not count
	}
	if !en.StartedAt.Before(ready) {
		sum.Waits.Observe(en.StartedAt.Sub(ready))
	}
	e.unqueue(en)
	if en.State == jobs.Scheduled {
		en.ticks().Next = time.Time{}
	}
	en.State, en.Code, en.LeaseID, en.EndedAt = s, ended.Code, "", e.Now.Wall
	e.touch(en)
	ended.Type, ended.Reason = endEvent(s, ended.Code), en.Reason
	e.note(en, ended)
	if e.keys[en.IdempotencyKey] == en {
		e.remember(jobs.Memo{ID: keyMemo(en.IdempotencyKey), JobID: en.ID, Print: en.Fingerprint(), State: s}, jobs.KeyLife)
	}
	e.drop(en)
}
