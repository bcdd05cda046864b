package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/rows"
	"github.com/lokt-dev/lokt/jobs"
)

type jobSubmitOptions struct {
	jobs.Spec
	payload, runAt string // as given
	extra          jobs.Extra
	limits         []string // as given
	wait           bool
	timeout        time.Duration
}

func newJobSubmit(a cmd) *cobra.Command {
	o := jobSubmitOptions{Spec: jobs.NewSpec()}
	cmd := a.command("submit", app.NoArgs, func(ctx context.Context, s jobs.Service, _ []string) error { return a.runJobSubmit(ctx, s, o) })
	fs := cmd.Flags()
	fs.StringVar(&o.Type, "type", o.Type, "what kind of job it is: workers take the types that they are told to")
	fs.StringVar((*string)(&o.Priority), "priority", string(o.Priority), "high, normal, low or background")
	fs.IntVar(&o.Units, "units", o.Units, "units of the server's capacity that it takes while it runs")
	fs.StringVar(&o.payload, "payload", "{}", "what its worker is given: a JSON object, @`FILE` with one, or - for standard input")
	fs.StringArrayVar(&o.Tags, "tag", nil, "label; needs:X asks for a worker with the capability X; may be given several times")
	fs.BoolVar(&o.Unique, "unique", false, "only for a worker that has no other job")
	fs.StringVar(&o.IdempotencyKey, "key", "", "idempotency `key`: submitting the same again under the same key gives the same job")
	fs.IntVar(&o.MaxAttempts, "max-attempts", o.MaxAttempts, "how often it is tried in all, if it fails or its worker is lost")
	fs.DurationVar(&o.RetryBackoff, "backoff", o.RetryBackoff, "time before the second attempt, doubled before each later one")
	fs.StringVar(&o.runAt, "run-at", "", "not before: a `time` as in RFC 3339, or a duration from now")
	fs.DurationVar(&o.MaxRuntime, "max-runtime", 0, "end each attempt after this time; 0 for no limit")
	fs.StringArrayVar(&o.Locks, "lock", nil, "`NAME` of a lock that is held while the job runs; may be given several times")
	fs.StringArrayVar(&o.limits, "limit", nil, "limit on a lock that is held while the job runs: `NAME=3` at once, NAME=10/min, or NAME=3,10/min; may be given several times")
	fs.StringVar(&o.extra.Fair, "fair-key", "", "`KEY`, such as a tenant: jobs of one priority with different keys take turns")
	fs.StringArrayVar(&o.extra.After, "after", nil, "`ID` of a job that has to complete first, or this one is cancelled; may be given several times")
	fs.BoolVar(&o.extra.AfterAny, "after-any", false, "with --after: however those jobs end")
	fs.StringVar(&o.extra.Cron, "cron", "", "make it a schedule, which submits a job like it at each tick: `SPEC` as in \"30 4 * * *\", @hourly or \"CRON_TZ=Europe/Berlin 30 4 * * *\"")
	fs.BoolVar(&o.wait, "wait", false, "wait for the end, and exit as the job did")
	fs.DurationVar(&o.timeout, "timeout", 0, "with --wait: give up waiting after this long, the job goes on; 0 never does")
	return cmd
}

// spec returns the job that the options describe.
func (a cmd) spec(o jobSubmitOptions) (s jobs.Spec, err error) {
	switch s = o.Spec; {
	case o.timeout < 0:
		return s, app.Usagef("--timeout %v is negative", o.timeout)
	case o.wait && o.extra.Cron != "":
		return s, app.Usagef("a schedule has no end to wait for: leave out --wait, and see its jobs with: %s", a.jobLine("list"))
	case o.timeout > 0 && !o.wait:
		return s, app.Usagef("--timeout says how long to wait: give --wait, too")
	}
	for _, text := range o.limits {
		name, limit, err := parseLimit(text)
		if err != nil {
			return s, err
		}
		if o.extra.Limits == nil {
			o.extra.Limits = map[string]jobs.Limit{}
		}
		if _, twice := o.extra.Limits[name]; twice {
			return s, app.Usagef("--limit is given twice for %s: write both as %s=3,10/min", name, name)
		}
		if o.extra.Limits[name] = limit; !slices.Contains(s.Locks, name) {
			s.Locks = append(s.Locks, name)
		}
	}
	if len(o.extra.After)+len(o.limits)+len(o.extra.Fair+o.extra.Cron) > 0 {
		s.Extra = &o.extra
	}
	if s.Payload, err = a.payload(o.payload); err == nil && o.runAt != "" {
		s.RunAt, err = runAt(o.runAt, time.Now())
	}
	if err != nil || o.extra.Cron != "" { // time zones are the server's, too
		return s, err
	}
	return s, s.Validate(1 << 30) // the server knows its capacity
}

