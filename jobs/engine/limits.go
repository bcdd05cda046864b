package engine

// Rates of jobs that hold a lock. What is known of a lock's rate is one moment: until then the beginnings so far take, each
// for as long as the rate has between two. It is kept as a memo, for a slack longer: see paced.

import (
	"fmt"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

func rateMemo(name string) string { return "rate " + name }

// limitsOf returns the limits on a job's locks, in the same order.
func limitsOf(s *jobs.Spec) []jobs.Limit {
	all := make([]jobs.Limit, len(s.Locks))
	for i, name := range s.Locks {
		all[i] = s.Extras().Limits[name]
	}
	return all
}

// limitsText tells jobs with the same locks, but different limits on them, apart.
func limitsText(s *jobs.Spec) string {
	if s.Extra == nil || len(s.Extra.Limits) == 0 {
		return ""
	}
	return fmt.Sprint("\x01", limitsOf(s))
}

// pace notes until when, and by the rate of which lock, no job of a line may begin, and reports whether that is ahead. A job that is
// kept until its locks are taken counts as if it began now.
func (e *Engine) pace(l *line) bool {
	l.until = e.Now.Mono
	for i, limit := range l.limits {
		if limit.Starts == 0 {
			continue
		}
		until := plus(e.Now.Mono, e.paced(l.names[i])-limit.Every()*time.Duration(max(limit.Burst, 1)-1))
		if n := e.names[l.names[i]]; n != nil {
			for _, h := range n.holds {
				if w := e.pendings[h.lease]; w != nil {
					own := w.kept.Extras().Limits[l.names[i]]
					until += own.Every()
				}
			}
		}
		if until > l.until {
			l.until, l.rate = until, i
		}
	}
	return l.until > e.Now.Mono
}

// paced returns for how long the beginnings so far take. Where replicas share a store, that is by the store's clock, which each of them
// reads some time before its own, and which may run a little faster or slower: what is over by one clock may be ahead by the other, and
// the later of both counts. A larger difference comes of a clock that was set, for which nobody waits.
func (e *Engine) paced(name string) time.Duration {
	m := e.recall(rateMemo(name))
	if m == nil {
		return 0
	}
	slack := clockJump + m.Left/clockSlew // as watchClock has it, after all of that time
	left := max(m.until-slack-e.Now.Mono, 0)
	if by := m.Expires.Add(-slack).Sub(e.Now.Wall); e.cfg.Shared && by <= left+slack {
		left = max(left, by)
	}
	return left
}

// spend counts a job among those that began, with the rates of its locks.
func (e *Engine) spend(en *entry) {
	for name, limit := range en.Extras().Limits {
		if limit.Starts == 0 {
			continue
		}
		left := e.paced(name) + limit.Every() + clockJump
		left += left / (clockSlew - 1) // one part in clockSlew of the whole
		m := e.recall(rateMemo(name))
		if m == nil {
			m = e.putMemo(jobs.Memo{ID: rateMemo(name)}, 0)
		}
		m.until, m.Left, m.Expires = e.Now.Mono+left, left, e.Now.Wall.Add(left)
		e.fading.Fix(m)
		if !m.fresh {
			m.fresh = true
			e.recent = append(e.recent, m)
		}
	}
}

// awaitsRate tells about the rate that a line waits for.
func (e *Engine) awaitsRate(l *line) *jobs.Awaits {
	return &jobs.Awaits{Limit: new(l.limits[l.rate]), Until: e.Now.Wall.Add(l.until - e.Now.Mono)}
}
