package manager

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/jitter"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/engine"
)

// get asks the engine for what has that type, unless that is invalid.
func get[T any](ctx context.Context, m *Manager, invalid error, o engine.Op) (v T, err error) {
	if invalid != nil {
		return v, invalid
	}
	r, err := m.do(ctx, o)
	v, _ = r.(T)
	return v, err
}

// order has something done, unless that is invalid.
func (m *Manager) order(ctx context.Context, invalid error, o engine.Op) error {
	_, err := get[any](ctx, m, invalid, o)
	return err
}

// Submit implements Submitter.
func (m *Manager) Submit(ctx context.Context, specs []jobs.Spec) ([]jobs.Receipt, error) {
	// That a job is too large is for the engine to say: it may be there, under its key, since there was more capacity.
	if jobs.ValidateSubmit(specs, jobs.MaxTotal) != nil {
		return nil, jobs.ValidateSubmit(specs, m.cfg.Total)
	}
	for ended := map[string]jobs.State(nil); ; {
		all := make([]engine.NewJob, len(specs))
		for i := range specs {
			all[i] = engine.NewJob{Spec: specs[i].Clone(), ID: newJobID()}
		}
		receipts, err := get[[]jobs.Receipt](ctx, m, nil, engine.Submit{Jobs: all, Ended: ended})
		unknown := (*engine.Unknown)(nil)
		if !errors.As(err, &unknown) {
			return receipts, err
		}
		if ended == nil {
			ended = map[string]jobs.State{}
		}
		if err = m.ends(ctx, unknown.Places, ended); err != nil {
			return nil, err
		}
	}
}

// ends finds out how the jobs ended that others are to run after.
func (m *Manager) ends(ctx context.Context, places []engine.Place, known map[string]jobs.State) error {
	var lost [][2]int
	for _, p := range places {
		if known[p.ID] != "" {
			continue // named twice
		}
		switch r, err := m.store.Ended(ctx, p.ID); {
		case err == nil:
			known[p.ID] = r.State
		case errors.Is(err, jobs.ErrJobNotFound):
			lost = append(lost, [2]int{p.Job, p.Name})
		default:
			return err
		}
	}
	return jobs.UnknownError(lost)
}

// newJobID returns a new job's ID: 32 hexadecimal digits, of which the first twelve are the time in
// milliseconds, so that indexes of stores grow at one end, and the other twenty are random.
func newJobID() string { return fmt.Sprintf("%012x", time.Now().UnixMilli()) + lokt.NewLeaseID()[:20] }

// Cancel implements Submitter.
func (m *Manager) Cancel(ctx context.Context, jobID, reason string) (jobs.State, error) {
	s, err := get[jobs.State](ctx, m, jobs.ValidateReason(reason), engine.Cancel{JobID: jobID, Reason: reason})
	if errors.Is(err, jobs.ErrJobNotFound) {
		r, err := m.store.Ended(ctx, jobID)
		return r.State, err
	}
	return s, err
}

// Request implements Leaser. Its frame stays small while it waits: many requests do.
func (m *Manager) Request(ctx context.Context, a jobs.Request) (g jobs.Grant, err error) {
	if err := a.Validate(); err != nil {
		return jobs.Grant{}, err
	}
	r, err := m.do(ctx, engine.Request{Request: a, LeaseID: lokt.NewLeaseID(), Jitter: jitter.Float64()})
	if err == nil {
		err = m.granted(ctx, r, &g)
	}
	return g, err
}

// granted finishes the answer to a request. If it returns an error, it leaves g as it is.
func (m *Manager) granted(ctx context.Context, r any, g *jobs.Grant) error {
	answer := r.(jobs.Grant)
	if answer.Denied == nil && answer.Job.State == "" { // granted before, and the job has ended
		switch r, err := m.store.Ended(ctx, answer.Job.ID); {
		case errors.Is(err, jobs.ErrJobNotFound): // a request that is refused would end workers
			answer = jobs.Grant{Denied: &jobs.Denial{Code: jobs.DeniedEligible, Reason: "the job of this request is forgotten", RetryAfter: engine.LockRetry}}
		case err != nil:
			return err
		default:
			answer.Job = r.Job
		}
	}
	// A process may have stood still for long between taking the locks and granting the job.
	if l := &answer.Lease; answer.Job.State == jobs.Leased && answer.Job.LeaseID == l.ID && m.locks != nil && !m.opts.OneStore && !m.locks.kept(ctx, l) {
		if _, err := m.do(context.WithoutCancel(ctx), engine.Withdraw{LeaseID: l.ID}); err != nil {
			return err
		}
		answer = jobs.Grant{Denied: &jobs.Denial{Code: jobs.DeniedEligible, Reason: "a lock of the job was lost", RetryAfter: engine.LockRetry}}
	}
	*g = answer
	return nil
}

