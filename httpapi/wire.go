package httpapi

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/jobs"
)

// The scheduler's bodies and answers, for both ends, are the types of package jobs in the form that their tags say.
// Here is what surrounds them.

// submitWire is what is submitted: a job, or a list of them.
type submitWire struct {
	Jobs *[]jobs.Spec `json:"jobs"`
	*jobs.Spec
}

// submittedWire is the answer: a receipt, or one for each of a list.
type submittedWire struct {
	*jobs.Receipt
	Jobs []jobs.Receipt `json:"jobs,omitzero"`
}

// leaseAnswerWire is a jobs.Grant: of a lease, or a denial.
type leaseAnswerWire struct {
	Denied bool `json:"denied"`
	*jobs.Denial
	Lease *jobs.Lease `json:"lease,omitzero"`
	Job   *jobs.Job   `json:"job,omitzero"`
}

// newsWire is what a worker is told of a lease.
type newsWire struct {
	OK bool `json:"ok"`
	jobs.HeartbeatAnswer
	Code string `json:"code,omitzero"` // why it is not extended
}

// batchWire is many heartbeats, batchAnswerWire the answer.
type batchWire struct {
	WorkerID string   `json:"worker_id"`
	LeaseIDs []string `json:"lease_ids"`
}

type batchAnswerWire struct {
	Leases   []leaseNewsWire `json:"leases"`
	Interval time.Duration   `json:"heartbeat_interval_s,omitzero"`
}

// leaseNewsWire is a jobs.LeaseAnswer.
type leaseNewsWire struct {
	LeaseID string `json:"lease_id"`
	newsWire
}

// reasonWire is why a job is cancelled, or a lease revoked.
type reasonWire struct {
	Reason string `json:"reason"`
}

// typeWire is a type of jobs that is frozen.
type typeWire struct {
	Type string `json:"type"`
}

// okWire says that something was done, and more where there is more.
type okWire struct {
	OK      bool       `json:"ok"`
	State   jobs.State `json:"state,omitzero"`
	Applied *bool      `json:"applied,omitzero"`
	Deleted *int       `json:"deleted,omitzero"`
	Days    int        `json:"days,omitzero"`
}

// viewWire is a jobs.View of one job with all there is to see.
type viewWire struct {
	Job         jobs.Job       `json:",embed"`
	Lease       *jobs.Lease    `json:"lease"`
	InQueue     bool           `json:"in_queue"`
	WaitingFor  string         `json:"waiting_for"`
	Awaits      *jobs.Awaits   `json:"awaits,omitzero"`
	Age         time.Duration  `json:"age_s"`
	SinceUpdate time.Duration  `json:"since_update_s"`
	Attempts    []jobs.Attempt `json:"attempts"`
}

// pageWire is a jobs.Page.
type pageWire struct {
	jobs.Page
	Queue jobs.Depths `json:"queue_depths"`
}

// workersWire lists who is known.
type workersWire struct {
	Workers []jobs.WorkerStatus `json:"workers"`
}

// statsWire is a jobs.Stats.
type statsWire struct {
	Range rangeWire `json:"range"`
	jobs.Totals
	ByType map[string]jobs.Totals `json:"by_type"`
}

// rangeWire is the time that statistics are about.
type rangeWire struct {
	Days int       `json:"days"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// filterWire is a jobs.Filter.
type filterWire struct {
	Limit *int       `json:"limit"`
	State jobs.State `json:"state"`
	Type  string     `json:"type"`
	Tag   string     `json:"tag"`
	After string     `json:"after"`
}

// endedWire says which of the jobs that ended to count.
type endedWire struct {
	State jobs.State `json:"state"`
	Type  string     `json:"type"`
}

// countWire is how many there are.
type countWire struct {
	Count int `json:"count"`
}

// fromWire says from where on to read an output.
type fromWire struct {
	From int `json:"from"`
}

// daysWire says how many days back to look.
type daysWire struct {
	Days *int `json:"days"`
}

func (q *daysWire) orDefault() int { return *cmp.Or(q.Days, new(jobs.DefaultDays)) }

func toPage(p *jobs.Page, leaseIDs bool) pageWire {
	for i := range p.Jobs {
		shown(&p.Jobs[i], leaseIDs)
	}
	return pageWire{Page: *p, Queue: p.Snapshot.Queue}
}

func toStats(s *jobs.Stats, days int) statsWire {
	return statsWire{Range: rangeWire{days, s.From, s.To}, Totals: s.Totals, ByType: s.ByType}
}

// shown makes a view that of a caller: without the numbers that are the store's own, and without lease IDs where it
// may not know them.
func shown(v *jobs.View, leaseIDs bool) *jobs.View {
	v.Job = *shownJob(&v.Job)
	if v.Lease != nil {
		v.Lease = shownLease(v.Lease)
	}
	if !leaseIDs {
		v.Job.LeaseID = ""
		if v.Lease != nil {
			v.Lease.ID = ""
		}
	}
	v.Attempts = slices.Clone(v.Attempts)
	for i := range v.Attempts {
		a := &v.Attempts[i]
		if a.JobID = ""; !leaseIDs {
			a.LeaseID = ""
		}
	}
	v.Age, v.SinceUpdate = v.Age.Truncate(time.Millisecond), v.SinceUpdate.Truncate(time.Millisecond)
	return v
}

func shownJob(j *jobs.Job) *jobs.Job {
	s := *j
	if s.Seq, s.Ord, s.Revision = 0, 0, 0; s.Output == nil {
		s.Output = &jobs.Report{}
	}
	return &s
}

func shownLease(l *jobs.Lease) *jobs.Lease {
	s := *l
	s.RequestID = ""
	return &s
}

// asRead makes a job that was read as it was: nothing said about it is no report.
func asRead(j *jobs.Job) *jobs.Job {
	if j.Output != nil && reflect.ValueOf(*j.Output).IsZero() {
		j.Output = nil
	}
	return j
}

// JobDocument returns the JSON of a job as the scheduler's answers have it.
func JobDocument(v *jobs.View) (jsontext.Value, error) {
	return form.Marshal((*viewWire)(shown(new(*v), true)))
}

// PageDocument returns the JSON of a list of jobs as the scheduler's answers have it.
func PageDocument(p *jobs.Page) (jsontext.Value, error) { return form.Marshal(toPage(p, true)) }

// StatsDocument returns the JSON of statistics of so many days as the scheduler's answers have it, with what is going
// on now as their member "status".
func StatsDocument(s *jobs.Stats, days int, now *jobs.Snapshot) (jsontext.Value, error) {
	return form.Marshal(struct {
		statsWire
		Status *jobs.Snapshot `json:"status"`
	}{toStats(s, days), now})
}
