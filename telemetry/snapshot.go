package telemetry

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt/internal/promtext"
)

// histogram counts durations by buckets.
type histogram struct {
	counts []int64 // nil if there is nothing
	sum    time.Duration
}

func (h *histogram) add(d time.Duration, bounds []float64) {
	if h.counts == nil {
		h.counts = make([]int64, len(bounds)+1)
	}
	i, _ := slices.BinarySearch(bounds, d.Seconds())
	h.counts[i]++
	h.sum += d
}

func (h *histogram) snapshot(bounds []float64) Histogram {
	s := Histogram{Bounds: bounds, Counts: slices.Clone(h.counts), Sum: h.sum.Seconds()}
	for _, n := range h.counts {
		s.Count += n
	}
	return s
}

// Histogram is a distribution of durations in seconds.
type Histogram struct {
	Bounds []float64 // upper bounds of the buckets, inclusive
	Counts []int64   // per bucket, and one more for what is above all bounds; nil if there is nothing
	Count  int64     // all together
	Sum    float64
}

// Snapshot is what a Recorder has counted up to a moment.
type Snapshot struct {
	Counters map[string]int64 // by name of the metric, over all locks
	Locks    []LockSnapshot   // by name; what is beyond Options.MaxNames is together under Overflow
}

// LockSnapshot is what was counted for one lock.
type LockSnapshot struct {
	Name     string
	Counters map[string]int64     // by name of the metric; those that are 0 are left out, but for Broken and StaleDetected
	Holders  map[string]int       // holds at this moment, by the owner's ID
	Waiting  int                  // claims in the queue at this moment
	Holds    Histogram            // for how long holds lasted that were given back
	LastHold time.Duration        // the last of them
	Waits    map[string]Histogram // for how long claims waited, by outcome
}

