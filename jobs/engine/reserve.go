package engine

// What is kept for a job that would starve: capacity, because smaller ones take what becomes free, its locks, because others take
// one of them whenever another is free, or a worker, because each has other jobs all the time.

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/heap"
	"github.com/lokt-dev/lokt/jobs"
)

// reservation is what the first job in order that does not fit, and has waited long enough, has on what becomes free.
// Behind it only those jobs start that do not delay it, as far as declared runtimes tell: EASY backfilling.
type reservation struct {
	job    *entry        // nil without one
	since  time.Duration // when it began
	rest   time.Duration // there is none before
	lapses time.Duration // when no worker that could take the job will have been heard of for too long

	// jobs that end within it do not delay the job; negative if it is not known when there is place
	room   time.Duration
	beside int // units that will be left beside the job at that moment; negative if it is not known
}

// reserve brings the reservation up to date.
func (e *Engine) reserve() {
	e.keepLocks()
	r := &e.reserved
	if r.job != nil {
		switch {
		case r.job.line == nil || r.job.line.closed != "":
			r.job = nil
		case e.Now.Mono >= plus(r.since, e.cfg.ReserveLimit):
			r.job, r.rest = nil, plus(e.Now.Mono, e.cfg.ReserveLimit)
		default:
			if r.lapses = e.takenUntil(r.job.line); r.lapses <= e.Now.Mono {
				r.job = nil
			}
		}
		if r.job == nil {
			e.wake = true
		}
	}
	if r.job == nil && e.cfg.ReserveAfter >= 0 && e.Now.Mono >= r.rest {
		e.startReservation()
	}
	if r.job != nil {
		e.foresee()
	}
	e.keepWorker()
}

// startReservation looks for a job that deserves one: the first in order that does not fit though it could, has been
// runnable for long enough, and has a worker. Of a line only the head is looked at.
func (e *Engine) startReservation() {
	free, usable := e.free(), e.cfg.Usable()
	var first *entry
	for _, g := range e.groups {
		if g.units <= free || g.units > usable {
			continue
		}
		for _, l := range g.open.All() {
			head := l.head()
			ready := max(head.since, l.since)
			if first != nil && !head.Before(&first.Job) || e.Now.Mono < plus(ready, e.cfg.ReserveAfter) {
				continue
			}
			if e.takenUntil(l) > e.Now.Mono {
				first = head
			}
		}
	}
	if first != nil {
		e.reserved = reservation{job: first, since: e.Now.Mono, rest: e.reserved.rest, lapses: e.takenUntil(first.line)}
	}
}

// takenUntil returns until when a worker that could take the jobs of the line counts as there; it is not after now if
// there is none.
func (e *Engine) takenUntil(l *line) time.Duration {
	for w := range e.takers(l.group) {
		return plus(w.seen, jobs.SeenFor) // the most recent one comes first
	}
	return e.Now.Mono
}

// foresee finds the moment at which enough leases must have ended for the job: now, or by their declared runtimes.
func (e *Engine) foresee() {
	r := &e.reserved
	need, have := r.job.Units, e.free()
	r.room, r.beside = 0, have-need
	for i := 0; i < len(e.limits) && (have < need || i > 0 && e.limits[i].runUntil == e.limits[i-1].runUntil); i++ {
		have += e.limits[i].Units
		r.room, r.beside = e.limits[i].runUntil-e.Now.Mono, have-need
	}
	if have < need {
		r.room, r.beside = -1, -1
	}
}

// allows reports whether a job may start that stands behind the one with the reservation.
func (r *reservation) allows(units int, runtime time.Duration) bool {
	return units <= r.beside || runtime > 0 && runtime <= r.room
}

// first returns the first job of the lines that the reservation lets through, or nil.
func (r *reservation) first(h *heap.Heap[*line]) *entry {
	if h.Len() == 0 {
		return nil
	}
	top := h.Top().head()
	if r.job == nil || top == r.job || top.Before(&r.job.Job) {
		return top
	}
	var first *entry
	for _, l := range h.All() {
		if c := l.head(); r.allows(l.group.units, l.runtime) && (first == nil || c.Before(&first.Job)) {
			first = c
		}
	}
	return first
}

