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
// Locker what happened to leases in this process. Both may be given to one Recorder: nothing is counted twice, because the store
// tells renewals that were refused and the Locker those that got no answer.
//
// # What is counted where
//
// Each event is told in the process that made the change, and there alone. So the counters and histograms of several
// processes over one store add up to what happened. For who holds a lock and who waits, each of them knows only its own part: a
// waiter of one process may be granted the lock by a release in another. Give the Recorder the Service in that case, and it
// asks it for these two whenever somebody looks. Without a Service it goes by the events, and forgets a hold that was not renewed
// in time.
//
// # Names
//
// The metrics have the names of the constants of this package, and the name of the lock as attribute "name". No more than
// Options.MaxNames locks get series of their own, the first ones that are seen; all others share one, named Overflow. In
// Prometheus's text the names are what the OpenTelemetry exporter for Prometheus makes of them with the namespace "lokt":
// lock.acquired is lokt_lock_acquired_total. Durations are in seconds.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/lokt-dev/lokt"
)

// Defaults of Options.
const (
	DefaultMaxNames   = 200
	DefaultMaxHolders = 16
)

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

	// MaxHolders is how many holders of one lock are told apart at a time; 0 means DefaultMaxHolders.
	MaxHolders int

	// Service, if set, is asked who holds and who waits, instead of following the events.
	Service lokt.Service
}

// Recorder counts events. It is safe for concurrent use. Observing costs well under a microsecond.
type Recorder struct {
	o      Options
	otel   *instruments // nil without a MeterProvider
	bounds []float64    // of the histograms

	mu     sync.Mutex
	series map[string]*series
	other  *series // of all locks beyond MaxNames; nil until there is one
	leases map[string]lease
}

// series is what is counted for one lock.
type series struct {
	name     string
	counts   map[string]int64 // by name of the counter
	holds    histogram
	waits    map[string]*histogram // by outcome
	lastHold time.Duration

	recordHold []metric.RecordOption            // made once: they are not free
	recordWait map[string][]metric.RecordOption // by outcome
}

// lease is a hold, or a claim in the queue.
type lease struct {
	in      *series
	holder  string
	expires time.Time // by this process's clock; zero if not
	waiting bool
}

