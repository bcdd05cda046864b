package jobs

// Endings: how leases end, and what becomes of their jobs.

import (
	"encoding/json"
	"errors"
	"slices"
	"time"
)

// hold is an active lease.
type hold struct {
	lease    Lease
	entry    *entry
	worker   *worker
	expires  time.Duration // unless there is a heartbeat
	runUntil time.Duration // never without a limit
	alarm    time.Duration // deadline when it was last looked at: heartbeats move only the deadline
	at       int           // place in engine.deadlines
	beats    []*waiter
	unsaved  bool // it is in engine.unsaved
}

// deadline returns when the lease ends by itself.
func (h *hold) deadline() time.Duration { return min(h.expires, h.runUntil) }

// firstDeadline returns the lease that ends first, or nil.
func (e *engine) firstDeadline() *hold {
	for e.deadlines.len() > 0 {
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
func (e *engine) expire() {
	for h := e.firstDeadline(); h != nil && h.deadline() <= e.now.mono && !e.full(); h = e.firstDeadline() {
		e.move(&h.entry.job)
		if h.runUntil <= h.expires {
			e.end(h, Failed, CodeRuntime, nil, quoted(CodeRuntime))
		} else {
			e.end(h, Expired, CodeExpired, nil, quoted(CodeExpired))
		}
	}
}

// leaseOf returns the active lease for its worker.
func (e *engine) leaseOf(leaseID, workerID string) (*hold, error) {
	h := e.leases[leaseID]
	switch {
	case h == nil:
		return nil, ErrLeaseNotFound
	case h.worker.id != workerID:
		return nil, ErrWorkerMismatch
	}
	return h, nil
}

// beat applies a heartbeat.
func (e *engine) beat(h *hold, b *Heartbeat) {
	e.see(h.worker)
	e.metrics.Beats++
	h.expires = max(h.expires, plus(e.now.mono, e.cfg.life()))
	if until := e.now.wall.Add(e.cfg.life()); until.After(h.lease.ExpiresAt) {
		h.lease.ExpiresAt = until
	}
	if e.now.wall.After(h.lease.LastHeartbeat) {
		h.lease.LastHeartbeat = e.now.wall
	}
	e.start(h)
	if b.Progress != nil || b.Checkpoint != nil {
		r := h.entry.job.report()
		if b.Progress != nil {
			r.Progress = b.Progress
		}
		if b.Checkpoint != nil {
			r.Checkpoint = b.Checkpoint
		}
		e.touchLazily(h.entry, Reported)
	}
	if e.cfg.Shared {
		e.save(h)
	}
}

// quickBeat applies a heartbeat outside of a turn, if nothing else has to be done or stored for it, and reports whether
// it did.
func (e *engine) quickBeat(now instant, b *Heartbeat) (HeartbeatAnswer, bool) {
	h := e.leases[b.LeaseID]
	if h == nil || h.worker.id != b.WorkerID || h.deadline() <= now.mono || b.Wait > 0 || e.cfg.Shared {
		return HeartbeatAnswer{}, false
	}
	e.setNow(now)
	e.beat(h, b)
	return e.beatAnswer(h), true
}

// quickBeats applies heartbeats of one worker as quickBeat does, if it can for all of them.
func (e *engine) quickBeats(now instant, workerID string, leaseIDs []string) ([]LeaseAnswer, bool) {
	if e.cfg.Shared {
		return nil, false
	}
	holds := make([]*hold, len(leaseIDs))
	for i, id := range leaseIDs {
		h := e.leases[id]
		if h == nil || h.worker.id != workerID || h.deadline() <= now.mono {
			return nil, false
		}
		holds[i] = h
	}
	e.setNow(now)
	all := make([]LeaseAnswer, len(holds))
	for i, h := range holds {
		e.beat(h, &Heartbeat{})
		all[i] = LeaseAnswer{LeaseID: leaseIDs[i], HeartbeatAnswer: e.beatAnswer(h)}
	}
	return all, true
}

// start notes the first heartbeat, or an end that stands for it.
func (e *engine) start(h *hold) {
	if !h.lease.FirstHeartbeat.IsZero() {
		return
	}
	h.lease.FirstHeartbeat = e.now.wall
	h.entry.job.State = Running
	e.touchLazily(h.entry, Moved)
	e.saveLazily(h)
	e.noteLazily(EventRunning, h.entry, h.lease.ID, h.lease.WorkerID, "", "")
}

func (e *engine) beatAnswer(h *hold) HeartbeatAnswer {
	return HeartbeatAnswer{ExpiresAt: h.lease.ExpiresAt, Cancel: h.entry.job.Cancel, Drain: e.draining, Interval: e.cfg.interval()}
}

// beatOne applies a heartbeat, and answers it unless it waits.
func (e *engine) beatOne(id uint64, b *Heartbeat) {
	h, err := e.leaseOf(b.LeaseID, b.WorkerID)
	if err != nil {
		e.metrics.Refused[Code(err)]++
		e.fail(id, err)
		return
	}
	e.beat(h, b)
	if b.Wait == 0 || h.entry.job.Cancel || e.draining || len(e.waiters) >= e.cfg.MaxParked {
		e.reply(id, e.beatAnswer(h))
		return
	}
	w := &waiter{id: id, until: plus(e.now.mono, b.Wait), hold: h}
	h.beats = append(h.beats, w)
	e.waiters[id] = w
	e.ends.push(w)
}

// tell answers the heartbeats that wait on a lease.
func (e *engine) tell(h *hold) {
	for _, w := range slices.Clone(h.beats) {
		e.dismiss(w)
		e.reply(w.id, e.beatAnswer(h))
	}
}

// beatAll applies heartbeats of one worker.
func (e *engine) beatAll(workerID string, leaseIDs []string) []LeaseAnswer {
	all := make([]LeaseAnswer, len(leaseIDs))
	for i, id := range leaseIDs {
		all[i].LeaseID = id
		h, err := e.leaseOf(id, workerID)
		if err != nil {
			e.metrics.Refused[Code(err)]++
			all[i].Err = err
			continue
		}
		e.beat(h, &Heartbeat{})
		all[i].HeartbeatAnswer = e.beatAnswer(h)
	}
	return all
}

// complete ends a lease as its worker says, and reports whether it did.
func (e *engine) complete(c *Completion) (bool, error) {
	h, err := e.leaseOf(c.LeaseID, c.WorkerID)
	if errors.Is(err, ErrLeaseNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	e.see(h.worker)
	e.start(h)
	code := CodeCompleted
	if c.Status == Failed {
		code = CodeFailed
	}
	e.end(h, c.Status, code, c.Result, c.Error)
	return true, nil
}

// report keeps what a worker tells about its job.
func (e *engine) report(p *Progress) error {
	h, err := e.leaseOf(p.LeaseID, p.WorkerID)
	if err != nil {
		return err
	}
	e.see(h.worker)
	r := h.entry.job.report()
	if p.Progress != nil {
		r.Progress = p.Progress
	}
	if p.Message != nil {
		r.Message = *p.Message
	}
	if p.Metrics != nil {
		r.Metrics = p.Metrics
	}
	e.touch(h.entry, Reported)
	return nil
}

// cancel ends a queued job, or asks the worker of a leased one to stop.
func (e *engine) cancel(jobID, reason string) (State, error) {
	en := e.jobs[jobID]
	if en == nil {
		return "", ErrJobNotFound
	}
	j := &en.job
	switch {
	case en.hold == nil:
		j.Cancel, j.Reason = true, reason
		e.endJob(en, Cancelled, CodeCancelled)
	case !j.Cancel:
		j.Cancel, j.Reason = true, reason
		e.touch(en, Moved)
		e.note(EventCancelAsk, en, en.hold.lease.ID, en.hold.lease.WorkerID, "", reason)
		e.tell(en.hold)
	}
	return j.State, nil
}

// revoke ends a lease and fails its job for good.
func (e *engine) revoke(leaseID, reason string) error {
	h := e.leases[leaseID]
	if h == nil {
		return ErrLeaseNotFound
	}
	h.entry.job.Reason = reason
	why := quoted(CodeRevoked)
	if reason != "" {
		if b, err := json.Marshal(reason); err == nil {
			why = b
		}
	}
	e.end(h, Failed, CodeRevoked, nil, why)
	return nil
}

// end ends a lease: how and for what reason the attempt ended, and what the worker left.
func (e *engine) end(h *hold, how State, code string, result, failure json.RawMessage) {
	en, j := h.entry, &h.entry.job
	e.dropHold(h, code)
	e.metrics.Ended[code]++
	e.metrics.Run.observe(e.now.wall.Sub(h.lease.IssuedAt))
	e.unleased = append(e.unleased, h.lease.ID)
	a := Attempt{
		JobID: j.ID, Number: h.lease.Attempt, Token: h.lease.Token, LeaseID: h.lease.ID, WorkerID: h.lease.WorkerID, Units: h.lease.Units,
		State: how, Code: code, IssuedAt: h.lease.IssuedAt, FirstBeat: h.lease.FirstHeartbeat, EndedAt: e.now.wall, Error: failure,
	}
	en.attempts = append(en.attempts, a)
	e.attempts = append(e.attempts, a)
	if h.lease.RequestID != "" {
		e.remember(Answered{
			WorkerID: h.lease.WorkerID, RequestID: h.lease.RequestID, Lease: h.lease, Expires: e.now.wall.Add(RequestLife),
		}, plus(e.now.mono, RequestLife))
		e.newAnswers = append(e.newAnswers, e.answered[requestKey{h.lease.WorkerID, h.lease.RequestID}].Answered)
	}
	e.freeLocks(h)
	what := Moved
	if result != nil || failure != nil {
		r := j.report()
		r.Result, r.Error = result, failure
		what |= Reported
	}
	if how == Completed && j.Output != nil && j.Output.Error != nil && failure == nil {
		j.report().Error = nil
	}
	j.LeaseID = ""
	final, again := outcome(j, how, code)
	if !again {
		if final == Cancelled {
			code = CodeCancelled
		}
		e.endJob(en, final, code)
		return
	}
	j.State, j.Code = Queued, code
	wait := backoff(j.RetryBackoff, j.Attempt)
	j.ReadyAt = e.now.wall.Add(wait)
	e.touch(en, what)
	e.note(EventRetry, en, h.lease.ID, h.lease.WorkerID, code, "")
	e.queue(en, plus(e.now.mono, wait), false)
}

// giveBack undoes a grant that nobody was told of: the job is queued at its old place, and there was no attempt. Its token
// is used up.
func (e *engine) giveBack(leaseID string) {
	h := e.leases[leaseID]
	if h == nil || !h.lease.FirstHeartbeat.IsZero() {
		return
	}
	en, j := h.entry, &h.entry.job
	e.dropHold(h, "")
	e.unleased = append(e.unleased, leaseID)
	e.freeLocks(h)
	j.Attempt--
	j.LeaseID = ""
	if j.Attempt == 0 {
		j.StartedAt = time.Time{}
	}
	if j.Cancel {
		j.State = Queued
		e.endJob(en, Cancelled, CodeCancelled)
		return
	}
	j.State = Queued
	if j.ReadyAt.After(e.now.wall) { // the wall clock was set back; the job's time had come
		j.ReadyAt = e.now.wall
	}
	e.touch(en, Moved)
	e.note(EventReturn, en, leaseID, h.lease.WorkerID, "", "")
	en.ready = e.now.mono
	e.enqueue(en)
}

// freeLocks lets go of the locks of a lease that ended.
func (e *engine) freeLocks(h *hold) {
	names := h.entry.job.Locks
	switch {
	case len(names) == 0:
	case e.cfg.locking:
		e.order(lockFree, h.lease.ID, h.entry.job.ID, names)
	default:
		e.take(names, "")
	}
}

// dropHold makes a lease count no more, for a reason, if it is known.
func (e *engine) dropHold(h *hold, code string) {
	why := ErrLeaseNotFound
	if code == CodeRevoked {
		why = ErrRevoked
	}
	for _, w := range slices.Clone(h.beats) {
		e.dismiss(w)
		e.fail(w.id, why)
	}
	h.entry.hold = nil
	delete(e.leases, h.lease.ID)
	delete(e.holding, h.lease.ID)
	e.deadlines.remove(h)
	if h.runUntil != never {
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

// remember keeps the answer to a request whose lease has ended.
func (e *engine) remember(a Answered, until time.Duration) {
	key := requestKey{a.WorkerID, a.RequestID}
	if old := e.answered[key]; old != nil {
		e.answers.remove(old)
	}
	kept := &answer{Answered: a, until: until}
	e.answered[key] = kept
	e.answers.push(kept)
}

// endJob ends a job that has no lease any more.
func (e *engine) endJob(en *entry, s State, code string) {
	j := &en.job
	leaseID, workerID := "", ""
	tally := e.tally(j.Type)
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
	tally.ended(s)
	e.unqueue(en)
	j.State, j.Code, j.LeaseID, j.EndedAt = s, code, "", e.now.wall
	e.touch(en, Moved)
	e.note(endEvent(s, code), en, leaseID, workerID, code, j.Reason)
	if k := e.keys[j.IdempotencyKey]; k != nil && k.JobID == j.ID {
		k.State, k.Expires = s, e.now.wall.Add(KeyLife)
		e.newKeys = append(e.newKeys, k.Key.Key)
		e.dyingKeys.push(k)
	}
	e.drop(en)
}
