package sqlstore

import (
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

func claim(name, owner string, ttl time.Duration) lokt.Claim {
	return lokt.Claim{Name: name, LeaseID: "lease of " + owner, Owner: lokt.Owner{ID: owner, Host: "h"}, TTL: ttl}
}

// share runs b.N rounds in n goroutines.
func share(b *testing.B, n int, round func(g, i int)) {
	b.ResetTimer()
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			for i := g; i < b.N; i += n {
				round(g, i)
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}
