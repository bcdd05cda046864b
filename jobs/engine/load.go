package engine

import "github.com/lokt-dev/lokt/jobs"

// From rows back to an engine: after a restart, and to follow what other processes store.

import (
	"cmp"
	"slices"
)

// Load builds an engine from what a store keeps. Every lease gets a full TTL and grace from now, and so does its declared
// runtime if less than that is left: none ends before the time it was promised, however long nobody was there.
func Load(cfg jobs.Config, rows jobs.Rows, now Instant) *Engine {
	e := newEngine(cfg)
	e.setNow(now)
	e.offset, e.ordered = offsetOf(e.Now), now.Mono
	e.Counters, e.tokenFloor = rows.Counters, rows.TokenFloor
	for _, t := range rows.Frozen {
		e.frozen[t] = true
	}
	entries := make([]*entry, len(rows.Jobs))
	e.jobs = make(map[string]*entry, len(rows.Jobs))
	var block []entry
	for i := range rows.Jobs {
		if len(block) == 0 {
			block = make([]entry, min(entriesAtOnce, len(rows.Jobs)-i))
		}
		block[0].job = rows.Jobs[i]
		entries[i], block = &block[0], block[1:]
		e.jobs[rows.Jobs[i].ID] = entries[i]
	}
	e.leases = make(map[string]*hold, len(rows.Leases))
	for i := range rows.Attempts {
		if en := e.jobs[rows.Attempts[i].JobID]; en != nil {
			en.attempts = append(en.attempts, rows.Attempts[i])
		}
	}
	for i := range rows.Leases {
		e.putLease(rows.Leases[i])
	}
	for i := range rows.Keys {
		e.putKey(rows.Keys[i])
	}
	for i := range rows.Answered {
		e.putAnswered(rows.Answered[i])
	}
	arrange(entries, func(j *jobs.Job) rank { return rank{int64(j.Revision), 0} })
	for _, en := range entries {
		e.file(en)
	}
	arrange(entries, func(j *jobs.Job) rank { return rank{j.Ord, j.Seq} })
	for _, en := range entries {
		e.Clock = max(e.Clock, en.job.CreatedAt.UnixMilli())
		e.settle(en)
	}
	return e
}

// entriesAtOnce is for how many jobs memory is taken at once. It is given back when none of them lives any more.
const entriesAtOnce = 16

// rank is what decides about an order.
type rank struct {
	first  int64
	second uint64
}

// arrange sorts entries by their jobs' ranks. It looks at each job once: they are all over the memory.
func arrange(entries []*entry, of func(*jobs.Job) rank) {
	type ranked struct {
		rank
		en *entry
	}
	all := make([]ranked, len(entries))
	for i, en := range entries {
		all[i] = ranked{of(&en.job), en}
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.second, b.second)) })
	for i := range all {
		entries[i] = all[i].en
	}
}

// settle puts a stored job that has no lease where it waits.
func (e *Engine) settle(en *entry) {
	j := &en.job
	if j.State != jobs.Queued || en.pending != nil {
		return
	}
	ahead := j.ReadyAt.Sub(e.Now.Wall)
	if j.Attempt == 0 || ahead <= 0 {
		e.queue(en, 0, true)
		en.ready = plus(e.Now.Mono, min(ahead, 0)) // it may have waited for long
		return
	}
	e.queue(en, plus(e.Now.Mono, min(ahead, jobs.MaxBackoff)), false)
}

// putLease makes a stored lease count.
func (e *Engine) putLease(l jobs.Lease) {
	en := e.jobs[l.JobID]
	if en == nil {
		return
	}
	expires, runUntil := plus(e.Now.Mono, e.cfg.Life()), Never
	if until := e.Now.Wall.Add(e.cfg.Life()); until.After(l.ExpiresAt) {
		l.ExpiresAt = until
	}
	if !l.RunUntil.IsZero() {
		runUntil = max(plus(e.Now.Mono, l.RunUntil.Sub(e.Now.Wall)), expires)
	}
	w := e.worker(l.WorkerID)
	e.see(w)
	w.busy++
	e.addHold(l, en, w, expires, runUntil)
	if len(en.job.Locks) > 0 {
		e.take(en.job.Locks, l.ID)
	}
}

func (e *Engine) putKey(k jobs.Key) {
	if old := e.keys[k.Key]; old != nil {
		e.dyingKeys.remove(old)
	}
	kept := &key{Key: k}
	e.keys[k.Key] = kept
	if !k.Expires.IsZero() {
		e.dyingKeys.push(kept)
	}
}

