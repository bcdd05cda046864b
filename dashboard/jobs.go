package dashboard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/quote"
	"github.com/lokt-dev/lokt/internal/rows"
	"github.com/lokt-dev/lokt/jobs"
)

// jobCounts are how many jobs there are, as the scheduler keeps count.
type jobCounts struct {
	jobs.Snapshot
	Workers int `json:"workers"`
}

func (v *visit) jobCounts() (*jobCounts, error) {
	s, err := v.Jobs.Status(v.r.Context())
	if err != nil {
		return nil, err
	}
	all, err := v.Jobs.Workers(v.r.Context())
	return &jobCounts{s, len(all)}, err
}

// filter returns which jobs the request is about.
func (v *visit) filter() (f rows.Filter, err error) {
	q := func(name string) string { return strings.TrimSpace(v.r.FormValue(name)) }
	f = rows.Filter{State: q("state"), Text: q("q")}
	f.Type, f.Tag, f.Lock, f.Worker = v.r.FormValue("type"), v.r.FormValue("tag"), v.r.FormValue("lock"), v.r.FormValue("worker") // whose blanks count
	if f.State != "" && !slices.Contains(jobs.States(), jobs.State(f.State)) {
		err = fmt.Errorf("%w: %q is no state of a job", lokt.ErrInvalid, f.State)
	}
	if since := q("since"); since != "" {
		var bad error
		if f.Since, bad = time.ParseDuration(since); bad != nil || f.Since <= 0 {
			err = fmt.Errorf("%w: %q is no duration such as 90s, 15m or 2h", lokt.ErrInvalid, since)
		}
	}
	return f, err
}

