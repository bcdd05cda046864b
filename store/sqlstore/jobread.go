package sqlstore

// Reading jobs, and what does not depend on where they are.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// jobReader reads jobs that ended, and statistics.
type jobReader struct {
	reading reader
	hasTag  string // condition on a job's tags
	closed  atomic.Bool
}

func (s *jobReader) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	return nil
}

// unfolded says, of the database as a reader sees it, which turns' changes are not in the tables yet, oldest first. nil says that
// there are none.
type unfolded = func(ctx context.Context, c querier) ([]*jobs.Changes, error)

func (s *jobReader) rest(ctx context.Context, c querier, u unfolded) ([]*jobs.Changes, error) {
	if u == nil {
		return nil, nil
	}
	return u(ctx, c)
}

// Ended implements jobs.Store.
func (s *jobReader) Ended(ctx context.Context, jobID string) (j jobs.Job, attempts []jobs.Attempt, err error) {
	return s.endedBeside(ctx, jobID, nil)
}

func (s *jobReader) endedBeside(ctx context.Context, jobID string, u unfolded) (j jobs.Job, attempts []jobs.Attempt, err error) {
	if err := s.usable(ctx); err != nil {
		return j, nil, err
	}
	err = s.reading(ctx, "read", func(c querier) error {
		found := false
		if err := c.query(ctx, "SELECT "+endedColumns+" FROM specs s JOIN ended e USING (seq) LEFT JOIN outputs o USING (seq) WHERE s.id = ?", []any{jobID}, func(r *row) error {
			j, found = readEnded(r), true
			return nil
		}); err != nil {
			return err
		}
		var rest []*jobs.Changes
		if !found { // otherwise its attempts, which ended before it, are in the tables as well
			if rest, err = s.rest(ctx, c, u); err != nil {
				return err
			}
		}
		for _, c := range rest {
			for i := range c.Ended {
				if c.Ended[i].ID == jobID {
					j, found = c.Ended[i], true
				}
			}
		}
		if !found {
			return jobs.ErrJobNotFound
		}
		if err := c.query(ctx, "SELECT "+attemptColumns+" FROM attempts WHERE job = ? ORDER BY number", []any{jobID}, func(r *row) error {
			attempts = append(attempts, readAttempt(r))
			return nil
		}); err != nil {
			return err
		}
		for _, c := range rest {
			for _, a := range c.Attempts {
				if a.JobID == jobID {
					attempts = append(attempts, a)
				}
			}
		}
		return nil
	})
	return j, attempts, err
}

// ListEnded implements jobs.Store.
func (s *jobReader) ListEnded(ctx context.Context, f jobs.Filter, below uint64, limit int) (all []jobs.Job, err error) {
	return s.listBeside(ctx, f, below, limit, nil)
}

func (s *jobReader) listBeside(ctx context.Context, f jobs.Filter, below uint64, limit int, u unfolded) (all []jobs.Job, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	where, args := []string{"e.revision < ?"}, []any{int64(min(below, 1<<63-1))}
	if f.State != "" {
		where, args = append(where, "e.state = ?"), append(args, string(f.State))
	}
	if f.Type != "" {
		where, args = append(where, "s.type = ?"), append(args, f.Type)
	}
	if f.Tag != "" {
		where, args = append(where, s.hasTag), append(args, f.Tag)
	}
	statement := "SELECT " + endedColumns + " FROM ended e CROSS JOIN specs s USING (seq) LEFT JOIN outputs o USING (seq) WHERE " +
		strings.Join(where, " AND ") + " ORDER BY e.revision DESC LIMIT ?"
	err = s.reading(ctx, "read", func(c querier) error {
		rest, err := s.rest(ctx, c, u)
		if err != nil {
			return err
		}
		for _, c := range rest {
			for _, j := range c.Ended {
				if j.Revision < below && (f.State == "" || j.State == f.State) && (f.Type == "" || j.Type == f.Type) &&
					(f.Tag == "" || slices.Contains(j.Tags, f.Tag)) {
					all = append(all, j)
				}
			}
		}
		return c.query(ctx, statement, append(args, limit), func(r *row) error {
			all = append(all, readEnded(r))
			return nil
		})
	})
	slices.SortStableFunc(all, func(a, b jobs.Job) int { return cmp.Compare(b.Revision, a.Revision) })
	return all[:min(len(all), limit)], err
}

