package daemon

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"runtime"
	"strconv"
	"sync"
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
	handler  http.Handler
	recorder *telemetry.Recorder

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	sent     *prometheus.CounterVec
	store    *prometheus.HistogramVec
	failures *prometheus.CounterVec

	mu     sync.RWMutex
	routes map[routeStatus]routeSeries // to find series by their labels takes longer than to count
}

// routeStatus is what requests are counted by.
type routeStatus struct {
	route  string
	status int
}

// routeSeries is where requests are counted.
type routeSeries struct {
	requests, sent prometheus.Counter
	duration       prometheus.Observer
}

// scrapeTimeout bounds how long a store may be asked for what is in it.
const scrapeTimeout = 5 * time.Second

// newMeter returns a meter that can observe databases.
func newMeter() *meter {
	return &meter{
		routes: map[routeStatus]routeSeries{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lokt_http_requests_total", Help: "Requests answered, by route and status; 499 is a client that hung up.",
		}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lokt_http_request_seconds", Help: "How long requests took until they were answered, waiting included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lokt_http_sent_bytes_total", Help: "Bytes of the bodies of answers.",
		}, []string{"route"}),
		store: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lokt_store_seconds", Help: "How long the store took, by what it keeps and what it was asked for.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}, []string{"keeps", "operation"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lokt_store_errors_total", Help: "Errors of the store, by what it keeps and what it was asked for.",
		}, []string{"keeps", "operation"}),
	}
}

// start makes the meter ready for everything, once the daemon has its stores.
func (m *meter) start(d *daemon) (err error) {
	if m.recorder, err = telemetry.New(telemetry.Options{Service: lokt.NewManager(d.stores.locks)}); err != nil {
		return err
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lokt_build_info", Help: "Always 1; what was built is in the labels.",
		ConstLabels: prometheus.Labels{"version": Version(), "go_version": runtime.Version()},
	})
	info.Set(1)
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.requests, m.duration, m.sent, m.store, m.failures, info, &lockCollector{m.recorder}, &daemonCollector{d},
	} {
		if err := registry.Register(c); err != nil {
			return err
		}
	}
	if d.stores.jobs != nil {
		if err := registry.Register(&jobCollector{d}); err != nil {
			return err
		}
	}
	m.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4, Timeout: 3 * scrapeTimeout,
	})
	for _, op := range []string{"update", "view", "list"} {
		m.failures.WithLabelValues("locks", op)
	}
	for _, op := range []string{"update", "load", "read", "trim"} {
		m.failures.WithLabelValues("jobs", op)
	}
	return nil
}

// database counts what a database was asked for.
func (m *meter) database(operation string, took time.Duration, err error) {
	m.store.WithLabelValues("all", operation).Observe(took.Seconds())
	if err != nil && !errors.Is(err, context.Canceled) {
		m.failures.WithLabelValues("all", operation).Inc()
	}
}

// request counts a request.
func (m *meter) request(r httpapi.Request) {
	route := r.Pattern
	if route == "" {
		route = "none"
	}
	key := routeStatus{route, r.Status}
	m.mu.RLock()
	series, ok := m.routes[key]
	m.mu.RUnlock()
	if !ok {
		series = routeSeries{
			m.requests.WithLabelValues(route, strconv.Itoa(r.Status)), m.sent.WithLabelValues(route), m.duration.WithLabelValues(route),
		}
		m.mu.Lock()
		m.routes[key] = series
		m.mu.Unlock()
	}
	series.requests.Inc()
	series.duration.Observe(r.Duration.Seconds())
	series.sent.Add(float64(r.Bytes))
}

// did counts what a store was asked for. What a caller gave up is no error of the store.
func (m *meter) did(ctx context.Context, keeps, op string, begun time.Time, err error) {
	m.store.WithLabelValues(keeps, op).Observe(time.Since(begun).Seconds())
	if err != nil && ctx.Err() == nil {
		m.failures.WithLabelValues(keeps, op).Inc()
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
	s.m.did(ctx, "locks", "update", begun, err)
	if err == nil {
		s.m.recorder.ObserveAll(events)
	}
	return err
}

func (s *measuredLocks) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	begun := time.Now()
	snap, err := s.Store.View(ctx, name)
	s.m.did(ctx, "locks", "view", begun, err)
	return snap, err
}

func (s *measuredLocks) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		var failed error
		begun := time.Now()
		for snap, err := range s.Store.List(ctx, f) {
			if err != nil {
				failed = err
			}
			if !yield(snap, err) {
				break
			}
		}
		s.m.did(ctx, "locks", "list", begun, failed)
	}
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
		s.m.did(ctx, "jobs", "update", begun, err)
	}
	for i := range locks {
		if err == nil {
			s.m.recorder.ObserveAll(locks[i].Events)
		}
	}
	return err
}

func (s measuredJobs) Load(ctx context.Context) (jobs.Living, error) {
	begun := time.Now()
	living, err := s.Store.Load(ctx)
	s.m.did(ctx, "jobs", "load", begun, err)
	return living, err
}

func (s measuredJobs) ListEnded(ctx context.Context, f jobs.Filter, below uint64, limit int) ([]jobs.Record, error) {
	begun := time.Now()
	ended, err := s.Store.ListEnded(ctx, f, below, limit)
	s.m.did(ctx, "jobs", "read", begun, err)
	return ended, err
}

func (s measuredJobs) Trim(ctx context.Context, before time.Time, keep, atMost int) (int, error) {
	begun := time.Now()
	n, err := s.Store.Trim(ctx, before, keep, atMost)
	s.m.did(ctx, "jobs", "trim", begun, err)
	return n, err
}