// query is the filter as the query of a URL.
func query(f *rows.Filter) url.Values {
	q := url.Values{}
	for name, value := range map[string]string{
		"state": f.State, "type": f.Type, "tag": f.Tag, "lock": f.Lock, "worker": f.Worker, "q": f.Text,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if f.Since > 0 {
		q.Set("since", f.Since.String())
	}
	return q
}

// flags is the filter as flags of a command about jobs.
func flags(f *rows.Filter) (line string) {
	q := query(f)
	for _, name := range slices.Sorted(maps.Keys(q)) {
		line += " --" + strings.Replace(name, "q", "text", 1) + " " + quote.Word(q.Get(name))
	}
	return line
}

// holders returns who has which lock, of those that the person may see.
func (v *visit) holders() func(lock string) string {
	return rows.Holders(v.r.Context(), v.Locks, func(lock string) bool { return v.May(Read, lock) })
}

// jobsBody is the JSON twin of the list of jobs.
type jobsBody struct {
	Counts *jobCounts   `json:"status"`
	Jobs   []rows.Job   `json:"jobs"`
	Next   string       `json:"next,omitzero"` // the page with older ones
	Looked int          `json:"looked_at"`     // how many jobs were looked through
	Runs   []runBody    `json:"runs"`          // actions on many that have not ended
	Filter rows.Filter  `json:"-"`
	States []jobs.State `json:"-"`
	Query  string       `json:"-"`
}

func (d *Dashboard) jobs(v *visit) (*page, error) {
	f, err := v.filter()
	if err != nil {
		return nil, err
	}
	b := jobsBody{Runs: d.runs.underWay(), Filter: f, States: jobs.States(), Jobs: []rows.Job{}, Query: query(&f).Encode()}
	if b.Counts, err = v.jobCounts(); err != nil {
		return nil, err
	}
	holders := v.holders()
	after, looked, err := rows.Find(v.r.Context(), d.Jobs, &f, v.r.FormValue("after"), func(j *jobs.View) bool {
		b.Jobs = append(b.Jobs, rows.OfJob(j, holders))
		return len(b.Jobs) < perPage
	})
	if err != nil {
		return nil, err
	}
	if b.Looked = looked; after != "" {
		q := query(&f)
		q.Set("after", after)
		b.Next = "/jobs?" + q.Encode()
	}
	return &page{Title: "Jobs", Line: "lokt job list" + flags(&f), Body: b}, nil
}

// jobBody is the JSON twin of the page of one job.
type jobBody struct {
	rows.Job
	Units    int            `json:"requested_units"`
	Tags     []string       `json:"tags,omitempty"`
	Payload  jsontext.Value `json:"payload"`
	Output   *jobs.Report   `json:"output,omitzero"`
	Log      []jobs.Piece   `json:"log"` // the last that was printed
	LogFrom  int64          `json:"-"`   // begins so many bytes after the beginning
	Code     string         `json:"code,omitzero"`
	Cancel   bool           `json:"cancel_requested,omitzero"`
	Lease    *lease         `json:"lease,omitzero"`
	Tries    []try          `json:"attempts"`
	ReadyAt  time.Time      `json:"ready_at"`
	Cron     string         `json:"cron,omitzero"`
	Ticks    *jobs.Ticks    `json:",embed"` // of a schedule, or a job of one
	Holders  []lockOf       `json:"lock_holders,omitempty"`
	Edit     string         `json:"-"` // the payload, unless it is too long to be edited on a page
	Key      string         `json:"-"` // makes a form that is sent twice one job
	CanRetry bool           `json:"-"`
}

// lease is an active lease as people see it: without its ID, which is a secret.
type lease struct {
	Worker    string    `json:"worker_id"`
	Since     time.Time `json:"issued_at"`
	Heartbeat time.Time `json:"last_heartbeat"`
	Expires   time.Time `json:"expires_at"`
	Token     uint64    `json:"token"`
}

// try is an attempt as people see it.
type try struct {
	Number int            `json:"attempt"`
	State  jobs.State     `json:"state"`
	Worker string         `json:"worker_id"`
	Code   string         `json:"code,omitzero"`
	From   time.Time      `json:"issued_at"`
	To     time.Time      `json:"ended_at,omitzero"`
	Token  uint64         `json:"token"`
	Error  jsontext.Value `json:"error,omitzero"`
}

// lockOf is a lock that the job needs, and who has it.
type lockOf struct {
	Name string `json:"name"`
	Who  string `json:"holder,omitzero"`
}

func (d *Dashboard) get(v *visit) (jobs.View, error) {
	id := v.r.PathValue("id")
	if !jobs.PossibleID(id) {
		return jobs.View{}, jobs.ErrJobNotFound
	}
	return d.Jobs.Get(v.r.Context(), id)
}

func (d *Dashboard) job(v *visit) (*page, error) {
	j, err := d.get(v)
	if err != nil {
		return nil, err
	}
	holders := v.holders()
	b := jobBody{
		Job: rows.OfJob(&j, holders), Units: j.Job.Units, Tags: j.Job.Tags, Payload: j.Job.Payload, Output: j.Job.Output, Code: j.Job.Code,
		Cancel: j.Job.Cancel, ReadyAt: j.Job.ReadyAt, Cron: j.Job.Extras().Cron, Ticks: j.Job.Extras().Ticks, Tries: []try{}, CanRetry: j.Job.State.Ended(),
	}
	if b.Key = rand.Text(); len(j.Job.Payload) <= mostShown {
		b.Edit = editable(j.Job.Payload)
	}
	if l := j.Lease; l != nil {
		b.Lease = &lease{l.WorkerID, l.IssuedAt, l.LastHeartbeat, l.ExpiresAt, l.Token}
	}
	for _, a := range j.Attempts {
		b.Tries = append(b.Tries, try{a.Number, a.State, a.WorkerID, a.Code, a.IssuedAt, a.EndedAt, a.Token, a.Error})
	}
	o, err := d.Jobs.Output(v.r.Context(), j.Job.ID, 0)
	if err != nil {
		return nil, err
	}
	b.Log, b.LogFrom = lastPrinted(o.Pieces)
	for _, name := range j.Job.Locks {
		b.Holders = append(b.Holders, lockOf{name, holders(name)})
	}
	return &page{Title: "Job " + j.Job.ID, Line: "lokt job show " + j.Job.ID, Body: b}, nil
}

// mostPrinted is how much of a job's output is shown, in bytes.
const mostPrinted = 12 << 10

// lastPrinted returns the last of an output, a piece for each attempt unless something is missing, and how many bytes were
// before.
func lastPrinted(all []jobs.Piece) ([]jobs.Piece, int64) {
	last := []jobs.Piece{}
	for left := mostPrinted; len(all) > 0 && left > 0; all = all[:len(all)-1] {
		p := all[len(all)-1]
		end, over := p.End(), max(len(p.Text)-left, 0)
		left -= len(p.Text)
		p.Text = strings.ToValidUTF8(p.Text[over:], "")
		p.Offset = end - int64(len(p.Text))
		if len(last) > 0 && last[0].Attempt == p.Attempt && p.End() == last[0].Offset {
			p.Text += last[0].Text
			last = last[1:]
		}
		last = slices.Insert(last, 0, p)
	}
	if len(last) == 0 {
		return last, 0
	}
	return last, last[0].Offset
}

func (d *Dashboard) cancel(v *visit) (string, error) {
	j, err := d.get(v)
	if err != nil {
		return "", err
	}
	if err := v.need(Submit, j.Job.Tags...); err != nil {
		return "", err
	}
	_, err = d.Jobs.Cancel(v.r.Context(), j.Job.ID, v.reason())
	return "/jobs/" + j.Job.ID, err
}

// reason is why the person does what is done, with the name.
func (v *visit) reason() string {
	by := "by " + cmp.Or(v.Who(), "somebody")
	if !wantsJSON(v.r) {
		by += " on the dashboard"
	}
	if text := strings.TrimSpace(v.r.PostFormValue("reason")); text != "" {
		return text + " (" + by + ")"
	}
	return by
}

// retry submits the job again, as a new one, maybe with another payload.
func (d *Dashboard) retry(v *visit) (string, error) {
	j, err := d.get(v)
	if err != nil {
		return "", err
	}
	if !j.Job.State.Ended() {
		return "", fmt.Errorf("%w: job %s has not ended, it is %s", lokt.ErrInvalid, j.Job.ID, j.Job.State)
	}
	spec := j.Job.Again()
	if key := v.r.PostFormValue("key"); key != "" {
		spec.IdempotencyKey = "dashboard-" + key
	}
	if edited := strings.TrimSpace(v.r.PostFormValue("payload")); edited != "" {
		spec.Payload = jsontext.Value(edited)
		if !spec.Payload.IsValid() || spec.Payload.Kind() != '{' {
			return "", fmt.Errorf("%w: the payload is no JSON object", lokt.ErrInvalid)
		}
	}
	if err := cmp.Or(v.need(Submit, spec.Tags...), v.mayLock(spec.Locks)); err != nil {
		return "", err
	}
	got, err := d.Jobs.Submit(v.r.Context(), []jobs.Spec{spec})
	if errors.Is(err, jobs.ErrConflict) { // the form was sent, changed and sent again
		err = fmt.Errorf("%w: this form was sent with another payload: open the page of job %s anew to submit one more", err, j.Job.ID)
	}
	if err != nil {
		return "", err
	}
	return "/jobs/" + got[0].JobID, nil
}

// mayLock returns an error unless the person may have the locks taken.
func (v *visit) mayLock(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return v.need(Lock, names...)
}

// revoke ends the lease that the person saw, and none that was given out since.
func (d *Dashboard) revoke(v *visit) (string, error) {
	if err := v.need(Admin); err != nil {
		return "", err
	}
	j, err := d.get(v)
	if err != nil {
		return "", err
	}
	if seen := v.r.PostFormValue("token"); j.Lease == nil || seen != "" && seen != fmt.Sprint(j.Lease.Token) {
		return "", fmt.Errorf("%w: what was shown has ended, and nothing was done", jobs.ErrLeaseNotFound)
	}
	return "/jobs/" + j.Job.ID, d.Jobs.Revoke(v.r.Context(), j.Lease.ID, v.reason())
}

func (d *Dashboard) freezeType(v *visit) (string, error) { return v.setType(d.Jobs.Freeze) }

func (d *Dashboard) unfreezeType(v *visit) (string, error) { return v.setType(d.Jobs.Unfreeze) }

func (v *visit) setType(set func(ctx context.Context, jobType string) error) (string, error) {
	if err := v.need(Admin); err != nil {
		return "", err
	}
	return "/jobs", set(v.r.Context(), strings.TrimSpace(v.r.PostFormValue("type")))
}

// workersBody is the JSON twin of the list of workers.
type workersBody struct {
	Counts  *jobCounts          `json:"status"`
	Workers []jobs.WorkerStatus `json:"workers"`
	Pages   pages               `json:"pages"`
}

func (d *Dashboard) workers(v *visit) (*page, error) {
	all, err := d.Jobs.Workers(v.r.Context())
	if err != nil {
		return nil, err
	}
	b := workersBody{}
	if b.Counts, err = v.jobCounts(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(x, y jobs.WorkerStatus) int { return cmp.Compare(y.Leases, x.Leases) })
	b.Workers, b.Pages = paged(v, all)
	return &page{Title: "Workers", Line: "lokt job workers", Body: b}, nil
}

// failure is a group of jobs that failed alike.
type failure struct {
	Type  string    `json:"type"`
	Error string    `json:"error"` // the first line
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
	Job   string    `json:"last_job_id"`
	URL   string    `json:"url"`
}

// failuresBody is the JSON twin of the page of failures.
type failuresBody struct {
	Groups []failure `json:"groups"`
	Looked int       `json:"looked_at"`
	More   bool      `json:"more,omitzero"` // there are older ones that were not looked at
}

// mostFailures is how many failed jobs are grouped, for each of the states.
const mostFailures = 5000

func (d *Dashboard) failures(v *visit) (*page, error) {
	b := failuresBody{Groups: []failure{}}
	groups := map[[2]string]*failure{}
	for _, state := range []jobs.State{jobs.Failed, jobs.Expired} {
		n := 0
		next, looked, err := rows.Find(v.r.Context(), d.Jobs, &rows.Filter{State: string(state)}, "", func(j *jobs.View) bool {
			line := rows.FirstLine(&j.Job)
			g := groups[[2]string{j.Job.Type, line}]
			if g == nil {
				q := url.Values{"state": {string(state)}, "type": {j.Job.Type}}
				if o := j.Job.Output; o != nil && line != "" && strings.Contains(string(o.Error), line) {
					q.Set("q", line)
				}
				g = &failure{Type: j.Job.Type, Error: line, Last: j.Job.UpdatedAt, Job: j.Job.ID, URL: "/jobs?" + q.Encode()}
				groups[[2]string{j.Job.Type, line}] = g
			}
			g.Count++
			n++
			return n < mostFailures
		})
		if err != nil {
			return nil, err
		}
		b.Looked += looked
		b.More = b.More || next != ""
	}
	for _, g := range groups {
		b.Groups = append(b.Groups, *g)
	}
	slices.SortFunc(b.Groups, func(x, y failure) int { return cmp.Or(cmp.Compare(y.Count, x.Count), y.Last.Compare(x.Last)) })
	b.Groups = b.Groups[:min(len(b.Groups), perPage)]
	return &page{Title: "Failures", Line: "lokt job list --state failed", Body: b}, nil
}

// auditBody is the JSON twin of the audit log's page.
type auditBody struct {
	Events []lokt.LoggedEvent `json:"events"`
	Older  string             `json:"older,omitzero"`
	Name   string             `json:"-"`
	Owner  string             `json:"-"`
	Type   string             `json:"-"`
}

func (d *Dashboard) audit(v *visit) (*page, error) {
	if d.Events == nil {
		return nil, errors.New("this store keeps no events")
	}
	b := auditBody{Events: []lokt.LoggedEvent{}, Name: v.r.FormValue("name"), Owner: v.r.FormValue("owner"), Type: v.r.FormValue("type")}
	q := lokt.EventQuery{Name: b.Name, Owner: b.Owner, Latest: true, Limit: perPage}
	if b.Type != "" {
		q.Types = []lokt.EventType{lokt.EventType(b.Type)}
	}
	var err error
	if text := v.r.FormValue("before"); text != "" {
		if q.Before, err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, fmt.Errorf("%w: before is no number of an event", lokt.ErrInvalid)
		}
	}
	p, err := d.Events.ReadEvents(v.r.Context(), q)
	if err != nil {
		return nil, err
	}
	for _, e := range slices.Backward(p.Events) {
		if v.May(Read, e.Name) {
			e.Event = e.Public()
			b.Events = append(b.Events, e)
		}
	}
	line := "lokt audit"
	for _, flag := range []struct{ name, value string }{{"name", b.Name}, {"event", b.Type}} {
		if flag.value != "" {
			line += " --" + flag.name + " " + quote.Word(flag.value)
		}
	}
	if p.More && len(p.Events) > 0 {
		values := v.r.URL.Query()
		values.Set("before", fmt.Sprint(p.Events[0].Seq))
		b.Older = "/audit?" + values.Encode()
	}
	return &page{Title: "Audit", Line: line, Body: b}, nil
}