// Heartbeat implements Leaser.
func (m *Manager) Heartbeat(ctx context.Context, b jobs.Heartbeat) (jobs.HeartbeatAnswer, error) {
	if err := b.Validate(); err != nil {
		return jobs.HeartbeatAnswer{}, err
	}
	b.Progress, b.Checkpoint = cloneNumber(b.Progress), slices.Clone(b.Checkpoint)
	all, err := m.heartbeat(ctx, b, []string{b.LeaseID})
	if err != nil {
		return jobs.HeartbeatAnswer{}, err
	}
	return all[0].HeartbeatAnswer, all[0].Err
}

// HeartbeatAll implements Leaser.
func (m *Manager) HeartbeatAll(ctx context.Context, workerID string, leaseIDs []string) ([]jobs.LeaseAnswer, error) {
	if err := jobs.ValidateBatch(workerID, leaseIDs); err != nil {
		return nil, err
	}
	return m.heartbeat(ctx, jobs.Heartbeat{WorkerID: workerID}, leaseIDs)
}

// heartbeat extends each of the leases: at once, if it changes nothing but them.
func (m *Manager) heartbeat(ctx context.Context, b jobs.Heartbeat, leaseIDs []string) ([]jobs.LeaseAnswer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o := engine.Heartbeat{Heartbeat: b, LeaseIDs: leaseIDs}
	all, ok := m.quick(&o)
	if !ok {
		var err error
		if all, err = get[[]jobs.LeaseAnswer](ctx, m, nil, o); err != nil {
			return nil, err
		}
	}
	if m.locks != nil {
		m.locks.tellLost(ctx, all)
	}
	return all, nil
}

// quick applies a heartbeat outside of a turn, if it can be, and reports whether it did.
func (m *Manager) quick(o *engine.Heartbeat) ([]jobs.LeaseAnswer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, false
	}
	lazy := m.engine.Lazy()
	all, ok := m.engine.Quick(m.instant(time.Time{}), o)
	m.metrics.Heard(all) // they are in no turn that must be stored first
	if m.engine.Lazy() != lazy {
		m.wakeUp() // there is something to store, later
	}
	return all, ok
}

// Complete implements Leaser.
func (m *Manager) Complete(ctx context.Context, c jobs.Completion) (bool, error) {
	c.Result, c.Error = slices.Clone(c.Result), slices.Clone(c.Error)
	return get[bool](ctx, m, c.Validate(), engine.Complete{Completion: c})
}

// Report implements Leaser.
func (m *Manager) Report(ctx context.Context, p jobs.Progress) error {
	p.Progress, p.Metrics = cloneNumber(p.Progress), slices.Clone(p.Metrics)
	return m.order(ctx, p.Validate(), engine.Report{Progress: p})
}

func cloneNumber(f *float64) *float64 {
	if f != nil {
		f = new(*f)
	}
	return f
}

// Revoke implements Operator.
func (m *Manager) Revoke(ctx context.Context, leaseID, reason string) error {
	return m.order(ctx, jobs.ValidateReason(reason), engine.Revoke{LeaseID: leaseID, Reason: reason})
}

// Freeze implements Operator.
func (m *Manager) Freeze(ctx context.Context, jobType string) error {
	return m.order(ctx, jobs.ValidateType(jobType), engine.Freeze{Type: jobType, Frozen: true})
}

// Unfreeze implements Operator.
func (m *Manager) Unfreeze(ctx context.Context, jobType string) error {
	return m.order(ctx, jobs.ValidateType(jobType), engine.Freeze{Type: jobType})
}

// Cleanup implements Operator.
func (m *Manager) Cleanup(ctx context.Context, days int) (int, error) {
	if err := jobs.ValidateDays(days, math.MaxInt); err != nil {
		return 0, err
	}
	const oldest = 100_000 // days: more than any job is old, and no more than a time.Duration can hold
	return m.trim(ctx, time.Now().Add(-time.Duration(min(days, oldest))*24*time.Hour), -1)
}

