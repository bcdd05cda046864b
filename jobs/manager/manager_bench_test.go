package manager_test

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// BenchmarkCycle submits a job, asks for it, sends three heartbeats and completes it, over a store in memory.
func BenchmarkCycle(b *testing.B) {
	for _, clients := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			m, err := manager.Open(b.Context(), memstore.NewJobs(), manager.Options{Config: jobs.Config{Total: 1_000_000}, KeepMost: 1000})
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			var n atomic.Int64
			b.SetParallelism((clients + 1) / 2)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				worker := "w" + strconv.FormatInt(n.Add(1), 10)
				for pb.Next() {
					if _, err := m.Submit(b.Context(), []jobs.Spec{jobs.NewSpec()}); err != nil {
						b.Error(err)
						return
					}
					g, err := m.Request(b.Context(), jobs.Request{WorkerID: worker, Wait: jobs.MaxWait})
					if err != nil || g.Denied != nil {
						b.Error(g.Denied, err)
						return
					}
					for range 3 {
						if _, err := m.Heartbeat(b.Context(), jobs.Heartbeat{LeaseID: g.Lease.ID, WorkerID: worker}); err != nil {
							b.Error(err)
							return
						}
					}
					if ok, err := m.Complete(b.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: worker, Status: jobs.Completed}); err != nil || !ok {
						b.Error(ok, err)
						return
					}
				}
			})
		})
	}
}
