package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/docstore"
)

// scheduler is one of several that share a database. It has a process of its own, as it would have on a host of its own.
type scheduler struct {
	cmd     *exec.Cmd
	orders  io.WriteCloser
	encode  *json.Encoder
	answers *json.Decoder
}

// order is what a scheduler is asked to do: to have so many jobs queued, or to let so many workers take and complete jobs for so long.
type order struct {
	Stock   int
	Workers int
	Span    time.Duration
}

// answer is what became of an order.
type answer struct {
	Rate  float64 // jobs per second
	Error string
}

// startScheduler starts a process of this program that keeps the jobs of the database.
func startScheduler(ctx context.Context, url string) (*scheduler, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-scheduler", url)
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &scheduler{cmd, orders, json.NewEncoder(orders), json.NewDecoder(answers)}, cmd.Start()
}

// do has an order carried out.
func (s *scheduler) do(o order) (float64, error) {
	if err := s.encode.Encode(o); err != nil {
		return 0, err
	}
	var a answer
	if err := s.answers.Decode(&a); err != nil {
		return 0, fmt.Errorf("a scheduler has ended: %w", err)
	}
	if a.Error != "" {
		return 0, errors.New(a.Error)
	}
	return a.Rate, nil
}

// stop lets the process end, by ending what it reads.
func (s *scheduler) stop() {
	_ = s.orders.Close()
	_ = s.cmd.Wait()
}

// keepJobs is that process.
func keepJobs(url string) (err error) {
	ctx := context.Background()
	db, err := sqlstore.Open(ctx, url, sqlstore.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	m, err := manager.Open(ctx, db.Jobs(), manager.Options{Config: jobs.Config{Total: 2 * turners, Shared: true}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		if err := fillQueue(ctx, m, o.Stock); err != nil {
			a.Error = err.Error()
		} else if a.Rate, err = takeJobs(ctx, m, o.Workers, o.Span); err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// fillQueue submits jobs until so many are queued.
func fillQueue(ctx context.Context, m *manager.Manager, n int) error {
	now, err := m.Status(ctx)
	if err != nil {
		return err
	}
	for n -= now.Queue.Sum(); n > 0; n -= jobs.MaxSubmit {
		specs := make([]jobs.Spec, jobs.MaxSubmit)
		for i := range specs {
			specs[i] = jobs.NewSpec()
			specs[i].Payload = []byte(`{"n":1}`)
		}
		if _, err := m.Submit(ctx, specs); err != nil {
			return err
		}
	}
	return nil
}

// takeJobs has workers take and complete jobs, and returns how many per second.
func takeJobs(ctx context.Context, m *manager.Manager, workers int, d time.Duration) (float64, error) {
	return rate(workers, d, func(i int) (func() error, func(), error) {
		id := fmt.Sprintf("bench-%d-%d", os.Getpid(), i)
		return func() error {
			g, err := m.Request(ctx, jobs.Request{WorkerID: id})
			if err != nil {
				return err
			}
			if g.Denied != nil {
				return fmt.Errorf("no lease: %s", g.Denied.Reason)
			}
			ok, err := m.Complete(ctx, jobs.Completion{LeaseID: g.Lease.ID, WorkerID: id, Status: jobs.Completed})
			if err == nil && !ok {
				err = errors.New("a lease has ended by itself")
			}
			return err
		}, func() {}, nil
	})
}
