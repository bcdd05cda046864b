package engine

// Grants: requests wait until the end of the turn, and are matched with jobs in order of the jobs; each job goes
// to the request that arrived first among those whose worker may take it.

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// profile is what a worker says of itself when it asks. Workers that say the same share one.
type profile struct {
	key          string
	types        []string // empty for all
	capabilities map[string]bool
	max          int           // units
	seen         time.Duration // when somebody of the profile was last heard of
	recent       link[profile]
	asks         chain[waiter] // in order of arrival
	waitingAt    int           // index in engine.waiting plus one
	fresh        bool          // it is in engine.fresh
}

func profileKey(a *jobs.Request) string {
	types, caps := slices.Clone(a.Types), slices.Clone(a.Capabilities)
	slices.Sort(types)
	slices.Sort(caps)
	return joined(slices.Compact(types)) + "\x01" + joined(slices.Compact(caps)) + "\x01" + strconv.Itoa(a.MaxUnits)
}

// takes reports whether a worker of the profile may take jobs of the shape, whatever their type.
func (p *profile) takes(g *group, idle bool) bool {
	return g.units <= p.max && (idle || !g.unique) && capable(p.capabilities, g.needed)
}

// takesType reports whether a worker of the profile may take jobs of the type.
func (p *profile) takesType(jobType string) bool {
	return len(p.types) == 0 || slices.Contains(p.types, jobType)
}

// heaps yields the heaps of open lines of the group that the profile chooses from.
func (p *profile) heaps(g *group) iter.Seq[*heap[*line]] {
	return func(yield func(*heap[*line]) bool) {
		if len(p.types) == 0 {
			yield(g.any)
			return
		}
		for _, t := range p.types {
			if h := g.byType[t]; h != nil && !yield(h) {
				return
			}
		}
	}
}

// waiter is a call that is not answered yet: a request for a lease, or a heartbeat that waits.
type waiter struct {
	id      uint64
	until   time.Duration
	at      int // place in engine.ends
	arrival uint64

	ask     *Request // nil for a heartbeat
	worker  *worker
	profile *profile
	inLine  link[waiter]
	pending *pending // a job is kept for it, until its locks are taken

	hold *hold // of a heartbeat
}

// worker is who asks for leases.
type worker struct {
	id       string
	leases   int // active ones
	busy     int // the same, and jobs that are kept for it
	asks     int // that wait
	seen     time.Duration
	lastSeen time.Time
	recent   link[worker]
	profile  *profile
}

// see notes that something was heard of the worker.
func (e *Engine) see(w *worker) {
	w.seen, w.lastSeen = e.Now.Mono, e.Now.Wall
	e.heard.toFront(w)
	p := w.profile
	if p == nil {
		return
	}
	if p != e.profiles.first { // which is the one under its key
		if known := e.byProfile[p.key]; known != nil {
			p = known
		} else {
			e.byProfile[p.key] = p
		}
		w.profile = p
		e.profiles.toFront(p)
	}
	p.seen = e.Now.Mono
}

func (e *Engine) worker(id string) *worker {
	w := e.workers[id]
	if w == nil {
		w = &worker{id: id}
		e.workers[id] = w
	}
	return w
}

// ask takes in a worker's request, to be matched at the end of the turn.
func (e *Engine) ask(id uint64, op *Request) {
	w := e.worker(op.WorkerID)
	key := profileKey(&op.Request)
	if w.profile == nil || w.profile.key != key {
		p := &profile{key: key, types: op.Types, capabilities: map[string]bool{}, max: op.MaxUnits}
		p.asks.link = func(w *waiter) *link[waiter] { return &w.inLine }
		if p.max == 0 {
			p.max = math.MaxInt
		}
		for _, c := range op.Capabilities {
			p.capabilities[c] = true
		}
		w.profile = p
	}
	e.see(w)
	if h := e.leases[op.LeaseID]; h != nil { // asked again, because it was not known whether its answer was stored
		e.reply(id, e.grantOf(h.lease, h.entry))
		return
	}
	if op.RequestID != "" && e.again(id, op) {
		return
	}
	e.arrivals++
	wt := &waiter{id: id, until: e.Now.Mono, arrival: e.arrivals, ask: op, worker: w, profile: w.profile}
	if !e.draining && len(e.waiters) < e.cfg.MaxParked {
		wt.until = plus(e.Now.Mono, op.Wait)
	}
	w.asks++
	e.waiters[id] = wt
	e.ends.push(wt)
	if op.RequestID != "" {
		key := requestKey{op.WorkerID, op.RequestID}
		e.asked[key] = append(e.asked[key], wt)
		if len(e.asked[key]) > 1 {
			return // the first one asks for all
		}
	}
	e.line(wt)
}

