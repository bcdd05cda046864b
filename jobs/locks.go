package jobs

// Locks that are held while a job is leased. Without somebody to take them outside, a name excludes the jobs that name
// it from each other. With somebody, the rules order what they need, keep the job and its capacity meanwhile, and go on
// when they are told.

import (
	"iter"
	"time"
)

// What a lock order asks for.
const (
	lockTake = iota // take all the locks for the lease, or none; answered with lockedOp
	lockFree        // give them back; answered with unlockedOp
)

// lockOrder asks for what rules cannot do themselves.
type lockOrder struct {
	kind    int
	leaseID string
	jobID   string
	names   []string
}

// lockRetry is when a lock that somebody outside holds is tried again, if nobody says before that it was given back.
const lockRetry = time.Second

// order asks for the locks of a job to be taken for a lease, or given back.
func (e *engine) order(kind int, leaseID, jobID string, names []string) {
	e.orders = append(e.orders, lockOrder{kind: kind, leaseID: leaseID, jobID: jobID, names: names})
	if kind == lockFree {
		e.unlocking[leaseID] = names
	}
}

// locked goes on with a job whose locks were taken, or not.
func (e *engine) locked(done *lockedOp) {
	o, blocked := done.order, done.blocked
	leaseID := o.leaseID
	p := e.pendings[leaseID]
	if p == nil {
		if blocked == "" && e.leases[leaseID] == nil { // what it was for is forgotten: a restart came in between
			e.order(lockFree, leaseID, o.jobID, o.names)
		}
		return
	}
	delete(e.pendings, leaseID)
	en, w := p.entry, p.waiter
	en.pending = nil
	e.kept -= en.job.Units
	queued := en.job.State == Queued
	if w != nil {
		w.pending = nil
	}
	if blocked == "" && w != nil && queued && !e.draining {
		e.grant(w, en, done.tokens)
		return
	}
	p.worker.busy--
	e.wake = true
	if blocked == "" {
		e.order(lockFree, leaseID, o.jobID, o.names)
	} else {
		e.take(en.job.Locks, "")
		e.block(blocked, plus(e.now.mono, lockRetry))
	}
	if queued {
		e.enqueue(en)
	}
	if w != nil {
		if e.draining {
			w.until = e.now.mono
		}
		e.ends.push(w)
		e.line(w)
	}
}

// unlocked lets others have the locks that a lease gave back.
func (e *engine) unlocked(leaseID string) {
	if names := e.unlocking[leaseID]; names != nil {
		delete(e.unlocking, leaseID)
		e.take(names, "")
		e.wake = true
	}
}

// vacant has a lock tried again that somebody outside held.
func (e *engine) vacant(lock string) {
	if n := e.names[lock]; n != nil && n.at != 0 {
		e.unblock(n)
		e.wake = true
	}
}

// active reports whether the lease lives.
func (e *engine) active(leaseID string) bool { return e.leases[leaseID] != nil }

// awaits reports whether a job is kept for the lease until its locks are taken.
func (e *engine) awaits(leaseID string) bool { return e.pendings[leaseID] != nil }

// lives reports whether the job has not ended.
func (e *engine) lives(jobID string) bool { return e.jobs[jobID] != nil }

// lockNames yields the locks that living jobs name; some more than once.
func (e *engine) lockNames() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, en := range e.jobs {
			for _, name := range en.job.Locks {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// locksHeld returns the locks that active leases hold.
func (e *engine) locksHeld() []lockOrder {
	all := make([]lockOrder, 0, len(e.holding))
	for _, h := range e.holding {
		all = append(all, lockOrder{leaseID: h.lease.ID, jobID: h.lease.JobID, names: h.entry.job.Locks})
	}
	return all
}

// lockedBy returns the locks of an active lease, and their tokens.
func (e *engine) lockedBy(leaseID string) (o lockOrder, tokens map[string]uint64, ok bool) {
	h := e.holding[leaseID]
	if h == nil {
		return o, nil, false
	}
	return lockOrder{leaseID: leaseID, jobID: h.lease.JobID, names: h.entry.job.Locks}, h.lease.LockTokens, true
}
