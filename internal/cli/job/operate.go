package job

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/bulk"
	"github.com/lokt-dev/lokt/jobs"
)

func newJobWorkers(a cmd) *cobra.Command {
	return a.command("workers", app.NoArgs, func(ctx context.Context, s jobs.Service, _ []string) error {
		all, err := s.Workers(ctx)
		switch {
		case err != nil:
			return err
		case a.JSON:
			return a.Print(map[string]any{"workers": append([]jobs.WorkerStatus{}, all...)})
		case len(all) == 0:
			a.Tell("no worker has asked for a job lately; start one with: %s", a.CommandLine("worker", "")+" --type TYPE -- COMMAND")
			return nil
		}
		rows := [][]string{{"WORKER", "LEASES", "LAST SEEN"}}
		for _, w := range all {
			rows = append(rows, []string{w.ID, strconv.Itoa(w.Leases), app.Short(time.Since(w.LastSeen)) + " ago"})
		}
		return a.Table(rows)
	})
}

func newJobRetry(a cmd) *cobra.Command {
	var payload string
	cmd := a.each("retry", func(ctx context.Context, s jobs.Service, id string) error {
		v, err := s.Get(ctx, id)
		if err != nil {
			return err
		}
		if !v.Job.State.Ended() {
			return fmt.Errorf("%w: it has not ended, it is %s", lokt.ErrInvalid, v.Job.State)
		}
		spec := v.Job.Again()
		if payload != "" {
			spec.Payload = jsontext.Value(payload)
		}
		got, err := s.Submit(ctx, []jobs.Spec{spec})
		if err != nil {
			return err
		}
		return a.Answer(map[string]any{"job_id": got[0].JobID, "retry_of": id, "state": got[0].State}, "%s is submitted again as %s", id, got[0].JobID)
	})
	cmd.Flags().StringVar(&payload, "payload", "", "another payload: a JSON object")
	return bulk.Also(a.App, cmd, new(string))
}

func newJobRevoke(a cmd) *cobra.Command {
	var reason string
	cmd := a.each("revoke", func(ctx context.Context, s jobs.Service, id string) error {
		v, err := s.Get(ctx, id)
		switch {
		case err != nil:
			return err
		case v.Lease == nil:
			return fmt.Errorf("%w: the job is %s", jobs.ErrLeaseNotFound, v.Job.State)
		case v.Lease.ID == "":
			return app.Hint(errors.New("its lease is not shown"), "this needs a token with the scope admin")
		}
		if err := s.Revoke(ctx, v.Lease.ID, reason); err != nil {
			return err
		}
		return a.Answer(map[string]any{"job_id": id, "ok": true}, "%s is taken from %s, and has failed", id, v.Lease.WorkerID)
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who look at the job")
	return cmd
}

// setType freezes or unfreezes jobs of a type, or all.
func (a cmd) setType(name, then string, set func(jobs.Service, context.Context, string) error) *cobra.Command {
	var all bool
	cmd := a.command(name, nil, func(ctx context.Context, s jobs.Service, args []string) error {
		what, jobType := "all jobs", ""
		switch {
		case len(args) == 1 && !all && args[0] != "":
			jobType = args[0]
			what = "jobs of type " + app.OneLine(jobType)
		case len(args) != 0 || !all:
			return app.Usagef("name one type of jobs, or say --all")
		}
		if err := set(s, ctx, jobType); err != nil {
			return err
		}
		return a.Answer(map[string]any{"type": jobType, "ok": true}, "%s %s", what, then)
	})
	cmd.Flags().BoolVar(&all, "all", false, "jobs of every type")
	return cmd
}