// host is the worker that gets nothing that comes behind a job which it could take only alone, until it is that: one that wants a worker without
// a lease, or is larger than what the worker has left.
type host struct {
	job    *entry // nil without one
	worker *worker
	since  time.Duration
	rest   time.Duration // none is looked for before
}

// A job for a host is looked for after hostRetry again, among so many workers, times kinds of jobs, as take a few milliseconds: it may be other
// kinds each time.
const (
	hostRetry = 10 * time.Second
	mostLooks = 100_000
)

// lets reports whether a request may be granted the job, as far as its worker is kept for another.
func (h *host) lets(w *waiter, en *entry) bool {
	return h.job == nil || w.worker != h.worker || !h.job.Before(&en.Job)
}

// keepWorker brings the host up to date.
func (e *Engine) keepWorker() {
	h, now := &e.host, e.Now.Mono
	if h.job != nil {
		switch l := h.job.line; {
		case now >= plus(h.since, e.cfg.ReserveLimit):
			h.job, h.rest = nil, plus(now, e.cfg.ReserveLimit)
		case l == nil || l.closed != "" || now >= plus(h.worker.seen, jobs.SeenFor) || !h.worker.alone(l.group):
			h.job = nil
		}
		e.wake = e.wake || h.job == nil
	}
	if h.job != nil || e.cfg.ReserveAfter < 0 || now < h.rest {
		return
	}
	looks := 0
	for _, g := range e.groups {
		for _, l := range g.open.All() {
			head := l.head()
			if looks > mostLooks || h.job != nil && !head.Before(&h.job.Job) || now < plus(max(head.since, l.since), e.cfg.ReserveAfter) || !e.grantable(l) {
				continue
			}
			looks += len(e.workers)
			if e.takenUntil(l) > now && (!g.unique || e.anyIdle(l)) {
				continue
			}
			if w := e.leastBusy(g); w != nil && w.busy > 0 {
				h.job, h.worker, h.since = head, w, now
			}
		}
	}
	if h.job == nil {
		h.rest = plus(now, hostRetry)
	}
}

// grantable reports whether the first job of the line would be granted if there were a worker for it, or has the reservation.
func (e *Engine) grantable(l *line) bool {
	r, head := &e.reserved, l.head()
	return r.job == head || l.group.units <= e.free() && (r.job == nil || head.Before(&r.job.Job) || r.allows(l.group.units, l.runtime))
}

// alone reports whether the worker could take jobs of the group if it had no lease.
func (w *worker) alone(g *group) bool {
	return w.profile != nil && g.units <= w.widest && w.profile.suits(g)
}

// leastBusy returns the worker with the fewest leases of those that could take jobs of the group alone and count as there, or nil: one that
// asked lately, if there is any, because others may be about to end.
func (e *Engine) leastBusy(g *group) (least *worker) {
	lately := func(w *worker) bool { return plus(w.asked, jobs.SeenFor) > e.Now.Mono }
	for at := e.heard.Front(); at != nil && plus(at.Value.(*worker).seen, jobs.SeenFor) > e.Now.Mono; at = at.Next() {
		w := at.Value.(*worker)
		if w.alone(g) && (least == nil || lately(w) && !lately(least) ||
			lately(w) == lately(least) && cmp.Or(cmp.Compare(w.busy, least.busy), cmp.Compare(w.id, least.id)) < 0) {
			least = w
		}
	}
	return least
}

// claimant is the job whose turn it is at its locks: the first in order of those that have waited for them for long enough. No
// other job gets one of them before it.
type claimant struct {
	job    *entry        // nil without one
	since  time.Duration // a lock is kept for it since then that another job could have; never if there is none
	rest   time.Duration // there is none before
	look   time.Duration // for one, not before
	lapses time.Duration // as that of a reservation
	barred bool          // somebody outside was in its way
	wanted time.Duration // until then, a worker that could take it counts as asking
}

