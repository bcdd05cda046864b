package engine

// Locks that are held while a job is leased. Without somebody to take them outside, a name excludes the jobs that name
// it from each other. With somebody, the rules order what they need, keep the job and its capacity meanwhile, and go on
// when they are told.

import (
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// What a lock order asks for.
const (
	TakeLocks = iota // take all the locks for the lease, or none; answered with Locked
	FreeLocks        // give them back; answered with Unlocked
)

// LockOrder asks for what rules cannot do themselves.
type LockOrder struct {
	Kind    int
	LeaseID string
	JobID   string
	Names   []string
	Tokens  map[string]uint64 // by name, of locks that are held
}

// LockRetry is when a lock that somebody outside holds is tried again, if nobody says before that it was given back.
const LockRetry = time.Second

// unlocking are locks that are being given back.
type unlocking struct {
	names []string
	call  uint64 // the end of the lease, which is answered when they are free; 0 if nobody waits for that
}

// order asks for the locks of a job to be taken for a lease, or given back.
func (e *Engine) order(kind int, leaseID, jobID string, names []string) {
	e.orders = append(e.orders, LockOrder{Kind: kind, LeaseID: leaseID, JobID: jobID, Names: names})
	if kind == FreeLocks {
		e.unlocking[leaseID] = &unlocking{names: names}
	}
}

// locked goes on with a job whose locks were taken, or not.
func (e *Engine) locked(done *Locked) {
	o := done.Order
	w := e.pendings[o.LeaseID]
	if w == nil {
		if done.Blocked == "" && e.leases[o.LeaseID] == nil { // what it was for is forgotten: a restart came in between
			e.order(FreeLocks, o.LeaseID, o.JobID, o.Names)
		}
		return
	}
	en := w.kept
	delete(e.pendings, o.LeaseID)
	en.pending, w.kept = false, nil
	e.kept -= en.job.Units
	queued := en.job.State == jobs.Queued
	if done.Blocked == "" && !w.gone && queued && !e.draining {
		e.grant(w, en, done.Tokens)
		return
	}
	w.worker.busy--
	e.wake = true
	if done.Blocked == "" {
		e.order(FreeLocks, o.LeaseID, o.JobID, o.Names)
	} else {
		e.take(en.job.Locks, "")
		e.block(done.Blocked, plus(e.Now.Mono, LockRetry))
	}
	if queued {
		e.enqueue(en)
	}
	if !w.gone {
		if e.draining {
			w.until = e.Now.Mono
		}
		e.ends.push(w)
		e.line(w)
	}
}

// unlocked lets others have the locks that a lease gave back.
func (e *Engine) unlocked(leaseID string) {
	if u := e.unlocking[leaseID]; u != nil {
		delete(e.unlocking, leaseID)
		e.take(u.names, "")
		e.wake = true
		if u.call != 0 {
			e.reply(u.call, true)
		}
	}
}

// vacant has a lock tried again that somebody outside held.
func (e *Engine) vacant(lock string) {
	if n := e.names[lock]; n != nil && n.at != 0 {
		e.unblock(n)
		e.wake = true
	}
}

// Active reports whether the lease lives.
func (e *Engine) Active(leaseID string) bool { return e.leases[leaseID] != nil }

// Awaits reports whether a job is kept for the lease until its locks are taken.
func (e *Engine) Awaits(leaseID string) bool { return e.pendings[leaseID] != nil }

// Lives reports whether the job has not ended.
func (e *Engine) Lives(jobID string) bool { return e.jobs[jobID] != nil }

// LocksHeld returns the locks that leases hold or are about to hold.
func (e *Engine) LocksHeld() []LockOrder {
	var all []LockOrder
	for id := range e.leases {
		if o, held := e.LocksOf(id); held {
			all = append(all, o)
		}
	}
	for id, w := range e.pendings {
		all = append(all, LockOrder{LeaseID: id, JobID: w.kept.job.ID, Names: w.kept.job.Locks})
	}
	return all
}

// LocksOf returns the locks that a lease holds if it is active, with the tokens that were told.
func (e *Engine) LocksOf(leaseID string) (o LockOrder, held bool) {
	h := e.leases[leaseID]
	if h == nil || len(h.entry.job.Locks) == 0 {
		return o, false
	}
	return LockOrder{LeaseID: leaseID, JobID: h.lease.JobID, Names: h.entry.job.Locks, Tokens: h.lease.LockTokens}, true
}
