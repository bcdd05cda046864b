package care

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/promtext"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// defaultMaxNames is how many locks have series of their own, so that a monitoring system is not flooded.
const defaultMaxNames = 200

// otherLocks stands for the locks that have none. It is no valid name of a lock.
const otherLocks = "(other)"

type metricsOptions struct {
	output   string
	maxNames int
}

func newMetrics(a cmd) *cobra.Command {
	var o metricsOptions
	cmd := app.Plain("metrics", func(cmd *cobra.Command) error {
		if o.maxNames < 0 {
			return app.Usagef("--max-names %d is negative", o.maxNames)
		} else if err := app.NotEmpty(cmd, "output"); err != nil {
			return err
		}
		return a.runMetrics(o)
	})
	cmd.Flags().StringVar(&o.output, "output", "", "replace this file instead of printing")
	cmd.Flags().IntVar(&o.maxNames, "max-names", defaultMaxNames, "show at most this many locks by name, the first by name, and the rest as one")
	return cmd
}

// metrics is the state of all locks at one moment.
type metrics struct {
	Held        int            `json:"locks_held"`
	Stale       int            `json:"locks_stale"`
	Frozen      int            `json:"locks_frozen"`
	Damaged     int            `json:"locks_damaged"`
	Holds       int            `json:"holds"`
	StaleHolds  int            `json:"holds_stale"`
	Waiting     int            `json:"claims_waiting"`
	OldestSec   float64        `json:"oldest_hold_age_sec"`
	Locks       []lockMetrics  `json:"locks"` // those on record that can be read, by name
	Audit       map[string]int `json:"audit_entries,omitempty"`
	AuditUnread int            `json:"audit_lines_unreadable"`

	names int // of locks on record that can be read
}

type lockMetrics struct {
	Name    string  `json:"name"`
	Holds   int     `json:"holds"`
	Waiting int     `json:"claims_waiting"`
	AgeSec  float64 `json:"hold_age_sec"` // of the oldest live hold
}

func (a cmd) runMetrics(o metricsOptions) error {
	b, err := a.Backend()
	if err != nil {
		return err
	}
	ctx := context.Background()
	m, err := measure(ctx, b, o.maxNames)
	if err != nil {
		return err
	}
	if err := m.count(entries(ctx, b, audit.Query{}, false)); err != nil {
		return err
	}
	text := m.text()
	if a.JSON {
		if text, err = lokt.Marshal(m); err != nil {
			return fmt.Errorf("JSON: %w", err)
		}
		text = append(text, '\n')
	}
	if o.output == "" {
		return a.Write(string(text))
	}
	dir, err := a.Dir()
	if err != nil && !filepath.IsAbs(o.output) {
		return fmt.Errorf("working directory: %w", err)
	}
	path := app.Against(dir, o.output)
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return app.Usagef("--output %q is a directory: name a file", o.output)
	}
	return atomicfile.Replace(vfs.OS(), path, text, atomicfile.Options{Perm: 0o644}) // for the collector to read, whoever it is
}

// measure looks at all locks, and keeps the first maxNames of them apart.
func measure(ctx context.Context, locks lokt.Service, maxNames int) (metrics, error) {
	m := metrics{Locks: []lockMetrics{}}
	for s, err := range locks.List(ctx, lokt.Filter{}) {
		switch {
		case errors.Is(err, lokt.ErrDamaged):
			m.Damaged++
			continue
		case err != nil:
			return m, err
		}
		one := m.add(s)
		if m.names++; len(m.Locks) < maxNames {
			m.Locks = append(m.Locks, one)
			continue
		}
		if len(m.Locks) == maxNames {
			m.Locks = append(m.Locks, lockMetrics{Name: otherLocks})
		}
		rest := &m.Locks[maxNames]
		rest.Holds, rest.Waiting, rest.AgeSec = rest.Holds+one.Holds, rest.Waiting+one.Waiting, max(rest.AgeSec, one.AgeSec)
	}
	return m, nil
}

