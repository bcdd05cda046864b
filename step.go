package lokt

// Step answers claims and releases within one atomic step of a store, by the rules: what it changes is stored together
// with everything else in the step, or not at all. Errors are those of Service.
type Step interface {
	// Acquire grants all the claims, without waiting, or none: then it leaves no trace.
	Acquire(claims ...Claim) ([]Holder, error)

	Release(t Target) ([]Holder, error)
}

// Steps is the Step for stores to hand out. It reads each lock once and collects what becomes of it.
type Steps struct {
	view  func(name string) (Snapshot, error)
	seen  map[string]stepped
	order []string // of the locks seen, by when they were
}

// stepped is a lock within a step.
type stepped struct {
	Snapshot
	was    Lock
	events []Event
}

var _ Step = (*Steps)(nil)

// NewStep returns a step over the locks that view reads. The store keeps them as they are until it has stored the changes.
func NewStep(view func(name string) (Snapshot, error)) *Steps {
	return &Steps{view: view, seen: map[string]stepped{}}
}

// Changes returns what became of the locks that changed or had events, one change for each.
func (s *Steps) Changes() []Change {
	var all []Change
	for _, name := range s.order {
		if l := s.seen[name]; len(l.events) > 0 || !l.Lock.Equal(&l.was) {
			all = append(all, Change{Lock: l.Lock, Events: l.events})
		}
	}
	return all
}

// Acquire implements Step.
func (s *Steps) Acquire(claims ...Claim) ([]Holder, error) {
	before := make(map[string]stepped, len(claims))
	holders := make([]Holder, 0, len(claims))
	for _, c := range claims {
		if c.LeaseID == "" {
			c.LeaseID = NewLeaseID()
		}
		c.Wait = 0
		err := c.Validate()
		if err == nil {
			var was stepped
			if was, err = s.lock(c.Name); err == nil {
				if _, twice := before[c.Name]; !twice {
					before[c.Name] = was
				}
				d := s.apply(c.Name, was, acquire(was.Snapshot, c))
				holders, err = append(holders, d.holder), d.err
			}
		}
		if err != nil {
			for name, was := range before {
				s.seen[name] = was
			}
			return nil, err
		}
	}
	return holders, nil
}

// Release implements Step.
func (s *Steps) Release(t Target) ([]Holder, error) {
	was, err := s.lock(t.Name)
	if err != nil {
		return nil, err
	}
	d := s.apply(t.Name, was, release(was.Snapshot, t))
	return d.ended, d.err
}

// lock returns a lock as the step has it now.
func (s *Steps) lock(name string) (stepped, error) {
	if l, ok := s.seen[name]; ok {
		return l, nil
	}
	if err := ValidateName(name); err != nil {
		return stepped{}, err
	}
	snap, err := s.view(name)
	if err != nil {
		return stepped{}, err
	}
	s.seen[name] = stepped{Snapshot: snap, was: snap.Lock}
	s.order = append(s.order, name)
	return s.seen[name], nil
}

// apply takes in what the rules decided about a lock.
func (s *Steps) apply(name string, l stepped, d *decision) *decision {
	l.Lock, l.events = d.Lock, append(l.events[:len(l.events):len(l.events)], d.Events...)
	s.seen[name] = l
	return d
}