// line puts a request among those of its profile, in order of arrival, to be matched in this turn.
func (e *Engine) line(w *waiter) {
	p := w.profile
	after := p.asks.last
	for after != nil && after.arrival > w.arrival {
		after = after.inLine.prev
	}
	p.asks.insert(after, w)
	if p.waitingAt == 0 {
		e.waiting = append(e.waiting, p)
		p.waitingAt = len(e.waiting)
	}
	if !p.fresh {
		p.fresh = true
		e.fresh = append(e.fresh, p)
	}
}

// unline takes a request out of its profile's.
func (e *Engine) unline(w *waiter) {
	p := w.profile
	p.asks.remove(w)
	if p.asks.n == 0 && p.waitingAt > 0 {
		last := e.waiting[len(e.waiting)-1]
		e.waiting[p.waitingAt-1] = last
		last.waitingAt = p.waitingAt
		e.waiting = e.waiting[:len(e.waiting)-1]
		p.waitingAt = 0
	}
}

// dismiss forgets a request that was answered, or need not be any more.
func (e *Engine) dismiss(w *waiter) {
	delete(e.waiters, w.id)
	e.ends.remove(w)
	if w.ask != nil {
		w.worker.asks--
		e.unline(w)
		if w.ask.RequestID != "" {
			e.dropTwin(w)
		}
		return
	}
	w.hold.beats = slices.DeleteFunc(w.hold.beats, func(b *waiter) bool { return b == w })
}

// dropTwin forgets a request among those with its request ID. If it was the one that asked for all, the next one does.
func (e *Engine) dropTwin(w *waiter) {
	key := requestKey{w.worker.id, w.ask.RequestID}
	twins := e.asked[key]
	i := slices.Index(twins, w)
	if twins = slices.Delete(twins, i, i+1); len(twins) == 0 {
		delete(e.asked, key)
		return
	}
	e.asked[key] = twins
	if i == 0 && e.granted[key] == nil {
		e.line(twins[0])
	}
}

// requestKey identifies a request that may be sent again.
type requestKey struct{ worker, request string }

// again answers a request whose request was granted before.
func (e *Engine) again(id uint64, op *Request) bool {
	key := requestKey{op.WorkerID, op.RequestID}
	if h := e.granted[key]; h != nil {
		e.reply(id, e.grantOf(h.lease, h.entry))
		return true
	}
	m := e.recall(key.memo())
	if m == nil {
		return false
	}
	if en := e.jobs[m.JobID]; en != nil {
		e.reply(id, e.grantOf(*m.Lease, en))
	} else {
		e.reply(id, jobs.Grant{Lease: e.advertised(*m.Lease), Job: jobs.Job{ID: m.JobID}})
	}
	return true
}

func (e *Engine) grantOf(l jobs.Lease, en *entry) jobs.Grant {
	return jobs.Grant{Lease: e.advertised(l), Job: en.job}
}

// advertised returns the lease with what workers are told beside it.
func (e *Engine) advertised(l jobs.Lease) jobs.Lease {
	l.TTL, l.Interval = e.cfg.TTL, e.cfg.Interval()
	return l
}

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
		if e.wake {
			among = e.waiting
		}
		var pick *entry
		for _, p := range among {
			if c := e.choose(p); c != nil && (pick == nil || c.job.Before(&pick.job)) {
				pick = c
			}
		}
		if pick == nil {
			break
		}
		if left = e.full(); left {
			break
		}
		e.move(&pick.job)
		e.keep(e.receiver(among, pick), pick)
		if e.reserved.job != nil {
			e.wake = true // what runs behind the reservation depends on when others end
		}
	}
	e.wake = left
	for _, p := range e.fresh {
		p.fresh = false
	}
	e.fresh = e.fresh[:0]
}

// choose returns the first job in order for any ask of the profile, or nil.
func (e *Engine) choose(p *profile) *entry {
	if p.asks.n == 0 {
		return nil
	}
	idle := false
	for w := p.asks.first; w != nil && e.uniques > 0 && !idle; w = w.inLine.next {
		idle = w.worker.busy == 0
	}
	return e.best(p, idle)
}

// receiver returns the request that arrived first among those whose worker may take the job.
func (e *Engine) receiver(among []*profile, en *entry) *waiter {
	var first *waiter
	for _, p := range among {
		if !p.takes(en.line.group, true) || !p.takesType(en.job.Type) {
			continue
		}
		w := p.asks.first
		for w != nil && en.job.Unique && w.worker.busy > 0 {
			w = w.inLine.next
		}
		if w != nil && (first == nil || w.arrival < first.arrival) {
			first = w
		}
	}
	return first
}

// pending is a job that is kept for a request while its locks are taken.
type pending struct {
	entry  *entry
	waiter *waiter // nil once its client has gone
	worker *worker
	op     *Request
}

