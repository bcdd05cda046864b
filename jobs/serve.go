package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
)

// trimmed is how many jobs are forgotten in one step.
const trimmed = 500

// maxAge is more days than any job is old, and no more than a time.Duration can hold.
const maxAge = 100_000

// housekeeping is how often what is past its life is forgotten.
const housekeeping = time.Minute

// Submit implements Submitter.
func (m *Manager) Submit(ctx context.Context, specs []Spec) ([]Receipt, error) {
	tooLarge := validateSubmit(specs, m.cfg.Total)
	if tooLarge != nil {
		if err := validateSubmit(specs, maxTotal); err != nil {
			return nil, tooLarge
		}
		for i := range specs { // with a key, the job may be there since there was more capacity: the engine knows
			if specs[i].Units > m.cfg.Total && specs[i].IdempotencyKey == "" {
				return nil, tooLarge
			}
		}
	}
	all := make([]newJob, len(specs))
	for i := range specs {
		all[i] = newJob{Spec: specs[i].clone(), id: newJobID()}
		if all[i].IdempotencyKey != "" {
			all[i].print = all[i].Fingerprint()
		}
	}
	r, err := m.do(ctx, submitOp{all})
	if err != nil {
		return nil, err
	}
	return r.([]Receipt), nil
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
func (m *Manager) Cancel(ctx context.Context, jobID, reason string) (State, error) {
	if err := validateReason(reason); err != nil {
		return "", err
	}
	r, err := m.do(ctx, cancelOp{jobID, reason})
	if errors.Is(err, ErrJobNotFound) {
		j, _, err := m.store.Ended(ctx, jobID)
		return j.State, err
	}
	if err != nil {
		return "", err
	}
	return r.(State), nil
}

// Request implements Leaser. Its frame stays small while it waits: many asks do.
func (m *Manager) Request(ctx context.Context, a Request) (g Grant, err error) {
	if err := a.Validate(); err != nil {
		return Grant{}, err
	}
	r, err := m.do(ctx, askOp{Request: a, leaseID: lokt.NewLeaseID(), jitter: rand.Float64()})
	if err == nil {
		err = m.granted(ctx, &a, r, &g)
	}
	return g, err
}

// granted finishes the answer to an ask. What is an error leaves g as it is.
func (m *Manager) granted(ctx context.Context, a *Request, r any, g *Grant) error {
	answer := r.(Grant)
	if ctx.Err() != nil && answer.Denied == nil && a.RequestID == "" { // nobody knows the lease, and nobody can ask for it
		_, err := m.do(context.WithoutCancel(ctx), returnOp{answer.Lease.ID})
		return errors.Join(context.Cause(ctx), err)
	}
	if answer.Denied == nil && answer.Job.State == "" { // granted before, and the job has ended
		var err error
		if answer.Job, _, err = m.store.Ended(ctx, answer.Job.ID); err != nil {
			return err
		}
	}
	*g = answer
	return nil
}

// Heartbeat implements Leaser.
func (m *Manager) Heartbeat(ctx context.Context, b Heartbeat) (HeartbeatAnswer, error) {
	if err := b.Validate(); err != nil {
		return HeartbeatAnswer{}, err
	}
	if err := ctx.Err(); err != nil {
		return HeartbeatAnswer{}, err
	}
	b.Progress, b.Checkpoint = cloneNumber(b.Progress), slices.Clone(b.Checkpoint)
	answer, ok := m.quickBeat(&b)
	if !ok {
		r, err := m.do(ctx, beatOp{b})
		if err != nil {
			return HeartbeatAnswer{}, err
		}
		answer = r.(HeartbeatAnswer)
	}
	m.lostLocks(ctx, b.LeaseID, &answer)
	return answer, nil
}

// quickBeat applies a heartbeat at once, if it changes nothing but the lease.
func (m *Manager) quickBeat(b *Heartbeat) (HeartbeatAnswer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return HeartbeatAnswer{}, false
	}
	lazy, counted := m.engine.lazy, m.engine.metrics.Beats
	answer, ok := m.engine.quickBeat(m.instant(time.Time{}), b)
	m.countQuick(counted)
	if m.engine.lazy != lazy {
		m.wakeUp() // there is something to store, later
	}
	return answer, ok
}

// HeartbeatAll implements Leaser.
func (m *Manager) HeartbeatAll(ctx context.Context, workerID string, leaseIDs []string) ([]LeaseAnswer, error) {
	if err := validateBatch(workerID, leaseIDs); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all, ok := m.quickBeats(workerID, leaseIDs)
	if !ok {
		r, err := m.do(ctx, beatManyOp{workerID, leaseIDs})
		if err != nil {
			return nil, err
		}
		all = r.([]LeaseAnswer)
	}
	m.lostLocksOf(ctx, leaseIDs, all)
	return all, nil
}

