package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Jobs is a jobs.Store in memory. Its methods may be called by any number of goroutines. What managers store in it, and
// read from it, shares memory, which nobody changes.
type Jobs struct {
	mu       sync.Mutex
	closed   bool
	living   map[string]jobs.Job
	leases   map[string]jobs.Lease
	attempts map[string][]jobs.Attempt // by job
	ended    map[string]jobs.Job
	order    []jobs.Job // the ended ones, in order of revision
	keys     map[string]jobs.Key
	answered map[[2]string]jobs.Answered // by worker and request
	frozen   []string
	counters jobs.Counters
	tallies  map[tallyKey]jobs.Tally
	counts   map[countKey]int64
	events   []jobs.Event // the newest, oldest first
}

var _ jobs.Store = (*Jobs)(nil)

type tallyKey struct {
	hour    time.Time
	jobType string
}

type countKey struct {
	hour  time.Time
	event jobs.EventType
	tag   string
}

// keepEvents is how many events of jobs are remembered.
const keepEvents = 10_000

// NewJobs returns an empty store for jobs.
func NewJobs() *Jobs {
	return &Jobs{
		living: map[string]jobs.Job{}, leases: map[string]jobs.Lease{}, attempts: map[string][]jobs.Attempt{}, ended: map[string]jobs.Job{},
		keys: map[string]jobs.Key{}, answered: map[[2]string]jobs.Answered{}, tallies: map[tallyKey]jobs.Tally{}, counts: map[countKey]int64{},
	}
}

// errJobsClosed is what every method answers after Close.
var errJobsClosed = fmt.Errorf("%w: memory store of jobs is closed", lokt.ErrUnavailable)

// usable reports why the store cannot be used. Its caller holds the mutex.
func (s *Jobs) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed {
		return errJobsClosed
	}
	return nil
}

// Update implements jobs.Store. The turn must not use the store.
func (s *Jobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	if c := turn(jobs.Facts{}); !c.Empty() {
		s.store(&c)
	}
	return nil
}

func (s *Jobs) store(c *jobs.Changes) {
	for _, id := range c.Unleased {
		delete(s.leases, id)
	}
	for _, k := range c.Dropped {
		delete(s.keys, k)
	}
	for _, a := range c.Forgot {
		delete(s.answered, [2]string{a.WorkerID, a.RequestID})
	}
	for i := range c.Jobs {
		s.living[c.Jobs[i].ID] = c.Jobs[i].Job
	}
	for _, l := range c.Leases {
		s.leases[l.ID] = l
	}
	for _, a := range c.Attempts {
		s.attempts[a.JobID] = append(s.attempts[a.JobID], a)
	}
	for _, j := range c.Ended {
		delete(s.living, j.ID)
		s.ended[j.ID] = j
		s.order = append(s.order, j)
	}
	for _, k := range c.Keys {
		s.keys[k.Key] = k
	}
	for _, a := range c.Answered {
		s.answered[[2]string{a.WorkerID, a.RequestID}] = a
	}
	for _, t := range c.Tallies {
		k := tallyKey{t.Hour, t.Type}
		sum := s.tallies[k]
		sum.Hour, sum.Type = t.Hour, t.Type
		sum.Add(t)
		s.tallies[k] = sum
	}
	for _, n := range c.Counts {
		s.counts[countKey{n.Hour, n.Event, n.Tag}] += n.N
	}
	if s.events = append(s.events, c.Events...); len(s.events) > 2*keepEvents {
		s.events = slices.Clone(s.events[len(s.events)-keepEvents:])
	}
	if c.Refrozen {
		s.frozen = c.Frozen
	}
	s.counters = c.Counters
}

// Load implements jobs.Store.
func (s *Jobs) Load(ctx context.Context) (jobs.Rows, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return jobs.Rows{}, err
	}
	r := jobs.Rows{
		Jobs: slices.Collect(maps.Values(s.living)), Leases: slices.Collect(maps.Values(s.leases)), Keys: slices.Collect(maps.Values(s.keys)),
		Answered: slices.Collect(maps.Values(s.answered)), Frozen: slices.Clone(s.frozen), Counters: s.counters,
	}
	for id := range s.living {
		r.Attempts = append(r.Attempts, s.attempts[id]...)
	}
	r.Sort()
	return r, nil
}

// Ended implements jobs.Store.
func (s *Jobs) Ended(ctx context.Context, jobID string) (jobs.Job, []jobs.Attempt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return jobs.Job{}, nil, err
	}
	j, ok := s.ended[jobID]
	if !ok {
		return jobs.Job{}, nil, jobs.ErrJobNotFound
	}
	return j, slices.Clone(s.attempts[jobID]), nil
}

// ListEnded implements jobs.Store.
func (s *Jobs) ListEnded(ctx context.Context, f jobs.Filter, below uint64, limit int) ([]jobs.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	var all []jobs.Job
	end, _ := slices.BinarySearchFunc(s.order, below, func(j jobs.Job, below uint64) int {
		if j.Revision < below {
			return -1
		}
		return 1
	})
	for i := end - 1; i >= 0 && len(all) < limit; i-- {
		j := s.order[i]
		if (f.State == "" || f.State == j.State) && (f.Type == "" || f.Type == j.Type) && (f.Tag == "" || slices.Contains(j.Tags, f.Tag)) {
			all = append(all, j)
		}
	}
	return all, nil
}

// History implements jobs.Store.
func (s *Jobs) History(ctx context.Context, from time.Time) ([]jobs.Tally, []jobs.Count, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, nil, err
	}
	var tallies []jobs.Tally
	for k, t := range s.tallies {
		if !k.hour.Before(from) {
			t.Runs.Buckets = maps.Clone(t.Runs.Buckets)
			tallies = append(tallies, t)
		}
	}
	var counts []jobs.Count
	for k, n := range s.counts {
		if !k.hour.Before(from) {
			counts = append(counts, jobs.Count{Hour: k.hour, Event: k.event, Tag: k.tag, N: n})
		}
	}
	return tallies, counts, nil
}

// Trim implements jobs.Store.
func (s *Jobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	beyond := 0
	if keep >= 0 {
		beyond = max(len(s.order)-keep, 0)
	}
	forgotten := 0
	s.order = slices.DeleteFunc(s.order, func(j jobs.Job) bool {
		if forgotten == atMost || beyond <= forgotten && !j.EndedAt.Before(before) {
			return false
		}
		forgotten++
		delete(s.ended, j.ID)
		delete(s.attempts, j.ID)
		return true
	})
	return forgotten, nil
}

// Events returns the newest events, oldest first.
func (s *Jobs) Events() []jobs.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events[max(len(s.events)-keepEvents, 0):])
}

// Close makes every later call fail.
func (s *Jobs) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