// trim forgets jobs in steps, so that turns come in between.
func (m *Manager) trim(ctx context.Context, before time.Time, keep int) (int, error) {
	const step = 500
	for total := 0; ; {
		n, err := m.store.Trim(ctx, before, keep, step)
		if total += n; err != nil || n < step {
			return total, err
		}
	}
}

// housekeep forgets what is past its life, once a minute, until the manager is closed.
func (m *Manager) housekeep() {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
			// A store that fails now is asked again in a minute; what it cannot forget does no harm.
			_, _ = m.trim(m.ctx, time.Now().Add(-m.opts.Keep), m.opts.KeepMost)
		}
	}
}

// Get implements Reader.
func (m *Manager) Get(ctx context.Context, jobID string) (jobs.View, error) {
	v, err := get[jobs.View](ctx, m, nil, engine.Get{JobID: jobID})
	if !errors.Is(err, jobs.ErrJobNotFound) {
		return v, err
	}
	r, err := m.store.Ended(ctx, jobID)
	if err != nil {
		return jobs.View{}, err
	}
	v = jobs.NewView(&r.Job, time.Now())
	v.Attempts = r.Attempts
	return v, nil
}

// Output implements Reader. The state is looked at first: when it is an end, all of the output is there.
func (m *Manager) Output(ctx context.Context, jobID string, from int64) (jobs.Output, error) {
	v, err := m.Get(ctx, jobID)
	if err != nil {
		return jobs.Output{}, err
	}
	pieces, err := m.store.Output(ctx, jobID, from)
	return jobs.Output{State: v.Job.State, Pieces: pieces}, err
}

// List implements Reader.
func (m *Manager) List(ctx context.Context, f jobs.Filter) (jobs.Page, error) {
	p, err := get[engine.LivingPage](ctx, m, f.Validate(), engine.List{Filter: f})
	if err != nil {
		return jobs.Page{}, err
	}
	var ended []jobs.Record
	if f.State == "" || f.State.Ended() {
		if ended, err = m.store.ListEnded(ctx, f, p.From, p.Below, f.Most()+1); err != nil {
			return jobs.Page{}, err
		}
	}
	return engine.Merge(p, ended, f.Most()), nil
}

// CountEnded implements Reader.
func (m *Manager) CountEnded(ctx context.Context, state jobs.State, jobType string) (int, error) {
	if err := (&jobs.Filter{State: state, Type: jobType}).Validate(); err != nil {
		return 0, err
	}
	return m.store.CountEnded(ctx, state, jobType)
}

// Status implements Reader.
func (m *Manager) Status(ctx context.Context) (jobs.Snapshot, error) {
	return get[jobs.Snapshot](ctx, m, nil, engine.Status{})
}

// Workers implements Reader.
func (m *Manager) Workers(ctx context.Context) ([]jobs.WorkerStatus, error) {
	return get[[]jobs.WorkerStatus](ctx, m, nil, engine.Workers{})
}

// Stats implements Reader.
func (m *Manager) Stats(ctx context.Context, days int) (jobs.Stats, error) {
	now := time.Now().UTC()
	from := jobs.Since(now, days)
	all, err := m.history(ctx, from, days)
	return jobs.Summarize(all, from, now), err
}

// Decisions implements Reader.
func (m *Manager) Decisions(ctx context.Context, days int) (jobs.Decisions, error) {
	from := jobs.Since(time.Now().UTC(), days)
	all, err := m.history(ctx, from, days)
	return jobs.Decide(all, from, days), err
}

// history returns the statistics, with those that are not stored yet in place of what is.
func (m *Manager) history(ctx context.Context, from time.Time, days int) ([]jobs.Statistic, error) {
	if err := jobs.ValidateDays(days, jobs.MaxDays); err != nil {
		return nil, err
	}
	all, err := m.store.History(ctx, from)
	if err != nil {
		return nil, err
	}
	newer, err := get[[]jobs.Statistic](ctx, m, nil, engine.History{})
	all = slices.DeleteFunc(all, func(n jobs.Statistic) bool {
		return slices.ContainsFunc(newer, func(o jobs.Statistic) bool {
			return o.Source == n.Source && o.Hour.Equal(n.Hour) && o.Type == n.Type && o.Tag == n.Tag
		})
	})
	return append(all, newer...), err
}

// Metrics returns what was counted until now. The caller may keep and change it.
func (m *Manager) Metrics() engine.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.metrics.Clone()
	c.ParkedRequests, c.ParkedHeartbeats = m.engine.Parked()
	c.Oldest = m.engine.Oldest()
	return c
}
