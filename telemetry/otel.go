package telemetry

import (
	"context"
	"errors"
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
	var observables []metric.Observable
	var errs []error
	made := func(err error, observed ...metric.Observable) {
		observables, errs = append(observables, observed...), append(errs, err)
	}
	for _, c := range counters() {
		in.counters[c.name], err = meter.Int64ObservableCounter(c.name, metric.WithDescription(c.help))
		made(err, in.counters[c.name])
	}
	in.holder, err = meter.Int64ObservableGauge(HolderGauge, metric.WithDescription(holderHelp))
	made(err, in.holder)
	in.queue, err = meter.Int64ObservableGauge(QueueLength, metric.WithDescription(queueHelp))
	made(err, in.queue)
	seconds, buckets := metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(bounds()...)
	in.hold, err = meter.Float64Histogram(HoldDuration, seconds, buckets, metric.WithDescription(holdHelp))
	made(err)
	in.wait, err = meter.Float64Histogram(WaitDuration, seconds, buckets, metric.WithDescription(waitHelp))
	made(err)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make instruments: %w", err)
	}
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
