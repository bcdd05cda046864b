package manager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/engine"
)

// trimmed is how many jobs are forgotten in one step.
const trimmed = 500

// maxAge is more days than any job is old, and no more than a time.Duration can hold.
const maxAge = 100_000

// housekeeping is how often what is past its life is forgotten.
const housekeeping = time.Minute

// Submit implements Submitter.
func (m *Manager) Submit(ctx context.Context, specs []jobs.Spec) ([]jobs.Receipt, error) {
	tooLarge := jobs.ValidateSubmit(specs, m.cfg.Total)
	if tooLarge != nil {
		if err := jobs.ValidateSubmit(specs, jobs.MaxTotal); err != nil {
			return nil, tooLarge
		}
		for i := range specs { // with a key, the job may be there since there was more capacity: the engine knows
			if specs[i].Units > m.cfg.Total && specs[i].IdempotencyKey == "" {
				return nil, tooLarge
			}
		}
	}
	all := make([]engine.NewJob, len(specs))
	for i := range specs {
		all[i] = engine.NewJob{Spec: specs[i].Clone(), ID: newJobID()}
	}
	r, err := m.do(ctx, engine.Submit{Jobs: all})
	if err != nil {
		return nil, err
	}
	return r.([]jobs.Receipt), nil
}

func cloneNumber(f *float64) *float64 {
	if f == nil {
		return nil
	}
	c := *f
	return &c
}

// newJobID returns a new job's ID: 32 hexadecimal digits, of which the first twelve are the time in milliseconds, so that
// indexes of stores grow at one end, and the other twenty are random.
func newJobID() string { return fmt.Sprintf("%012x", time.Now().UnixMilli()) + lokt.NewLeaseID()[:20] }

// Cancel implements Submitter.
func (m *Manager) Cancel(ctx context.Context, jobID, reason string) (jobs.State, error) {
	if err := jobs.ValidateReason(reason); err != nil {
		return "", err
	}
	r, err := m.do(ctx, engine.Cancel{JobID: jobID, Reason: reason})
	if errors.Is(err, jobs.ErrJobNotFound) {
		r, err := m.store.Ended(ctx, jobID)
		return r.State, err
	}
	if err != nil {
		return "", err
	}
	return r.(jobs.State), nil
}

// Request implements Leaser. Its frame stays small while it waits: many asks do.
func (m *Manager) Request(ctx context.Context, a jobs.Request) (g jobs.Grant, err error) {
	if err := a.Validate(); err != nil {
		return jobs.Grant{}, err
	}
	r, err := m.do(ctx, engine.Request{Request: a, LeaseID: lokt.NewLeaseID(), Jitter: rand.Float64()})
	if err == nil {
		err = m.granted(ctx, &a, r, &g)
	}
	return g, err
}

// granted finishes the answer to an ask. What is an error leaves g as it is.
func (m *Manager) granted(ctx context.Context, a *jobs.Request, r any, g *jobs.Grant) error {
	answer := r.(jobs.Grant)
	if ctx.Err() != nil && answer.Denied == nil && a.RequestID == "" { // nobody knows the lease, and nobody can ask for it
		_, err := m.do(context.WithoutCancel(ctx), engine.Return{LeaseID: answer.Lease.ID})
		return errors.Join(context.Cause(ctx), err)
	}
	if answer.Denied == nil && answer.Job.State == "" { // granted before, and the job has ended
		r, err := m.store.Ended(ctx, answer.Job.ID)
		if err != nil {
			return err
		}
		answer.Job = r.Job
	}
	*g = answer
	return nil
}

// Heartbeat implements Leaser.
func (m *Manager) Heartbeat(ctx context.Context, b jobs.Heartbeat) (jobs.HeartbeatAnswer, error) {
	if err := b.Validate(); err != nil {
		return jobs.HeartbeatAnswer{}, err
	}
	if err := ctx.Err(); err != nil {
		return jobs.HeartbeatAnswer{}, err
	}
	b.Progress, b.Checkpoint = cloneNumber(b.Progress), slices.Clone(b.Checkpoint)
	answer, ok := m.quickBeat(&b)
	if !ok {
		r, err := m.do(ctx, engine.Heartbeat{Heartbeat: b})
		if err != nil {
			return jobs.HeartbeatAnswer{}, err
		}
		answer = r.(jobs.HeartbeatAnswer)
	}
	all := []jobs.LeaseAnswer{{LeaseID: b.LeaseID, HeartbeatAnswer: answer}}
	m.tellLost(ctx, all)
	return all[0].HeartbeatAnswer, nil
}

