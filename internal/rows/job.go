package rows

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Job sums a job up.
type Job struct {
	ID       string        `json:"job_id"`
	Type     string        `json:"type"`
	State    jobs.State    `json:"state"`
	Priority jobs.Priority `json:"priority"`
	Worker   string        `json:"worker_id,omitzero"`
	Why      string        `json:"why,omitzero"`       // it waits, or ended
	WaitsFor string        `json:"waits_for,omitzero"` // the lock
	Locks    []string      `json:"locks,omitempty"`
	Attempt  int           `json:"attempt"`
	Attempts int           `json:"max_attempts"`
	Created  time.Time     `json:"created_at"`
	Updated  time.Time     `json:"updated_at"`
	Progress *float64      `json:"progress,omitzero"` // from 0 to 1
}

// OfJob sums a job up. holder tells who has a lock, or nothing; see Holders.
func OfJob(v *jobs.View, holder func(lock string) string) Job {
	j := &v.Job
	r := Job{
		ID: j.ID, Type: j.Type, State: j.State, Priority: j.Priority, Locks: j.Locks, Attempt: j.Attempt, Attempts: j.MaxAttempts,
		Created: j.CreatedAt, Updated: j.UpdatedAt,
	}
	if v.Lease != nil {
		r.Worker = v.Lease.WorkerID
	}
	r.Why, r.WaitsFor = why(v, holder)
	if o := j.Output; o != nil && j.State.Active() {
		r.Progress = o.Progress
	}
	return r
}

// Note is why the job waits or ended, or how far it is and what its worker says.
func (r *Job) Note() string {
	if r.Progress == nil {
		return r.Why
	}
	return strings.TrimSpace(fmt.Sprintf("%.0f%% %s", *r.Progress*100, r.Why))
}

// mostHolders is how many locks Holders asks for.
const mostHolders = 200

// Holders returns who has which lock, for the locks that may be read. It asks once for each, and for so many only that
// a long list stays quick.
func Holders(ctx context.Context, locks lokt.Service, may func(lock string) bool) func(lock string) string {
	known := map[string]string{}
	return func(lock string) string {
		who, asked := known[lock]
		if asked || len(known) >= mostHolders || !may(lock) {
			return who
		}
		if s, err := locks.Get(ctx, lock); err == nil && len(s.Live()) > 0 {
			who = s.Live()[0].Owner.String()
		}
		known[lock] = who
		return who
	}
}

// why says in words why the job waits, or ended, or what its worker says, and which lock it waits for.
func why(v *jobs.View, holder func(lock string) string) (text, lock string) {
	j := &v.Job
	switch what, name, _ := strings.Cut(v.WaitingFor, ":"); {
	case v.Lease != nil && v.Lease.Ahead:
		return "waits at its worker, which has not begun it", ""
	case v.WaitingFor == jobs.WaitingCapacity:
		return fmt.Sprintf("waits for %d units of capacity", j.Units), ""
	case what+":" == jobs.WaitingReserved:
		return "waits: what is free is kept for job " + name, ""
	case v.WaitingFor == jobs.WaitingUnique:
		return "waits for a worker that holds no lease", ""
	case v.WaitingFor == jobs.WaitingWorker:
		return "waits for a worker that takes it", ""
	case what+":" == jobs.WaitingLock:
		text = "waits for lock " + name
		if who := holder(name); who != "" {
			text += ", held by " + who
		}
		return text, name
	case what+":" == jobs.WaitingRate:
		text = "waits for lock " + name + ": too many jobs began"
		if a := v.Awaits; a != nil && a.Limit != nil {
			left := a.Until.Sub(j.CreatedAt.Add(v.Age)).Seconds()
			text = fmt.Sprintf("waits for lock %s: %d per %s, next in %.0f s", name, a.Limit.Starts, Per(a.Limit.Per), math.Ceil(max(left, 0)))
		}
		return text, name
	case v.WaitingFor == jobs.WaitingRunAt:
		return "waits until " + j.ReadyAt.UTC().Format("2006-01-02 15:04:05 UTC"), ""
	case what+":" == jobs.WaitingAfter:
		text = "waits for job " + name
		if a := v.Awaits; a != nil {
			text += fmt.Sprintf(" (%s since %s)", a.State, a.Since.UTC().Format("2006-01-02 15:04:05 UTC"))
		}
		return text, ""
	case v.WaitingFor == jobs.WaitingFrozen:
		return "waits: its type is frozen", ""
	}
	switch {
	case j.State == jobs.Failed, j.State == jobs.Expired:
		return FirstLine(j), ""
	case j.State.Ended():
		return j.Reason, ""
	case j.State == jobs.Scheduled:
		return nextRun(j), ""
	case !j.State.Active():
		return v.WaitingFor, ""
	}
	if j.Cancel {
		text = "is told to stop"
	}
	if o := j.Output; o != nil && o.Message != "" {
		text = strings.TrimSpace(text + " " + o.Message)
	}
	return text, ""
}

// nextRun says when a schedule runs next, and whether the last job is in its way.
func nextRun(j *jobs.Job) string {
	text := "runs next at " + j.ReadyAt.UTC().Format("2006-01-02 15:04:05 UTC")
	if t := j.Extras().Ticks; t != nil && t.Skipped > 0 {
		text += fmt.Sprintf(", unless job %s lasts until then: %d skipped", t.LastRun, t.Skipped)
	}
	return text
}