// Snapshot returns what was counted so far. If Options.Service could not be asked, it is complete but for holders and
// waiting claims, and the error says why.
func (r *Recorder) Snapshot(ctx context.Context) (Snapshot, error) {
	occupied, err := r.occupancies(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Collect(maps.Values(r.series))
	if r.other != nil {
		all = append(all, r.other)
	}
	slices.SortFunc(all, func(a, b *series) int { return strings.Compare(a.name, b.name) })
	snap := Snapshot{Counters: map[string]int64{}, Locks: make([]LockSnapshot, 0, len(all))}
	for _, c := range counters() {
		snap.Counters[c.name] = 0
	}
	for _, s := range all {
		l := s.snapshot(slices.Clone(r.bounds))
		if o := occupied[s.name]; o != nil {
			l.Holders, l.Waiting = o.holders, o.waiting
		}
		for name, n := range l.Counters {
			snap.Counters[name] += n
		}
		snap.Locks = append(snap.Locks, l)
	}
	return snap, err
}

func (s *series) snapshot(bounds []float64) LockSnapshot {
	l := LockSnapshot{
		Name: s.name, Counters: maps.Clone(s.counts), Holds: s.holds.snapshot(bounds), LastHold: s.lastHold, Waits: map[string]Histogram{},
	}
	for outcome, h := range s.waits {
		l.Waits[outcome] = h.snapshot(bounds)
	}
	return l
}

// Counter returns the value of a counter over all locks; 0 if there is no such counter.
func (r *Recorder) Counter(name string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var n int64
	for _, s := range r.series {
		n += s.counts[name]
	}
	if r.other != nil {
		n += r.other.counts[name]
	}
	return n
}

// Gauge returns a value of one lock by a name of the form "lock.NAME.holder" (who holds it, a string; one of them, if
// several do), "lock.NAME.hold_duration_ms" (how long what was given back last had been held, an int64) or
// "lock.NAME.queue_length" (an int64), and whether there is such a value: a free lock has no holder. It goes by the
// events, or asks Options.Service.
func (r *Recorder) Gauge(name string) (value any, ok bool) {
	lock, metric, ok := cutGauge(name)
	if !ok {
		return nil, false
	}
	if metric == "hold_duration_ms" {
		r.mu.Lock()
		defer r.mu.Unlock()
		s := r.series[lock]
		if s == nil || s.holds.counts == nil {
			return nil, false
		}
		return s.lastHold.Milliseconds(), true
	}
	occupied, err := r.occupancies(context.Background())
	o := occupied[lock]
	switch {
	case err != nil || o == nil:
		return nil, false
	case metric == "queue_length":
		return int64(o.waiting), true
	case len(o.holders) == 0:
		return nil, false
	}
	return slices.Min(slices.Collect(maps.Keys(o.holders))), true
}

// cutGauge takes "lock.NAME.METRIC" apart. The name may have dots.
func cutGauge(name string) (lock, metric string, ok bool) {
	rest, ok := strings.CutPrefix(name, "lock.")
	i := strings.LastIndexByte(rest, '.')
	if !ok || i <= 0 {
		return "", "", false
	}
	switch lock, metric = rest[:i], rest[i+1:]; metric {
	case "holder", "hold_duration_ms", "queue_length":
		return lock, metric, true
	}
	return "", "", false
}

// promName returns the name of a metric in Prometheus's text.
func promName(name string) string { return "lokt_" + strings.ReplaceAll(name, ".", "_") }

// WriteText writes what was counted so far in Prometheus's text format, for programs that serve it themselves:
// Content-Type "text/plain; version=0.0.4; charset=utf-8".
func (r *Recorder) WriteText(ctx context.Context, w io.Writer) error {
	s, asked := r.Snapshot(ctx)
	var out promtext.Writer
	s.write(&out)
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	return asked
}

func (s Snapshot) write(w *promtext.Writer) {
	for _, c := range counters() {
		if !slices.ContainsFunc(s.Locks, func(l LockSnapshot) bool { _, there := l.Counters[c.name]; return there }) {
			continue
		}
		name := promName(c.name) + "_total"
		w.Family(name, promtext.Counter, c.help)
		for _, l := range s.Locks {
			if n, there := l.Counters[c.name]; there {
				w.Sample(name, float64(n), attrName, l.Name)
			}
		}
	}
	if slices.ContainsFunc(s.Locks, func(l LockSnapshot) bool { return len(l.Holders) > 0 }) {
		w.Family(promName(HolderGauge), promtext.Gauge, holderHelp)
		for _, l := range s.Locks {
			for _, holder := range slices.Sorted(maps.Keys(l.Holders)) {
				w.Sample(promName(HolderGauge), float64(l.Holders[holder]), attrHolder, holder, attrName, l.Name)
			}
		}
	}
	if len(s.Locks) > 0 {
		w.Family(promName(QueueLength), promtext.Gauge, queueHelp)
		for _, l := range s.Locks {
			w.Sample(promName(QueueLength), float64(l.Waiting), attrName, l.Name)
		}
	}
	if slices.ContainsFunc(s.Locks, func(l LockSnapshot) bool { return l.Holds.Count > 0 }) {
		w.Family(promName(HoldDuration)+"_seconds", promtext.Histogram, holdHelp)
		for _, l := range s.Locks {
			l.Holds.write(w, promName(HoldDuration)+"_seconds", attrName, l.Name)
		}
	}
	if slices.ContainsFunc(s.Locks, func(l LockSnapshot) bool { return len(l.Waits) > 0 }) {
		w.Family(promName(WaitDuration)+"_seconds", promtext.Histogram, waitHelp)
		for _, l := range s.Locks {
			for _, outcome := range outcomes() {
				l.Waits[outcome].write(w, promName(WaitDuration)+"_seconds", attrName, l.Name, attrOutcome, outcome)
			}
		}
	}
}

func (h Histogram) write(w *promtext.Writer, name string, labels ...string) {
	if h.Count > 0 {
		w.Buckets(name, h.Bounds, h.Counts, h.Sum, labels...)
	}
}