// quickBeat applies a heartbeat at once, if it changes nothing but the lease.
func (m *Manager) quickBeat(b *jobs.Heartbeat) (jobs.HeartbeatAnswer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return jobs.HeartbeatAnswer{}, false
	}
	lazy, counted := m.engine.Lazy(), m.engine.Metrics.Beats
	answer, ok := m.engine.QuickHeartbeat(m.instant(time.Time{}), b)
	m.countQuick(counted)
	if m.engine.Lazy() != lazy {
		m.wakeUp() // there is something to store, later
	}
	return answer, ok
}

// HeartbeatAll implements Leaser.
func (m *Manager) HeartbeatAll(ctx context.Context, workerID string, leaseIDs []string) ([]jobs.LeaseAnswer, error) {
	if err := jobs.ValidateBatch(workerID, leaseIDs); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all, ok := m.quickBeats(workerID, leaseIDs)
	if !ok {
		r, err := m.do(ctx, engine.HeartbeatMany{WorkerID: workerID, LeaseIDs: leaseIDs})
		if err != nil {
			return nil, err
		}
		all = r.([]jobs.LeaseAnswer)
	}
	m.tellLost(ctx, all)
	return all, nil
}

func (m *Manager) quickBeats(workerID string, leaseIDs []string) ([]jobs.LeaseAnswer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, false
	}
	lazy, counted := m.engine.Lazy(), m.engine.Metrics.Beats
	all, ok := m.engine.QuickHeartbeats(m.instant(time.Time{}), workerID, leaseIDs)
	m.countQuick(counted)
	if m.engine.Lazy() != lazy {
		m.wakeUp()
	}
	return all, ok
}

// countQuick counts the heartbeats that the engine has counted since it had counted so many: they are in no turn that must be stored first.
func (m *Manager) countQuick(before uint64) {
	m.metrics.Beats += m.engine.Metrics.Beats - before
	m.engine.Metrics.Beats = before
}

// Complete implements Leaser.
func (m *Manager) Complete(ctx context.Context, c jobs.Completion) (bool, error) {
	if err := c.Validate(); err != nil {
		return false, err
	}
	c.Result, c.Error = slices.Clone(c.Result), slices.Clone(c.Error)
	r, err := m.do(ctx, engine.Complete{Completion: c})
	if err != nil {
		return false, err
	}
	return r.(bool), nil
}

// Report implements Leaser.
func (m *Manager) Report(ctx context.Context, p jobs.Progress) error {
	if err := p.Validate(); err != nil {
		return err
	}
	p.Progress, p.Metrics = cloneNumber(p.Progress), slices.Clone(p.Metrics)
	_, err := m.do(ctx, engine.Report{Progress: p})
	return err
}

// Revoke implements Operator.
func (m *Manager) Revoke(ctx context.Context, leaseID, reason string) error {
	if err := jobs.ValidateReason(reason); err != nil {
		return err
	}
	_, err := m.do(ctx, engine.Revoke{LeaseID: leaseID, Reason: reason})
	return err
}

// Freeze implements Operator.
func (m *Manager) Freeze(ctx context.Context, jobType string) error {
	return m.freeze(ctx, jobType, true)
}

// Unfreeze implements Operator.
func (m *Manager) Unfreeze(ctx context.Context, jobType string) error {
	return m.freeze(ctx, jobType, false)
}

func (m *Manager) freeze(ctx context.Context, jobType string, frozen bool) error {
	if err := jobs.ValidateType(jobType); err != nil {
		return err
	}
	_, err := m.do(ctx, engine.Freeze{Type: jobType, Frozen: frozen})
	return err
}

// Cleanup implements Operator.
func (m *Manager) Cleanup(ctx context.Context, days int) (int, error) {
	if err := jobs.ValidateAge(days); err != nil {
		return 0, err
	}
	return m.trim(ctx, time.Now().Add(-time.Duration(min(days, maxAge))*24*time.Hour), -1)
}

