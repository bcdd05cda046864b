//go:build unix

package daemon_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/lokt-dev/lokt"
)

// story makes a bit of everything happen. It returns the secrets that it used.
func story(t *testing.T, a *api) (secrets []string) {
	t.Helper()
	lease := lokt.NewLeaseID()
	secrets = append(secrets, lease)
	a.do(t, 200, "POST", locks+"a/leases", body{"lease_id": lease, "owner": body{"id": "first"}, "ttl_ms": 600_000})
	a.do(t, 409, "POST", locks+"a/leases", body{"owner": body{"id": "second"}, "ttl_ms": 600_000})
	waiter := lokt.NewLeaseID()
	secrets = append(secrets, waiter)
	a.do(t, 409, "POST", locks+"a/leases", body{"lease_id": waiter, "owner": body{"id": "second"}, "ttl_ms": 600_000, "wait_ms": 1})
	a.renew(t, 200, "a", lease)
	a.renew(t, 403, "a", waiter)
	waited := make(chan answer, 1)
	go func() {
		ans, _ := a.try("POST", locks+"a/leases", body{"lease_id": waiter, "owner": body{"id": "second"}, "ttl_ms": 600_000, "wait_ms": 30_000})
		waited <- ans
	}()
	eventually(t, "the second waits", func() bool {
		queue, _ := a.do(t, 200, "GET", locks+"a", nil).json["queue"].([]any)
		return len(queue) == 1
	})
	a.with(t, 200, lease, "DELETE", locks+"a/leases/"+publicID(lease))
	if ans := <-waited; ans.status != 200 {
		t.Fatalf("the second was answered with %d %s", ans.status, ans.body)
	}
	a.do(t, 200, "DELETE", locks+"a/leases?force=true&owner=boss", nil)
	a.do(t, 200, "PUT", locks+"a/freeze", body{"owner": body{"id": "boss"}, "reason": "test"})
	a.do(t, 423, "POST", locks+"a/leases", body{"owner": body{"id": "second"}, "ttl_ms": 600_000})
	a.do(t, 200, "DELETE", locks+"a/freeze?owner=boss", nil)
	brief := lokt.NewLeaseID()
	secrets = append(secrets, brief)
	a.do(t, 200, "POST", locks+"b/leases", body{"lease_id": brief, "owner": body{"id": "first"}, "ttl_ms": 1})
	eventually(t, "the brief hold is over", func() bool {
		ans, err := a.try("POST", locks+"b/leases", body{"owner": body{"id": "second"}, "ttl_ms": 600_000})
		return err == nil && ans.status == 200
	})

	if got := a.do(t, 200, "POST", scheduler+"/leases/request", body{"worker_id": "w"}).text("code"); got != "queue_empty" {
		t.Errorf("asking for nothing is denied with %q", got)
	}
	for range 3 {
		a.do(t, 200, "POST", scheduler+"/jobs", body{"priority": "low"})
	}
	done := a.do(t, 200, "POST", scheduler+"/leases/request", body{"worker_id": "w"}).text("lease", "lease_id")
	a.do(t, 200, "POST", scheduler+"/leases/"+done+"/heartbeat", body{"worker_id": "w"})
	a.do(t, 200, "POST", scheduler+"/leases/"+done+"/complete", body{"worker_id": "w", "status": "completed"})
	a.do(t, 404, "POST", scheduler+"/leases/"+done+"/heartbeat", body{"worker_id": "w"})
	live := a.do(t, 200, "POST", scheduler+"/leases/request", body{"worker_id": "w"}).text("lease", "lease_id")
	return append(secrets, done, live)
}

// renew renews the lease of a lock.
func (a *api) renew(t *testing.T, status int, name, lease string) {
	t.Helper()
	a.do(t, status, "POST", "/v1/leases/heartbeat", body{"leases": []body{{"name": name, "lease_id": lease}}})
}