// keepLocks brings the claimant up to date.
func (e *Engine) keepLocks() {
	c, now := &e.claimant, e.Now.Mono
	if en := c.job; en != nil && !en.pending {
		l, over := en.line, true
		if l != nil && l.head() == en && (l.closed == "" || l.wantsLock()) {
			if c.since = min(c.since, now); !e.idles(en) {
				c.since = Never
			}
			c.lapses, c.wanted = e.takenUntil(l), e.wantedUntil(l)
			over = c.lapses <= now
		}
		if now >= plus(c.since, e.cfg.ReserveLimit) {
			over, c.rest = true, plus(now, e.cfg.ReserveLimit)
		}
		if over {
			e.claim(nil)
		}
	}
	if c.job == nil && now >= c.look {
		c.look = plus(now, LockRetry)
		var first *entry
		for l := range e.locked {
			if (first == nil || l.head().Before(&first.Job)) && e.mayClaim(l) {
				first = l.head()
			}
		}
		e.claim(first)
	}
}

// claim makes a job the claimant, or nobody, and opens and closes the lines that this is about.
func (e *Engine) claim(en *entry) {
	c := &e.claimant
	var about []string
	if c.job != nil {
		about = c.job.Locks
	}
	if c.job = en; en != nil {
		c.since, c.lapses, c.barred = Never, e.takenUntil(en.line), false
		about = slices.Concat(about, en.Locks)
	}
	for _, key := range about {
		if n := e.names[key]; n != nil {
			e.reopenNamed(n)
		}
	}
}

// mayClaim reports whether the first job of the line, which waits for a lock, has done so for long enough, and has a worker. One
// that was submitted where there was more capacity fits never.
func (e *Engine) mayClaim(l *line) bool {
	since := plus(l.head().since, e.cfg.ReserveAfter)
	return e.cfg.ReserveAfter >= 0 && l.group.units <= e.cfg.Usable() && e.Now.Mono >= max(since, e.claimant.rest) && e.takenUntil(l) > e.Now.Mono
}

// idles reports whether another job could have one of the job's locks now.
func (e *Engine) idles(en *entry) bool {
	return slices.ContainsFunc(en.Locks, func(key string) bool { return !e.names[key].taken(lokt.Shared) })
}

// wantsLock reports whether the line is closed because a lock is taken.
func (l *line) wantsLock() bool { return strings.HasPrefix(l.closed, jobs.WaitingLock) }

// yields reports whether the line has to wait because one of its locks is kept for the claimant.
func (l *line) yields(c *claimant) bool {
	return c.job != nil && c.job.line != l && slices.ContainsFunc(l.names, func(key string) bool { return slices.Contains(c.job.Locks, key) })
}

// refuse notes that a job did not get a lock, because of somebody outside.
func (e *Engine) refuse(en *entry) {
	c := &e.claimant
	if c.job == nil && en.line.head() == en && e.mayClaim(en.line) {
		e.claim(en)
	}
	c.barred = c.barred || c.job == en
}

// askedFor is how long a worker counts as asking after it did: it asks again within the time that a denial tells.
const askedFor = 10 * time.Second

// wantedUntil returns until when a worker that could take the jobs of the line counts as asking; it is not after now if there is none.
// What those outside want is not kept for one that has other things to do.
func (e *Engine) wantedUntil(l *line) time.Duration {
	until := e.Now.Mono
	for w := range e.takers(l.group) {
		if w.asks > 0 {
			return plus(e.Now.Mono, askedFor)
		}
		until = max(until, plus(w.asked, askedFor))
	}
	return until
}

// Claimant returns the locks of the job whose turn it is at them, if somebody outside was in its way and it could begin with them; they
// are nobody's otherwise.
func (e *Engine) Claimant() (o LockOrder) {
	if c := &e.claimant; c.job != nil && c.barred && (c.job.pending || c.wanted > e.Now.Mono) {
		o = c.job.locksFor("")
	}
	return o
}