// trim forgets jobs in steps, so that turns come in between.
func (m *Manager) trim(ctx context.Context, before time.Time, keep int) (int, error) {
	total := 0
	for {
		n, err := m.store.Trim(ctx, before, keep, trimmed)
		total += n
		if err != nil || n < trimmed {
			return total, err
		}
	}
}

// housekeep forgets what is past its life, until the manager is closed.
func (m *Manager) housekeep() {
	tick := time.NewTicker(housekeeping)
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
	r, err := m.do(ctx, engine.Get{JobID: jobID})
	if errors.Is(err, jobs.ErrJobNotFound) {
		r, err := m.store.Ended(ctx, jobID)
		if err != nil {
			return jobs.View{}, err
		}
		now := time.Now()
		return jobs.View{Job: r.Job, Age: max(now.Sub(r.CreatedAt), 0), SinceUpdate: max(now.Sub(r.UpdatedAt), 0), Attempts: r.Attempts}, nil
	}
	if err != nil {
		return jobs.View{}, err
	}
	return r.(jobs.View), nil
}

// List implements Reader.
func (m *Manager) List(ctx context.Context, f jobs.Filter) (jobs.Page, error) {
	if err := f.Validate(); err != nil {
		return jobs.Page{}, err
	}
	r, err := m.do(ctx, engine.List{Filter: f})
	if err != nil {
		return jobs.Page{}, err
	}
	p := r.(engine.LivingPage)
	var ended []jobs.Record
	if f.State == "" || f.State.Ended() {
		if ended, err = m.store.ListEnded(ctx, f, p.Below, f.Most()+1); err != nil {
			return jobs.Page{}, err
		}
	}
	return engine.Merge(p, ended, f.Most()), nil
}

// Status implements Reader.
func (m *Manager) Status(ctx context.Context) (jobs.Snapshot, error) {
	r, err := m.do(ctx, engine.Status{})
	if err != nil {
		return jobs.Snapshot{}, err
	}
	return r.(jobs.Snapshot), nil
}

// Workers implements Reader.
func (m *Manager) Workers(ctx context.Context) ([]jobs.WorkerStatus, error) {
	r, err := m.do(ctx, engine.Workers{})
	if err != nil {
		return nil, err
	}
	return r.([]jobs.WorkerStatus), nil
}

// Stats implements Reader.
func (m *Manager) Stats(ctx context.Context, days int) (jobs.Stats, error) {
	if err := jobs.ValidateDays(days); err != nil {
		return jobs.Stats{}, err
	}
	now := time.Now().UTC()
	from := jobs.Since(now, days)
	all, err := m.history(ctx, from)
	return jobs.Summarize(all, from, now), err
}

// Decisions implements Reader.
func (m *Manager) Decisions(ctx context.Context, days int) (jobs.Decisions, error) {
	if err := jobs.ValidateDays(days); err != nil {
		return jobs.Decisions{}, err
	}
	from := jobs.Since(time.Now().UTC(), days)
	all, err := m.history(ctx, from)
	return jobs.Decide(all, from, days), err
}

// history returns the statistics, with those that are not stored yet in place of what is.
func (m *Manager) history(ctx context.Context, from time.Time) ([]jobs.Statistic, error) {
	all, err := m.store.History(ctx, from)
	if err != nil {
		return nil, err
	}
	r, err := m.do(ctx, engine.History{})
	if err != nil {
		return nil, err
	}
	newer := r.([]jobs.Statistic)
	all = slices.DeleteFunc(all, func(n jobs.Statistic) bool {
		return slices.ContainsFunc(newer, func(o jobs.Statistic) bool {
			return o.Source == n.Source && o.Hour.Equal(n.Hour) && o.Type == n.Type && o.Tag == n.Tag
		})
	})
	return append(all, newer...), nil
}

// Metrics returns what was counted until now. The caller may keep and change it.
func (m *Manager) Metrics() engine.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.metrics.Clone()
	c.ParkedAsks, c.ParkedBeats = m.engine.Parked()
	c.Oldest = m.engine.Oldest()
	return c
}
