//go:build unix

package replicas_test

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// startReplicas starts daemons that share a PostgreSQL.
func startReplicas(t *testing.T, pg *servers.Postgres, n int) (all []*replica) {
	t.Helper()
	if err := pg.Exec("CREATE SCHEMA lokt"); err != nil {
		t.Fatal(err)
	}
	for range n {
		all = append(all, startReplica(t, []string{pg.Addr}, func(a []string) []string { return []string{"--store", pg.URL(a[0], "lokt")} }))
	}
	return all
}

// call makes a request of a replica and returns the answer, which must be 200.
func call(t *testing.T, r *replica, method, path, body string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.front.Addr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d %s, %v", method, path, a.StatusCode, text, err)
	}
	return string(text)
}

// Promise S-162.
func TestMetricsOfEveryReplicaTellHowFarTheTablesAreBehind(t *testing.T) {
	pg := servers.NeedPostgres(t, "fsync=off")
	replicas := startReplicas(t, pg, 2)
	lag := func(r *replica) (turns, bytes, seconds float64) {
		t.Helper()
		text := call(t, r, "GET", "/metrics", "")
		for unit, into := range map[string]*float64{"turns": &turns, "bytes": &bytes, "seconds": &seconds} {
			m := regexp.MustCompile(`(?m)^lokt_scheduler_tables_lag_` + unit + ` (.+)$`).FindStringSubmatch(text)
			if m == nil {
				t.Fatalf("there is no lag in %s", unit)
			}
			*into, _ = strconv.ParseFloat(m[1], 64)
		}
		return turns, bytes, seconds
	}
	none := func() {
		t.Helper()
		for _, r := range replicas {
			waitFor(t, func() bool {
				turns, bytes, seconds := lag(r)
				return turns == 0 && bytes == 0 && seconds == 0
			})
		}
	}
	none()
	if err := pg.Exec(`SET search_path = lokt; CREATE FUNCTION no() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
		CREATE TRIGGER no BEFORE INSERT ON job_events EXECUTE FUNCTION no()`); err != nil {
		t.Fatal(err)
	}
	const jobs = 5
	begun := time.Now()
	for i := range jobs {
		call(t, replicas[0], "POST", "/api/system/scheduler/jobs", fmt.Sprintf(`{"type": "t%d"}`, i))
	}
	stored := time.Now()
	for _, r := range replicas {
		waitFor(t, func() bool {
			turns, bytes, seconds := lag(r)
			return turns == jobs && bytes > 0 && seconds > 3 && seconds <= time.Since(begun).Seconds()
		})
	}
	if _, _, seconds := lag(replicas[0]); seconds < time.Since(stored).Seconds()-1 {
		t.Errorf("the oldest turn is %v s old, %v after the last", seconds, time.Since(stored))
	}
	if err := pg.Exec("DROP TRIGGER no ON lokt.job_events"); err != nil {
		t.Fatal(err)
	}
	none()
}
