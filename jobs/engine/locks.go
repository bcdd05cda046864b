package engine

// Locks that are held while a job is leased. Without somebody to take them outside, a name excludes the jobs that name
// it from each other, beyond their limits. With somebody, the rules order what they need, keep the job and its capacity meanwhile, and go on
// when they are told.

import (
	"slices"
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
	Limits  map[string]jobs.Limit
	Token   uint64 // of the job's last lease so far
}

// LockRetry is how often one looks for what nobody tells about locks.
const LockRetry = time.Second

// LockWatch is when a lock that somebody outside holds is tried again, if nobody says before that it was given back. A try is a change of
// the store, and with each job may come another lock.
const LockWatch = 10 * LockRetry

// unlocking are locks that are being given back.
type unlocking struct {
	names []string
	call  uint64 // the end of the lease, which is answered when they are free; 0 if nobody waits for that
}

// order asks for locks to be taken, or given back.
func (e *Engine) order(o LockOrder, kind int) {
	o.Kind = kind
	e.orders = append(e.orders, o)
	if kind == FreeLocks {
		e.unlocking[o.LeaseID] = &unlocking{names: o.Names}
	}
}

// locksFor returns what an order says of a job's locks, for a lease.
func (en *entry) locksFor(leaseID string) LockOrder {
	return LockOrder{LeaseID: leaseID, JobID: en.ID, Names: en.Locks, Limits: en.Extras().Limits, Token: en.Token}
}

// Locked answers TakeLocks: with the tokens by name, or the lock that could not be had.
type Locked struct {
	Order   LockOrder
	Tokens  map[string]uint64
	Blocked string
}

func (done Locked) do(e *Engine) {
	o := done.Order
	w := e.pendings[o.LeaseID]
	if w == nil || w.kept.ID != o.JobID { // what it was for is forgotten: a restart came in between
		if w != nil { // and the request was sent again
			o.Names = slices.DeleteFunc(slices.Clone(o.Names), func(name string) bool { return slices.Contains(w.kept.Locks, name) })
		}
		if done.Blocked == "" && e.leases[o.LeaseID] == nil {
			e.order(o, FreeLocks)
		}
		return
	}
	en := w.kept
	delete(e.pendings, o.LeaseID)
	en.pending, w.kept = false, nil
	e.kept -= en.Units
	queued, same := en.State == jobs.Queued, en.Token == o.Token
	if done.Blocked == "" && !w.gone && queued && same && !e.draining && e.may(w, en) {
		e.grant(w, en, done.Tokens)
		return
	}
	w.worker.busy--
	e.wake = true
	if done.Blocked == "" {
		e.order(o, FreeLocks)
	} else {
		e.leave(en.Locks, o.LeaseID)
		o.Names = []string{done.Blocked}
		e.refused = append(e.refused, o)
		e.block(done.Blocked, plus(e.Now.Mono, LockWatch))
	}
	switch {
	case queued && same:
		if e.enqueue(en); done.Blocked != "" {
			e.refuse(en)
		}
	case queued: // after an attempt that another process granted
		e.wait(en)
	}
	if !w.gone {
		if e.draining {
			w.until = e.Now.Mono
		}
		e.ends.Push(w)
		e.line(w)
	}
}

// may reports whether a request may be granted the job that was kept for it: other processes have granted others meanwhile.
func (e *Engine) may(w *waiter, en *entry) bool {
	l := line{names: en.Locks, limits: limitsOf(&en.Spec)}
	return en.Units <= e.free() && (!en.Unique || w.worker.busy == 1) && !e.frozen[""] && !e.frozen[en.Type] && !e.pace(&l)
}

// Unlocked answers FreeLocks: others may have the locks that a lease gave back.
type Unlocked struct{ LeaseID string }

func (o Unlocked) do(e *Engine) {
	if u := e.unlocking[o.LeaseID]; u != nil {
		delete(e.unlocking, o.LeaseID)
		e.leave(u.names, o.LeaseID)
		e.wake = true
		e.answer(u.call, Reply{Result: true})
	}
}

// Vacant has a lock tried again that somebody outside held, and has given back.
type Vacant struct{ Lock string }

func (o Vacant) do(e *Engine) {
	if n := e.names[o.Lock]; n != nil && n.at != 0 {
		e.unblock(n)
		e.wake = true
	}
}

// Active reports whether the lease lives.
func (e *Engine) Active(leaseID string) bool { return e.leases[leaseID] != nil }

// Wanted reports whether the lease lives, or a job is kept for it until its locks are taken.
func (e *Engine) Wanted(leaseID string) bool { return e.Active(leaseID) || e.pendings[leaseID] != nil }

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
		all = append(all, w.kept.locksFor(id))
	}
	return all
}

// LocksOf returns the locks that a lease holds if it is active, with the tokens that were told.
func (e *Engine) LocksOf(leaseID string) (o LockOrder, held bool) {
	en := e.leases[leaseID]
	if en == nil || len(en.Locks) == 0 {
		return o, false
	}
	o = en.locksFor(leaseID)
	o.Tokens = en.Lease.LockTokens
	return o, true
}
