package engine

// What readers see, as it is at the end of a turn.

import (
	"cmp"
	"container/list"
	"maps"
	"slices"

	"github.com/lokt-dev/lokt/jobs"
)

// listBudget bounds how many living jobs one page looks at, so that a filter that lets few through stalls nobody: the
// page ends early, and the next one goes on.
const listBudget = 10_000

// read answers a request that changes nothing.
func (e *Engine) read(id uint64, o Op) {
	switch o := o.(type) {
	case Get:
		en := e.jobs[o.JobID]
		if en == nil {
			e.fail(id, jobs.ErrJobNotFound)
			return
		}
		v := e.view(en)
		v.Attempts = slices.Clone(en.attempts)
		if h := en.hold; h != nil {
			v.Attempts = append(v.Attempts, h.attempt(en.job.State))
		}
		e.reply(id, v)
	case List:
		e.reply(id, e.list(&o.Filter))
	case Status:
		e.reply(id, e.snapshot())
	case Workers:
		all := make([]jobs.WorkerStatus, 0, len(e.workers))
		for _, name := range slices.Sorted(maps.Keys(e.workers)) {
			w := e.workers[name]
			all = append(all, jobs.WorkerStatus{ID: w.id, Leases: w.leases, LastSeen: w.lastSeen})
		}
		e.reply(id, all)
	case History:
		e.reply(id, e.history(false))
	}
}

// snapshot returns the capacity and its use.
func (e *Engine) snapshot() jobs.Snapshot {
	return jobs.Snapshot{
		Total: e.cfg.Total, Usable: e.cfg.Usable(), Leased: e.leased, Available: max(0, e.cfg.Usable()-e.leased),
		Queue: e.depths(), ActiveLeases: len(e.leases), Draining: e.draining,
	}
}

// view returns a job as readers see it.
func (e *Engine) view(en *entry) jobs.View {
	v := jobs.View{
		Job: en.job, InQueue: en.job.State == jobs.Queued,
		Age: max(e.Now.Wall.Sub(en.job.CreatedAt), 0), SinceUpdate: max(e.Now.Wall.Sub(en.job.UpdatedAt), 0),
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
func (e *Engine) waitingFor(en *entry) string {
	l, r := en.line, &e.reserved
	switch {
	case e.frozen[""] || e.frozen[en.job.Type]:
		return jobs.WaitingFrozen
	case en.pending:
		return jobs.WaitingLock + en.job.Locks[0]
	case l == nil:
		return jobs.WaitingRunAt
	case l.closed != "":
		return l.closed
	case e.takenUntil(l) <= e.Now.Mono:
		return jobs.WaitingWorker
	case l.group.units > e.free():
		return jobs.WaitingCapacity
	case r.job != nil && r.job != en && r.job.job.Before(&en.job) && !r.allows(l.group.units, l.runtime):
		return jobs.WaitingReserved + r.job.job.ID
	case l.group.unique && !e.anyIdle(l):
		return jobs.WaitingUnique
	}
	return jobs.WaitingWorker // there is one, but it does not ask
}

// anyIdle reports whether a worker that could take the jobs of the line, and counts as there, holds no lease.
func (e *Engine) anyIdle(l *line) bool {
	for w := range e.takers(l.group) {
		if w.busy == 0 {
			return true
		}
	}
	return false
}

// LivingPage is what the engine knows for a page of the list.
type LivingPage struct {
	page  jobs.Page
	Below uint64 // jobs that ended belong into the page if their revision is below
	more  bool   // there are living jobs behind those of the page
	next  uint64 // whose revision is below this one
}

// list returns living jobs, newest change first. What ended, and belongs in between, is not the engine's to know.
func (e *Engine) list(f *jobs.Filter) LivingPage {
	below, _ := jobs.ParseCursor(f.After) // it was checked
	p := LivingPage{
		page: jobs.Page{Now: e.Now.Wall, Snapshot: e.snapshot()}, Below: min(below, e.Revision+1), next: below,
	}
	var at []*list.Element
	for i := range e.shelves {
		first := e.shelves[i].Front()
		if first == nil || f.State != "" && f.State != first.Value.(*entry).job.State {
			continue
		}
		for first != nil && first.Value.(*entry).job.Revision >= below {
			first = first.Next()
		}
		at = append(at, first)
	}
	for looked := 0; ; looked++ {
		var en *entry
		from := 0
		for i, first := range at {
			if first == nil {
				continue
			}
			if c := first.Value.(*entry); en == nil || c.job.Revision > en.job.Revision {
				en, from = c, i
			}
		}
		if en == nil {
			return p
		}
		if len(p.page.Jobs) == f.Most() || looked == listBudget {
			p.more = true
			return p
		}
		at[from] = at[from].Next()
		p.next = en.job.Revision
		if f.Matches(&en.job) {
			p.page.Jobs = append(p.page.Jobs, e.view(en))
		}
	}
}

// Merge puts jobs that ended among the living ones of a page. ended are those below p.Below, newest change first, one
// more than the page holds if there are so many.
func Merge(p LivingPage, ended []jobs.Record, limit int) jobs.Page {
	page := p.page
	for i := range ended {
		if p.more && ended[i].Revision < p.next {
			break // it belongs on a later page
		}
		page.Jobs = append(page.Jobs, jobs.EndedView(&ended[i], page.Now))
	}
	slices.SortFunc(page.Jobs, func(a, b jobs.View) int { return cmp.Compare(b.Job.Revision, a.Job.Revision) })
	switch {
	case len(page.Jobs) > limit:
		page.Jobs = page.Jobs[:limit]
		page.Next = jobs.Cursor(page.Jobs[limit-1].Job.Revision)
	case p.more:
		page.Next = jobs.Cursor(p.next)
	}
	return page
}
