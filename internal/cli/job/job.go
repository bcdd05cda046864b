// Package job has the commands that submit, show and carry out jobs, which a server keeps.
package job

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/bulk"
	"github.com/lokt-dev/lokt/internal/rows"
	"github.com/lokt-dev/lokt/jobs"
)

func newJob(a cmd) *cobra.Command {
	cmd := app.Describe("job", &cobra.Command{
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return pflag.ErrHelp
			}
			return app.Usagef("lokt job %s is no command: say submit, list, show, logs, cancel, retry, revoke, workers, freeze, unfreeze or stats", args[0])
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	})
	cmd.AddCommand(newJobSubmit(a), newJobList(a), newJobShow(a), newJobLogs(a), newJobCancel(a), newJobRetry(a), newJobRevoke(a),
		newJobWorkers(a), newJobStats(a),
		a.setType("freeze", "are not handed out any more", jobs.Service.Freeze),
		a.setType("unfreeze", "are handed out again", jobs.Service.Unfreeze))
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
	c, err := a.Client()
	if err != nil {
		return nil, err
	}
	return c.Jobs(), nil
}

// command builds a command of lokt job, about the server's jobs.
func (a cmd) command(name string, args cobra.PositionalArgs, run func(ctx context.Context, s jobs.Service, args []string) error) *cobra.Command {
	return app.Describe("job "+name, &cobra.Command{Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		s, err := a.jobsService()
		if err != nil {
			return err
		}
		return a.jobsError(run(cmd.Context(), s, args))
	}})
}

// each builds a command about each of some jobs, which goes on when it fails for one.
func (a cmd) each(name string, do func(ctx context.Context, s jobs.Service, id string) error) *cobra.Command {
	return a.command(name, someJobs, func(ctx context.Context, s jobs.Service, ids []string) (failed error) {
		for _, id := range ids {
			if err := do(ctx, s, id); err != nil {
				failed = errors.Join(failed, about(id, err))
			}
		}
		return failed
	})
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
	"tags", "tag", "locks", "lock", "limits", "limit", "types", "type", "capabilities", "capability", "_", "-",
)

