package daemon

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/telemetry"
)

// meter measures what the daemon does, for Prometheus. The number of its series is bounded: by routes and statuses, and
// for locks by telemetry.DefaultMaxNames.
type meter struct {
	text     http.Handler // all but what the recorder counts
	recorder *telemetry.Recorder

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	sent     *prometheus.CounterVec
	store    *prometheus.HistogramVec
	failures *prometheus.CounterVec
}

// scrapeTimeout bounds how long a store may be asked for what is in it.
const scrapeTimeout = 5 * time.Second

// newMeter returns a meter that can observe databases.
func newMeter() *meter {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	seconds := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	return &meter{
		requests: counter("lokt_http_requests_total", "Requests answered; 499 is a client that hung up.", "route", "status"),
		duration: seconds("lokt_http_request_seconds", "How long requests took until they were answered, waiting included.",
			[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "route"),
		sent: counter("lokt_http_sent_bytes_total", "Bytes of the bodies of answers.", "route"),
		store: seconds("lokt_store_seconds", "How long the store took, by what it keeps and what it was asked for.",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}, "keeps", "operation"),
		failures: counter("lokt_store_errors_total", "Errors of the store, likewise.", "keeps", "operation"),
	}
}

// start makes the meter ready for everything, once the daemon has its stores.
func (m *meter) start(d *daemon) (err error) {
	if m.recorder, err = telemetry.New(telemetry.Options{Service: lokt.NewManager(d.stores.locks)}); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.requests, m.duration, m.sent, m.store, m.failures, &collector{d},
	} {
		if err := registry.Register(c); err != nil {
			return err
		}
	}
	m.text = promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, DisableCompression: true})
	m.failures.WithLabelValues("locks", "update")
	m.failures.WithLabelValues("jobs", "update")
	return nil
}

// ServeHTTP answers with all metrics, in Prometheus's text format.
func (m *meter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	r = r.Clone(ctx)
	r.Header.Del("Accept") // there are other formats
	m.text.ServeHTTP(w, r)
	if r.Method == http.MethodGet {
		_ = m.recorder.WriteText(ctx, w) // what could not be asked for is missing
	}
}

// database counts what a database was asked for.
func (m *meter) database(operation string, took time.Duration, err error) {
	m.did(context.Background(), "all", operation, took, err)
}

// request counts a request.
func (m *meter) request(r httpapi.Request) {
	route := cmp.Or(r.Pattern, "none")
	m.requests.WithLabelValues(route, strconv.Itoa(r.Status)).Inc()
	m.duration.WithLabelValues(route).Observe(r.Duration.Seconds())
	m.sent.WithLabelValues(route).Add(float64(r.Bytes))
}

// did counts what a store was asked for. What a caller gave up is no error of the store.
func (m *meter) did(ctx context.Context, keeps, operation string, took time.Duration, err error) {
	m.store.WithLabelValues(keeps, operation).Observe(took.Seconds())
	if err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		m.failures.WithLabelValues(keeps, operation).Inc()
	}
}

// locks returns the store, measured: how long it takes, and what happens to its locks.
func (m *meter) locks(s lokt.Store) lokt.Store { return &measuredLocks{s, m} }

type measuredLocks struct {
	lokt.Store
	m *meter
}

func (s *measuredLocks) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	begun := time.Now()
	var events []lokt.Event
	err := s.Store.Update(ctx, name, func(snap lokt.Snapshot) lokt.Change {
		c := change(snap)
		events = c.Events // of the last run, if there are several
		return c
	})
	s.m.did(ctx, "locks", "update", time.Since(begun), err)
	if err == nil {
		s.m.recorder.ObserveAll(events)
	}
	return err
}

// jobs returns the store, measured: how long it takes.
func (m *meter) jobs(s jobs.Store) jobs.Store {
	measured := measuredJobs{s, m}
	if sharer, ok := s.(jobs.Sharer); ok {
		return struct {
			measuredJobs
			jobs.Sharer
		}{measured, sharer}
	}
	return measured
}

type measuredJobs struct {
	jobs.Store
	m *meter
}

func (s measuredJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	begun := time.Now()
	stored := false
	var locks []lokt.Change
	err := s.Store.Update(ctx, func(f jobs.Facts) jobs.Changes {
		changes := turn(f)
		stored = !changes.Empty()
		if step, ok := f.Locks.(*lokt.Steps); ok {
			locks = step.Changes()
		}
		return changes
	})
	if err != nil || stored {
		s.m.did(ctx, "jobs", "update", time.Since(begun), err)
	}
	for i := range locks {
		if err == nil {
			s.m.recorder.ObserveAll(locks[i].Events)
		}
	}
	return err
}