// Per names a time for rates.
func Per(d time.Duration) string {
	for name, unit := range map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour} {
		if d == unit {
			return name
		}
	}
	return d.String()
}

// FirstLine returns the first line of what is known of why a job failed.
func FirstLine(j *jobs.Job) string {
	text := ""
	if j.Output != nil && j.Code == jobs.CodeFailed {
		text = strings.TrimSpace(ErrorText(j.Output.Error))
	}
	if text == "" {
		text = cmp.Or(strings.TrimPrefix(strings.TrimSuffix(CodeText(j.Code)+": "+j.Reason, ": "), ": "), j.Code)
	}
	line, _, _ := strings.Cut(text, "\n")
	return Cut(line, 300)
}

// Cut shortens a text to that many bytes at most, and leaves out a character of which only a part would be in.
func Cut(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "")
	}
	return text
}

// CodeText says in words why a job ended, if its state does not say it already.
func CodeText(code string) string {
	return map[string]string{
		jobs.CodeRuntime: "it took longer than its maximum runtime",
		jobs.CodeRevoked: "its lease was revoked",
		jobs.CodeExpired: "its worker was not heard of in time",
	}[code]
}

// ErrorText is what a worker gave as the error: text, or an object that has some.
func ErrorText(v jsontext.Value) string {
	if len(v) == 0 {
		return ""
	}
	var text string
	if lokt.Unmarshal(v, &text) == nil {
		return text
	}
	var object map[string]jsontext.Value
	if lokt.Unmarshal(v, &object) == nil {
		for _, name := range []string{"message", "error", "stderr", "reason"} {
			if lokt.Unmarshal(object[name], &text) == nil && text != "" {
				return text
			}
		}
	}
	return string(v)
}

// Filter says which jobs are meant. What the service does not filter by is looked for among the newest.
type Filter struct {
	State, Type, Tag, Lock, Worker string
	Text                           string        // in the ID, the payload, the reason, the error or the message, in any case
	Since                          time.Duration // changed within; 0 is ever
}

// String tells people what the filter lets through.
func (f *Filter) String() string {
	var parts []string
	for _, p := range []struct{ what, value string }{
		{"state", f.State}, {"type", f.Type}, {"tag", f.Tag}, {"lock", f.Lock}, {"worker", f.Worker}, {"text", f.Text},
	} {
		if p.value != "" {
			parts = append(parts, p.what+" "+p.value)
		}
	}
	if f.Since > 0 {
		parts = append(parts, "changed within "+f.Since.String())
	}
	return cmp.Or(strings.Join(parts, ", "), "all jobs")
}

// Matches reports whether the filter lets the job through, whose state, type and tag it leaves to the service.
func (f *Filter) Matches(v *jobs.View, now time.Time) bool {
	j := &v.Job
	workers := func(a jobs.Attempt) bool { return a.WorkerID == f.Worker }
	switch {
	case f.Lock != "" && !slices.Contains(j.Locks, f.Lock):
		return false
	case f.Worker != "" && (v.Lease == nil || v.Lease.WorkerID != f.Worker) && !slices.ContainsFunc(v.Attempts, workers):
		return false
	case f.Since > 0 && now.Sub(j.UpdatedAt) > f.Since:
		return false
	case f.Text == "":
		return true
	}
	text := j.ID + "\n" + string(j.Payload) + "\n" + j.Reason
	if r := j.Output; r != nil {
		text += "\n" + string(r.Error) + "\n" + r.Message
	}
	return strings.Contains(strings.ToLower(text), strings.ToLower(f.Text))
}

// mostLists is how many pages of the service's list are looked through at once. Each of these looks at so many jobs at
// most that it keeps nobody waiting.
const mostLists = 10

// listBytes is how much there may be in a list of jobs, about, as the one before had it.
const listBytes = 8 << 20

// lister is the part of a jobs.Service that lists jobs.
type lister interface {
	List(ctx context.Context, f jobs.Filter) (jobs.Page, error)
}

// Find calls found with the jobs that the filter lets through, newest change first, until it returns false. It returns
// where to go on, and how many jobs it looked at.
func Find(ctx context.Context, s lister, f *Filter, after string, found func(*jobs.View) bool) (next string, looked int, err error) {
	q := jobs.Filter{State: jobs.State(f.State), Type: f.Type, Tag: f.Tag, Limit: jobs.DefaultList, After: after}
	for lists := 1; ; lists++ {
		p, err := s.List(ctx, q)
		if err != nil {
			return "", looked, err
		}
		size := 0
		for i := range p.Jobs {
			looked++
			j := &p.Jobs[i]
			if size += len(j.Job.Payload); j.Job.Output != nil {
				size += len(j.Job.Output.Result) + len(j.Job.Output.Error) + len(j.Job.Output.Checkpoint)
			}
			if f.Since > 0 && p.Now.Sub(j.Job.UpdatedAt) > f.Since {
				return "", looked, nil // those that follow changed earlier still
			}
			if f.Matches(j, p.Now) && !found(j) {
				return jobs.Cursor(j.Job.Revision), looked, nil
			}
		}
		if q.After = p.Next; p.Next == "" || lists == mostLists {
			return p.Next, looked, nil
		}
		q.Limit = min(max(len(p.Jobs)*listBytes/max(size, 1), 1), jobs.MaxList)
	}
}
