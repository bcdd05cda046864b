package worker_test

import (
	"context"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/jobs/worker"
	"github.com/lokt-dev/lokt/store/memstore"
)

// work does jobs until ctx ends.
func work(ctx context.Context, service jobs.Service) error {
	type resize struct{ File string }

	worker, err := worker.NewWorker(service, func(ctx context.Context, r *worker.Run) (any, error) {
		var job resize
		if err := r.Payload(&job); err != nil {
			return nil, err
		}
		for i := range 4 {
			if err := r.Err(); err != nil { // the lease is lost, the job cancelled, or the worker stopped
				return nil, err
			}
			r.Progress(float64(i) / 4)
		}
		return map[string]any{"file": job.File, "attempt": r.Lease.Attempt}, nil
	}, worker.WorkerOptions{Types: []string{"resize"}, Concurrency: 4})
	if err != nil {
		return err
	}
	err = worker.Run(ctx) // until ctx ends and what is under way has ended
	return err
}

// A worker does the jobs of a service, here one in memory.
func ExampleWorker() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	service, err := manager.Open(ctx, memstore.NewJobs(), manager.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer service.Close()
	working, enough := context.WithCancel(ctx)
	defer enough()
	done := make(chan error, 1)
	go func() { done <- work(working, service) }()

	spec := jobs.NewSpec()
	spec.Type, spec.Payload = "resize", []byte(`{"file": "a.png"}`)
	receipts, err := service.Submit(ctx, []jobs.Spec{spec})
	if err != nil {
		fmt.Println(err)
		return
	}
	for ctx.Err() == nil {
		v, err := service.Get(ctx, receipts[0].JobID)
		if err != nil {
			fmt.Println(err)
			return
		}
		if v.Job.State.Ended() {
			fmt.Printf("%s %s\n", v.Job.State, v.Job.Output.Result)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	enough()
	fmt.Println(<-done)
	// Output:
	// completed {"attempt":1,"file":"a.png"}
	// <nil>
}
