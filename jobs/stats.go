package jobs

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Histogram counts durations in buckets that grow by 2%, beside the shortest and the longest: quantiles are
// right to 1%, and exact while all durations are equal.
type Histogram struct {
	Buckets map[int]int64 `json:"buckets,omitempty"`
	Min     time.Duration `json:"min_ms,omitzero"`
	Max     time.Duration `json:"max_ms,omitzero"`
	Sum     time.Duration `json:"sum_s,omitzero"`
}

// growth is by how much a bucket's upper end exceeds that of the one before.
const growth = 1.02

// Observe counts a duration; one that seems negative, because the wall clock was set, is counted as none.
func (h *Histogram) Observe(d time.Duration) {
	if d = max(d, 0); len(h.Buckets) == 0 {
		*h = Histogram{Buckets: map[int]int64{}, Min: d, Max: d}
	}
	h.Min, h.Max, h.Sum = min(h.Min, d), max(h.Max, d), h.Sum+d
	h.Buckets[bucketOf(d)]++
}

// bucketOf returns the bucket of a duration: 0 up to a microsecond, i from growth^(i-1) to growth^i microseconds.
func bucketOf(d time.Duration) int {
	us := float64(d) / float64(time.Microsecond)
	if us <= 1 {
		return 0
	}
	return int(math.Ceil(math.Log(us) / math.Log(growth)))
}

// Merge adds what another histogram counted.
func (h *Histogram) Merge(other Histogram) {
	if len(other.Buckets) == 0 {
		return
	}
	if len(h.Buckets) == 0 {
		*h = Histogram{Buckets: map[int]int64{}, Min: other.Min, Max: other.Max}
	}
	h.Min, h.Max, h.Sum = min(h.Min, other.Min), max(h.Max, other.Max), h.Sum+other.Sum
	for b, n := range other.Buckets {
		h.Buckets[b] += n
	}
}

// Clone returns a copy that does not change any more.
func (h Histogram) Clone() Histogram {
	h.Buckets = maps.Clone(h.Buckets)
	return h
}

// Below returns how many durations are not above d: those of its bucket are all taken for that.
func (h *Histogram) Below(d time.Duration) (n int64) {
	most := bucketOf(d)
	for b, c := range h.Buckets {
		if b <= most {
			n += c
		}
	}
	return n
}

// Count returns how many durations were counted.
func (h *Histogram) Count() (n int64) {
	for _, c := range h.Buckets {
		n += c
	}
	return n
}

// Quantile returns the duration below which the fraction q of them lies, and 0 if there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	total := h.Count()
	if total == 0 {
		return 0
	}
	rank := max(int64(math.Ceil(q*float64(total))), 1)
	for _, b := range slices.Sorted(maps.Keys(h.Buckets)) {
		if rank -= h.Buckets[b]; rank <= 0 {
			mid := time.Duration(math.Pow(growth, float64(b)-0.5) * float64(time.Microsecond))
			return min(max(mid, h.Min), h.Max)
		}
	}
	return h.Max
}

// Totals sum up jobs that ended.
type Totals struct {
	Total       int64           `json:"total"`
	ByState     map[State]int64 `json:"totals_by_state"`  // every end state, 0 included
	SuccessRate float64         `json:"success_rate"`     // completed among all; 0 if there are none
	AvgWait     time.Duration   `json:"avg_queue_wait_s"` // from when a job could run until it was first leased; without jobs after others that were tried again
	P95Runtime  time.Duration   `json:"p95_runtime_s"`    // of the last attempts
}

// Stats sum up the jobs that ended within some days, in all and by type.
type Stats struct {
	From, To time.Time
	Totals
	ByType map[string]Totals
}

// Summarize sums statistics up. Hours that began before from are left out.
func Summarize(all []Statistic, from, to time.Time) Stats {
	sum, byType := &Statistic{}, map[string]*Statistic{}
	for i := range all {
		n := &all[i]
		if n.Type == "" || n.Hour.Before(from) || n.Hour.After(to) {
			continue
		}
		if byType[n.Type] == nil {
			byType[n.Type] = &Statistic{}
		}
		sum.add(n)
		byType[n.Type].add(n)
	}
	s := Stats{From: from, To: to, Totals: sum.totals(), ByType: map[string]Totals{}}
	for name, n := range byType {
		if t := n.totals(); t.Total > 0 {
			s.ByType[name] = t
		}
	}
	return s
}

// add adds what another statistic counted.
func (s *Statistic) add(other *Statistic) {
	if s.Events == nil {
		s.Events = map[EventType]int64{}
	}
	for event, n := range other.Events {
		s.Events[event] += n
	}
	s.Waits.Merge(other.Waits)
	s.Runs.Merge(other.Runs)
}

// totals sums up the ends. A job that is revoked has failed.
func (s *Statistic) totals() Totals {
	r := Totals{
		ByState: map[State]int64{
			Completed: s.Events[EventComplete], Failed: s.Events[EventFail] + s.Events[EventRevoke],
			Expired: s.Events[EventExpire], Cancelled: s.Events[EventCancel],
		},
		P95Runtime: s.Runs.Quantile(0.95).Round(time.Millisecond),
	}
	for _, n := range r.ByState {
		r.Total += n
	}
	if r.Total > 0 {
		r.SuccessRate = float64(r.ByState[Completed]) / float64(r.Total)
	}
	if n := s.Waits.Count(); n > 0 {
		r.AvgWait = (s.Waits.Sum / time.Duration(n)).Round(time.Millisecond)
	}
	return r
}

// Decisions count events within some days, in all and by tag.
type Decisions struct {
	Days   int                            `json:"days"`
	Events map[EventType]int64            `json:"events"`
	Tags   map[string]map[EventType]int64 `json:"tags"`
}

// Decide sums up the events of statistics. Hours that began before from are left out.
func Decide(all []Statistic, from time.Time, days int) Decisions {
	sum, byTag := &Statistic{Events: map[EventType]int64{}}, map[string]*Statistic{}
	for i := range all {
		n, to := &all[i], sum
		if n.Hour.Before(from) {
			continue
		}
		if n.Tag != "" {
			if to = byTag[n.Tag]; to == nil {
				to = &Statistic{}
				byTag[n.Tag] = to
			}
		}
		to.add(n)
	}
	d := Decisions{Days: days, Events: sum.Events, Tags: map[string]map[EventType]int64{}}
	for tag, n := range byTag {
		d.Tags[tag] = n.Events
	}
	return d
}

// Since returns the beginning of the hours that lie within so many days.
func Since(now time.Time, days int) time.Time {
	return now.Add(-time.Duration(days) * 24 * time.Hour).Truncate(time.Hour)
}