// problemsText says what is wrong with a request, in terms of the command line.
func problemsText(problems []jobs.Problem) string {
	var all []string
	for _, p := range problems {
		text := p.Msg
		for i, l := range p.Loc { // the first name that is a field's
			if name, ok := l.(string); ok && name != "jobs" && name != "body" && name != "query" {
				at := flags.Replace(name)
				if name == "limits" { // and the lock
					at = strings.TrimSuffix(fmt.Sprintln(append([]any{at}, p.Loc[i+1:]...)...), "\n")
				}
				text = "--" + at + ": " + strings.ToLower(p.Msg[:min(1, len(p.Msg))]) + p.Msg[min(1, len(p.Msg)):]
				break
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

func newJobCancel(a cmd) *cobra.Command {
	var reason string
	cmd := a.each("cancel", func(ctx context.Context, s jobs.Service, id string) error {
		state, err := s.Cancel(ctx, id, reason)
		if err != nil {
			return err
		}
		return a.Answer(map[string]any{"job_id": id, "ok": true, "state": state}, "%s %s", id, cancelText(state))
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who look at the job")
	return bulk.Also(a.App, cmd, &reason)
}

// someJobs checks that there are IDs of jobs.
func someJobs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return app.Usagef("give the ID of a job: lokt job %s JOB_ID", cmd.Name())
	}
	return nil
}

// oneJob checks that there is the ID of one job.
func oneJob(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return app.Usagef("one job is enough, and there are %d", len(args))
	}
	return someJobs(cmd, args)
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

func newJobStats(a cmd) *cobra.Command {
	var days int
	cmd := a.command("stats", app.NoArgs, func(ctx context.Context, s jobs.Service, _ []string) error { return a.runJobStats(ctx, s, days) })
	cmd.Flags().IntVar(&days, "days", jobs.DefaultDays, "of how many days")
	return cmd
}

func (a cmd) runJobStats(ctx context.Context, s jobs.Service, days int) error {
	if days < 1 || days > jobs.MaxDays {
		return app.Usagef("--days is from 1 to %d, not %d", jobs.MaxDays, days)
	}
	now, err := s.Status(ctx)
	var past jobs.Stats
	if err == nil {
		past, err = s.Stats(ctx, days)
	}
	if err != nil {
		return err
	}
	if a.JSON {
		return a.printDocument(httpapi.StatsDocument(&past, days, &now))
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

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{
		{Name: "job", Build: app.On(newJob), Place: app.OnServer},
		{Name: "worker", Build: app.On(newWorker), Place: app.OnServer},
		{Name: cmdRunJob, Build: app.On(newRunJob), Place: app.Nowhere},
	}
}

func newJobList(a cmd) *cobra.Command {
	var f rows.Filter
	limit, all := 0, false
	cmd := a.command("list", app.NoArgs, func(ctx context.Context, s jobs.Service, _ []string) error {
		return a.runJobList(ctx, s, &f, limit, all)
	})
	fs := cmd.Flags()
	fs.StringVar(&f.State, "state", "", "only jobs in this state: scheduled, queued, leased, running, completed, failed, expired or cancelled")
	fs.StringVar(&f.Type, "type", "", "only jobs of this type")
	fs.StringVar(&f.Tag, "tag", "", "only jobs with this tag")
	fs.StringVar(&f.Lock, "lock", "", "only jobs that need this `lock`")
	fs.StringVar(&f.Worker, "worker", "", "only jobs that this `worker` has or had")
	fs.StringVar(&f.Text, "text", "", "only jobs with this `text` in payload or error")
	fs.DurationVar(&f.Since, "since", 0, "only jobs that changed within this `time`")
	fs.IntVar(&limit, "limit", 50, "how many at most, up to 1000")
	fs.BoolVar(&all, "all", false, "all there are")
	// The error is for a flag that there is not.
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(app.Strings(jobs.States()), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a cmd) runJobList(ctx context.Context, s jobs.Service, f *rows.Filter, limit int, all bool) error {
	switch {
	case limit < 1 || limit > jobs.MaxList:
		return app.Usagef("--limit is from 1 to %d, not %d; --all shows all there are", jobs.MaxList, limit)
	case f.Since < 0:
		return app.Usagef("--since is a time such as 2h, not %v", f.Since)
	}
	q := jobs.Filter{State: jobs.State(f.State), Type: f.Type, Tag: f.Tag, Limit: limit}
	if err := q.Validate(); err != nil {
		return err
	}
	looks := f.Lock+f.Worker+f.Text != "" || f.Since > 0 // the server does not, for these
	if all || looks {
		q.Limit = jobs.MaxList
	}
	list := func() (jobs.Page, error) {
		p, err := s.List(ctx, q)
		if n := len(p.Jobs); n > 0 && f.Since > 0 && p.Now.Sub(p.Jobs[n-1].Job.UpdatedAt) > f.Since {
			p.Next = "" // those that follow changed earlier still
		}
		p.Jobs = slices.DeleteFunc(p.Jobs, func(v jobs.View) bool { return !f.Matches(&v, p.Now) })
		return p, err
	}
	p, err := list()
	for more := p; err == nil && (all || looks && len(p.Jobs) < limit) && more.Next != ""; {
		q.After = more.Next
		if more, err = list(); err == nil {
			p.Jobs, p.Next = append(p.Jobs, more.Jobs...), more.Next
		}
	}
	more := p.Next != ""
	if !all && len(p.Jobs) > limit {
		p.Jobs, more = p.Jobs[:limit], true
	}
	locks, _ := a.Client() // which serves the jobs, too
	switch {
	case err != nil:
		return err
	case a.JSON:
		return a.printDocument(httpapi.PageDocument(&p))
	case len(p.Jobs) == 0:
		a.Tell("no such jobs")
		return nil
	}
	holder := rows.Holders(ctx, locks, func(string) bool { return true })
	table := [][]string{{"ID", "STATE", "TYPE", "PRIORITY", "UNITS", "AGE", "ATTEMPT", "WORKER", "NOTE"}}
	for i := range p.Jobs {
		v := &p.Jobs[i]
		r := rows.OfJob(v, holder)
		table = append(table, []string{
			r.ID, string(r.State), r.Type, string(r.Priority), strconv.Itoa(v.Job.Units), app.Short(v.Age),
			fmt.Sprintf("%d/%d", r.Attempt, r.Attempts), r.Worker, r.Note(),
		})
	}
	if more {
		a.Tell("there are more: see them with --all or a higher --limit")
	}
	return a.Table(table)
}

func newJobShow(a cmd) *cobra.Command {
	return a.command("show", oneJob, func(ctx context.Context, s jobs.Service, args []string) error {
		v, err := s.Get(ctx, args[0])
		if err != nil {
			return about(args[0], err)
		}
		doc, err := httpapi.JobDocument(&v)
		if a.JSON || err != nil {
			return a.printDocument(doc, err)
		}
		text, err := app.DetailsOf(doc)
		return errors.Join(err, a.Write(text))
	})
}

// statsTable is what became of jobs, by type.
func statsTable(s jobs.Stats) [][]string {
	rows := [][]string{{"TYPE", "ENDED", "COMPLETED", "FAILED", "EXPIRED", "CANCELLED", "SUCCESS", "AVG WAIT", "P95 RUNTIME"}}
	row := func(name string, t jobs.Totals) {
		n := func(s jobs.State) string { return strconv.FormatInt(t.ByState[s], 10) }
		rows = append(rows, []string{
			name, strconv.FormatInt(t.Total, 10), n(jobs.Completed), n(jobs.Failed), n(jobs.Expired), n(jobs.Cancelled),
			fmt.Sprintf("%.1f%%", t.SuccessRate*100), app.Short(t.AvgWait), app.Short(t.P95Runtime),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(s.ByType)) {
		row(name, s.ByType[name])
	}
	row("all", s.Totals)
	return rows
}
