package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/telemetry"
)

// exporter returns a meter provider, and what reads from it what a Prometheus server would be served.
func exporter(t *testing.T) (metric.MeterProvider, func() string) {
	t.Helper()
	registry := client.NewRegistry()
	exp, err := prometheus.New(
		prometheus.WithRegisterer(registry), prometheus.WithNamespace("lokt"), prometheus.WithoutScopeInfo(), prometheus.WithoutTargetInfo(),
	)
	if err != nil {
		t.Fatal(err)
	}
	return sdk.NewMeterProvider(sdk.WithReader(exp)), func() string {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		enc := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
		for _, f := range families {
			if err := enc.Encode(f); err != nil {
				t.Fatal(err)
			}
		}
		return b.String()
	}
}

// story makes a bit of everything happen, and ends with a held lock and a waiting claim.
func story(b *bench) (stop func()) {
	first, second := b.locker("runner \"a\"\\1"), b.locker("b")
	l := b.acquire(first, "queue.main", lokt.Options{})
	time.Sleep(1234 * time.Millisecond)
	if _, ok, err := second.TryAcquire(b.Context(), "queue.main", lokt.Options{}); ok || err != nil {
		b.Fatal(ok, err)
	}
	b.release(l)
	b.acquire(first, "stale", lokt.Options{ManualHeartbeat: true})
	time.Sleep(6 * time.Second)
	b.release(b.acquire(second, "stale", lokt.Options{}))
	l = b.acquire(first, "queue.main", lokt.Options{})
	if _, err := second.Acquire(b.Context(), "queue.main", lokt.Options{Wait: 700 * time.Millisecond}); !errors.Is(err, lokt.ErrHeld) {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = second.Acquire(ctx, "queue.main", lokt.Options{Wait: -1})
	}()
	time.Sleep(time.Second)
	return func() {
		cancel()
		<-done
		b.release(l)
	}
}

// samples returns the lines of the text that are not comments, sorted.
func samples(text string) []string {
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
	slices.Sort(lines)
	return lines
}

func TestTextIsWhatTheOpenTelemetryExporterServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider, served := exporter(t)
		b := newBench(t, telemetry.Options{MeterProvider: provider})
		stop := story(b)
		var own bytes.Buffer
		if err := b.rec.WriteText(t.Context(), &own); err != nil {
			t.Fatal(err)
		}
		exported := served()
		if a, e := samples(own.String()), samples(exported); !slices.Equal(a, e) {
			t.Errorf("WriteText gives\n%s\nand the exporter\n%s", strings.Join(a, "\n"), strings.Join(e, "\n"))
		}
		for _, comment := range []string{"# HELP ", "# TYPE "} {
			for line := range strings.Lines(exported) {
				if strings.HasPrefix(line, comment) && !strings.Contains(own.String(), line) {
					t.Errorf("WriteText does not say %s", line)
				}
			}
		}
		for _, want := range []string{
			`lokt_lock_acquired_total{name="queue.main"} 2`, `lokt_lock_takeover_detected_total{name="stale"} 1`,
			`lokt_lock_holder{holder="runner \"a\"\\1",name="queue.main"} 1`, `lokt_lock_queue_length{name="queue.main"} 1`,
			`lokt_lock_hold_duration_seconds_sum{name="queue.main"} 1.234`, `lokt_lock_wait_duration_seconds_bucket{name="queue.main",outcome="timeout",le="0.5"} 0`,
			`lokt_lock_wait_duration_seconds_bucket{name="queue.main",outcome="timeout",le="1"} 1`,
		} {
			if !slices.Contains(samples(own.String()), want) {
				t.Errorf("there is no %s in\n%s", want, own.String())
			}
		}
		stop()
	})
}

func TestTextPassesThePrometheusLinter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, telemetry.Options{})
		stop := story(b)
		var own bytes.Buffer
		if err := b.rec.WriteText(t.Context(), &own); err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.New(&own).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		stop()
	})
}

