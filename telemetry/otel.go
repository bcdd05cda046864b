package telemetry

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// scope names this package to OpenTelemetry.
const scope = "github.com/lokt-dev/lokt/telemetry"

// instruments are what OpenTelemetry is told through. Counters and gauges are read when somebody collects them, so
// that an event costs no more than without OpenTelemetry; only the histograms are told each value.
type instruments struct {
	counters     map[string]metric.Int64ObservableCounter // by name
	holder       metric.Int64ObservableGauge
	queue        metric.Int64ObservableGauge
	hold, wait   metric.Float64Histogram
	registration metric.Registration
}

// instrument makes the instruments.
func (r *Recorder) instrument(p metric.MeterProvider) (err error) {
	meter := p.Meter(scope)
	in := &instruments{counters: map[string]metric.Int64ObservableCounter{}}
	fail := func(name string) error { return fmt.Errorf("instrument %s: %w", name, err) }
	var observables []metric.Observable
	for _, c := range counters() {
		if in.counters[c.name], err = meter.Int64ObservableCounter(c.name, metric.WithDescription(c.help)); err != nil {
			return fail(c.name)
		}
		observables = append(observables, in.counters[c.name])
	}
	if in.holder, err = meter.Int64ObservableGauge(HolderGauge, metric.WithDescription(holderHelp)); err != nil {
		return fail(HolderGauge)
	}
	if in.queue, err = meter.Int64ObservableGauge(QueueLength, metric.WithDescription(queueHelp)); err != nil {
		return fail(QueueLength)
	}
	seconds, buckets := metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(bounds()...)
	help := metric.WithDescription(holdHelp)
	if in.hold, err = meter.Float64Histogram(HoldDuration, seconds, buckets, help); err != nil {
		return fail(HoldDuration)
	}
	help = metric.WithDescription(waitHelp)
	if in.wait, err = meter.Float64Histogram(WaitDuration, seconds, buckets, help); err != nil {
		return fail(WaitDuration)
	}
	observables = append(observables, in.holder, in.queue)
	r.otel = in
	if in.registration, err = meter.RegisterCallback(r.collect, observables...); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// collect tells OpenTelemetry the counters and gauges.
func (r *Recorder) collect(ctx context.Context, o metric.Observer) error {
	s, err := r.Snapshot(ctx)
	for _, l := range s.Locks {
		name := attribute.String(attrName, l.Name)
		just := metric.WithAttributeSet(attribute.NewSet(name))
		for counter, n := range l.Counters {
			o.ObserveInt64(r.otel.counters[counter], n, just)
		}
		for holder, n := range l.Holders {
			o.ObserveInt64(r.otel.holder, int64(n), metric.WithAttributes(name, attribute.String(attrHolder, holder)))
		}
		o.ObserveInt64(r.otel.queue, int64(l.Waiting), just)
	}
	return err
}

// prepare makes the options with which values of the series are recorded.
func (s *series) prepare() {
	name := attribute.String(attrName, s.name)
	s.recordHold = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(name))}
	s.recordWait = map[string][]metric.RecordOption{}
	for _, outcome := range outcomes() {
		set := attribute.NewSet(name, attribute.String(attrOutcome, outcome))
		s.recordWait[outcome] = []metric.RecordOption{metric.WithAttributeSet(set)}
	}
}
