package engine

// Locks that are held while a job is leased. Without somebody to take them outside, a name excludes the jobs that name
// it from each other. With somebody, the rules order what they need, keep the job and its capacity meanwhile, and go on
// when they are told.

import (
	"maps"
	"slices"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// What a lock order asks for.
const (
	TakeLocks = iota // take all the locks for the lease, or none; answered with Locked
	FreeLocks        // give them back; answered with unLocked
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

// order asks for the locks of a job to be taken for a lease, or given back.
func (e *Engine) order(kind int, leaseID, jobID string, names []string) {
	e.orders = append(e.orders, LockOrder{Kind: kind, LeaseID: leaseID, JobID: jobID, Names: names})
	if kind == FreeLocks {
		e.unlocking[leaseID] = names
	}
}

// locked goes on with a job whose locks were taken, or not.
func (e *Engine) locked(done *Locked) {
	o, blocked := done.Order, done.Blocked
	leaseID := o.LeaseID
	p := e.pendings[leaseID]
	if p == nil {
		if blocked == "" && e.leases[leaseID] == nil { // what it was for is forgotten: a restart came in between
			e.order(FreeLocks, leaseID, o.JobID, o.Names)
		}
		return
	}
	delete(e.pendings, leaseID)
	en, w := p.entry, p.waiter
	en.pending = nil
	e.kept -= en.job.Units
	queued := en.job.State == jobs.Queued
	if w != nil {
		w.pending = nil
	}
	if blocked == "" && w != nil && queued && !e.draining {
		e.grant(w, en, done.Tokens)
		return
	}
	p.worker.busy--
	e.wake = true
	if blocked == "" {
		e.order(FreeLocks, leaseID, o.JobID, o.Names)
	} else {
		e.take(en.job.Locks, "")
		e.block(blocked, plus(e.Now.Mono, LockRetry))
	}
	if queued {
		e.enqueue(en)
	}
	if w != nil {
		if e.draining {
			w.until = e.Now.Mono
		}
		e.ends.push(w)
		e.line(w)
	}
}

// unlocked lets others have the locks that a lease gave back.
func (e *Engine) unlocked(leaseID string) {
	if names := e.unlocking[leaseID]; names != nil {
		delete(e.unlocking, leaseID)
		e.take(names, "")
		e.wake = true
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

// LocksHeld returns the locks that active leases hold.
func (e *Engine) LocksHeld() []LockOrder {
	return e.LocksOf(slices.Collect(maps.Keys(e.holding)))
}

// LocksOf returns the locks that those of the leases hold which are active, with the tokens that were told.
func (e *Engine) LocksOf(leaseIDs []string) []LockOrder {
	var all []LockOrder
	for _, id := range leaseIDs {
		if h := e.holding[id]; h != nil {
			all = append(all, LockOrder{LeaseID: id, JobID: h.lease.JobID, Names: h.entry.job.Locks,
				Tokens: h.lease.LockTokens})
		}
	}
	return all
}
