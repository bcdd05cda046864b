package engine

// Grants: requests wait until the end of the turn, and are matched with jobs in order of the jobs; each job goes
// to the request that arrived first among those whose worker may take it.

import (
	"cmp"
	"container/list"
	"errors"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// profile is what a worker says of itself when it asks. Workers that say the same wait in one.
type profile struct {
	key          string
	types        map[string]bool // empty for all
	capabilities map[string]bool
	max          int       // units
	ahead        bool      // jobs will wait at the worker
	asks         []*waiter // in order of arrival
}

func newProfile(key string, a *jobs.Request) *profile {
	p := &profile{key: key, types: map[string]bool{}, capabilities: map[string]bool{}, max: cmp.Or(a.MaxUnits, math.MaxInt), ahead: a.Ahead}
	for _, t := range a.Types {
		p.types[t] = true
	}
	for _, c := range a.Capabilities {
		p.capabilities[c] = true
	}
	return p
}

func profileKey(a *jobs.Request) string {
	types, caps := slices.Clone(a.Types), slices.Clone(a.Capabilities)
	slices.Sort(types)
	slices.Sort(caps)
	return joined(slices.Compact(types)) + "\x01" + joined(slices.Compact(caps)) + "\x01" + strconv.Itoa(a.MaxUnits) + "\x01" + strconv.FormatBool(a.Ahead)
}

// takes reports whether a request of the profile may be granted jobs of the shape, if its worker holds no lease.
func (p *profile) takes(g *group) bool { return p.could(g) && (g.waits || !p.ahead) }

// could reports whether a worker of the profile may take jobs of the shape once it has nothing else to do.
func (p *profile) could(g *group) bool { return g.units <= p.max && p.suits(g) }

// suits reports whether a worker of the profile may take jobs of the shape, as far as it does not depend on their size.
func (p *profile) suits(g *group) bool {
	return (len(p.types) == 0 || p.types[g.jobType]) && capable(p.capabilities, g.needed)
}

// waiter is a request for a lease, or a heartbeat, that is not answered yet.
type waiter struct {
	id      uint64   // of its first call
	calls   []uint64 // to be answered: more than one if a request was sent again under its request ID
	until   time.Duration
	at      int // place in engine.ends
	arrival uint64

	ask     *Request // nil for a heartbeat
	worker  *worker
	profile *profile
	kept    *entry // a job that is kept for it, until its locks are taken
	gone    bool   // its client

	beat *entry // of a heartbeat: the job
}

// idle reports whether the worker holds no lease, nor is about to.
func (w *waiter) idle() bool { return w.worker.busy == 0 }

// worker is who asks for leases.
type worker struct {
	id       string
	leases   int // active ones
	busy     int // the same, and jobs that are kept for it
	asks     int // that wait
	widest   int // largest job that it asked for since it had no lease, in units
	seen     time.Duration
	asked    time.Duration
	lastSeen time.Time
	recent   *list.Element // in engine.heard
	profile  *profile      // of its last request
}

// see notes that something was heard of the worker.
func (e *Engine) see(w *worker) {
	w.seen, w.lastSeen = e.Now.Mono, e.Now.Wall
	if w.recent == nil {
		w.recent = e.heard.PushFront(w)
	}
	e.heard.MoveToFront(w.recent)
}

// takers yields the workers that could take jobs of the group, and count as there, the one that was heard of last first.
func (e *Engine) takers(g *group) iter.Seq[*worker] {
	return func(yield func(*worker) bool) {
		for at := e.heard.Front(); at != nil; at = at.Next() {
			w := at.Value.(*worker)
			if plus(w.seen, jobs.SeenFor) <= e.Now.Mono || w.profile != nil && w.profile.could(g) && !yield(w) {
				return
			}
		}
	}
}

func (e *Engine) worker(id string) *worker {
	w := e.workers[id]
	if w == nil {
		w = &worker{id: id, asked: -Never}
		e.workers[id] = w
	}
	return w
}

// Request asks for a lease, which will have that ID, and is answered with a jobs.Grant. Jitter is from 0 to 1.
type Request struct {
	jobs.Request
	LeaseID string
	Jitter  float64
}

// answer takes the request in, to be matched at the end of the turn.
func (o Request) answer(e *Engine, id uint64) Reply {
	w := e.worker(o.WorkerID)
	if key := profileKey(&o.Request); w.profile == nil || w.profile.key != key {
		w.profile = newProfile(key, &o.Request)
	}
	e.see(w)
	w.asked = e.Now.Mono
	if w.busy == 0 {
		w.widest = 0
	}
	w.widest = max(w.widest, w.profile.max)
	if en := e.leases[o.LeaseID]; en != nil { // asked again, because it was not known whether its answer was stored
		return Reply{Result: e.grantOf(en.Lease, en)}
	}
	key := requestKey{o.WorkerID, o.RequestID}
	if o.RequestID != "" {
		if g, granted := e.again(key); granted {
			return Reply{Result: g}
		}
	}
	until := e.Now.Mono
	if !e.draining && len(e.waiters) < e.cfg.MaxParked {
		until = plus(until, o.Wait)
	}
	if first := e.asked[key]; first != nil {
		if first.kept == nil && first.profile.key != w.profile.key { // it takes others now
			e.unline(first)
			first.profile, first.ask.Ahead = w.profile, o.Ahead
			e.line(first)
		}
		first.calls = append(first.calls, id)
		first.until = until
		e.ends.Fix(first)
		e.waiters[id] = first
		return Reply{later: true}
	}
	e.arrivals++
	wt := &waiter{id: id, calls: []uint64{id}, until: until, arrival: e.arrivals, ask: &o, worker: w, profile: w.profile}
	w.asks++
	e.waiters[id] = wt
	e.ends.Push(wt)
	if o.RequestID != "" {
		e.asked[key] = wt
	}
	e.line(wt)
	return Reply{later: true}
}

// line puts a request among those of its profile, in order of arrival, to be matched in this turn.
func (e *Engine) line(w *waiter) {
	if p := e.waiting[w.profile.key]; p != nil {
		w.profile = p
	}
	p := w.profile
	if p.ahead && e.waiting[p.key] == nil {
		e.aheads++
	}
	e.waiting[p.key], e.fresh[p.key] = p, p
	i, _ := slices.BinarySearchFunc(p.asks, w.arrival, byArrival)
	p.asks = slices.Insert(p.asks, i, w)
}

func byArrival(w *waiter, arrival uint64) int { return cmp.Compare(w.arrival, arrival) }

// unline takes a request out of its profile's, if it is there.
func (e *Engine) unline(w *waiter) {
	p := w.profile
	if i, found := slices.BinarySearchFunc(p.asks, w.arrival, byArrival); found {
		p.asks = slices.Delete(p.asks, i, i+1)
	}
	if len(p.asks) == 0 && e.waiting[p.key] == p {
		delete(e.waiting, p.key)
		if p.ahead {
			e.aheads--
		}
	}
}

// settle answers a request or a heartbeat that waits.
func (e *Engine) settle(w *waiter, r Reply) {
	e.dismiss(w)
	for _, id := range w.calls {
		e.answer(id, r)
	}
}

// dismiss forgets a request or a heartbeat.
func (e *Engine) dismiss(w *waiter) {
	for _, id := range w.calls {
		delete(e.waiters, id)
	}
	e.ends.Remove(w)
	if w.ask == nil {
		w.beat.beats = slices.DeleteFunc(w.beat.beats, func(b *waiter) bool { return b == w })
		return
	}
	w.worker.asks--
	e.unline(w)
	delete(e.asked, requestKey{w.worker.id, w.ask.RequestID})
}

// Withdraw forgets a call whose client has gone, and answers it. If it has been answered already, with that lease, the lease
// is taken back. It tells whether there was anything to do.
type Withdraw struct {
	CallID  uint64
	LeaseID string // empty for none
}

func (o Withdraw) answer(e *Engine, _ uint64) Reply {
	w := e.waiters[o.CallID]
	switch {
	case w == nil:
		return Reply{Result: e.takeBack(o.LeaseID)}
	case len(w.calls) > 1:
		delete(e.waiters, o.CallID)
		w.calls = slices.DeleteFunc(w.calls, func(call uint64) bool { return call == o.CallID })
	default:
		w.gone = true
		e.dismiss(w)
	}
	e.answer(o.CallID, Reply{Err: errWithdrawn})
	return Reply{Result: true}
}

// errWithdrawn is the answer to a call whose client has gone.
var errWithdrawn = errors.New("withdrawn")

// requestKey identifies a request that may be sent again.
type requestKey struct{ worker, request string }

// again returns what a request was granted before.
func (e *Engine) again(key requestKey) (g jobs.Grant, granted bool) {
	if en := e.granted[key]; en != nil {
		return e.grantOf(en.Lease, en), true
	}
	m := e.recall(key.memo())
	if m == nil {
		return g, false
	}
	if en := e.jobs[m.JobID]; en != nil {
		return e.grantOf(m.Lease, en), true
	}
	return jobs.Grant{Lease: e.advertised(m.Lease), Job: jobs.Job{ID: m.JobID}}, true
}

func (e *Engine) grantOf(l *jobs.Lease, en *entry) jobs.Grant {
	return jobs.Grant{Lease: e.advertised(l), Job: en.Job}
}

// advertised returns the lease with what workers are told beside it.
func (e *Engine) advertised(l *jobs.Lease) jobs.Lease {
	told := *l
	told.TTL, told.Interval = cmp.Or(l.TTL, e.cfg.TTL), e.cfg.Interval(len(e.leases))
	return told
}

// life returns how long the lease lasts after a heartbeat: not less than its worker was told, though a daemon with a shorter
// TTL has it now.
func (e *Engine) life(l *jobs.Lease) time.Duration { return max(e.cfg.TTL, l.TTL) + e.cfg.Grace }

// match hands out what can be handed out. When it is done, no request that waits could be granted, unless more is
// left to the next turn. Unless something other than requests arrived, only those that arrived in this turn need be
// looked at.
func (e *Engine) match() {
	left := false
	for {
		e.reserve()
		if e.draining {
			break
		}
		among := e.fresh
		if e.wake || e.aheads > 0 { // what is in the way of a job ahead may be gone
			among = e.waiting
		}
		var pick *entry
		if e.keyed > 0 {
			pick = e.fairest(among)
		} else {
			for _, p := range among {
				if c := e.best(p); c != nil && (pick == nil || c.Before(&pick.Job)) {
					pick = c
				}
			}
		}
		if left = pick != nil && e.full(); left || pick == nil {
			break
		}
		e.keep(e.receiver(among, pick), pick)
		if e.reserved.job != nil {
			e.wake = true // what runs behind the reservation depends on when others end
		}
	}
	e.wake = left
	clear(e.fresh)
}

// best returns the first job in order that a worker who waits in the profile may take now, or nil. There is none ahead while
// the first would be one that must not wait: the worker is to come to it.
func (e *Engine) best(p *profile) *entry {
	if len(p.asks) == 0 {
		return nil
	}
	var best *entry
	for _, g := range e.groups {
		if !e.fits(g, p) {
			continue
		}
		if c := e.reserved.first(g.open); c != nil && (best == nil || c.Before(&best.Job)) && e.lets(p, c) {
			best = c
		}
	}
	if best != nil && !p.takes(best.line.group) {
		return nil
	}
	return best
}

// fits reports whether a worker who waits in the profile may take a job of the group now.
func (e *Engine) fits(g *group, p *profile) bool {
	return g.units <= e.free() && p.could(g) && (p.ahead || !g.unique || slices.ContainsFunc(p.asks, (*waiter).idle))
}

// lets reports whether a request of the profile, if it fits, may be granted the job, as far as its worker is kept for another.
func (e *Engine) lets(p *profile, en *entry) bool {
	return e.host.job == nil || slices.ContainsFunc(p.asks, func(w *waiter) bool { return (p.ahead || !en.Unique || w.idle()) && e.host.lets(w, en) })
}

// receiver returns the request that arrived first among those whose worker may take the job: one whose worker begins at
// once, if there is any.
func (e *Engine) receiver(among map[string]*profile, en *entry) *waiter {
	var first *waiter
	for _, p := range among {
		if !p.takes(en.line.group) || p.ahead && e.best(p) == nil {
			continue
		}
		i := slices.IndexFunc(p.asks, func(w *waiter) bool { return (!en.Unique || w.idle()) && e.host.lets(w, en) })
		if i >= 0 && (first == nil || first.profile.ahead && !p.ahead || first.profile.ahead == p.ahead && p.asks[i].arrival < first.arrival) {
			first = p.asks[i]
		}
	}
	return first
}

// keep grants a job to a request, or keeps it until its locks are taken.
func (e *Engine) keep(w *waiter, en *entry) {
	e.dequeue(en)
	w.worker.busy++
	if len(en.Locks) > 0 && e.cfg.Locking {
		en.pending, w.kept = true, en
		e.pendings[w.ask.LeaseID] = w
		e.kept += en.Units
		e.ends.Remove(w)
		e.unline(w)
		e.take(en, w.ask.LeaseID)
		e.order(en.locksFor(w.ask.LeaseID), TakeLocks)
		return
	}
	e.grant(w, en, nil)
	e.take(en, w.ask.LeaseID)
}

// grant makes a lease and answers the request. The job is out of its line,
// its worker counted as busy, and its locks are taken, with those tokens.
func (e *Engine) grant(w *waiter, en *entry, locks map[string]uint64) {
	en.Attempt++
	en.Token = max(en.Token, e.tokenFloor) + 1
	en.State, en.LeaseID, en.Code = jobs.Leased, w.ask.LeaseID, ""
	if en.StartedAt.IsZero() {
		en.StartedAt = e.Now.Wall
		if len(en.Extras().After) > 0 { // in line since the last of them ended
			en.ReadyAt = e.Now.Wall.Add(en.since - e.Now.Mono).Truncate(time.Millisecond)
		}
	}
	if o := en.Output; o != nil { // what is not the attempt's before
		if en.Output = nil; o.Message != "" || o.Metrics != nil || o.Checkpoint != nil || o.Printed > 0 {
			en.Output = &jobs.Report{Message: o.Message, Metrics: o.Metrics, Checkpoint: o.Checkpoint, Printed: o.Printed}
		}
	}
	l := &jobs.Lease{
		ID: w.ask.LeaseID, JobID: en.ID, WorkerID: w.worker.id, RequestID: w.ask.RequestID, Units: en.Units,
		Token: en.Token, Attempt: en.Attempt,
		IssuedAt: e.Now.Wall, ExpiresAt: e.Now.Wall.Add(e.cfg.Life()), LastHeartbeat: e.Now.Wall,
		LockTokens: locks, Ahead: w.ask.Ahead, TTL: e.cfg.TTL,
	}
	runUntil := Never
	if en.MaxRuntime > 0 {
		l.RunUntil, runUntil = e.Now.Wall.Add(en.MaxRuntime), plus(e.Now.Mono, en.MaxRuntime)
	}
	e.spend(en)
	e.charge(en)
	e.addLease(l, en, w.worker, plus(e.Now.Mono, e.cfg.Life()), runUntil)
	e.touch(en)
	e.note(en, jobs.Event{Type: jobs.EventGrant, Took: e.Now.Mono - en.since})
	e.settle(w, Reply{Result: e.grantOf(l, en)})
}

// deny answers a request that there is nothing for.
func (e *Engine) deny(w *waiter) {
	d := &jobs.Denial{Code: jobs.DeniedEmpty, Reason: "nothing is queued", RetryAfter: retryPlain}
	if e.depths().Sum() > 0 {
		d.Code, d.Reason = jobs.DeniedEligible, "no queued job is for this worker now"
		for _, g := range e.groups {
			if g.open.Len() > 0 && w.profile.takes(g) && (!g.unique || w.worker.busy == 0) {
				d.Code, d.Reason = jobs.DeniedCapacity, "not enough capacity is free for the jobs that are queued"
			}
		}
		next := e.nextChance()
		if e.blocked.Len() > 0 { // a lock may be given back sooner than it is tried again
			next = min(next, LockRetry)
		}
		d.RetryAfter = retryAfter(next, w.ask.Jitter)
	}
	e.settle(w, Reply{Result: jobs.Grant{Denied: d}})
}

// nextChance returns how long it is until a lease expires, a job is due or a lock is tried again; never if none
// of these is known.
func (e *Engine) nextChance() time.Duration {
	if len(e.unlocking) > 0 {
		return 0
	}
	next := e.soonest()
	if next != Never {
		next -= e.Now.Mono
	}
	if e.timed.Len() > 0 {
		next = min(next, e.timed.Top().ReadyAt.Sub(e.Now.Wall))
	}
	return next
}

// soonest returns when the first lease expires, backoff ends, lock is tried again or rate lets a job begin; never if there is none.
func (e *Engine) soonest() time.Duration {
	next := Never
	if en := e.firstDeadline(); en != nil {
		next = en.deadline()
	}
	if e.backoffs.Len() > 0 {
		next = min(next, e.backoffs.Top().since)
	}
	if e.blocked.Len() > 0 {
		next = min(next, e.blocked.Top().until)
	}
	if e.paces.Len() > 0 {
		next = min(next, e.paces.Top().until)
	}
	return next
}
