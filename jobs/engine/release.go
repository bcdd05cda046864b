package engine

// Endings: how leases end, and what becomes of their jobs.

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/jobs"
)

// hold is an active lease.
type hold struct {
	lease    jobs.Lease
	entry    *entry
	worker   *worker
	expires  time.Duration // unless there is a heartbeat
	runUntil time.Duration // never without a limit
	alarm    time.Duration // deadline when it was last looked at: heartbeats move only the deadline
	at       int           // place in engine.deadlines
	beats    []*waiter
}

// deadline returns when the lease ends by itself.
func (h *hold) deadline() time.Duration { return min(h.expires, h.runUntil) }

// attempt returns what is shown, and in the end kept, of the lease.
func (h *hold) attempt(s jobs.State) jobs.Attempt {
	l := &h.lease
	return jobs.Attempt{
		JobID: l.JobID, Number: l.Attempt, Token: l.Token, LeaseID: l.ID, WorkerID: l.WorkerID, Units: l.Units,
		State: s, IssuedAt: l.IssuedAt, FirstHeartbeat: l.FirstHeartbeat,
	}
}

// firstDeadline returns the lease that ends first, or nil.
func (e *Engine) firstDeadline() *hold {
	for e.deadlines.Len() > 0 {
		h := e.deadlines.top()
		if h.alarm >= h.deadline() {
			return h
		}
		h.alarm = h.deadline()
		e.deadlines.fix(h)
	}
	return nil
}

// expire ends the leases whose time is up.
func (e *Engine) expire() {
	for h := e.firstDeadline(); h != nil && h.deadline() <= e.Now.Mono && !e.full(); h = e.firstDeadline() {
		if h.runUntil <= h.expires {
			e.end(h, jobs.Failed, jobs.CodeRuntime, nil, quoted(jobs.CodeRuntime))
		} else {
			e.end(h, jobs.Expired, jobs.CodeExpired, nil, quoted(jobs.CodeExpired))
		}
	}
}

// leaseOf returns the active lease for its worker.
func (e *Engine) leaseOf(leaseID, workerID string) (*hold, error) {
	h := e.leases[leaseID]
	switch {
	case h == nil:
		return nil, jobs.ErrLeaseNotFound
	case h.worker.id != workerID:
		return nil, jobs.ErrWorkerMismatch
	}
	return h, nil
}

// beat applies a heartbeat.
func (e *Engine) beat(h *hold, b *jobs.Heartbeat) {
	e.see(h.worker)
	e.Metrics.Heartbeats++
	h.expires = max(h.expires, plus(e.Now.Mono, e.cfg.Life()))
	if until := e.Now.Wall.Add(e.cfg.Life()); until.After(h.lease.ExpiresAt) {
		h.lease.ExpiresAt = until
	}
	if e.Now.Wall.After(h.lease.LastHeartbeat) {
		h.lease.LastHeartbeat = e.Now.Wall
	}
	e.start(h)
	if b.Progress != nil || b.Checkpoint != nil {
		r := h.entry.job.Report()
		if b.Progress != nil {
			r.Progress = b.Progress
		}
		if b.Checkpoint != nil {
			r.Checkpoint = b.Checkpoint
		}
		e.mark(h.entry)
	}
	if e.cfg.Shared {
		e.must = true
		e.store(h.entry)
	}
}

// Quick applies a heartbeat to each of the leases outside of a turn, if nothing else has to be done or stored for
// any of them, and reports whether it did.
func (e *Engine) Quick(now Instant, b *jobs.Heartbeat, leaseIDs []string) ([]jobs.LeaseAnswer, bool) {
	if b.Wait > 0 || e.cfg.Shared {
		return nil, false
	}
	e.quick = e.quick[:0]
	for _, id := range leaseIDs {
		h := e.leases[id]
		if h == nil || h.worker.id != b.WorkerID || h.deadline() <= now.Mono {
			return nil, false
		}
		e.quick = append(e.quick, h)
	}
	e.setNow(now)
	answers := make([]jobs.LeaseAnswer, len(leaseIDs))
	for i, h := range e.quick {
		e.beat(h, b)
		answers[i].LeaseID, answers[i].HeartbeatAnswer = h.lease.ID, e.beatAnswer(h)
	}
	clear(e.quick)
	return answers, true
}

// start notes the first heartbeat, or an end that stands for it.
func (e *Engine) start(h *hold) {
	if !h.lease.FirstHeartbeat.IsZero() {
		return
	}
	h.lease.FirstHeartbeat = e.Now.Wall
	h.entry.job.State = jobs.Running
	e.mark(h.entry)
	e.note(jobs.EventRunning, h.entry, h.lease.ID, h.lease.WorkerID, "", "")
}

