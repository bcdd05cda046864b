// Package telemetry counts what happens to locks: a Recorder turns events into counters, gauges and histograms, for
// OpenTelemetry, as Prometheus text, or as a plain snapshot for programs without a metrics system.
//
// Give a Recorder to whatever tells events:
//
//	rec, err := telemetry.New(telemetry.Options{MeterProvider: otel.GetMeterProvider()})
//	store, err := filestore.Open(dir, filestore.Options{Observe: rec.Observe})
//	locker, err := lokt.NewLocker(lokt.NewManager(store), owner, lokt.LockerOptions{Observe: rec.Observe})
//
// (A memstore tells the events of a change together: Observe: rec.ObserveAll.) A store tells what happened to locks, a
// Locker what happened to leases in this process; nothing is counted twice.
//
// Each event is told in the process that made the change, so counters and histograms of several processes over one
// store add up. For who holds and who waits, a process knows only its own part, and not who has its place in the queue back or
// is to have a hold that is passed on: Options.Service, if given, is asked for these two.
//
// The lock's name is the attribute "name". No more than Options.MaxNames locks, the first ones that are seen, have
// series of their own; all others share one, named Overflow. In Prometheus's text the names are those of the
// OpenTelemetry exporter with the namespace "lokt": lock.acquired is lokt_lock_acquired_total. Durations are in
// seconds.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/lokt-dev/lokt"
)

// DefaultMaxNames is Options.MaxNames if that is 0.
const DefaultMaxNames = 200

// maxHolders is how many holders of one lock are told apart at a time.
const maxHolders = 16

// maxLeases is how many holds and waiters a Recorder remembers at once. What is beyond is counted, but does not show as
// holder or in the queue.
const maxLeases = 100_000

// Options say how to record. The zero value records for Snapshot and WriteText only.
type Options struct {
	// MeterProvider makes the OpenTelemetry instruments; nil makes none.
	MeterProvider metric.MeterProvider

	// MaxNames is how many locks have series of their own; 0 means DefaultMaxNames. Each takes up to some forty series,
	// and SDKs usually drop what is beyond 2000 series of one instrument.
	MaxNames int

	// Service, if set, is asked who holds and who waits, instead of following the events.
	Service lokt.Service
}

// Recorder counts events. It is safe for concurrent use. Observing costs well under a microsecond.
type Recorder struct {
	o       Options
	otel    *instruments              // nil without a MeterProvider
	counted map[lokt.EventType]string // which counter counts events of a type

	mu     sync.Mutex
	series map[string]*LockSnapshot // by name, without holders and waiters; Overflow is of all locks beyond MaxNames
	leases map[string]lease         // unless Options.Service is asked
	swept  time.Time                // when leases were last looked through for room
}

// lease is a hold, or a claim in the queue.
type lease struct {
	in      *LockSnapshot
	holder  string
	expires time.Time // by this process's clock; zero if not
	waiting bool
}

// New returns a recorder. It fails only if the meter provider does.
func New(o Options) (*Recorder, error) {
	o.MaxNames = cmp.Or(max(o.MaxNames, 0), DefaultMaxNames)
	r := &Recorder{o: o, counted: map[lokt.EventType]string{}, series: map[string]*LockSnapshot{}, leases: map[string]lease{}}
	for _, c := range counters() {
		if c.event != "" {
			r.counted[c.event] = c.name
		}
	}
	if o.MeterProvider != nil {
		return r, r.instrument(o.MeterProvider)
	}
	return r, nil
}

// Close takes the recorder's gauges and counters away from the meter provider, which then no longer reports them.
func (r *Recorder) Close() error {
	if r.otel == nil {
		return nil
	}
	return r.otel.registration.Unregister()
}

// ObserveAll counts events, in order.
func (r *Recorder) ObserveAll(events []lokt.Event) {
	for i := range events {
		r.observe(&events[i])
	}
}

// Observe counts an event. Types that it does not know, it ignores.
func (r *Recorder) Observe(e lokt.Event) { r.observe(&e) }

