package dashboard_test

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// BenchmarkScreens makes each screen anew, with 10,000 locks and 1,000,000 jobs (or as many as LOKT_BENCH_JOBS says), and
// reports its size in bytes. Pages are kept for half a second, so each is asked for under another URL.
func BenchmarkScreens(b *testing.B) {
	s := newSite(b, nil)
	for i := range 10_000 {
		s.hold(b, fmt.Sprintf("lock-%05d", i), "ana", lokt.Claim{TTL: time.Hour})
	}
	n, err := strconv.Atoi(os.Getenv("LOKT_BENCH_JOBS"))
	if err != nil {
		n = 1_000_000
	}
	specs := make([]jobs.Spec, 1000)
	for i := range specs {
		specs[i] = spec("thumb", fmt.Sprintf(`{"file":"picture-%d.png"}`, i))
	}
	for range n / len(specs) {
		s.submit(b, specs...)
	}
	failed := s.submit(b, spec("odd", `{}`))[0]
	s.fail(b, "odd", "no such file")
	for _, path := range []string{"/", "/?q=lock-09", "/locks/lock-00001", "/jobs", "/jobs?type=odd", "/jobs?q=none", "/jobs/" + failed, "/workers", "/failures", "/audit", "/bulk?action=cancel&state=queued", "/bulk?action=cancel&q=none", "/bulk?action=retry", "/bulk?action=retry&q=none&type=odd"} {
		b.Run(path, func(b *testing.B) {
			size := 0
			for i := range b.N {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, s.url+path, nil)
				if err != nil {
					b.Fatal(err)
				}
				q := r.URL.Query()
				q.Set("n", strconv.Itoa(i))
				r.URL.RawQuery = q.Encode()
				status, body, _ := do(b, http.MethodGet, r.URL.String(), nil)
				if status != http.StatusOK {
					b.Fatal(status, body)
				}
				size = len(body)
			}
			b.ReportMetric(float64(size), "bytes")
		})
	}
}
