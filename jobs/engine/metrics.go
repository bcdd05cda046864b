package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// Metrics are what a manager has counted since it was opened, and what waits in it now. Counts never fall. What a turn
// did counts once it is known to be stored. Numbers over restarts are those of Decisions and Stats.
type Metrics struct {
	Events     map[jobs.EventType]uint64 // of jobs: grants, ends, retries and the like
	Denied     map[string]uint64         // requests, by the code of the denial
	Ended      map[string]uint64         // leases that ended, by the code of their attempt: CodeExpired and the like
	Heartbeats uint64                    // heartbeats that extended a lease, each of a batch
	Refused    map[string]uint64         // heartbeats that did not, by the code of the error

	Wait  Durations // of each lease's job, from when it could run until it was leased
	Run   Durations // of each lease that ended, from its beginning
	Store Durations // of each turn, in the store

	Failures uint64 // turns of which the store did not say that they are stored

	ParkedRequests, ParkedHeartbeats int // requests that wait now

	Oldest map[jobs.Priority]time.Time // since when the first job of each priority's lines could have run
}

// Durations counts durations in buckets.
type Durations struct {
	Bounds []time.Duration // upper ends of the buckets, rising; the last bucket has none
	Counts []uint64        // one for each bound, and one beyond
	Count  uint64          // the sum of Counts
	Sum    time.Duration
}

func newDurations(bounds ...time.Duration) Durations {
	return Durations{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)}
}

// Observe counts a duration; one that seems negative, because the wall clock was set, is counted as none.
func (d *Durations) Observe(t time.Duration) {
	t = max(t, 0)
	i, _ := slices.BinarySearch(d.Bounds, t)
	d.Counts[i]++
	d.Count++
	d.Sum += t
}

// Take adds what an engine counted in a turn, which begins anew.
func (m *Metrics) Take(from *Metrics) {
	take(m.Events, from.Events)
	take(m.Denied, from.Denied)
	take(m.Ended, from.Ended)
	take(m.Refused, from.Refused)
	m.Heartbeats += from.Heartbeats
	from.Heartbeats = 0
	for _, d := range [][2]*Durations{{&m.Wait, &from.Wait}, {&m.Run, &from.Run}} {
		if d[1].Count == 0 {
			continue
		}
		for i, n := range d[1].Counts {
			d[0].Counts[i] += n
		}
		d[0].Count += d[1].Count
		d[0].Sum += d[1].Sum
		clear(d[1].Counts)
		d[1].Count, d[1].Sum = 0, 0
	}
}

func take[K comparable](to, from map[K]uint64) {
	for k, n := range from {
		to[k] += n
	}
	clear(from)
}

// Clone returns a copy that does not change any more.
func (m *Metrics) Clone() Metrics {
	c := *m
	c.Events, c.Denied, c.Ended, c.Refused = maps.Clone(c.Events), maps.Clone(c.Denied), maps.Clone(c.Ended),
		maps.Clone(c.Refused)
	for _, d := range []*Durations{&c.Wait, &c.Run, &c.Store} {
		d.Counts = slices.Clone(d.Counts) // nobody changes the bounds
	}
	return c
}

// Parked counts the requests that wait.
func (e *Engine) Parked() (asks, beats int) {
	for _, w := range e.waiters {
		if w.ask == nil {
			beats++
		} else {
			asks++
		}
	}
	return asks, beats
}

// Oldest returns since when the oldest of the jobs at the head of a line could have run, by priority. It looks
// at every line.
func (e *Engine) Oldest() map[jobs.Priority]time.Time {
	oldest := map[jobs.Priority]time.Time{}
	for _, g := range e.groups {
		for _, l := range g.lines {
			j := &l.head().job
			if since, known := oldest[j.Priority]; !known || j.ReadyAt.Before(since) {
				oldest[j.Priority] = j.ReadyAt
			}
		}
	}
	return oldest
}

// NewMetrics returns metrics that have counted nothing.
func NewMetrics() *Metrics {
	const ms, s, m, h = time.Millisecond, time.Second, time.Minute, time.Hour
	waits := []time.Duration{ms, 5 * ms, 25 * ms, 100 * ms, 500 * ms, s, 5 * s, 15 * s, m, 5 * m, 15 * m, h, 4 * h,
		24 * h}
	return &Metrics{
		Events: map[jobs.EventType]uint64{}, Denied: map[string]uint64{}, Ended: map[string]uint64{},
		Refused: map[string]uint64{},
		Wait:    newDurations(waits...), Run: newDurations(waits...),
		Store: newDurations(ms/10, ms/4, ms/2, ms, 2*ms, 5*ms, 10*ms, 25*ms, 50*ms, 100*ms, 250*ms, s, 5*s),
	}
}