func TestRecorderWithNothingToTellWritesNothing(t *testing.T) {
	rec, err := telemetry.New(telemetry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := rec.WriteText(t.Context(), &out); err != nil || out.Len() != 0 {
		t.Errorf("%q, error %v", out.String(), err)
	}
	full := errors.New("the disk is full")
	if err := rec.WriteText(t.Context(), failing{full}); !errors.Is(err, full) {
		t.Errorf("a failing writer gave %v", err)
	}
	if err := rec.Close(); err != nil {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestOpenTelemetryIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdk.NewManualReader()
		b := newBench(t, telemetry.Options{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader))})
		stop := story(b)
		collect := func() map[string]metricdata.Aggregation {
			var rm metricdata.ResourceMetrics
			if err := reader.Collect(t.Context(), &rm); err != nil {
				t.Fatal(err)
			}
			got := map[string]metricdata.Aggregation{}
			for _, s := range rm.ScopeMetrics {
				for _, m := range s.Metrics {
					got[m.Name] = m.Data
				}
			}
			return got
		}
		got := collect()
		for _, name := range []string{telemetry.Acquired, telemetry.Released, telemetry.HeartbeatRenewed, telemetry.TakeoverDetected, telemetry.StaleDetected, telemetry.Contention} {
			if sum, ok := got[name].(metricdata.Sum[int64]); !ok || !sum.IsMonotonic || len(sum.DataPoints) == 0 {
				t.Errorf("%s is %+v", name, got[name])
			}
		}
		if g, ok := got[telemetry.HolderGauge].(metricdata.Gauge[int64]); !ok || len(g.DataPoints) != 1 || g.DataPoints[0].Value != 1 {
			t.Errorf("holder: %+v", got[telemetry.HolderGauge])
		}
		if h, ok := got[telemetry.HoldDuration].(metricdata.Histogram[float64]); !ok || len(h.DataPoints) != 2 {
			t.Errorf("hold durations: %+v", got[telemetry.HoldDuration])
		}
		stop()
		if g, ok := collect()[telemetry.HolderGauge].(metricdata.Gauge[int64]); ok && len(g.DataPoints) != 0 {
			t.Errorf("after the release the holders are %+v", g)
		}
		if err := b.rec.Close(); err != nil {
			t.Fatal(err)
		}
		if _, there := collect()[telemetry.Acquired]; there {
			t.Error("a closed recorder is still collected from")
		}
	})
}

// brokenProvider makes meters that make no instrument of one name.
type brokenProvider struct {
	noop.MeterProvider
	name string
}

type brokenMeter struct {
	noop.Meter
	name string
}

var errBroken = errors.New("no such instrument")

func (p brokenProvider) Meter(string, ...metric.MeterOption) metric.Meter {
	return brokenMeter{name: p.name}
}

func (m brokenMeter) fail(name string) error {
	if name == m.name {
		return errBroken
	}
	return nil
}

func (m brokenMeter) Int64ObservableCounter(name string, _ ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return noop.Int64ObservableCounter{}, m.fail(name)
}

func (m brokenMeter) Int64ObservableGauge(name string, _ ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	return noop.Int64ObservableGauge{}, m.fail(name)
}

func (m brokenMeter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return noop.Float64Histogram{}, m.fail(name)
}

func (m brokenMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return noop.Registration{}, m.fail("callback")
}

func TestInstrumentsThatCannotBeMadeFailTheRecorder(t *testing.T) {
	for _, name := range []string{telemetry.Acquired, telemetry.HolderGauge, telemetry.QueueLength, telemetry.HoldDuration, telemetry.WaitDuration, "callback"} {
		if _, err := telemetry.New(telemetry.Options{MeterProvider: brokenProvider{name: name}}); !errors.Is(err, errBroken) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	if _, err := telemetry.New(telemetry.Options{MeterProvider: brokenProvider{}}); err != nil {
		t.Error(err)
	}
}

func BenchmarkObserveWithOpenTelemetry(b *testing.B) {
	rec, err := telemetry.New(telemetry.Options{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(sdk.NewManualReader()))})
	if err != nil {
		b.Fatal(err)
	}
	e := lokt.Event{Type: lokt.EventRelease, Name: "x", LeaseID: "a", Extra: map[string]string{lokt.ExtraHeld: "1234"}}
	b.ReportAllocs()
	for b.Loop() {
		rec.Observe(e)
	}
}