func (e *Engine) beatAnswer(h *hold) jobs.HeartbeatAnswer {
	return jobs.HeartbeatAnswer{ExpiresAt: h.lease.ExpiresAt, Cancel: h.entry.job.Cancel, Drain: e.draining,
		Interval: e.cfg.Interval()}
}

// beatOne applies a heartbeat, and answers it unless it waits.
func (e *Engine) beatOne(id uint64, b *jobs.Heartbeat) {
	h, err := e.leaseOf(b.LeaseID, b.WorkerID)
	if err != nil {
		e.Metrics.Refused[jobs.Code(err)]++
		e.fail(id, err)
		return
	}
	e.beat(h, b)
	if b.Wait == 0 || h.entry.job.Cancel || e.draining || len(e.waiters) >= e.cfg.MaxParked {
		e.reply(id, e.beatAnswer(h))
		return
	}
	w := &waiter{id: id, calls: []uint64{id}, until: plus(e.Now.Mono, b.Wait), hold: h}
	h.beats = append(h.beats, w)
	e.waiters[id] = w
	e.ends.push(w)
}

// tell answers the heartbeats that wait on a lease.
func (e *Engine) tell(h *hold) {
	for _, w := range slices.Clone(h.beats) {
		e.settle(w, e.beatAnswer(h), nil)
	}
}

// beatAll applies heartbeats of one worker.
func (e *Engine) beatAll(workerID string, leaseIDs []string) []jobs.LeaseAnswer {
	all := make([]jobs.LeaseAnswer, len(leaseIDs))
	for i, id := range leaseIDs {
		all[i].LeaseID = id
		h, err := e.leaseOf(id, workerID)
		if err != nil {
			e.Metrics.Refused[jobs.Code(err)]++
			all[i].Err = err
			continue
		}
		e.beat(h, &jobs.Heartbeat{})
		all[i].HeartbeatAnswer = e.beatAnswer(h)
	}
	return all
}

