package engine

// The small rules: what becomes of a job after an attempt, and the numbers in answers. No I/O, no clock.

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// Instant is a moment on two clocks: the wall's, for people and for what is stored, and one that nobody sets, for
// deadlines.
type Instant struct {
	Wall time.Time
	Mono time.Duration
}

// Never is a moment that does not come.
const Never = time.Duration(math.MaxInt64)

// plus adds to a moment, and does not wrap around.
func plus(t, d time.Duration) time.Duration {
	if d > 0 && t > Never-d {
		return Never
	}
	return t + d
}

// place returns a new job's Ord: classes are a step apart, so that within a step they are served in order, and waiting
// for a step raises a job by a class.
func place(clock int64, p jobs.Priority, step time.Duration) int64 {
	return clock + int64(p.Class())*step.Milliseconds()
}

// outcome decides what becomes of a job when its attempt ends in a state for a reason: the job's own end state, or
// another attempt.
func outcome(j *jobs.Job, how jobs.State, code string) (end jobs.State, again bool) {
	switch {
	case how == jobs.Completed, code == jobs.CodeRevoked:
		return how, false
	case j.Cancel:
		return jobs.Cancelled, false
	case j.Attempt < j.MaxAttempts:
		return jobs.Queued, true
	}
	return how, false
}

// backoff returns how long the n-th retry waits: the base doubled n-1 times, at most MaxBackoff.
func backoff(base time.Duration, n int) time.Duration {
	for ; n > 1 && base < jobs.MaxBackoff; n-- {
		base *= 2
	}
	return min(base, jobs.MaxBackoff)
}

// When a worker that was denied may ask again.
const (
	retryLeast = 250 * time.Millisecond
	retryMost  = 5 * time.Second
	retryPlain = 1500 * time.Millisecond // with nothing queued, or no moment known
)

// retryAfter returns when asking again may help: what remains until the next expiry or due job, times 1.0 to 1.2 by
// jitter, which is from 0 to 1.
func retryAfter(remaining time.Duration, jitter float64) time.Duration {
	if remaining == Never {
		return retryPlain
	}
	d := min(max(remaining, 0), retryMost)
	d += time.Duration(float64(d) * 0.2 * jitter)
	return min(max(d, retryLeast), retryMost).Truncate(time.Millisecond)
}

// needsOf returns what a job's tags ask of a worker, in order and once each.
func needsOf(tags []string) []string {
	needs := slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return !strings.HasPrefix(t, jobs.NeedsPrefix) })
	slices.Sort(needs)
	return slices.Compact(needs)
}

// capable reports whether the capabilities meet all the needs.
func capable(capabilities map[string]bool, needs []string) bool {
	return !slices.ContainsFunc(needs, func(n string) bool {
		return !capabilities[n] && !capabilities[n[len(jobs.NeedsPrefix):]]
	})
}

// joined makes one string of many, different for different ones: no ID has a NUL.
func joined(all []string) string { return strings.Join(append(slices.Clip(all), ""), "\x00") }

// endEvent returns what happens to a job that comes to an end state: events of ends are named as the states.
func endEvent(s jobs.State, code string) jobs.EventType {
	if code == jobs.CodeRevoked {
		return jobs.EventRevoke
	}
	return jobs.EventType(s)
}

// quoted returns a code as a JSON string, to stand for an error that no worker reported.
func quoted(code string) []byte { return []byte(`"` + code + `"`) }
