package jobs

// What readers see, as it is at the end of a turn.

import (
	"cmp"
	"maps"
	"slices"
)

// listBudget bounds how many living jobs one page looks at, so that a filter that lets few through stalls nobody: the
// page ends early, and the next one goes on.
const listBudget = 10_000

// read answers a request that changes nothing.
func (e *engine) read(id uint64, o op) {
	switch o := o.(type) {
	case getOp:
		en := e.jobs[o.jobID]
		if en == nil {
			e.fail(id, ErrJobNotFound)
			return
		}
		v := e.view(en)
		v.Attempts = slices.Clone(en.attempts)
		if h := en.hold; h != nil {
			v.Attempts = append(v.Attempts, Attempt{
				JobID: en.job.ID, Number: h.lease.Attempt, Token: h.lease.Token, LeaseID: h.lease.ID, WorkerID: h.lease.WorkerID,
				Units: h.lease.Units, State: en.job.State, IssuedAt: h.lease.IssuedAt, FirstBeat: h.lease.FirstHeartbeat,
			})
		}
		e.reply(id, v)
	case listOp:
		e.reply(id, e.list(&o.Filter))
	case statusOp:
		e.reply(id, e.snapshot())
	case workersOp:
		all := make([]WorkerStatus, 0, len(e.workers))
		for _, name := range slices.Sorted(maps.Keys(e.workers)) {
			w := e.workers[name]
			all = append(all, WorkerStatus{ID: w.id, Leases: w.leases, LastSeen: w.lastSeen})
		}
		e.reply(id, all)
	}
}

// snapshot returns the capacity and its use.
func (e *engine) snapshot() Snapshot {
	return Snapshot{
		Total: e.cfg.Total, Usable: e.cfg.usable(), Leased: e.leased, Available: max(0, e.cfg.usable()-e.leased),
		Queue: e.depths, ActiveLeases: len(e.leases), Draining: e.draining,
	}
}

// view returns a job as readers see it.
func (e *engine) view(en *entry) View {
	v := View{
		Job: en.job, InQueue: en.job.State == Queued,
		Age: max(e.now.wall.Sub(en.job.CreatedAt), 0), SinceUpdate: max(e.now.wall.Sub(en.job.UpdatedAt), 0),
	}
	if en.hold != nil {
		l := e.advertised(en.hold.lease)
		v.Lease = &l
	}
	if v.InQueue {
		v.WaitingFor = e.waitingFor(en)
	}
	return v
}

// waitingFor says why a queued job was not handed out, by the rules that hand out.
func (e *engine) waitingFor(en *entry) string {
	l, r := en.line, &e.reserved
	switch {
	case e.frozen[""] || e.frozen[en.job.Type]:
		return WaitingFrozen
	case en.pending != nil:
		return WaitingLock + en.job.Locks[0]
	case l == nil:
		return WaitingRunAt
	case l.closed != "":
		return l.closed
	case e.takenUntil(l) <= e.now.mono:
		return WaitingWorker
	case l.group.units > e.free():
		return WaitingCapacity
	case r.job != nil && r.job != en && r.job.job.before(&en.job) && !r.allows(l.group.units, l.runtime):
		return WaitingReserved + r.job.job.ID
	case l.group.unique && !e.anyIdle(l):
		return WaitingUnique
	}
	return WaitingWorker // there is one, but it does not ask
}

// anyIdle reports whether a worker that could take the jobs of the line, and counts as there, holds no lease.
func (e *engine) anyIdle(l *line) bool {
	for w := e.recent.first; w != nil && plus(w.seen, SeenFor) > e.now.mono; w = w.recent.next {
		if w.busy == 0 && w.profile != nil && w.profile.takes(l.group, true) && w.profile.takesType(l.jobType) {
			return true
		}
	}
	return false
}

// livingPage is what the engine knows for a page of the list.
type livingPage struct {
	page  Page
	below uint64    // jobs that ended belong into the page if their revision is below
	last  [3]string // of the cursor that the page began at
	more  bool      // there are living jobs behind those of the page
	next  cursor    // behind them
}

// list returns living jobs, newest change first. What ended, and belongs in between, is not the engine's to know.
func (e *engine) list(f *Filter) livingPage {
	c, _ := parseCursor(f.After) // it was checked
	p := livingPage{page: Page{Now: e.now.wall, Snapshot: e.snapshot()}, below: min(c.below, e.Revision+1), last: c.last, next: c}
	var at [3]*entry
	for i, s := range listed() {
		if f.State == "" || f.State == s {
			at[i] = e.seek(e.byState[s], c.below, c.last[i])
		}
	}
	for looked := 0; ; looked++ {
		next := -1
		for i, en := range at {
			if en != nil && (next < 0 || en.job.Revision > at[next].job.Revision) {
				next = i
			}
		}
		if next < 0 {
			return p
		}
		if len(p.page.Jobs) == f.limit() || looked == listBudget {
			p.more = true
			return p
		}
		en := at[next]
		at[next] = en.inState.next
		p.next.below = en.job.Revision
		p.next.last[next] = en.job.ID
		if (f.Type == "" || f.Type == en.job.Type) && (f.Tag == "" || slices.Contains(en.job.Tags, f.Tag)) {
			p.page.Jobs = append(p.page.Jobs, e.view(en))
		}
	}
}

// seek returns the first job of a state whose revision is below the given one.
func (e *engine) seek(c *chain[entry], below uint64, last string) *entry {
	en := c.first
	if hint := e.jobs[last]; hint != nil && hint.in == c && hint.job.Revision >= below && c.first != hint {
		en = hint
	}
	for en != nil && en.job.Revision >= below {
		en = en.inState.next
	}
	return en
}

// merge puts jobs that ended among the living ones of a page. ended are those below p.below, newest change first, one
// more than the page holds if there are so many.
func merge(p livingPage, ended []Job, limit int) Page {
	page := p.page
	for _, j := range ended {
		if p.more && j.Revision < p.next.below {
			break // it belongs on a later page
		}
		page.Jobs = append(page.Jobs, View{
			Job: j, Age: max(page.Now.Sub(j.CreatedAt), 0), SinceUpdate: max(page.Now.Sub(j.UpdatedAt), 0),
		})
	}
	slices.SortFunc(page.Jobs, func(a, b View) int { return cmp.Compare(b.Job.Revision, a.Job.Revision) })
	next := p.next
	switch {
	case len(page.Jobs) > limit:
		page.Jobs = page.Jobs[:limit]
		next.below = page.Jobs[limit-1].Job.Revision
		next.last = p.last
		for i, s := range listed() {
			for _, v := range page.Jobs {
				if v.Job.State == s {
					next.last[i] = v.Job.ID
				}
			}
		}
	case !p.more:
		return page
	}
	page.Next = next.String()
	return page
}
