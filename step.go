package lokt

// Step answers claims and releases within one atomic step of a store, by the rules: what it changes is stored together
// with everything else in the step, or not at all. Errors are those of Service.
type Step interface {
	Acquire(c Claim) (Holder, error) // never waits
	Release(t Target) ([]Holder, error)
}

// Steps is the Step for stores to hand out. It reads each lock once and collects what becomes of it.
type Steps struct {
	view    func(name string) (Snapshot, error)
	changes []Change
	seen    map[string]*stepped
}

// stepped is a lock within a step.
type stepped struct {
	Snapshot
	change int // its place among the changes; -1 if there is none
}

var _ Step = (*Steps)(nil)

// NewStep returns a step over the locks that view reads. The store keeps them as they are until it has stored the changes.
func NewStep(view func(name string) (Snapshot, error)) *Steps {
	return &Steps{view: view, seen: map[string]*stepped{}}
}

// Changes returns what became of the locks that changed or had events, one change for each.
func (s *Steps) Changes() []Change { return s.changes }

// Acquire implements Step.
func (s *Steps) Acquire(c Claim) (Holder, error) {
	if c.LeaseID == "" {
		c.LeaseID = NewLeaseID()
	}
	if err := c.Validate(); err != nil {
		return Holder{}, err
	}
	c.Wait = 0
	d, err := s.apply(c.Name, func(s Snapshot) *decision { return acquire(s, c) })
	if err != nil {
		return Holder{}, err
	}
	return d.holder, d.err
}

// Release implements Step.
func (s *Steps) Release(t Target) ([]Holder, error) {
	d, err := s.apply(t.Name, func(s Snapshot) *decision { return release(s, t) })
	if err != nil {
		return nil, err
	}
	return d.ended, d.err
}

func (s *Steps) apply(name string, rule func(Snapshot) *decision) (*decision, error) {
	if err := ValidateName(name); err != nil {
		return nil, err
	}
	l := s.seen[name]
	if l == nil {
		snap, err := s.view(name)
		if err != nil {
			return nil, err
		}
		l = &stepped{snap, -1}
		s.seen[name] = l
	}
	d := rule(l.Snapshot)
	if l.change < 0 && (len(d.Events) > 0 || !d.Lock.Equal(&l.Lock)) {
		l.change = len(s.changes)
		s.changes = append(s.changes, Change{})
	}
	if l.change >= 0 {
		c := &s.changes[l.change]
		c.Lock, c.Events = d.Lock, append(c.Events, d.Events...)
	}
	l.Lock = d.Lock
	return d, nil
}
