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

// Histogram is a distribution of durations in seconds.
type Histogram struct {
	Bounds []float64 // upper bounds of the buckets, inclusive
	Counts []int64   // per bucket, and one more for what is above all bounds; nil if there is nothing
	Count  int64     // all together
	Sum    float64
}

func (h *Histogram) add(d time.Duration, bounds []float64) {
	if h.Counts == nil {
		h.Counts = make([]int64, len(bounds)+1)
	}
	i, _ := slices.BinarySearch(bounds, d.Seconds())
	h.Counts[i]++
	h.Count++
	h.Sum += d.Seconds()
}

func (h *Histogram) snapshot(bounds []float64) Histogram {
	return Histogram{Bounds: bounds, Counts: slices.Clone(h.Counts), Count: h.Count, Sum: h.Sum}
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
	all := r.all()
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
		Name: s.name, Counters: maps.Clone(s.counts), Holds: s.holds.snapshot(bounds), LastHold: s.lastHold,
		Waits: map[string]Histogram{},
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
	for _, s := range r.all() {
		n += s.counts[name]
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
		if s == nil || s.holds.Counts == nil {
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
	type sampler = func(w *promtext.Writer, name string, l *LockSnapshot)
	// family writes what samples does for each lock, if that is anything.
	family := func(name, kind, help string, samples sampler) {
		var part promtext.Writer
		for i := range s.Locks {
			samples(&part, name, &s.Locks[i])
		}
		if len(part.Bytes()) > 0 {
			w.Family(name, kind, help)
			w.Append(&part)
		}
	}
	for _, c := range counters() {
		family(promName(c.name)+"_total", promtext.Counter, c.help, func(w *promtext.Writer, name string, l *LockSnapshot) {
			if n, there := l.Counters[c.name]; there {
				w.Sample(name, float64(n), attrName, l.Name)
			}
		})
	}
	family(promName(HolderGauge), promtext.Gauge, holderHelp, func(w *promtext.Writer, name string, l *LockSnapshot) {
		for _, holder := range slices.Sorted(maps.Keys(l.Holders)) {
			w.Sample(name, float64(l.Holders[holder]), attrHolder, holder, attrName, l.Name)
		}
	})
	family(promName(QueueLength), promtext.Gauge, queueHelp, func(w *promtext.Writer, name string, l *LockSnapshot) {
		w.Sample(name, float64(l.Waiting), attrName, l.Name)
	})
	holds := func(w *promtext.Writer, name string, l *LockSnapshot) { l.Holds.write(w, name, attrName, l.Name) }
	family(promName(HoldDuration)+"_seconds", promtext.Histogram, holdHelp, holds)
	waits := func(w *promtext.Writer, name string, l *LockSnapshot) {
		for _, outcome := range outcomes() {
			l.Waits[outcome].write(w, name, attrName, l.Name, attrOutcome, outcome)
		}
	}
	family(promName(WaitDuration)+"_seconds", promtext.Histogram, waitHelp, waits)
}

func (h Histogram) write(w *promtext.Writer, name string, labels ...string) {
	if h.Count > 0 {
		w.Buckets(name, h.Bounds, h.Counts, h.Sum, labels...)
	}
}
