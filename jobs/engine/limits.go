package engine

// Rates of jobs that hold a lock. What is known of a lock's rate is one moment: until then the beginnings so far take, each
// for as long as the rate has between two. It is kept as a memo, which is forgotten when it does not matter any more.

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
		until := e.Now.Mono - limit.Every()*time.Duration(max(limit.Burst, 1)-1)
		if m := e.recall(rateMemo(l.names[i])); m != nil {
			until += m.until - e.Now.Mono
		}
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

// spend counts a job among those that began, with the rates of its locks.
func (e *Engine) spend(en *entry) {
	for name, limit := range en.Extras().Limits {
		if limit.Starts == 0 {
			continue
		}
		m := e.recall(rateMemo(name))
		if m == nil {
			m = e.putMemo(jobs.Memo{ID: rateMemo(name)}, 0)
		}
		m.until += limit.Every()
		m.Left = m.until - e.Now.Mono
		m.Expires = e.Now.Wall.Add(m.Left)
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