// New returns a recorder. It fails only if the meter provider does.
func New(o Options) (*Recorder, error) {
	o.MaxNames = cmp.Or(max(o.MaxNames, 0), DefaultMaxNames)
	o.MaxHolders = cmp.Or(max(o.MaxHolders, 0), DefaultMaxHolders)
	r := &Recorder{o: o, bounds: bounds(), series: map[string]*series{}, leases: map[string]lease{}}
	if o.MeterProvider != nil {
		if err := r.instrument(o.MeterProvider); err != nil {
			return nil, err
		}
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
	held, waited, end := s.count(e), time.Duration(-1), ""
	switch e.Type {
	case lokt.EventAcquire, lokt.EventRenew:
		r.holds(s, e)
	case lokt.EventWait:
		waited, end = r.waits(s, e)
	case lokt.EventRelease, lokt.EventForceBreak, lokt.EventStaleBreak, lokt.EventAutoPrune, lokt.EventLost, lokt.EventMismatch:
		delete(r.leases, e.LeaseID)
	}
	if held >= 0 {
		s.holds.add(held, r.bounds)
		s.lastHold = held
	}
	if waited >= 0 {
		if s.waits[end] == nil {
			s.waits[end] = &histogram{}
		}
		s.waits[end].add(waited, r.bounds)
	}
	r.mu.Unlock()
	if r.otel == nil {
		return
	}
	if held >= 0 {
		r.otel.hold.Record(context.Background(), held.Seconds(), s.recordHold...)
	}
	if waited >= 0 {
		r.otel.wait.Record(context.Background(), waited.Seconds(), s.recordWait[end]...)
	}
}

// seriesOf returns what is counted for the name. The recorder is locked.
func (r *Recorder) seriesOf(name string) *series {
	s := r.series[name]
	switch {
	case s != nil:
		return s
	case len(r.series) < r.o.MaxNames:
		s = r.newSeries(name)
		r.series[name] = s
		return s
	case r.other == nil:
		r.other = r.newSeries(Overflow)
	}
	return r.other
}

func (r *Recorder) newSeries(name string) *series {
	s := &series{name: name, waits: map[string]*histogram{}}
	s.counts = map[string]int64{Broken: 0, StaleDetected: 0} // who is to be alarmed sees that they rise only if they were there
	if r.otel != nil {
		s.prepare()
	}
	return s
}

// count counts the event. It returns for how long a hold that the event ended had lasted, and -1 if it does not say.
func (s *series) count(e *lokt.Event) (held time.Duration) {
	held = -1
	switch e.Type {
	case lokt.EventAcquire:
		s.counts[Acquired]++
	case lokt.EventRelease:
		s.counts[Released]++
		held = millis(e, lokt.ExtraHeld)
	case lokt.EventRenew:
		s.counts[HeartbeatRenewed]++
	case lokt.EventTakeover:
		s.counts[TakeoverDetected]++
	case lokt.EventAutoPrune:
		if e.Extra[lokt.ExtraCleaned] != "" {
			s.counts[StaleCleaned]++
		} else {
			s.counts[StaleDetected]++
		}
	case lokt.EventStaleBreak:
		s.counts[StaleCleaned]++
	case lokt.EventForceBreak:
		s.counts[Broken]++
		held = millis(e, lokt.ExtraHeld)
	case lokt.EventCorruptBreak:
		s.counts[CorruptDiscarded]++
	case lokt.EventDeny:
		s.counts[Contention]++
	case lokt.EventFreezeDeny:
		s.counts[FreezeDenied]++
	case lokt.EventMismatch:
		s.counts[ReleaseMismatch]++
	case lokt.EventRenewFail:
		s.counts[HeartbeatFailure]++
	case lokt.EventLost:
		s.counts[LeaseLost]++
	case lokt.EventPreempt:
		s.counts[PreemptionStarted]++
	}
	return held
}

// holds notes that the event's lease holds the lock. The recorder is locked.
func (r *Recorder) holds(s *series, e *lokt.Event) {
	l := lease{in: s, holder: e.Owner.ID}
	if !e.Expires.IsZero() {
		l.expires = time.Now().Add(e.Expires.Sub(e.Time))
	}
	r.remember(e.LeaseID, l)
}

// waits notes what the event says about a waiting claim, and returns for how long it waited if that is over. The recorder
// is locked.
func (r *Recorder) waits(s *series, e *lokt.Event) (waited time.Duration, end string) {
	end = e.Extra[lokt.ExtraOutcome]
	if end == "started" {
		s.counts[Queued]++
		r.remember(e.LeaseID, lease{in: s, waiting: true})
		return -1, ""
	}
	if r.leases[e.LeaseID].waiting { // and not granted in the same step
		delete(r.leases, e.LeaseID)
	}
	if !slices.Contains(outcomes(), end) {
		return -1, ""
	}
	if end == "timeout" || end == "deadlock" {
		s.counts[Contention]++
	}
	return millis(e, lokt.ExtraWaited), end
}

func (r *Recorder) remember(leaseID string, l lease) {
	if _, in := r.leases[leaseID]; !in && len(r.leases) >= maxLeases {
		r.expire()
		if len(r.leases) >= maxLeases {
			return
		}
	}
	r.leases[leaseID] = l
}

// expire forgets holds whose time is over. The recorder is locked.
func (r *Recorder) expire() {
	now := time.Now()
	for id, l := range r.leases {
		if !l.expires.IsZero() && now.After(l.expires) {
			delete(r.leases, id)
		}
	}
}

// millis returns the event's extra of that key, a number of milliseconds; -1 if there is none.
func millis(e *lokt.Event, key string) time.Duration {
	n, err := strconv.ParseInt(e.Extra[key], 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return time.Duration(n) * time.Millisecond
}

// occupancy is who holds a lock and how many wait for it.
type occupancy struct {
	holders map[string]int
	waiting int
}

func (o *occupancy) add(holder string, most int) {
	if o.holders == nil {
		o.holders = map[string]int{}
	}
	if _, in := o.holders[holder]; !in && len(o.holders) >= most {
		holder = Overflow
	}
	o.holders[holder]++
}

// occupancies returns who holds what and who waits for what, by the name of the series. With an error it returns what could
// be found out.
func (r *Recorder) occupancies(ctx context.Context) (map[string]*occupancy, error) {
	all := map[string]*occupancy{}
	of := func(name string) *occupancy {
		o := all[name]
		if o == nil {
			o = &occupancy{}
			all[name] = o
		}
		return o
	}
	r.mu.Lock()
	for name := range r.series {
		of(name)
	}
	if r.other != nil {
		of(Overflow)
	}
	if r.o.Service == nil {
		defer r.mu.Unlock()
		r.expire()
		for _, l := range r.leases {
			if o := of(l.in.name); l.waiting {
				o.waiting++
			} else {
				o.add(r.shown(l.in, l.holder), r.o.MaxHolders)
			}
		}
		return all, nil
	}
	r.mu.Unlock()
	var errs []error
	for snap, err := range r.o.Service.List(ctx, lokt.Filter{}) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.mu.Lock()
		s := r.seriesOf(snap.Lock.Name)
		r.mu.Unlock()
		o := of(s.name)
		o.waiting += len(snap.Lock.Queue)
		for _, h := range snap.Live() {
			o.add(r.shown(s, h.Owner.ID), r.o.MaxHolders)
		}
	}
	return all, errors.Join(errs...)
}

// shown returns the name under which a holder of a series shows: holders of locks without a series of their own cannot be
// told from each other.
func (r *Recorder) shown(s *series, holder string) string {
	if s.name == Overflow {
		return Overflow
	}
	return holder
}
