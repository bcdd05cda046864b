package daemon

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lokt-dev/lokt/internal/version"
	"github.com/lokt-dev/lokt/jobs"
)

// collector tells Prometheus about the process and the scheduler.
type collector struct{ d *daemon }

// Describe implements prometheus.Collector. It describes nothing: there may be no scheduler.
func (*collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ready := 1.0
	if c.d.ready(context.Background()) != nil {
		ready = 0
	}
	gauge(out, "lokt_ready", "Whether requests can be served.", ready)
	gauge(out, "lokt_build_info", "Always 1; what was built is in the labels.", 1, "version", version.String(), "go_version", runtime.Version())
	gauge(out, "lokt_http_connections", "Open connections.", float64(c.d.conns.Load()))
	counter(out, "lokt_tokens_unreadable_total", "Times the token file could not be read again.", float64(c.d.gate.Failures()))
	if c.d.jobs != nil {
		c.jobs(out)
	}
}

// durations makes a metric, in seconds, of a histogram.
func durations(name, help string, h *jobs.Histogram) prometheus.Metric {
	const ms, s, m, hour = time.Millisecond, time.Second, time.Minute, time.Hour
	buckets := map[float64]uint64{}
	for _, bound := range []time.Duration{
		ms / 10, ms / 4, ms / 2, ms, 2 * ms, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms, 250 * ms, 500 * ms, s, 5 * s, 15 * s, m, 5 * m, 15 * m, hour,
		4 * hour, 24 * hour,
	} {
		buckets[bound.Seconds()] = uint64(h.Below(bound))
	}
	return prometheus.MustNewConstHistogram(prometheus.NewDesc(name, help, nil, nil), uint64(h.Count()), h.Sum.Seconds(), buckets)
}

// gauge sends a value of this moment, whose labels are given as names and values in turn.
func gauge(out chan<- prometheus.Metric, name, help string, value float64, labels ...string) {
	send(out, prometheus.GaugeValue, name, help, value, labels)
}

// counter sends a value that never falls.
func counter(out chan<- prometheus.Metric, name, help string, value float64, labels ...string) {
	send(out, prometheus.CounterValue, name, help, value, labels)
}

func send(out chan<- prometheus.Metric, kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, values...)
}

func (c *collector) jobs(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	m := c.d.jobs.Metrics()
	for _, e := range []jobs.EventType{
		jobs.EventSubmit, jobs.EventGrant, jobs.EventRunning, jobs.EventRetry, jobs.EventComplete, jobs.EventFail, jobs.EventExpire,
		jobs.EventReturn, jobs.EventSkip, jobs.EventCancelRequest, jobs.EventCancel, jobs.EventRevoke, jobs.EventFreeze, jobs.EventUnfreeze, jobs.EventClock,
	} {
		counter(out, "lokt_scheduler_events_total", "What happened to jobs since the start.", float64(m.Events[e]), "event", string(e))
	}
	for _, code := range []string{jobs.DeniedEmpty, jobs.DeniedCapacity, jobs.DeniedEligible} {
		counter(out, "lokt_scheduler_denied_total", "Requests for a lease that were denied, by code.", float64(m.Denied[code]), "code", code)
	}
	for _, code := range []string{
		jobs.CodeCompleted, jobs.CodeFailed, jobs.CodeExpired, jobs.CodeRuntime, jobs.CodeRevoked, jobs.CodeCancelled,
	} {
		counter(out, "lokt_scheduler_leases_ended_total", "Leases that ended, by why.", float64(m.Ended[code]), "code", code)
	}
	counter(out, "lokt_scheduler_heartbeats_total", "Heartbeats that extended a lease.", float64(m.Heartbeats))
	for _, code := range slices.Sorted(maps.Keys(m.Refused)) {
		counter(out, "lokt_scheduler_heartbeats_refused_total", "Heartbeats that did not, by code.", float64(m.Refused[code]), "code", code)
	}
	counter(out, "lokt_scheduler_store_failures_total", "Turns of the scheduler that the store did not say it had stored.", float64(m.Failures))
	gauge(out, "lokt_scheduler_parked", "Requests that wait.", float64(m.ParkedRequests), "kind", "lease")
	gauge(out, "lokt_scheduler_parked", "Requests that wait.", float64(m.ParkedHeartbeats), "kind", "heartbeat")
	out <- durations("lokt_scheduler_queue_wait_seconds", "For how long jobs that were leased could have run.", &m.Wait)
	out <- durations("lokt_scheduler_run_seconds", "How long leases lasted that ended.", &m.Run)
	out <- durations("lokt_scheduler_turn_seconds", "How long it took to store what the scheduler decided in one turn.", &m.Store)
	now := time.Now()
	for _, p := range jobs.Priorities() {
		age := 0.0
		if ready, waits := m.Oldest[p]; waits {
			age = max(0, now.Sub(ready).Seconds())
		}
		gauge(out, "lokt_scheduler_queue_age_seconds", "For how long the oldest queued job could have run, by priority.", age, "priority", string(p))
	}
	s, err := c.d.jobs.Status(ctx)
	if err != nil {
		desc := prometheus.NewDesc("lokt_scheduler_unreadable", "The scheduler could not be asked for its status.", nil, nil)
		out <- prometheus.NewInvalidMetric(desc, err)
		return
	}
	for p, n := range map[jobs.Priority]int{jobs.High: s.Queue.High, jobs.Normal: s.Queue.Normal, jobs.Low: s.Queue.Low, jobs.Background: s.Queue.Background} {
		gauge(out, "lokt_scheduler_queue_depth", "Queued jobs, by priority.", float64(n), "priority", string(p))
	}
	gauge(out, "lokt_scheduler_capacity_units", "Units of capacity in all.", float64(s.Total))
	gauge(out, "lokt_scheduler_usable_units", "Units of capacity that are handed out.", float64(s.Usable))
	gauge(out, "lokt_scheduler_leased_units", "Units of capacity that leases hold.", float64(s.Leased))
	gauge(out, "lokt_scheduler_available_units", "Units of capacity that are free.", float64(s.Available))
	gauge(out, "lokt_scheduler_active_leases", "Leases that have not ended.", float64(s.ActiveLeases))
}
