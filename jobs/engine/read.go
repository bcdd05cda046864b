package engine

// What readers see, as it is at the end of a turn.

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"github.com/lokt-dev/lokt/jobs"
)

// listBudget bounds how many living jobs one page looks at, so that a filter that lets few through stalls nobody: the
// page ends early, and the next one goes on.
const listBudget = 10_000

// Get reads a job that has not ended: a jobs.View.
type Get struct{ JobID string }

func (o Get) read(e *Engine) Reply {
	en := e.jobs[o.JobID]
	if en == nil {
		return Reply{Err: jobs.ErrJobNotFound}
	}
	v := e.view(en)
	v.Attempts = slices.Clone(en.Attempts)
	if en.Lease != nil {
		v.Attempts = append(v.Attempts, en.attempt(en.State))
	}
	return Reply{Result: v}
}

// Status reads the capacity and its use: a jobs.Snapshot.
type Status struct{}

func (Status) read(e *Engine) Reply { return Reply{Result: e.snapshot()} }

// Workers reads who asks: []jobs.WorkerStatus.
type Workers struct{}

func (Workers) read(e *Engine) Reply {
	all := make([]jobs.WorkerStatus, 0, len(e.workers))
	for _, name := range slices.Sorted(maps.Keys(e.workers)) {
		w := e.workers[name]
		all = append(all, jobs.WorkerStatus{ID: w.id, Leases: w.leases, LastSeen: w.lastSeen})
	}
	return Reply{Result: all}
}

// History reads the statistics of the hours that are in memory: []jobs.Statistic.
type History struct{}

func (History) read(e *Engine) Reply { return Reply{Result: e.history(false)} }

// snapshot returns the capacity and its use.
func (e *Engine) snapshot() jobs.Snapshot {
	return jobs.Snapshot{
		Total: e.cfg.Total, Usable: e.cfg.Usable(), Leased: e.leased, Available: max(0, e.cfg.Usable()-e.leased),
		Queue: e.depths(), ActiveLeases: len(e.leases), Draining: e.draining,
	}
}

// view returns a job as readers see it.
func (e *Engine) view(en *entry) jobs.View {
	v := jobs.NewView(&en.Job, e.Now.Wall)
	if en.Lease != nil {
		l := e.advertised(en.Lease)
		v.Lease = &l
	}
	if v.InQueue = en.State == jobs.Queued; v.InQueue {
		v.WaitingFor = e.waitingFor(en)
		if id, after := strings.CutPrefix(v.WaitingFor, jobs.WaitingAfter); after {
			v.Awaits = e.awaits(id)
		} else if strings.HasPrefix(v.WaitingFor, jobs.WaitingRate) {
			v.Awaits = e.awaitsRate(en.line)
		}
	}
	return v
}

// waitingFor says why a queued job was not handed out, by the rules that hand out.
func (e *Engine) waitingFor(en *entry) string {
	l, r, h := en.line, &e.reserved, &e.host
	switch {
	case e.frozen[""] || e.frozen[en.Type]:
		return jobs.WaitingFrozen
	case e.obstacle(en) != "":
		return jobs.WaitingAfter + e.obstacle(en)
	case en.pending:
		return jobs.WaitingLock + en.Locks[0]
	case l == nil:
		return jobs.WaitingRunAt
	case l.closed != "":
		return l.closed
	case l.group.units > e.free() && (e.cfg.Shared || e.takenUntil(l) > e.Now.Mono): // a worker may ask another process
		return jobs.WaitingCapacity
	case e.takenUntil(l) <= e.Now.Mono:
		return jobs.WaitingWorker
	case r.job != nil && r.job != en && r.job.Before(&en.Job) && !r.allows(l.group.units, l.runtime):
		return jobs.WaitingReserved + r.job.ID
	case l.group.unique && !e.anyIdle(l):
		return jobs.WaitingUnique
	case h.job != nil && h.job.Before(&en.Job) && h.worker.asks > 0 && h.worker.profile.could(l.group):
		return jobs.WaitingReserved + h.job.ID
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
	From  uint64 // jobs that ended belong into the page from this revision on; 0 if no living ones come behind it
	Below uint64 // and if it is below this one
}

// List reads jobs that have not ended, newest change first: a LivingPage. What ended, and belongs in between, is not the
// engine's to know.
type List struct{ jobs.Filter }

func (f List) read(e *Engine) Reply {
	below, _ := jobs.ParseCursor(f.After) // it was checked
	p := LivingPage{page: jobs.Page{Now: e.Now.Wall, Snapshot: e.snapshot()}, Below: min(below, e.Revision+1)}
	var at []btree.MapIter[uint64, *entry]
	for i := range e.shelves {
		next := e.shelves[i].Iter()
		passed := next.Seek(below)
		if passed && !next.Prev() || !passed && !next.Last() || f.State != "" && f.State != next.Value().State {
			continue
		}
		at = append(at, next)
	}
	var found []*entry
	for looked := 0; len(at) > 0 && len(found) < f.Most() && looked < listBudget; looked++ {
		newest := 0
		for i := range at {
			if at[i].Key() > at[newest].Key() {
				newest = i
			}
		}
		en := at[newest].Value()
		if p.From = en.Revision; !at[newest].Prev() {
			at = slices.Delete(at, newest, newest+1)
		}
		if f.Matches(&en.Job) {
			found = append(found, en)
		}
	}
	if len(at) == 0 {
		p.From = 0
	}
	p.page.Jobs = make([]jobs.View, len(found)) // they are large to be moved
	for i, en := range found {
		p.page.Jobs[i] = e.view(en)
	}
	return Reply{Result: p}
}

// Merge puts jobs that ended among the living ones of a page. ended are those from p.From on and below p.Below, newest
// change first, one more than the page holds if there are so many.
func Merge(p LivingPage, ended []jobs.Record, limit int) jobs.Page {
	page := p.page
	for i := range ended {
		page.Jobs = append(page.Jobs, jobs.NewView(&ended[i].Job, page.Now))
	}
	slices.SortFunc(page.Jobs, func(a, b jobs.View) int { return cmp.Compare(b.Job.Revision, a.Job.Revision) })
	switch {
	case len(page.Jobs) > limit:
		page.Jobs = page.Jobs[:limit]
		page.Next = jobs.Cursor(page.Jobs[limit-1].Job.Revision)
	case p.From > 0:
		page.Next = jobs.Cursor(p.From)
	}
	return page
}

// Parked counts the requests that wait.
func (e *Engine) Parked() (asks, beats int) {
	for _, w := range e.waiters {
		if w.ask == nil {
			beats++
		} else {
			asks++
		}
	}
	return asks, beats
}

// Oldest returns since when the oldest of the jobs at the head of a line could have run, by priority. It looks
// at every line.
func (e *Engine) Oldest() map[jobs.Priority]time.Time {
	oldest := map[jobs.Priority]time.Time{}
	for _, g := range e.groups {
		for _, l := range g.lines {
			j := &l.head().Job
			if since, known := oldest[j.Priority]; !known || j.ReadyAt.Before(since) {
				oldest[j.Priority] = j.ReadyAt
			}
		}
	}
	return oldest
}
