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
	Bounds []float64 // upper bounds of the buckets, inclusive; nil if there is nothing
	Counts []int64   // per bucket, and one more for what is above all bounds; nil if there is nothing
	Count  int64     // all together
	Sum    float64
}

func (h *Histogram) add(d time.Duration) {
	if h.Counts == nil {
		h.Bounds = bounds()
		h.Counts = make([]int64, len(h.Bounds)+1)
	}
	i, _ := slices.BinarySearch(h.Bounds, d.Seconds())
	h.Counts[i]++
	h.Count++
	h.Sum += d.Seconds()
}

func (h Histogram) clone() Histogram {
	h.Bounds, h.Counts = slices.Clone(h.Bounds), slices.Clone(h.Counts)
	return h
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
	occupied, err := r.occupied(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	snap := Snapshot{Counters: map[string]int64{}, Locks: make([]LockSnapshot, 0, len(r.series))}
	for _, c := range counters() {
		snap.Counters[c.name] = 0
	}
	for _, name := range slices.Sorted(maps.Keys(r.series)) {
		l := r.series[name].clone()
		if o := occupied[name]; o != nil {
			l.Holders, l.Waiting = o.Holders, o.Waiting
		}
		for name, n := range l.Counters {
			snap.Counters[name] += n
		}
		snap.Locks = append(snap.Locks, l)
	}
	return snap, err
}

func (l LockSnapshot) clone() LockSnapshot {
	l.Counters, l.Holds, l.Waits = maps.Clone(l.Counters), l.Holds.clone(), maps.Clone(l.Waits)
	for outcome, h := range l.Waits {
		l.Waits[outcome] = h.clone()
	}
	return l
}

// Counter returns the value of a counter over all locks; 0 if there is no such counter.
func (r *Recorder) Counter(name string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var n int64
	for _, s := range r.series {
		n += s.Counters[name]
	}
	return n
}

// Gauge returns a value of one lock by a name of the form "lock.NAME.holder" (who holds it, a string; one of them, if
// several do), "lock.NAME.hold_duration_ms" (how long what was given back last had been held, an int64) or
// "lock.NAME.queue_length" (an int64), and whether there is such a value: a free lock has no holder. It goes by the
// events, or asks Options.Service.
func (r *Recorder) Gauge(name string) (value any, ok bool) {
	s, err := r.Snapshot(context.Background())
	for _, l := range s.Locks {
		metric, of := strings.CutPrefix(name, "lock."+l.Name+".")
		switch {
		case !of:
		case metric == "hold_duration_ms" && l.Holds.Count > 0:
			return l.LastHold.Milliseconds(), true
		case metric == "queue_length" && err == nil:
			return int64(l.Waiting), true
		case metric == "holder" && err == nil && len(l.Holders) > 0:
			return slices.Min(slices.Collect(maps.Keys(l.Holders))), true
		}
	}
	return nil, false
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
		name := promName(c.name) + "_total"
		w.Family(name, promtext.Counter, c.help)
		for _, l := range s.Locks {
			if n, there := l.Counters[c.name]; there {
				w.Sample(name, float64(n), attrName, l.Name)
			}
		}
	}
	name := promName(HolderGauge)
	w.Family(name, promtext.Gauge, holderHelp)
	for _, l := range s.Locks {
		for _, holder := range slices.Sorted(maps.Keys(l.Holders)) {
			w.Sample(name, float64(l.Holders[holder]), attrHolder, holder, attrName, l.Name)
		}
	}
	name = promName(QueueLength)
	w.Family(name, promtext.Gauge, queueHelp)
	for _, l := range s.Locks {
		w.Sample(name, float64(l.Waiting), attrName, l.Name)
	}
	name = promName(HoldDuration) + "_seconds"
	w.Family(name, promtext.Histogram, holdHelp)
	for _, l := range s.Locks {
		l.Holds.write(w, name, attrName, l.Name)
	}
	name = promName(WaitDuration) + "_seconds"
	w.Family(name, promtext.Histogram, waitHelp)
	for _, l := range s.Locks {
		for _, outcome := range outcomes() {
			l.Waits[outcome].write(w, name, attrName, l.Name, attrOutcome, outcome)
		}
	}
}

func (h Histogram) write(w *promtext.Writer, name string, labels ...string) {
	if h.Count > 0 {
		w.Buckets(name, h.Bounds, h.Counts, h.Sum, labels...)
	}
}
