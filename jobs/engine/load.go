package engine

// From what is stored back to an engine: after a restart, and to follow what other processes store.

import (
	"cmp"
	"slices"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// Load builds an engine from what a store keeps; source is a new name for its statistics. Every lease gets a
// full TTL and grace from now, and so does its declared runtime if less than that is left: none ends before the
// time it was promised, however long nobody was there.
func Load(cfg jobs.Config, l jobs.Changes, source string, now Instant) *Engine {
	e := newEngine(cfg)
	e.source, e.tokenFloor, e.jobs = source, l.TokenFloor, make(map[string]*entry, len(l.Jobs))
	e.setNow(now)
	e.offset, e.ordered = offsetOf(e.Now), now.Mono
	e.follow(&l, func(l *jobs.Lease, _ time.Duration) (life, runs, told time.Duration) {
		if told = Never; e.cfg.Shared { // how much is left at another is not known
			told = 0
		}
		return e.life(l), l.RunUntil.Sub(e.Now.Wall), told
	})
	for _, t := range e.tenants { // they begin anew
		t.served = 0
	}
	e.virtual, e.joins = [4]int64{}, [4]int64{}
	return e
}

// wait puts a stored job that has no lease where it waits.
func (e *Engine) wait(en *entry) {
	if en.State.Active() {
		return
	}
	ahead := en.ReadyAt.Sub(e.Now.Wall)
	if en.Attempt == 0 || ahead <= 0 {
		e.queue(en, 0, true)
		if len(en.Extras().After) == 0 { // otherwise since when it could run is not known
			en.since = plus(e.Now.Mono, min(ahead, 0)) // it may have waited for long
		}
		return
	}
	e.queue(en, plus(e.Now.Mono, min(ahead, backoff(en.RetryBackoff, en.Attempt))), false)
}

// putLease makes a stored lease count, for at least so long from now. Where there is a maximum runtime, so much of it is
// left, and until then its worker may be told that it lasts.
func (e *Engine) putLease(en *entry, l *jobs.Lease, life, runs, told time.Duration) {
	expires, runUntil := plus(e.Now.Mono, life), Never
	if until := e.Now.Wall.Add(life); until.After(l.ExpiresAt) {
		l.ExpiresAt = until
	}
	if !l.RunUntil.IsZero() {
		runUntil = max(plus(e.Now.Mono, runs), expires)
	}
	w := e.worker(l.WorkerID)
	e.see(w)
	w.busy++
	e.addLease(l, en, w, expires, runUntil)
	en.runTold = min(told, runUntil)
	e.take(en, l.ID)
	e.charge(en)
}

func (e *Engine) followMemos(all []jobs.Memo) {
	for _, m := range all {
		life := cmp.Or(m.Left, jobs.KeyLife)
		if m.Lease != nil {
			life = jobs.RequestLife
		}
		if left := m.Expires.Sub(e.Now.Wall); left > 0 {
			e.putMemo(m, min(left, life))
		}
	}
}

// Follow takes in what other processes have stored since this engine's last moment. So no lease that they began or renewed ends before a
// full life from then, whatever the wall clock showed them, and shows now; nor the maximum runtime of one that they began.
func (e *Engine) Follow(c *jobs.Changes, now Instant) {
	before := e.Now.Mono
	e.setNow(now)
	e.follow(c, func(l *jobs.Lease, most time.Duration) (life, runs, told time.Duration) {
		return max(l.ExpiresAt.Sub(e.Now.Wall), e.life(l)-(e.Now.Mono-before)), most, before + most
	})
}

// follow takes in what was stored; a lease that is new, or renewed, lasts for so long.
func (e *Engine) follow(c *jobs.Changes, lasts func(l *jobs.Lease, maxRuntime time.Duration) (life, runs, told time.Duration)) {
	if c.Counters.Clock > e.Clock {
		e.ordered = e.Now.Mono
	}
	e.wake = true
	slices.SortFunc(c.Jobs, func(a, b *jobs.Record) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, r := range c.Jobs {
		e.followJob(r, lasts)
		e.Clock = max(e.Clock, r.CreatedAt.UnixMilli())
	}
	e.followMemos(c.Memos)
	e.followAfter(c)
	clear(e.frozen)
	for _, t := range c.Frozen {
		e.frozen[t] = true
	}
	e.reopenAll()
	n := c.Counters
	e.Counters = jobs.Counters{
		Seq: max(e.Seq, n.Seq), Revision: max(e.Revision, n.Revision), Event: max(e.Event, n.Event), Clock: max(e.Clock, n.Clock),
	}
}

// followJob takes in a job as it was stored.
func (e *Engine) followJob(r *jobs.Record, lasts func(l *jobs.Lease, maxRuntime time.Duration) (life, runs, told time.Duration)) {
	en := e.jobs[r.ID]
	if en == nil {
		if r.State.Ended() {
			return
		}
		en = &entry{Record: &e.unknown}
		e.jobs[r.ID] = en
	}
	if en.Lease != nil && (r.Lease == nil || r.Lease.ID != en.Lease.ID) {
		e.leave(r.Locks, e.dropLease(en, "").ID)
	}
	held := en.Lease
	var lease *jobs.Lease // nobody else's to change
	if r.Lease != nil {
		lease = new(*r.Lease)
	}
	asked, changed := r.Cancel && !en.Cancel, en.ID == "" || r.Revision != en.Revision
	if changed {
		e.unqueue(en)
		e.unfile(en)
		en.Record = r
		en.Lease = held
		if r.IdempotencyKey != "" {
			e.keys[r.IdempotencyKey] = en
		}
		e.file(en)
	}
	switch {
	case r.State.Ended():
		e.drop(en)
	case lease == nil && changed:
		if r.Extra == nil { // otherwise when all of what was stored is known
			e.wait(en)
		}
	case lease != nil && held == nil:
		life, runs, told := lasts(lease, r.MaxRuntime)
		e.putLease(en, lease, life, runs, told)
	case lease != nil:
		if !lease.ExpiresAt.Equal(held.ExpiresAt) {
			life, _, _ := lasts(lease, r.MaxRuntime)
			en.expires = plus(e.Now.Mono, life)
		}
		en.Lease = lease
		en.alarm = min(en.alarm, en.deadline())
		e.deadlines.Fix(en)
		if asked {
			e.tellAll(en)
		}
	}
}
