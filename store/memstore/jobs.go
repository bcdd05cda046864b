package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Jobs is a jobs.Store in memory. Its methods may be called by any number of goroutines.
// What managers store in it, and read from it, shares memory, which nobody changes. It keeps no events of jobs:
// nobody could read them.
type Jobs struct {
	locks    *Store // whose mutex is this one's
	closed   bool
	living   map[string]jobs.Record
	ended    map[string]jobs.Record
	order    []string // IDs of the ended ones, in order of revision
	memos    map[string]jobs.Memo
	output   map[string][]jobs.Piece // by job
	stats    map[statistic]jobs.Statistic
	frozen   []string
	counters jobs.Counters
}

var _ jobs.Store = (*Jobs)(nil)

// statistic is what no two statistics have in common.
type statistic struct {
	hour              int64
	source, kind, tag string
}

// NewJobs returns an empty store for jobs.
func NewJobs() *Jobs { return New().Jobs() }

// Jobs returns a new, empty store for jobs whose turns may change the locks of this one. It is to be used as
// long as this one.
func (s *Store) Jobs() *Jobs {
	return &Jobs{
		locks: s, living: map[string]jobs.Record{}, ended: map[string]jobs.Record{},
		memos: map[string]jobs.Memo{}, output: map[string][]jobs.Piece{},
		stats: map[statistic]jobs.Statistic{},
	}
}

// usable reports why the store cannot be used. Its caller holds the mutex.
func (s *Jobs) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed || s.locks.closed {
		return errClosed
	}
	return nil
}

// Update implements jobs.Store. The turn must not use the store.
func (s *Jobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	observe, err := s.update(ctx, turn)
	if observe {
		s.locks.drain()
	}
	return err
}

// update stores what the turn changed, and reports whether its caller has to see to the observation of what
// became of locks.
func (s *Jobs) update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) (observe bool, err error) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return false, err
	}
	step := lokt.NewStep(func(name string) (lokt.Snapshot, error) { return s.locks.snapshot(name), nil })
	c := turn(jobs.Facts{Locks: step})
	s.store(&c)
	for _, c := range step.Changes() {
		observe = s.locks.store(c) || observe
	}
	return observe, nil
}

func (s *Jobs) store(c *jobs.Changes) {
	if c.Empty() {
		return
	}
	for _, r := range c.Jobs {
		if !r.State.Ended() {
			s.living[r.ID] = *r
			continue
		}
		if _, again := s.ended[r.ID]; !again {
			s.order = append(s.order, r.ID)
		}
		delete(s.living, r.ID)
		s.ended[r.ID] = *r
	}
	for _, m := range c.Memos {
		s.memos[m.ID] = m
	}
	for _, p := range c.Output {
		all := slices.DeleteFunc(s.output[p.JobID], func(o jobs.Piece) bool {
			return o.End() == p.End() || o.End() <= p.End()-jobs.KeptOutput
		})
		s.output[p.JobID] = append(all[max(len(all)-jobs.KeptPieces+1, 0):], p)
	}
	for _, n := range c.Stats {
		s.stats[statistic{n.Hour.Unix(), n.Source, n.Type, n.Tag}] = n
	}
	s.frozen, s.counters = c.Frozen, c.Counters
}

// look calls f while nothing in the store changes, if it can be used.
func (s *Jobs) look(ctx context.Context, f func()) error {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	f()
	return nil
}

// Load implements jobs.Store.
func (s *Jobs) Load(ctx context.Context) (l jobs.Changes, err error) {
	err = s.look(ctx, func() {
		s.forgetMemos()
		l = jobs.Changes{Memos: slices.Collect(maps.Values(s.memos)), Frozen: slices.Clone(s.frozen), Counters: s.counters}
		for _, r := range s.living {
			l.Jobs = append(l.Jobs, &r)
		}
	})
	return l, err
}

// forgetMemos forgets what has expired.
func (s *Jobs) forgetMemos() {
	now := time.Now()
	maps.DeleteFunc(s.memos, func(_ string, m jobs.Memo) bool { return !m.Expires.After(now) })
}

// Ended implements jobs.Store.
func (s *Jobs) Ended(ctx context.Context, jobID string) (r jobs.Record, err error) {
	ok := false
	if err = s.look(ctx, func() { r, ok = s.ended[jobID] }); err == nil && !ok {
		err = jobs.ErrJobNotFound
	}
	return r, err
}

// ListEnded implements jobs.Store.
func (s *Jobs) ListEnded(ctx context.Context, f jobs.Filter, from, below uint64, limit int) (all []jobs.Record, err error) {
	err = s.look(ctx, func() {
		end, _ := slices.BinarySearchFunc(s.order, below, func(id string, below uint64) int {
			return cmp.Compare(s.ended[id].Revision, below)
		})
		for i := end - 1; i >= 0 && len(all) < limit && s.ended[s.order[i]].Revision >= from; i-- {
			if r := s.ended[s.order[i]]; f.Matches(&r.Job) {
				all = append(all, r)
			}
		}
	})
	return all, err
}

// CountEnded implements jobs.Store.
func (s *Jobs) CountEnded(ctx context.Context, state jobs.State, jobType string) (n int, err error) {
	f := jobs.Filter{State: state, Type: jobType}
	err = s.look(ctx, func() {
		for _, r := range s.ended {
			if f.Matches(&r.Job) {
				n++
			}
		}
	})
	return min(n, jobs.MaxCount), err
}

// Output implements jobs.Store.
func (s *Jobs) Output(ctx context.Context, jobID string, from int64) (all []jobs.Piece, err error) {
	err = s.look(ctx, func() {
		for _, p := range s.output[jobID] {
			if p.End() > from {
				all = append(all, p)
			}
		}
	})
	return all, err
}

// History implements jobs.Store.
func (s *Jobs) History(ctx context.Context, from time.Time) (all []jobs.Statistic, err error) {
	err = s.look(ctx, func() {
		for _, n := range s.stats {
			if !n.Hour.Before(from) {
				all = append(all, n)
			}
		}
	})
	return all, err
}

// Trim implements jobs.Store.
func (s *Jobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (forgotten int, err error) {
	err = s.look(ctx, func() {
		s.forgetMemos()
		beyond := 0
		if keep >= 0 {
			beyond = max(len(s.order)-keep, 0)
		}
		s.order = slices.DeleteFunc(s.order, func(id string) bool {
			if forgotten == atMost || beyond <= forgotten && !s.ended[id].EndedAt.Before(before) {
				return false
			}
			forgotten++
			delete(s.ended, id)
			delete(s.output, id)
			return true
		})
	})
	return forgotten, err
}

// Close makes every later call fail, but not those of the store with the locks.
func (s *Jobs) Close() error {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	s.closed = true
	return nil
}
