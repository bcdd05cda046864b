package engine

// The queue: jobs that could run, in lines of jobs that are alike, so that choosing one does not look at those that do
// not fit.

import (
	"slices"
	"time"

	"github.com/lokt-dev/lokt/internal/heap"
	"github.com/lokt-dev/lokt/jobs"
)

// shape is what decides which workers may take a job, and whether it fits.
type shape struct {
	jobType string
	units   int
	needs   string // joined
	unique  bool
	waits   bool // nothing is lost if a worker that holds it is at another
}

// group is the lines of one shape.
type group struct {
	shape
	needed []string
	lines  map[alike]*line
	open   *heap.Heap[*line] // the lines that are open, by their first job
}

// alike is what jobs of one line have in common beside their shape.
type alike struct {
	locks   string // joined, with the limits
	class   int
	runtime time.Duration
	fair    string // key
}

// line is queued jobs, in order, that differ in nothing that choosing one depends on.
type line struct {
	alike
	group  *group
	tenant *tenant
	names  []string     // of the locks
	limits []jobs.Limit // on them, in the same order
	jobs   *heap.Heap[*entry]
	closed string        // why nothing of it is handed out: "frozen", a lock's name; empty if it is open
	since  time.Duration // open since then
	at     int           // place in group.open

	until  time.Duration // closed until then, if a rate closes it
	rate   int           // index of the lock whose rate that is
	paceAt int           // place in engine.paces
}

// head returns the first job in the line, which must not be empty.
func (l *line) head() *entry { return l.jobs.Top() }

// enqueue puts a job that could run in line.
func (e *Engine) enqueue(en *entry) {
	j := &en.Job
	needs := needsOf(j.Tags)
	s := shape{j.Type, j.Units, joined(needs), j.Unique, !j.Unique && len(j.Locks) == 0 && j.MaxRuntime == 0}
	g := e.groups[s]
	if g == nil {
		g = &group{shape: s, needed: needs, lines: map[alike]*line{}}
		g.open = heap.New(func(l *line) *int { return &l.at }, func(a, b *line) bool {
			return a.head().Before(&b.head().Job)
		})
		e.groups[s] = g
	}
	key := alike{joined(j.Locks) + limitsText(&j.Spec), j.Priority.Class(), j.MaxRuntime, j.Extras().Fair}
	l := g.lines[key]
	if l == nil {
		l = &line{alike: key, group: g, names: j.Locks, limits: limitsOf(&j.Spec), closed: "new"} // until its head is known
		l.jobs = heap.New(func(en *entry) *int { return &en.at }, func(a, b *entry) bool { return a.Before(&b.Job) })
		g.lines[key] = l
		e.join(l)
		for _, name := range l.names {
			e.name(name).lines[l] = true
		}
	}
	var was *entry
	if l.jobs.Len() > 0 {
		was = l.head()
	}
	l.jobs.Push(en)
	en.line = l
	if was == nil {
		e.reopen(l)
	} else if l.closed == "" && l.head() != was {
		g.open.Fix(l)
		e.wake = true // it may stand before a reservation that the one behind it must respect
	}
}

// dequeue takes a job out of its line.
func (e *Engine) dequeue(en *entry) {
	l := en.line
	if l == nil {
		return
	}
	wasHead := l.head() == en
	l.jobs.Remove(en)
	en.line = nil
	switch {
	case l.jobs.Len() == 0:
		e.dropLine(l)
	case wasHead && l.closed == "":
		l.group.open.Fix(l)
	}
}

// dropLine forgets a line that is empty.
func (e *Engine) dropLine(l *line) {
	g := l.group
	g.open.Remove(l)
	e.paces.Remove(l)
	delete(e.locked, l)
	delete(g.lines, l.alike)
	e.part(l)
	for _, name := range l.names {
		n := e.names[name]
		delete(n.lines, l)
		e.forgetName(name, n)
	}
	if len(g.lines) == 0 {
		delete(e.groups, g.shape)
	}
}