func (e *Engine) putAnswered(a jobs.Answered) {
	e.remember(a, plus(e.Now.Mono, min(a.Expires.Sub(e.Now.Wall), jobs.RequestLife)))
}

// Follow takes in what another process stored.
func (e *Engine) Follow(c *jobs.Changes, now Instant) {
	e.setNow(now)
	if c.Counters.Clock > e.Clock {
		e.ordered = now.Mono
	}
	e.wake = true
	for _, id := range c.Unleased {
		if h := e.leases[id]; h != nil {
			e.dropHold(h, "")
			if len(h.entry.job.Locks) > 0 {
				e.take(h.entry.job.Locks, "")
			}
		}
	}
	for _, name := range c.Dropped {
		if k := e.keys[name]; k != nil {
			e.dyingKeys.remove(k)
			delete(e.keys, name)
		}
	}
	for _, a := range c.Forgot {
		key := requestKey{a.WorkerID, a.RequestID}
		if old := e.answered[key]; old != nil {
			e.answers.remove(old)
			delete(e.answered, key)
		}
	}
	for i := range c.Ended {
		if en := e.jobs[c.Ended[i].ID]; en != nil {
			e.unqueue(en)
			en.job = c.Ended[i]
			e.file(en)
			e.drop(en)
		}
	}
	for i := range c.Jobs {
		e.followJob(c.Jobs[i].Job)
	}
	for i := range c.Leases {
		e.followLease(c.Leases[i])
	}
	for i := range c.Attempts {
		if en := e.jobs[c.Attempts[i].JobID]; en != nil {
			en.attempts = append(en.attempts, c.Attempts[i])
		}
	}
	for i := range c.Keys {
		e.putKey(c.Keys[i])
	}
	for i := range c.Answered {
		e.putAnswered(c.Answered[i])
	}
	if c.Refrozen {
		e.refreeze(c.Frozen)
	}
	e.Counters = jobs.Counters{
		Seq: max(e.Seq, c.Counters.Seq), Revision: max(e.Revision, c.Counters.Revision), Event: max(e.Event, c.Counters.Event),
		Clock: max(e.Clock, c.Counters.Clock),
	}
}

// followJob takes in a living job as another process stored it.
func (e *Engine) followJob(j jobs.Job) {
	en := e.jobs[j.ID]
	if en == nil {
		en = &entry{}
		e.jobs[j.ID] = en
	}
	asked := j.Cancel && !en.job.Cancel
	e.unqueue(en)
	en.job = j
	e.file(en)
	e.settle(en)
	if asked && en.hold != nil {
		e.tell(en.hold)
	}
}

// followLease takes in a lease as another process stored it: granted or extended there.
func (e *Engine) followLease(l jobs.Lease) {
	h := e.leases[l.ID]
	if h == nil {
		if en := e.jobs[l.JobID]; en != nil {
			e.putLease(l)
			h = e.leases[l.ID]
		}
	}
	if h == nil {
		return
	}
	if l.LockTokens == nil { // it was extended by a program that does not know of them
		l.LockTokens = h.lease.LockTokens
	}
	h.lease = l
	h.expires = plus(e.Now.Mono, l.ExpiresAt.Sub(e.Now.Wall))
	h.alarm = min(h.alarm, h.deadline())
	e.deadlines.fix(h)
}

// refreeze replaces the frozen types.
func (e *Engine) refreeze(frozen []string) {
	clear(e.frozen)
	for _, t := range frozen {
		e.frozen[t] = true
	}
	for _, g := range e.groups {
		for _, l := range g.lines {
			e.reopen(l)
		}
	}
}

// rows returns everything that lives, as a store would hand it back, in order. It is for tests and for stores that write
// themselves anew.
func (e *Engine) rows() jobs.Rows {
	r := jobs.Rows{Counters: e.Counters, TokenFloor: e.tokenFloor}
	for _, en := range e.jobs {
		r.Jobs = append(r.Jobs, en.job)
		r.Attempts = append(r.Attempts, en.attempts...)
	}
	for _, h := range e.leases {
		r.Leases = append(r.Leases, h.lease)
	}
	for _, k := range e.keys {
		r.Keys = append(r.Keys, k.Key)
	}
	for _, a := range e.answered {
		r.Answered = append(r.Answered, a.Answered)
	}
	for t := range e.frozen {
		r.Frozen = append(r.Frozen, t)
	}
	r.Sort()
	return r
}