// parseLimit reads a limit on a lock, such as db=3,10/min.
func parseLimit(text string) (name string, l jobs.Limit, err error) {
	name, rest, given := strings.Cut(text, "=")
	for part := range strings.SplitSeq(rest, ",") {
		number, unit, rate := strings.Cut(part, "/")
		n, err := strconv.Atoi(number)
		per := map[string]time.Duration{"s": time.Second, "min": time.Minute, "h": time.Hour, "day": 24 * time.Hour}[unit]
		if !given || err != nil || n < 1 || rate && (per == 0 || l.Per > 0) || !rate && l.Slots > 0 {
			return "", l, app.Usagef(`--limit %q is none: write NAME=3 for so many at once, NAME=10/min for a rate (s, min, h, day), or both, NAME=3,10/min`, text)
		}
		if rate {
			l.Starts, l.Per = n, per
		} else {
			l.Slots = n
		}
	}
	return name, l, nil
}

// payload reads a JSON object.
func (a cmd) payload(given string) (jsontext.Value, error) {
	text, from := []byte(given), "--payload"
	var err error
	switch path, file := strings.CutPrefix(given, "@"); {
	case given == "-":
		from = "standard input"
		text, err = io.ReadAll(a.In)
	case file:
		from = path
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	text = bytes.TrimSpace(text)
	if !json.Valid(text) || !bytes.HasPrefix(text, []byte("{")) {
		return nil, app.Usagef("%s is no JSON object, such as {\"file\": \"a.png\"}", from)
	}
	return text, nil
}

// runAt reads a time, or a duration from now.
func runAt(s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(strings.TrimPrefix(s, "+")); err == nil {
		return now.Add(d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, app.Usagef("--run-at %q is neither a duration, such as 90m, nor a time, such as %s", s, now.UTC().Format(time.RFC3339))
	}
	return t, nil
}

func (a cmd) runJobSubmit(ctx context.Context, s jobs.Service, o jobSubmitOptions) error {
	spec, err := a.spec(o)
	if err != nil {
		return err
	}
	receipts, err := s.Submit(ctx, []jobs.Spec{spec})
	if err != nil {
		return err
	}
	id := receipts[0].JobID
	if !o.wait {
		if err := a.Answer(map[string]any{"job_id": id, "state": receipts[0].State}, "%s", id); err != nil {
			return fmt.Errorf("job %s is submitted: %w", id, err)
		}
		return nil
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	if app.IsTerminal(a.Err) {
		a.Tell("job %s is submitted", id)
	}
	var v jobs.View
	err = a.await(ctx, id, func() (ended bool, err error) {
		v, err = s.Get(ctx, id)
		return v.Job.State.Ended(), err
	})
	if err != nil {
		return err
	}
	return a.ended(v)
}

// Between two looks at a job whose end is waited for.
const (
	firstLook = 50 * time.Millisecond
	lastLook  = time.Second
)

// await looks at a job until it has ended. A server that is away meanwhile, or is asked too often, is asked again.
func (a cmd) await(ctx context.Context, id string, look func() (ended bool, err error)) error {
	away := false
	for pause := firstLook; ; pause = min(pause*5/4, lastLook) {
		ended, err := look()
		out := errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, httpapi.ErrRateLimited)
		switch {
		case ctx.Err() != nil:
		case err == nil && ended:
			return nil
		case out && !away:
			a.Tell("warning: trying again: %v", err)
		case err != nil && !out:
			return about(id, err)
		}
		away = out
		if !app.Pause(ctx, pause) {
			a.Tell("job %s goes on; see it with: %s", id, a.jobLine("show", id))
			return app.Exit(app.ExitBlocked)
		}
	}
}

// ended prints what came of a job, and returns an error with the exit code for it.
func (a cmd) ended(v jobs.View) error {
	j := &v.Job
	code := app.ExitOK
	if j.State != jobs.Completed {
		code = app.ExitError
		if f := failureOf(j.Output); j.State == jobs.Failed && f.Code > 0 && f.Code < 256 {
			code = f.Code
		}
	}
	switch {
	case a.JSON:
		return errors.Join(a.printDocument(httpapi.JobDocument(&v)), app.Exit(code))
	case j.State != jobs.Completed:
		a.Tell("job %s %s%s", j.ID, j.State, reasonText(j))
	case j.Output != nil && j.Output.Result != nil:
		a.Say("%s", j.Output.Result)
	}
	return app.Exit(code)
}

// reasonText says why a job ended as it did.
func reasonText(j *jobs.Job) (text string) {
	f := failureOf(j.Output)
	if f.Message == j.Code || f.Message == j.Reason {
		f.Message = ""
	}
	for _, part := range []string{rows.CodeText(j.Code), j.Reason, f.Message} {
		if part != "" {
			text += ": " + part
		}
	}
	if f.Stderr != "" {
		text += "\n" + f.Stderr
	}
	return text
}

// failureOf returns what an output says of a failure; if that is not as workers of this program say it, as a message.
func failureOf(o *jobs.Report) (f commandError) {
	if o == nil || o.Error == nil || json.Unmarshal(o.Error, &f.Message) == nil {
		return f
	}
	if json.Unmarshal(o.Error, &f) != nil || f.Message == "" {
		f.Message, f.Stderr = string(o.Error), ""
	}
	return f
}
