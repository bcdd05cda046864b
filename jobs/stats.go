package jobs

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Tally sums up jobs that ended.
type Tally struct {
	Completed int64 `json:"completed,omitzero"`
	Failed    int64 `json:"failed,omitzero"`
	Expired   int64 `json:"expired,omitzero"`
	Cancelled int64 `json:"cancelled,omitzero"`

	Waits   int64         `json:"waits,omitzero"`      // jobs that were leased at least once
	WaitSum time.Duration `json:"wait_sum_s,omitzero"` // from when they could run until they were first leased
	Runs    Histogram     `json:"runs,omitempty"`      // how long last attempts took
}

// Add adds another tally.
func (t *Tally) Add(other Tally) {
	t.Completed += other.Completed
	t.Failed += other.Failed
	t.Expired += other.Expired
	t.Cancelled += other.Cancelled
	t.Waits += other.Waits
	t.WaitSum += other.WaitSum
	t.Runs.Merge(other.Runs)
}

// Ended counts one job's end.
func (t *Tally) Ended(s State) {
	switch s {
	case Completed:
		t.Completed++
	case Failed:
		t.Failed++
	case Expired:
		t.Expired++
	default:
		t.Cancelled++
	}
}

// Histogram counts durations in buckets that grow by 2%, beside the shortest and the longest: quantiles are
// right to 1%, and exact while all durations are equal.
type Histogram struct {
	Buckets map[int]int64 `json:"buckets,omitempty"`
	Min     time.Duration `json:"min_ms,omitzero"`
	Max     time.Duration `json:"max_ms,omitzero"`
}

// growth is by how much a bucket's upper end exceeds that of the one before.
const growth = 1.02

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	if len(h.Buckets) == 0 {
		*h = Histogram{Buckets: map[int]int64{}, Min: d, Max: d}
	}
	h.Min, h.Max = min(h.Min, d), max(h.Max, d)
	h.Buckets[bucketOf(d)]++
}

// bucketOf returns the bucket of a duration: 0 up to a millisecond, i from growth^(i-1) to growth^i milliseconds.
func bucketOf(d time.Duration) int {
	ms := float64(d) / float64(time.Millisecond)
	if ms <= 1 {
		return 0
	}
	return int(math.Ceil(math.Log(ms) / math.Log(growth)))
}

// Merge adds what another histogram counted.
func (h *Histogram) Merge(other Histogram) {
	if len(other.Buckets) == 0 {
		return
	}
	if len(h.Buckets) == 0 {
		*h = Histogram{Buckets: map[int]int64{}, Min: other.Min, Max: other.Max}
	}
	h.Min, h.Max = min(h.Min, other.Min), max(h.Max, other.Max)
	for b, n := range other.Buckets {
		h.Buckets[b] += n
	}
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
			mid := time.Duration(math.Pow(growth, float64(b)-0.5) * float64(time.Millisecond))
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
	AvgWait     time.Duration   `json:"avg_queue_wait_s"` // from when a job could run until it was first leased
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
	sum, byType := Tally{}, map[string]*Tally{}
	for i := range all {
		n := &all[i]
		if n.Type == "" || n.Hour.Before(from) || n.Hour.After(to) {
			continue
		}
		sum.Add(n.Ends)
		if byType[n.Type] == nil {
			byType[n.Type] = &Tally{}
		}
		byType[n.Type].Add(n.Ends)
	}
	s := Stats{From: from, To: to, Totals: sum.Totals(), ByType: map[string]Totals{}}
	for name, t := range byType {
		s.ByType[name] = t.Totals()
	}
	return s
}

// Totals sums the tally up.
func (t *Tally) Totals() Totals {
	r := Totals{
		Total: t.Completed + t.Failed + t.Expired + t.Cancelled,
		ByState: map[State]int64{Completed: t.Completed, Failed: t.Failed, Expired: t.Expired,
			Cancelled: t.Cancelled},
		P95Runtime: t.Runs.Quantile(0.95).Round(time.Millisecond),
	}
	if r.Total > 0 {
		r.SuccessRate = float64(t.Completed) / float64(r.Total)
	}
	if t.Waits > 0 {
		r.AvgWait = (t.WaitSum / time.Duration(t.Waits)).Round(time.Millisecond)
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
	d := Decisions{Days: days, Events: map[EventType]int64{}, Tags: map[string]map[EventType]int64{}}
	for i := range all {
		n, to := &all[i], d.Events
		if n.Type != "" || n.Hour.Before(from) {
			continue
		}
		if n.Tag != "" {
			if to = d.Tags[n.Tag]; to == nil {
				to = map[EventType]int64{}
				d.Tags[n.Tag] = to
			}
		}
		for event, count := range n.Events {
			to[event] += count
		}
	}
	return d
}

// Since returns the beginning of the hours that lie within so many days.
func Since(now time.Time, days int) time.Time {
	return now.Add(-time.Duration(days) * 24 * time.Hour).Truncate(time.Hour)
}