func (m *Manager) quickBeats(workerID string, leaseIDs []string) ([]LeaseAnswer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, false
	}
	lazy, counted := m.engine.lazy, m.engine.metrics.Beats
	all, ok := m.engine.quickBeats(m.instant(time.Time{}), workerID, leaseIDs)
	m.countQuick(counted)
	if m.engine.lazy != lazy {
		m.wakeUp()
	}
	return all, ok
}

// countQuick counts the heartbeats that the engine has counted since it had counted so many: they are in no turn that must be stored first.
func (m *Manager) countQuick(before uint64) {
	m.metrics.Beats += m.engine.metrics.Beats - before
	m.engine.metrics.Beats = before
}

// Complete implements Leaser.
func (m *Manager) Complete(ctx context.Context, c Completion) (bool, error) {
	if err := c.Validate(); err != nil {
		return false, err
	}
	c.Result, c.Error = slices.Clone(c.Result), slices.Clone(c.Error)
	r, err := m.do(ctx, completeOp{c})
	if err != nil {
		return false, err
	}
	return r.(bool), nil
}

// Report implements Leaser.
func (m *Manager) Report(ctx context.Context, p Progress) error {
	if err := p.Validate(); err != nil {
		return err
	}
	p.Progress, p.Metrics = cloneNumber(p.Progress), slices.Clone(p.Metrics)
	_, err := m.do(ctx, reportOp{p})
	return err
}

// Revoke implements Operator.
func (m *Manager) Revoke(ctx context.Context, leaseID, reason string) error {
	if err := validateReason(reason); err != nil {
		return err
	}
	_, err := m.do(ctx, revokeOp{leaseID, reason})
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
	if err := validateType(jobType); err != nil {
		return err
	}
	_, err := m.do(ctx, freezeOp{jobType, frozen})
	return err
}

// Cleanup implements Operator.
func (m *Manager) Cleanup(ctx context.Context, days int) (int, error) {
	if err := validateAge(days); err != nil {
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
func (m *Manager) Get(ctx context.Context, jobID string) (View, error) {
	r, err := m.do(ctx, getOp{jobID})
	if errors.Is(err, ErrJobNotFound) {
		j, attempts, err := m.store.Ended(ctx, jobID)
		if err != nil {
			return View{}, err
		}
		now := time.Now()
		return View{Job: j, Age: max(now.Sub(j.CreatedAt), 0), SinceUpdate: max(now.Sub(j.UpdatedAt), 0), Attempts: attempts}, nil
	}
	if err != nil {
		return View{}, err
	}
	return r.(View), nil
}

// List implements Reader.
func (m *Manager) List(ctx context.Context, f Filter) (Page, error) {
	if err := f.Validate(); err != nil {
		return Page{}, err
	}
	r, err := m.do(ctx, listOp{f})
	if err != nil {
		return Page{}, err
	}
	p := r.(livingPage)
	var ended []Job
	if f.State == "" || f.State.Ended() {
		if ended, err = m.store.ListEnded(ctx, f, p.below, f.limit()+1); err != nil {
			return Page{}, err
		}
	}
	return merge(p, ended, f.limit()), nil
}

// Status implements Reader.
func (m *Manager) Status(ctx context.Context) (Snapshot, error) {
	r, err := m.do(ctx, statusOp{})
	if err != nil {
		return Snapshot{}, err
	}
	return r.(Snapshot), nil
}

// Workers implements Reader.
func (m *Manager) Workers(ctx context.Context) ([]WorkerStatus, error) {
	r, err := m.do(ctx, workersOp{})
	if err != nil {
		return nil, err
	}
	return r.([]WorkerStatus), nil
}

// Stats implements Reader.
func (m *Manager) Stats(ctx context.Context, days int) (Stats, error) {
	if err := validateDays(days); err != nil {
		return Stats{}, err
	}
	now := time.Now().UTC()
	from := since(now, days)
	tallies, _, err := m.store.History(ctx, from)
	return Summarize(tallies, from, now), err
}

// Decisions implements Reader.
func (m *Manager) Decisions(ctx context.Context, days int) (Decisions, error) {
	if err := validateDays(days); err != nil {
		return Decisions{}, err
	}
	from := since(time.Now().UTC(), days)
	_, counts, err := m.store.History(ctx, from)
	return Decide(counts, from, days), err
}

// Metrics returns what was counted until now. The caller may keep and change it.
func (m *Manager) Metrics() Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.metrics.Clone()
	c.ParkedAsks, c.ParkedBeats = m.engine.parked()
	return c
}
