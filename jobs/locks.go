package jobs

// Locks that are held while a job is leased. Without somebody to take them outside, a name excludes the jobs that name
// it from each other. With somebody, the rules order what they need, keep the job and its capacity meanwhile, and go on
// when they are told.

import "time"

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