// add counts one lock.
func (m *metrics) add(s lokt.Snapshot) lockMetrics {
	live := s.Live()
	one := lockMetrics{Name: s.Lock.Name, Waiting: len(s.Lock.Queue), Holds: len(live)}
	for _, h := range live {
		one.AgeSec = max(one.AgeSec, s.Now.Sub(h.HeldSince).Seconds())
	}
	m.Holds += one.Holds
	m.StaleHolds += len(s.Lock.Holders) - one.Holds
	m.Waiting += one.Waiting
	m.OldestSec = max(m.OldestSec, one.AgeSec)
	switch {
	case one.Holds > 0:
		m.Held++
	case len(s.Lock.Holders) > 0:
		m.Stale++
	}
	if s.Frozen() != nil {
		m.Frozen++
	}
	if s.Lock.Corrupt != "" || s.Lock.Freeze != nil && s.Lock.Freeze.Damaged != "" {
		m.Damaged++
	}
	return one
}

// count counts the entries of the audit log.
func (m *metrics) count(entries iter.Seq2[audit.Entry, error]) error {
	m.Audit = map[string]int{}
	for _, t := range eventTypes() {
		m.Audit[t] = 0
	}
	for e, err := range entries {
		switch {
		case errors.As(err, new(*audit.GarbageError)):
			m.AuditUnread++
		case err != nil:
			return fmt.Errorf("audit log: %w", err)
		default:
			if _, known := m.Audit[e.Event]; !known {
				e.Event = otherLocks
			}
			m.Audit[e.Event]++
		}
	}
	return nil
}

// text returns the metrics in Prometheus's text format.
func (m *metrics) text() []byte {
	var w promtext.Writer
	gauge := func(name, help string, value float64) {
		w.Family(name, promtext.Gauge, help)
		w.Sample(name, value)
	}
	gauge("lokt_locks_held", "Locks that somebody holds.", float64(m.Held))
	gauge("lokt_locks_stale", "Locks on record of which every holder has expired or is dead.", float64(m.Stale))
	gauge("lokt_locks_frozen", "Locks that are frozen.", float64(m.Frozen))
	gauge("lokt_locks_damaged", "Locks whose record or freeze cannot be read.", float64(m.Damaged))
	gauge("lokt_holds", "Holds that are in force.", float64(m.Holds))
	gauge("lokt_holds_stale", "Holds on record that have expired or whose process is dead.", float64(m.StaleHolds))
	gauge("lokt_claims_waiting", "Claims in queues.", float64(m.Waiting))
	gauge("lokt_oldest_hold_age_seconds", "Age of the oldest hold in force; 0 if there is none.", m.OldestSec)
	gauge("lokt_audit_lines_unreadable", "Lines of the audit log that are no entries.", float64(m.AuditUnread))
	each := func(name, help string, value func(lockMetrics) float64) {
		for i, l := range m.Locks {
			if i == 0 {
				w.Family(name, promtext.Gauge, help)
			}
			w.Sample(name, value(l), "name", l.Name)
		}
	}
	each("lokt_lock_holds", "Holds of a lock that are in force.", func(l lockMetrics) float64 { return float64(l.Holds) })
	each("lokt_lock_claims_waiting", "Claims in the queue of a lock.", func(l lockMetrics) float64 { return float64(l.Waiting) })
	each("lokt_lock_hold_age_seconds", "Age of the oldest hold of a lock that is in force; 0 if there is none.", func(l lockMetrics) float64 { return l.AgeSec })
	// A gauge: the log forgets its oldest entries, so the numbers fall now and then.
	w.Family("lokt_audit_entries", promtext.Gauge, "Entries of the audit log and of its rotated files, by event.")
	for _, event := range slices.Sorted(maps.Keys(m.Audit)) {
		w.Sample("lokt_audit_entries", float64(m.Audit[event]), "event", event)
	}
	return w.Bytes()
}