func (r *Recorder) observe(e *lokt.Event) {
	r.mu.Lock()
	s := r.seriesOf(e.Name)
	held, waited, end := time.Duration(-1), time.Duration(-1), "" // -1 if the event does not say
	counter := r.counted[e.Type]
	if e.Type == lokt.EventAutoPrune && e.Extra[lokt.ExtraCleaned] != "" {
		counter = StaleCleaned
	}
	if e.Extra[lokt.ExtraHeard] != "" { // the store's event counts
		counter = ""
	}
	if counter != "" {
		s.Counters[counter]++
	}
	switch e.Type {
	case lokt.EventAcquire, lokt.EventRenew:
		l := lease{in: s, holder: e.Owner.ID}
		if !e.Expires.IsZero() {
			l.expires = time.Now().Add(e.Expires.Sub(e.Time))
		}
		r.remember(e.LeaseID, l)
	case lokt.EventWait:
		waited, end = r.waits(s, e)
	case lokt.EventRelease, lokt.EventForceBreak:
		held = millis(e, lokt.ExtraHeld)
		fallthrough
	case lokt.EventStaleBreak, lokt.EventAutoPrune, lokt.EventLost, lokt.EventMismatch:
		delete(r.leases, e.LeaseID)
	}
	if held >= 0 {
		s.Holds.add(held)
		s.LastHold = held
	}
	if waited >= 0 {
		waits := s.Waits[end]
		waits.add(waited)
		s.Waits[end] = waits
	}
	r.mu.Unlock()
	if r.otel == nil {
		return
	}
	name := attribute.String(attrName, s.Name)
	if held >= 0 {
		r.otel.hold.Record(context.Background(), held.Seconds(), metric.WithAttributes(name))
	}
	if waited >= 0 {
		outcome := attribute.String(attrOutcome, end)
		r.otel.wait.Record(context.Background(), waited.Seconds(), metric.WithAttributes(name, outcome))
	}
}

// seriesOf returns what is counted for the name. The recorder is locked.
func (r *Recorder) seriesOf(name string) *LockSnapshot {
	if r.series[name] == nil && len(r.series) >= r.o.MaxNames {
		name = Overflow
	}
	s := r.series[name]
	if s == nil {
		s = &LockSnapshot{Name: name, Waits: map[string]Histogram{}}
		s.Counters = map[string]int64{Broken: 0, StaleDetected: 0} // alarms see a rise only of what was there before
		r.series[name] = s
	}
	return s
}

// waits notes what the event says about a waiting claim, and returns for how long it waited if that is over. The
// recorder is locked.
func (r *Recorder) waits(s *LockSnapshot, e *lokt.Event) (waited time.Duration, end string) {
	end = e.Extra[lokt.ExtraOutcome]
	if end == "started" {
		s.Counters[Queued]++
		r.remember(e.LeaseID, lease{in: s, waiting: true})
		return -1, ""
	}
	if r.leases[e.LeaseID].waiting { // and not granted in the same step
		delete(r.leases, e.LeaseID)
	}
	if !slices.Contains(outcomes(), end) {
		return -1, ""
	}
	if end == "timeout" || end == "deadlock" || end == "ousted" {
		s.Counters[Contention]++
	}
	return millis(e, lokt.ExtraWaited), end
}

// remember remembers a hold or a claim, if there is room. The recorder is locked.
func (r *Recorder) remember(leaseID string, l lease) {
	_, in := r.leases[leaseID]
	if !in && len(r.leases) >= maxLeases && time.Since(r.swept) > time.Minute {
		r.swept = time.Now()
		r.expire()
	}
	if r.o.Service == nil && (in || len(r.leases) < maxLeases) {
		r.leases[leaseID] = l
	}
}

// expire forgets holds whose time is over. The recorder is locked.
func (r *Recorder) expire() {
	now := time.Now()
	maps.DeleteFunc(r.leases, func(_ string, l lease) bool { return !l.expires.IsZero() && now.After(l.expires) })
}

// millis returns the event's extra of that key, a number of milliseconds; -1 if there is none.
func millis(e *lokt.Event, key string) time.Duration {
	n, err := strconv.ParseInt(e.Extra[key], 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return time.Duration(n) * time.Millisecond
}

// held adds a holder. Those of locks without a series of their own cannot be told from each other.
func (l *LockSnapshot) held(holder string) {
	if _, in := l.Holders[holder]; l.Name == Overflow || !in && len(l.Holders) >= maxHolders {
		holder = Overflow
	}
	l.Holders[holder]++
}

// occupied returns who holds what and who waits for what, by the name of the series. With an error it returns what
// could be found out.
func (r *Recorder) occupied(ctx context.Context) (map[string]*LockSnapshot, error) {
	all := map[string]*LockSnapshot{}
	of := func(s *LockSnapshot) *LockSnapshot {
		if all[s.Name] == nil {
			all[s.Name] = &LockSnapshot{Name: s.Name, Holders: map[string]int{}}
		}
		return all[s.Name]
	}
	if r.o.Service == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.expire()
		for _, l := range r.leases {
			if l.waiting {
				of(l.in).Waiting++
			} else {
				of(l.in).held(l.holder)
			}
		}
		return all, nil
	}
	var errs []error
	for snap, err := range r.o.Service.List(ctx, lokt.Filter{}) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.mu.Lock()
		s := r.seriesOf(snap.Lock.Name)
		r.mu.Unlock()
		of(s).Waiting += len(snap.Lock.Queue)
		for _, h := range snap.Live() {
			of(s).held(h.Owner.ID)
		}
	}
	return all, errors.Join(errs...)
}