// keep grants a job to a request, or keeps it until its locks are taken.
func (e *Engine) keep(w *waiter, en *entry) {
	e.dequeue(en)
	w.worker.busy++
	if len(en.job.Locks) > 0 {
		e.take(en.job.Locks, w.ask.LeaseID)
		if e.cfg.Locking {
			p := &pending{entry: en, waiter: w, worker: w.worker, op: w.ask}
			en.pending, w.pending = p, p
			e.pendings[w.ask.LeaseID] = p
			e.kept += en.job.Units
			e.ends.remove(w)
			e.unline(w)
			e.order(TakeLocks, w.ask.LeaseID, en.job.ID, en.job.Locks)
			return
		}
	}
	e.grant(w, en, nil)
}

// grant makes a lease and answers the request, and those with the same request ID. The job is out of its line,
// its worker counted as busy, and its locks are taken, with those tokens.
func (e *Engine) grant(w *waiter, en *entry, locks map[string]uint64) {
	j := &en.job
	j.Attempt++
	j.Token = max(j.Token, e.tokenFloor) + 1
	j.State, j.LeaseID, j.Code = jobs.Leased, w.ask.LeaseID, ""
	if j.StartedAt.IsZero() {
		j.StartedAt = e.Now.Wall
	}
	if j.Output != nil && (j.Output.Progress != nil || j.Output.Error != nil) {
		r := j.Report()
		r.Progress, r.Error = nil, nil
	}
	l := jobs.Lease{
		ID: w.ask.LeaseID, JobID: j.ID, WorkerID: w.worker.id, RequestID: w.ask.RequestID, Units: j.Units,
		Token: j.Token, Attempt: j.Attempt,
		IssuedAt: e.Now.Wall, ExpiresAt: e.Now.Wall.Add(e.cfg.Life()), LastHeartbeat: e.Now.Wall,
		LockTokens: locks,
	}
	runUntil := Never
	if j.MaxRuntime > 0 {
		l.RunUntil, runUntil = e.Now.Wall.Add(j.MaxRuntime), plus(e.Now.Mono, j.MaxRuntime)
	}
	e.addHold(l, en, w.worker, plus(e.Now.Mono, e.cfg.Life()), runUntil)
	e.Metrics.Wait.Observe(e.Now.Mono - en.ready)
	e.touch(en)
	e.note(jobs.EventGrant, en, l.ID, l.WorkerID, "", "")
	answered := []*waiter{w}
	if l.RequestID != "" {
		answered = slices.Clone(e.asked[requestKey{l.WorkerID, l.RequestID}])
	}
	for _, w := range answered {
		e.dismiss(w)
		e.reply(w.id, e.grantOf(l, en))
	}
}

// addHold makes a lease count.
func (e *Engine) addHold(l jobs.Lease, en *entry, w *worker, expires, runUntil time.Duration) {
	h := &hold{lease: l, entry: en, worker: w, expires: expires, runUntil: runUntil}
	h.alarm = h.deadline()
	en.hold = h
	e.leases[l.ID] = h
	if len(en.job.Locks) > 0 {
		e.holding[l.ID] = h
	}
	e.deadlines.push(h)
	if runUntil != Never {
		i, _ := slices.BinarySearchFunc(e.limits, runUntil, byRunUntil)
		e.limits = slices.Insert(e.limits, i, h)
	}
	if l.RequestID != "" {
		e.granted[requestKey{l.WorkerID, l.RequestID}] = h
	}
	e.leased += l.Units
	w.leases++
}

func byRunUntil(h *hold, t time.Duration) int { return cmp.Compare(h.runUntil, t) }

// deny answers a request that there is nothing for.
func (e *Engine) deny(w *waiter) {
	d := &jobs.Denial{Code: jobs.DeniedEmpty, Reason: "nothing is queued", RetryAfter: retryPlain}
	if e.depths.Sum() > 0 {
		d.Code, d.Reason = jobs.DeniedEligible, "no queued job is for this worker now"
		for _, g := range e.groups {
			if !w.profile.takes(g, w.worker.busy == 0) {
				continue
			}
			for h := range w.profile.heaps(g) {
				if h.len() > 0 {
					d.Code, d.Reason = jobs.DeniedCapacity, "not enough capacity is free for the jobs that are queued"
				}
			}
		}
		d.RetryAfter = retryAfter(e.nextChance(), w.ask.Jitter)
	}
	e.Metrics.Denied[d.Code]++
	e.dismiss(w)
	e.reply(w.id, jobs.Grant{Denied: d})
}

// nextChance returns how long it is until a lease expires, a job is due or a lock is tried again; never if none
// of these is known.
func (e *Engine) nextChance() time.Duration {
	if len(e.unlocking) > 0 {
		return 0
	}
	next := Never
	if e.blocked.len() > 0 {
		next = e.blocked.top().until - e.Now.Mono
	}
	if h := e.firstDeadline(); h != nil {
		next = min(next, h.deadline()-e.Now.Mono)
	}
	if e.backoffs.len() > 0 {
		next = min(next, e.backoffs.top().due-e.Now.Mono)
	}
	if e.timed.len() > 0 {
		next = min(next, e.timed.top().job.ReadyAt.Sub(e.Now.Wall))
	}
	return next
}