// with makes a request with a lease ID as proof.
func (a *api) with(t *testing.T, status int, lease, method, path string) {
	t.Helper()
	r, err := http.NewRequest(method, a.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Lokt-Lease", lease)
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != status {
		t.Fatalf("%s %s was answered with %d, not %d", method, path, resp.StatusCode, status)
	}
}

// Promise S-104.
func TestMetricsTellWhatHappened(t *testing.T) {
	p := start(t, "--store", "sqlite:"+filepath.Join(t.TempDir(), "loktd.db"), "--lease-ttl", "10m")
	a := p.api()
	story(t, a)
	for name, want := range map[string]float64{
		`lokt_lock_acquired_total{name="a"}`:                                         2,
		`lokt_lock_released_total{name="a"}`:                                         1,
		`lokt_lock_contention_total{name="a"}`:                                       2,
		`lokt_lock_heartbeat_renewed_total{name="a"}`:                                1,
		`lokt_lock_heartbeat_failure_total{name="a"}`:                                1,
		`lokt_lock_broken_total{name="a"}`:                                           1,
		`lokt_lock_freeze_denied_total{name="a"}`:                                    1,
		`lokt_lock_broken_total{name="b"}`:                                           0, // so that an alert sees the first one
		`lokt_lock_stale_detected_total{name="a"}`:                                   0,
		`lokt_lock_takeover_detected_total{name="b"}`:                                1,
		`lokt_lock_stale_detected_total{name="b"}`:                                   1,
		`lokt_lock_holder{holder="second",name="b"}`:                                 1,
		`lokt_lock_queue_length{name="a"}`:                                           0,
		`lokt_lock_wait_duration_seconds_count{name="a",outcome="granted"}`:          1,
		`lokt_scheduler_queue_depth{priority="low"}`:                                 1,
		`lokt_scheduler_queue_depth{priority="high"}`:                                0,
		`lokt_scheduler_capacity_units`:                                              100,
		`lokt_scheduler_leased_units`:                                                1,
		`lokt_scheduler_available_units`:                                             99,
		`lokt_scheduler_active_leases`:                                               1,
		`lokt_scheduler_events_total{event="submitted"}`:                             3,
		`lokt_scheduler_events_total{event="granted"}`:                               2,
		`lokt_scheduler_events_total{event="completed"}`:                             1,
		`lokt_scheduler_events_total{event="expired"}`:                               0,
		`lokt_scheduler_denied_total{code="queue_empty"}`:                            1,
		`lokt_scheduler_heartbeats_total`:                                            1,
		`lokt_scheduler_heartbeats_refused_total{code="lease_not_found"}`:            1,
		`lokt_scheduler_queue_wait_seconds_count`:                                    2,
		`lokt_scheduler_run_seconds_count`:                                           1,
		`lokt_http_requests_total{route="POST ` + scheduler + `/jobs",status="200"}`: 3,
		`lokt_ready`: 1,
		`lokt_store_errors_total{keeps="locks",operation="update"}`: 0,
	} {
		if got, ok := a.metric(t, name); !ok || got != want {
			t.Errorf("%s is %v, not %v", name, got, want)
		}
	}
	for _, name := range []string{
		`lokt_scheduler_queue_age_seconds{priority="low"}`, `lokt_store_seconds_count{keeps="jobs",operation="update"}`,
		`lokt_store_seconds_count{keeps="locks",operation="update"}`, `lokt_store_seconds_count{keeps="all",operation="commit"}`, "go_goroutines", "process_open_fds",
	} {
		if got, ok := a.metric(t, name); !ok || got <= 0 {
			t.Errorf("%s is %v", name, got)
		}
	}
	problems, err := promlint.New(strings.NewReader(a.metrics(t))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	p.stop()
}

// Promise S-104.
func TestDashboardAndAlertsUseOnlyMetricsThatExist(t *testing.T) {
	p := start(t, "--store", "sqlite:"+filepath.Join(t.TempDir(), "loktd.db"))
	a := p.api()
	story(t, a)
	exist := []string{"up"}
	for line := range strings.Lines(a.metrics(t)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[1] != "TYPE" {
			continue
		}
		if exist = append(exist, fields[2]); fields[3] == "histogram" {
			exist = append(exist, fields[2]+"_bucket", fields[2]+"_sum", fields[2]+"_count")
		}
	}
	p.stop()

	var expressions []string
	text, err := os.ReadFile("../../deploy/grafana/lokt.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Definition string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			expressions = append(expressions, target.Expr)
		}
	}
	for _, v := range dashboard.Templating.List {
		expressions = append(expressions, v.Definition)
	}
	inDashboard := len(expressions)
	if text, err = os.ReadFile("../../deploy/prometheus/alerts.yml"); err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\s+expr: (?:>-\n)?((?:.+\n)(?:\s{10,}.+\n)*)`).FindAllStringSubmatch(string(text), -1) {
		expressions = append(expressions, m[1])
	}
	if inDashboard < 30 || len(expressions)-inDashboard < 10 {
		t.Fatalf("there are only %d expressions", len(expressions))
	}
	name := regexp.MustCompile(`\b(?:lokt|go|process|promhttp)_[a-z0-9_]+\b|\bup\b`)
	for _, e := range expressions {
		found := name.FindAllString(e, -1)
		if len(found) == 0 && strings.TrimSpace(e) != "" {
			t.Errorf("there is no metric in %s", e)
		}
		for _, m := range found {
			if !slices.Contains(exist, m) {
				t.Errorf("the daemon has no metric %s, of %s", m, e)
			}
		}
		if strings.Count(e, "(") != strings.Count(e, ")") || strings.Count(e, "{") != strings.Count(e, "}") {
			t.Errorf("brackets do not match in %s", e)
		}
	}
}

// Promise S-100.
func TestLogsAndMetricsShowNoSecrets(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		file := filepath.Join(t.TempDir(), "tokens")
		token := newToken(t, file, "admin", "--scopes", "admin")
		p := start(t, "--store", "sqlite:"+filepath.Join(t.TempDir(), "loktd.db"), "--tokens", file, "--log-level", "debug", "--log-format", format)
		a := p.api()
		a.token = token
		secrets := append(story(t, a), token)
		seen := a.metrics(t)
		a.token = newToken(t, file, "reader", "--scopes", "read")
		eventually(t, "the reader is known", func() bool {
			ans, err := a.try("GET", "/v1/locks", nil)
			return err == nil && ans.status == http.StatusOK
		})
		for _, path := range []string{"/v1/locks", locks + "b", "/v1/audit", scheduler + "/jobs", scheduler + "/workers", scheduler + "/status"} {
			seen += a.do(t, 200, "GET", path, nil).body
		}
		for _, job := range regexp.MustCompile(`"job_id":"([0-9a-f]+)"`).FindAllStringSubmatch(seen, -1) {
			seen += a.do(t, 200, "GET", scheduler+"/jobs/"+job[1], nil).body
		}
		p.stop()
		log := p.log.String()
		for _, secret := range secrets {
			if strings.Contains(log, secret) || strings.Contains(seen, secret) {
				t.Errorf("secret %s shows", secret)
			}
		}
		for i, line := range strings.Split(strings.TrimSpace(log), "\n") {
			if format == "json" && !json.Valid([]byte(line)) {
				t.Errorf("line %d of the log is %s", i, line)
			}
		}
		if !strings.Contains(log, "request_id") || !strings.Contains(log, "caller") || strings.Count(log, "\n") < 20 {
			t.Errorf("the log tells too little:\n%s", log)
		}
	}
}
