package job

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/jobs"
)

type jobListOptions struct {
	state, jobType, tag string
	limit               int
	all                 bool
}

func newJobList(a cmd) *cobra.Command {
	var o jobListOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List jobs, and why those that are queued wait",
		Long: "List jobs, the newest change first. Of a job that is queued it says why: there is no capacity, no worker that takes it,\n" +
			"a lock that it names is held, its time has not come, and so on.",
		Example: "  lokt job list --state queued\n  lokt job list --type build --all --json",
		Args:    app.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runJobList(cmd.Context(), o) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.state, "state", "", "only jobs in this state: queued, leased, running, completed, failed, expired or cancelled")
	fs.StringVar(&o.jobType, "type", "", "only jobs of this type")
	fs.StringVar(&o.tag, "tag", "", "only jobs with this tag")
	fs.IntVar(&o.limit, "limit", 50, "how many at most, up to 1000")
	fs.BoolVar(&o.all, "all", false, "all there are")
	// The error is for a flag that there is not.
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(app.Strings(jobs.States()), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a cmd) runJobList(ctx context.Context, o jobListOptions) error {
	f := jobs.Filter{Limit: o.limit, State: jobs.State(o.state), Type: o.jobType, Tag: o.tag}
	switch {
	case o.limit < 1 || o.limit > jobs.MaxList:
		return app.Usagef("--limit is from 1 to %d, not %d; --all shows all there are", jobs.MaxList, o.limit)
	case o.all:
		f.Limit = jobs.MaxList
	}
	if err := f.Validate(); err != nil {
		return a.jobsError(err)
	}
	s, err := a.jobsService()
	if err != nil {
		return err
	}
	p, err := s.List(ctx, f)
	for more := p; err == nil && o.all && more.Next != ""; {
		f.After = more.Next
		if more, err = s.List(ctx, f); err == nil {
			p.Jobs, p.Next = append(p.Jobs, more.Jobs...), more.Next
		}
	}
	if err != nil {
		return a.jobsError(err)
	}
	if a.JSON {
		return a.printDocument(httpapi.PageDocument(&p))
	}
	if len(p.Jobs) == 0 {
		a.Tell("no such jobs")
		return nil
	}
	rows := [][]string{{"ID", "STATE", "TYPE", "PRIORITY", "UNITS", "AGE", "ATTEMPT", "WORKER", "NOTE"}}
	for i := range p.Jobs {
		rows = append(rows, jobRow(&p.Jobs[i]))
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	if p.Next != "" {
		a.Tell("there are more: see them with --all or a higher --limit")
	}
	return nil
}

func jobRow(v *jobs.View) []string {
	j := &v.Job
	worker := ""
	if v.Lease != nil {
		worker = v.Lease.WorkerID
	}
	return []string{
		j.ID, string(j.State), j.Type, string(j.Priority), strconv.Itoa(j.Units), app.Short(v.Age),
		fmt.Sprintf("%d/%d", j.Attempt, j.MaxAttempts), worker, noteText(v),
	}
}

// noteText says in a few words what is most worth knowing about a job.
func noteText(v *jobs.View) string {
	j := &v.Job
	o := j.Output
	switch {
	case v.InQueue:
		return waitingText(v)
	case j.State == jobs.Completed, j.State == jobs.Cancelled:
		return j.Reason
	case j.State.Ended():
		text := codeText(j.Code)
		if o != nil && o.Error != nil && j.Code == jobs.CodeFailed {
			text, _ = failureText(o.Error)
		}
		return text
	}
	var parts []string
	if j.Cancel {
		parts = append(parts, "is told to stop")
	}
	if o != nil && o.Progress != nil {
		parts = append(parts, fmt.Sprintf("%.0f%%", *o.Progress*100))
	}
	if o != nil && o.Message != "" {
		parts = append(parts, o.Message)
	}
	return strings.Join(parts, " ")
}

// waitingText says why a queued job is not leased.
func waitingText(v *jobs.View) string {
	what, name, _ := strings.Cut(v.WaitingFor, ":")
	at := v.Job.ReadyAt.Local().Format("2006-01-02 15:04:05")
	for _, w := range []struct{ what, text string }{
		{jobs.WaitingReserved, "waits for job " + name + ", which capacity is kept for"},
		{jobs.WaitingLock, "waits for the lock " + name},
		{jobs.WaitingCapacity, fmt.Sprintf("waits for %d units of capacity", v.Job.Units)},
		{jobs.WaitingUnique, "waits for a worker without another job"},
		{jobs.WaitingWorker, "no worker asks for it"},
		{jobs.WaitingRunAt, "waits until " + at},
		{jobs.WaitingFrozen, "jobs of its type are frozen"},
	} {
		if w.what == v.WaitingFor || w.what == what+":" {
			return w.text
		}
	}
	return v.WaitingFor
}

func newJobShow(a cmd) *cobra.Command {
	return &cobra.Command{
		Use:     "show JOB_ID",
		Short:   "Show all there is to know about a job",
		Long:    "Show all there is to know about a job: its payload, result, error and progress, and each attempt at it.",
		Example: "  lokt job show JOB_ID\n  lokt job show JOB_ID --json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return app.Usagef("one job is enough, and there are %d", len(args))
			}
			return someJobs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.jobsService()
			if err != nil {
				return err
			}
			v, err := s.Get(cmd.Context(), args[0])
			if err != nil {
				return a.jobsError(about(args[0], err))
			}
			doc, err := httpapi.JobDocument(&v)
			if a.JSON || err != nil {
				return a.printDocument(doc, err)
			}
			text, err := app.DetailsOf(doc)
			return errors.Join(err, a.Write(text))
		},
	}
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