// reopen opens or closes a line, as its locks and its type have it now.
func (e *Engine) reopen(l *line) {
	closed := ""
	if e.frozen[""] || e.frozen[l.group.jobType] {
		closed = jobs.WaitingFrozen
	}
	for i, name := range l.names {
		if closed == "" && e.names[name].taken(l.limits[i].Slots) {
			closed = jobs.WaitingLock + name
		}
	}
	if closed == "" && l.yields(&e.claimant) {
		closed = jobs.WaitingReserved + e.claimant.job.ID
	}
	e.paces.Remove(l)
	if closed == "" && e.pace(l) {
		closed = jobs.WaitingRate + l.names[l.rate]
		e.paces.Push(l)
	}
	was := l.closed
	l.closed = closed
	if delete(e.locked, l); l.wantsLock() {
		e.locked[l] = true
	}
	switch {
	case closed != "":
		l.group.open.Remove(l)
	case was != "":
		l.since = e.Now.Mono
		if was == "new" {
			l.since = -Never
		}
		l.group.open.Push(l)
		e.wake = true
	}
}

// reopenNamed opens and closes the lines that name the lock.
func (e *Engine) reopenNamed(n *name) {
	for l := range n.lines {
		e.reopen(l)
	}
}

// reopenAll opens and closes lines after types were frozen, or are frozen no more.
func (e *Engine) reopenAll() {
	for _, g := range e.groups {
		for _, l := range g.lines {
			e.reopen(l)
		}
	}
}

// name is a lock that queued or leased jobs name.
type name struct {
	holds []hold // of the leases that hold it, or are about to; or that held it, until it is known to be free
	until time.Duration
	lines map[*line]bool
	at    int // place in engine.blocked
	key   string
}

// hold is that of a lease, beside so many others at most less one; 0 is one, too.
type hold struct {
	lease string
	slots int
}

// taken reports whether the lock cannot be had now by one more beside which there may be so many at most, with it.
func (n *name) taken(slots int) bool {
	for _, h := range n.holds {
		slots = min(max(slots, 1), max(h.slots, 1))
	}
	return n.at != 0 || len(n.holds) > 0 && len(n.holds) >= slots
}

func (e *Engine) name(key string) *name {
	n := e.names[key]
	if n == nil {
		n = &name{lines: map[*line]bool{}, key: key}
		e.names[key] = n
	}
	return n
}

// forgetName forgets a lock that nobody names any more.
func (e *Engine) forgetName(key string, n *name) {
	if len(n.lines)+len(n.holds) == 0 && n.at == 0 {
		delete(e.names, key)
	}
}

// take gives a job's locks to a lease.
func (e *Engine) take(en *entry, leaseID string) {
	limits := en.Extras().Limits
	for _, key := range en.Locks {
		n := e.name(key)
		n.holds = append(n.without(leaseID), hold{leaseID, limits[key].Slots})
		if u := e.unlocking[leaseID]; u != nil { // the request was sent again
			u.names = slices.DeleteFunc(slices.Clone(u.names), func(given string) bool { return given == key })
		}
		e.reopenNamed(n)
	}
}

// leave takes locks from a lease.
func (e *Engine) leave(names []string, leaseID string) {
	for _, key := range names {
		n := e.name(key)
		n.holds = n.without(leaseID)
		e.reopenNamed(n)
		e.forgetName(key, n)
	}
}

// without returns the holds without that of a lease.
func (n *name) without(leaseID string) []hold {
	return slices.DeleteFunc(n.holds, func(h hold) bool { return h.lease == leaseID })
}

// block closes the lines that need a lock which somebody else holds, until it is tried again.
func (e *Engine) block(key string, until time.Duration) {
	n := e.name(key)
	e.blocked.Remove(n)
	n.until = until
	e.blocked.Push(n)
	e.reopenNamed(n)
}

// unblock lets a lock be tried again.
func (e *Engine) unblock(n *name) {
	e.blocked.Remove(n)
	e.reopenNamed(n)
	e.forgetName(n.key, n)
}