// Events returns up to limit events of jobs with higher numbers than after, oldest first; after 0 they begin with the oldest that
// is kept.
func (s *jobReader) Events(ctx context.Context, after uint64, limit int) (all []jobs.Event, err error) {
	return s.eventsBeside(ctx, after, limit, nil)
}

func (s *jobReader) eventsBeside(ctx context.Context, after uint64, limit int, u unfolded) (all []jobs.Event, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	err = s.reading(ctx, "events", func(c querier) error {
		rest, err := s.rest(ctx, c, u)
		if err != nil {
			return err
		}
		if err := c.query(ctx, "SELECT "+jobEventColumns+" FROM job_events WHERE seq > ? ORDER BY seq LIMIT ?", []any{after, limit}, func(r *row) error {
			all = append(all, readJobEvent(r))
			return nil
		}); err != nil {
			return err
		}
		for _, c := range rest {
			for _, e := range c.Events {
				if e.Seq > after && len(all) < limit {
					all = append(all, e)
				}
			}
		}
		return nil
	})
	return all, err
}

// trimJobs forgets jobs that ended: the oldest of so many, and those that are too old. It returns how many.
func trimJobs(ctx context.Context, q querier, beyond int64, before time.Time, atMost int) (int, error) {
	type old struct {
		revision, seq int64
		id            string
	}
	var all []old
	if err := q.query(ctx, `SELECT e.revision, e.seq, s.id, e.ended_at FROM ended e CROSS JOIN specs s USING (seq)
		ORDER BY e.revision LIMIT ?`, []any{atMost}, func(r *row) error {
		o := old{r.number(), r.number(), r.text()}
		if at := r.millis(); int64(len(all)) < beyond || at.Before(before) {
			all = append(all, o)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	for _, o := range all {
		for _, d := range []struct {
			statement string
			key       any
		}{
			{"DELETE FROM ended WHERE revision = ?", o.revision}, {"DELETE FROM specs WHERE seq = ?", o.seq},
			{"DELETE FROM outputs WHERE seq = ?", o.seq}, {"DELETE FROM attempts WHERE job = ?", o.id},
		} {
			if err := q.exec(ctx, d.statement, d.key); err != nil {
				return 0, err
			}
		}
	}
	return len(all), nil
}

// trimJobEvents forgets the oldest events of jobs: those that are too old, and those beyond so many, if that is not negative.
func trimJobEvents(ctx context.Context, c querier, before time.Time, most int64, atMost int) error {
	newest, err := one(ctx, c, "SELECT max(seq) FROM job_events")
	if err != nil {
		return err
	}
	upTo := int64(-1)
	if err := c.query(ctx, "SELECT seq, at FROM job_events ORDER BY seq LIMIT ?", []any{atMost}, func(r *row) error {
		seq, at := r.number(), r.millis()
		if at.Before(before) || most >= 0 && newest-seq >= most {
			upTo = seq
		}
		return nil
	}); err != nil || upTo < 0 {
		return err
	}
	return c.exec(ctx, "DELETE FROM job_events WHERE seq <= ?", upTo)
}

// check reports what cannot be: a lease of no job, a job that is leased without a lease or with another one.
func check(rows *jobs.Rows) error {
	leases := make(map[string]string, len(rows.Leases))
	for i := range rows.Leases {
		l := &rows.Leases[i]
		if l.Units < 0 {
			return fmt.Errorf("lease %s of job %s has %d units", l.ID, l.JobID, l.Units)
		}
		leases[l.ID] = l.JobID
	}
	active := 0
	for i := range rows.Jobs {
		j := &rows.Jobs[i]
		if !j.State.Active() {
			continue
		}
		active++
		if leases[j.LeaseID] != j.ID {
			return fmt.Errorf("job %s is %s, but its lease %q is not there", j.ID, j.State, j.LeaseID)
		}
	}
	if active != len(leases) {
		return fmt.Errorf("%d leases, but %d jobs have one", len(leases), active)
	}
	if !slices.ContainsFunc(rows.Jobs, func(j jobs.Job) bool { return j.Units < 0 }) {
		return nil
	}
	return fmt.Errorf("a job has less than no units")
}

// Close makes every later call fail. The database stays open.
func (s *jobReader) Close() error {
	s.closed.Store(true)
	return nil
}
