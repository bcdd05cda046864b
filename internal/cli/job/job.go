// Package job has the commands that submit, show and carry out jobs, which a server keeps.
package job

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/jobs"
)

func newJob(a cmd) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "job",
		Short: "Submit jobs to a server and see what becomes of them",
		Long:  "Submit jobs to a server, which hands them to workers (see lokt worker), and see what becomes of them.",
		Example: "  lokt job submit --type thumbnail --payload '{\"file\": \"a.png\"}'\n  lokt job list --state queued\n" +
			"  lokt job show JOB_ID",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return pflag.ErrHelp
			}
			return app.Usagef("lokt job %s is no command: say submit, list, show, cancel or stats", args[0])
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(newJobSubmit(a), newJobList(a), newJobShow(a), newJobCancel(a), newJobStats(a))
	return cmd
}

// printDocument prints what the server's answer would be.
func (a cmd) printDocument(doc jsontext.Value, err error) error {
	if err != nil {
		return fmt.Errorf("JSON: %w", err)
	}
	return a.Write(string(doc) + "\n")
}

// jobsService returns the server's jobs.
func (a cmd) jobsService() (jobs.Service, error) {
	r, err := a.Remote()
	if err != nil {
		return nil, err
	}
	return r.Jobs(), nil
}

// jobsError adds to an error of the server's jobs what to do about it.
func (a cmd) jobsError(err error) error {
	var invalid *jobs.InvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return app.Usagef("%s", problemsText(invalid.Problems))
	case errors.Is(err, jobs.ErrJobNotFound):
		return app.Hint(err, "jobs that ended long ago are forgotten; see what there is with: %s", a.jobLine("list"))
	case errors.Is(err, jobs.ErrConflict):
		return app.Hint(err, "the same key gives the same job, so that a submission can be repeated: use another --key for another job")
	}
	return err
}

// jobLine returns a command line about jobs, for people to type.
func (a cmd) jobLine(what string, more ...string) string {
	return a.CommandLine("job", what, more...)
}

// flags are those whose names differ from the fields that they set.
var flags = strings.NewReplacer(
	"requested_units", "units", "max_units", "units", "max_runtime_s", "max-runtime", "retry_backoff_s", "backoff", "idempotency_key", "key",
	"tags", "tag", "locks", "lock", "types", "type", "capabilities", "capability", "_", "-",
)

// problemsText says what is wrong with a request, in terms of the command line.
func problemsText(problems []jobs.Problem) string {
	var all []string
	for _, p := range problems {
		text := p.Msg
		for _, l := range p.Loc { // the first name that is a field's
			if name, ok := l.(string); ok && name != "jobs" && name != "body" && name != "query" {
				text = "--" + flags.Replace(name) + ": " + strings.ToLower(p.Msg[:min(1, len(p.Msg))]) + p.Msg[min(1, len(p.Msg)):]
				break
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

type jobCancelOptions struct{ reason string }

func newJobCancel(a cmd) *cobra.Command {
	var o jobCancelOptions
	cmd := &cobra.Command{
		Use:   "cancel JOB_ID...",
		Short: "Cancel jobs",
		Long: "Cancel jobs: one that is queued ends at once; one that is running is to be stopped, and ends as cancelled when its\n" +
			"worker says that it has, unless it completes. A job that has ended stays as it is.",
		Example: "  lokt job cancel JOB_ID --reason 'not needed any more'",
		Args:    someJobs,
		RunE: func(cmd *cobra.Command, ids []string) error {
			s, err := a.jobsService()
			if err != nil {
				return err
			}
			var failed error
			for _, id := range ids {
				state, err := s.Cancel(cmd.Context(), id, o.reason)
				if err != nil {
					failed = errors.Join(failed, a.jobsError(about(id, err)))
					continue
				}
				if a.JSON {
					err = a.Print(map[string]any{"job_id": id, "ok": true, "state": state})
				} else {
					a.Say("%s %s", id, cancelText(state))
				}
				failed = errors.Join(failed, err)
			}
			return failed
		},
	}
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, for those who look at the job")
	return cmd
}

// someJobs checks that there are IDs of jobs.
func someJobs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return app.Usagef("give the ID of a job: lokt job %s JOB_ID", cmd.Name())
	}
	return nil
}

// about says which job an error is about.
func about(id string, err error) error { return fmt.Errorf("%s: %w", app.OneLine(id), err) }

// cancelText says what became of a job that was cancelled.
func cancelText(s jobs.State) string {
	switch {
	case s.Active():
		return string(s) + ", and told to stop"
	case s == jobs.Cancelled:
		return string(s)
	}
	return string(s) + " already"
}

type jobStatsOptions struct{ days int }

func newJobStats(a cmd) *cobra.Command {
	var o jobStatsOptions
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show how much capacity is in use, and what became of jobs",
		Long: "Show how much of the server's capacity is in use and how much is waiting, and of the jobs that ended within some days\n" +
			"how many succeeded, how long they waited and how long they ran (95 of 100 no longer).",
		Example: "  lokt job stats\n  lokt job stats --days 7 --json",
		Args:    app.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runJobStats(cmd.Context(), o) },
	}
	cmd.Flags().IntVar(&o.days, "days", jobs.DefaultDays, "of how many days")
	return cmd
}

func (a cmd) runJobStats(ctx context.Context, o jobStatsOptions) error {
	if o.days < 1 || o.days > jobs.MaxDays {
		return app.Usagef("--days is from 1 to %d, not %d", jobs.MaxDays, o.days)
	}
	s, err := a.jobsService()
	if err != nil {
		return err
	}
	now, err := s.Status(ctx)
	if err != nil {
		return a.jobsError(err)
	}
	past, err := s.Stats(ctx, o.days)
	if err != nil {
		return a.jobsError(err)
	}
	if a.JSON {
		return a.printDocument(httpapi.StatsDocument(&past, o.days, &now))
	}
	a.Say("capacity: %d of %d units are leased, to %d jobs", now.Leased, now.Usable, now.ActiveLeases)
	q := now.Queue
	a.Say("queued:   %d (high %d, normal %d, low %d, background %d)", q.Sum(), q.High, q.Normal, q.Low, q.Background)
	if now.Draining {
		a.Say("the server is about to end, and hands out nothing")
	}
	a.Say("")
	return a.Table(statsTable(past))
}

// cmd is what the commands of this package share.
type cmd struct{ *app.App }

func on(build func(cmd) *cobra.Command) func(*app.App) *cobra.Command {
	return func(a *app.App) *cobra.Command { return build(cmd{a}) }
}

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{
		{Name: "job", Build: on(newJob), Place: app.OnServer},
		{Name: "worker", Build: on(newWorker), Place: app.OnServer},
		{Name: cmdRunJob, Build: on(newRunJob), Place: app.Nowhere},
	}
}