// complete ends a lease as its worker says, and reports whether it did.
func (e *Engine) complete(c *jobs.Completion) (bool, error) {
	h, err := e.leaseOf(c.LeaseID, c.WorkerID)
	if errors.Is(err, jobs.ErrLeaseNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	e.see(h.worker)
	e.start(h)
	code := jobs.CodeCompleted
	if c.Status == jobs.Failed {
		code = jobs.CodeFailed
	}
	e.end(h, c.Status, code, c.Result, c.Error)
	return true, nil
}

// report keeps what a worker tells about its job.
func (e *Engine) report(p *jobs.Progress) error {
	h, err := e.leaseOf(p.LeaseID, p.WorkerID)
	if err != nil {
		return err
	}
	e.see(h.worker)
	r := h.entry.job.Report()
	if p.Progress != nil {
		r.Progress = p.Progress
	}
	if p.Message != nil {
		r.Message = *p.Message
	}
	if p.Metrics != nil {
		r.Metrics = p.Metrics
	}
	e.touch(h.entry)
	return nil
}

// cancel ends a queued job, or asks the worker of a leased one to stop.
func (e *Engine) cancel(jobID, reason string) (jobs.State, error) {
	en := e.jobs[jobID]
	if en == nil {
		return "", jobs.ErrJobNotFound
	}
	j := &en.job
	switch {
	case en.hold == nil:
		j.Cancel, j.Reason = true, reason
		e.endJob(en, jobs.Cancelled, jobs.CodeCancelled)
	case !j.Cancel:
		j.Cancel, j.Reason = true, reason
		e.touch(en)
		e.note(jobs.EventCancelRequest, en, en.hold.lease.ID, en.hold.lease.WorkerID, "", reason)
		e.tell(en.hold)
	}
	return j.State, nil
}

// revoke ends a lease and fails its job for good.
func (e *Engine) revoke(leaseID, reason string) error {
	h := e.leases[leaseID]
	if h == nil {
		return jobs.ErrLeaseNotFound
	}
	h.entry.job.Reason = reason
	why := quoted(jobs.CodeRevoked)
	if reason != "" {
		if b, err := json.Marshal(reason); err == nil {
			why = b
		}
	}
	e.end(h, jobs.Failed, jobs.CodeRevoked, nil, why)
	return nil
}

// end ends a lease: how and for what reason the attempt ended, and what the worker left.
func (e *Engine) end(h *hold, how jobs.State, code string, result, failure jsontext.Value) {
	en, j := h.entry, &h.entry.job
	e.dropHold(h, code)
	e.Metrics.Ended[code]++
	e.Metrics.Run.Observe(e.Now.Wall.Sub(h.lease.IssuedAt))
	a := h.attempt(how)
	a.Code, a.EndedAt, a.Error = code, e.Now.Wall, failure
	en.attempts = append(en.attempts, a)
	if h.lease.RequestID != "" {
		l := h.lease
		e.remember(jobs.Memo{ID: requestKey{l.WorkerID, l.RequestID}.memo(), JobID: l.JobID, Lease: &l},
			jobs.RequestLife)
	}
	e.freeLocks(h)
	if result != nil || failure != nil {
		r := j.Report()
		r.Result, r.Error = result, failure
	}
	if how == jobs.Completed && j.Output != nil && j.Output.Error != nil && failure == nil {
		j.Report().Error = nil
	}
	j.LeaseID = ""
	final, again := outcome(j, how, code)
	if !again {
		if final == jobs.Cancelled {
			code = jobs.CodeCancelled
		}
		e.endJob(en, final, code)
		return
	}
	j.State, j.Code = jobs.Queued, code
	wait := backoff(j.RetryBackoff, j.Attempt)
	j.ReadyAt = e.Now.Wall.Add(wait)
	e.touch(en)
	e.note(jobs.EventRetry, en, h.lease.ID, h.lease.WorkerID, code, "")
	e.queue(en, plus(e.Now.Mono, wait), false)
}

// giveBack undoes a grant that nobody was told of: the job is queued at its old place, and there was no attempt.
// Its token is used up.
func (e *Engine) giveBack(leaseID string) {
	h := e.leases[leaseID]
	if h == nil || !h.lease.FirstHeartbeat.IsZero() {
		return
	}
	en, j := h.entry, &h.entry.job
	e.dropHold(h, "")
	e.freeLocks(h)
	j.Attempt--
	j.LeaseID = ""
	if j.Attempt == 0 {
		j.StartedAt = time.Time{}
	}
	j.State = jobs.Queued
	if j.Cancel {
		e.endJob(en, jobs.Cancelled, jobs.CodeCancelled)
		return
	}
	if j.ReadyAt.After(e.Now.Wall) { // the wall clock was set back; the job's time had come
		j.ReadyAt = e.Now.Wall
	}
	e.touch(en)
	e.note(jobs.EventReturn, en, leaseID, h.lease.WorkerID, "", "")
	e.queue(en, 0, false)
}

// freeLocks lets go of the locks of a lease that ended.
func (e *Engine) freeLocks(h *hold) {
	names := h.entry.job.Locks
	switch {
	case len(names) == 0:
	case e.cfg.Locking:
		e.order(FreeLocks, h.lease.ID, h.entry.job.ID, names)
	default:
		e.take(names, "")
	}
}

// dropHold makes a lease count no more, for a reason, if it is known.
func (e *Engine) dropHold(h *hold, code string) {
	why := jobs.ErrLeaseNotFound
	if code == jobs.CodeRevoked {
		why = jobs.ErrRevoked
	}
	for _, w := range slices.Clone(h.beats) {
		e.settle(w, nil, why)
	}
	h.entry.hold = nil
	delete(e.leases, h.lease.ID)
	e.deadlines.remove(h)
	if h.runUntil != Never {
		i, _ := slices.BinarySearchFunc(e.limits, h.runUntil, byRunUntil)
		for e.limits[i] != h {
			i++
		}
		e.limits = slices.Delete(e.limits, i, i+1)
	}
	if key := (requestKey{h.lease.WorkerID, h.lease.RequestID}); e.granted[key] == h {
		delete(e.granted, key)
	}
	e.leased -= h.lease.Units
	h.worker.leases--
	h.worker.busy--
	e.wake = true
}

// endJob ends a job that has no lease any more.
func (e *Engine) endJob(en *entry, s jobs.State, code string) {
	j := &en.job
	leaseID, workerID := "", ""
	tally := &e.statistic(j.Type, "").Ends
	if n := len(en.attempts); n > 0 && j.State.Active() {
		last := en.attempts[n-1]
		leaseID, workerID = last.LeaseID, last.WorkerID
		tally.Runs.Observe(last.EndedAt.Sub(last.IssuedAt))
	}
	if !j.StartedAt.IsZero() {
		ready := j.CreatedAt
		if j.RunAt.After(ready) {
			ready = j.RunAt
		}
		tally.Waits++
		tally.WaitSum += max(j.StartedAt.Sub(ready), 0)
	}
	tally.Ended(s)
	e.unqueue(en)
	j.State, j.Code, j.LeaseID, j.EndedAt = s, code, "", e.Now.Wall
	e.touch(en)
	e.note(endEvent(s, code), en, leaseID, workerID, code, j.Reason)
	if e.keys[j.IdempotencyKey] == en {
		e.remember(jobs.Memo{ID: keyMemo(j.IdempotencyKey), JobID: j.ID, Print: j.Fingerprint(), State: s},
			jobs.KeyLife)
	}
	e.drop(en)
}
