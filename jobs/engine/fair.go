package engine

// Turns: among jobs of one class, keys are served in turn, whoever has many jobs queued or came first. Each key has a
// virtual time, which is raised by the units of each of its jobs that is granted; the least one is next. A key that could
// not be served has nothing to make up for: it goes on where the last one was served. One that comes, or comes back, does behind that: else
// keys that are new all the time would keep the others waiting for ever.

// turn is a fairness key within a class; the empty key stands for jobs without.
type turn struct {
	class int
	fair  string
}

// tenant is a turn that has lines, or is ahead of those that have.
type tenant struct {
	served int64 // virtual time: units
	lines  int
}

// fewTenants is how many tenants are not worth to be looked through for those that matter no more.
const fewTenants = 1000

// join counts a new line with its tenant.
func (e *Engine) join(l *line) {
	at := turn{l.class, l.fair}
	t := e.tenants[at]
	if t == nil {
		if len(e.tenants) > e.mostTenants {
			for of, old := range e.tenants {
				if old.lines == 0 && old.served <= e.virtual[of.class] {
					delete(e.tenants, of)
				}
			}
			e.mostTenants = max(fewTenants, 2*len(e.tenants))
		}
		t = &tenant{}
		e.tenants[at] = t
	}
	l.tenant = t
	if t.lines == 0 {
		t.served = max(t.served, e.joins[l.class])
	}
	if t.lines++; l.fair != "" {
		e.keyed++
	}
}

// part counts a line out.
func (e *Engine) part(l *line) {
	if l.tenant.lines--; l.fair != "" {
		e.keyed--
	}
}

// charge counts a job that was granted.
func (e *Engine) charge(en *entry) {
	class := en.Priority.Class()
	if t := e.tenants[turn{class, en.Extras().Fair}]; t != nil {
		e.virtual[class] = max(e.virtual[class], t.served)
		t.served = e.virtual[class] + int64(en.Units)
		e.joins[class] = t.served
	}
}

// fairest returns the job that is next for the requests of some profiles: of each class the first job of the tenant whose turn
// it is, and of these the first in order. The job with the reservation has what was kept for it.
func (e *Engine) fairest(among map[string]*profile) *entry {
	var first [4]*entry
	var least [4]int64
	r := &e.reserved
	for _, p := range among {
		if len(p.asks) == 0 || p.ahead && e.best(p) == nil {
			continue
		}
		if r.job != nil && e.fits(r.job.line.group, p) && p.takes(r.job.line.group) && e.lets(p, r.job) {
			return r.job
		}
		for _, g := range e.groups {
			if !e.fits(g, p) || !p.takes(g) {
				continue
			}
			for _, l := range g.open.All() {
				c, t := l.head(), l.tenant.served
				if r.job != nil && !c.Before(&r.job.Job) && !r.allows(g.units, l.runtime) || !e.lets(p, c) {
					continue
				}
				if was := first[l.class]; was == nil || t < least[l.class] || t == least[l.class] && c.Before(&was.Job) {
					first[l.class], least[l.class] = c, t
				}
			}
		}
	}
	var next *entry
	for _, c := range first {
		if c != nil && (next == nil || c.Before(&next.Job)) {
			next = c
		}
	}
	return next
}
