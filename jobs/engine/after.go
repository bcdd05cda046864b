package engine

// Jobs that run after others. Until those have ended they stand in no line. What is stored is only whom they run after:
// a job that does not live any more has ended, and completed unless it is among those that failed.

import (
	"maps"
	"slices"

	"github.com/lokt-dev/lokt/jobs"
)

// failure is a job that did not complete, and has jobs after it that are not cancelled yet.
type failure struct {
	id     string
	state  jobs.State
	left   []*entry
	stored bool // as a memo, because not all could be cancelled in the turn in which it ended
}

// failureLife is for how long it is remembered that there are jobs to be cancelled: until that is done.
const failureLife = jobs.MaxDuration

func (f *failure) memo() jobs.Memo {
	return jobs.Memo{ID: "after " + f.id, JobID: f.id, State: f.state}
}

// obstacle returns the first job in the way of one that runs after others, or an empty ID.
func (e *Engine) obstacle(en *entry) string {
	if en.Extra == nil {
		return ""
	}
	for _, id := range en.Extra.After {
		if e.jobs[id] != nil || e.failed[id] != nil && !en.Extra.AfterAny {
			return id
		}
	}
	return ""
}

// await has a job looked at when one that it runs after has ended.
func (e *Engine) await(en *entry) {
	for _, id := range en.Extra.After {
		if f := e.failed[id]; f != nil && !en.Extra.AfterAny {
			f.left = append(f.left, en)
		} else if e.jobs[id] != nil {
			if e.followers[id] == nil {
				e.followers[id] = map[uint64]*entry{}
			}
			e.followers[id][en.Seq] = en
		}
	}
}

// unfollow forgets that a job which has ended was to run after others.
func (e *Engine) unfollow(en *entry) {
	for _, id := range en.Extra.After {
		if delete(e.followers[id], en.Seq); len(e.followers[id]) == 0 {
			delete(e.followers, id)
		}
	}
}

// followed queues the jobs that nothing is in the way of any more now that one has ended and been dropped, and notes those that
// are to be cancelled because it did not complete.
func (e *Engine) followed(ended *jobs.Job) {
	all := e.followers[ended.ID]
	delete(e.followers, ended.ID)
	for _, seq := range slices.Sorted(maps.Keys(all)) {
		switch en := all[seq]; {
		case ended.State != jobs.Completed && !en.Extra.AfterAny:
			f := e.fail(ended.ID, ended.State)
			f.left = append(f.left, en)
		case e.obstacle(en) == "":
			e.queue(en, 0, en.RunAt.After(e.Now.Wall)) // ReadyAt may be ahead if the clock was set back
		}
	}
}

// fail returns the failure of a job.
func (e *Engine) fail(id string, s jobs.State) *failure {
	f := e.failed[id]
	if f == nil {
		f = &failure{id: id, state: s}
		e.failed[id] = f
		e.failures = append(e.failures, f)
	}
	return f
}

// cascade cancels the jobs that were to run after those that failed, and what was to run after these. What is too much
// for this turn is stored as to be done.
func (e *Engine) cascade() {
	for ; len(e.failures) > 0; e.failures = e.failures[1:] {
		f := e.failures[0]
		for ; len(f.left) > 0; f.left = f.left[1:] {
			en := f.left[0]
			if e.jobs[en.ID] != en || en.Lease != nil {
				continue // it has ended meanwhile
			}
			if e.full() {
				e.postpone()
				return
			}
			en.Reason = "it was to run after job " + f.id + ", which is " + string(f.state)
			e.endJob(en, jobs.Cancelled, jobs.Event{Code: jobs.CodeAfter})
		}
		delete(e.failed, f.id)
		if f.stored {
			e.remember(f.memo(), 0)
		}
	}
}

// postpone has failures stored.
func (e *Engine) postpone() {
	for _, f := range e.failures {
		if !f.stored {
			f.stored = true
			e.remember(f.memo(), failureLife)
		}
	}
}

// followAfter takes in failures that were stored, and has jobs wait for those that they run after, once all of what was
// stored is known.
func (e *Engine) followAfter(c *jobs.Changes) {
	for _, m := range c.Memos {
		if f := (failure{id: m.JobID, state: m.State, stored: true}); m.ID == f.memo().ID && m.Expires.After(e.Now.Wall) {
			e.fail(f.id, f.state).stored = true
		}
	}
	for _, r := range c.Jobs {
		if r.Extra == nil {
			continue
		}
		if en := e.jobs[r.ID]; en != nil && en.line == nil && en.waitsIn == nil {
			e.wait(en)
		}
	}
}

// awaits tells about a job that another waits for.
func (e *Engine) awaits(id string) *jobs.Awaits {
	en := e.jobs[id]
	if en == nil {
		return nil // and what waits for it is about to be cancelled
	}
	since := en.CreatedAt
	if en.Lease != nil {
		since = en.Lease.IssuedAt
	}
	return &jobs.Awaits{JobID: id, State: en.State, Since: since}
}

// Unknown is the error of a Submit that names jobs which do not live, and of which it does not say that they ended.
type Unknown struct{ Places []Place }

// Place is where a job is named that another is to run after.
type Place struct {
	ID        string
	Job, Name int // indexes of the job and of the name
}

func (*Unknown) Error() string { return "a job to run after is not known" }

// resolve puts IDs in place of the numbers of jobs of the same list, of which those before i have been looked at, and notes
// how these stand.
func (o *Submit) resolve(i int, receipts []jobs.Receipt) {
	if o.known == nil {
		o.known = map[string]jobs.State{}
		maps.Copy(o.known, o.Ended)
	}
	for k, id := range o.Jobs[i].Extra.After {
		n, listed := jobs.Listed(id)
		if !listed {
			continue
		}
		r := receipts[n]
		if r.JobID == "" {
			r = jobs.Receipt{JobID: o.Jobs[n].ID, State: o.Jobs[n].state()}
		}
		o.Jobs[i].Extra.After[k], o.known[r.JobID] = r.JobID, r.State
	}
}

// unknown returns an error if new jobs name some that are neither of the list, nor live, nor are known to have ended.
func (o *Submit) unknown(e *Engine, receipts []jobs.Receipt) error {
	var places []Place
	for i := range o.Jobs {
		if o.Jobs[i].Extra == nil || receipts[i].JobID != "" {
			continue
		}
		for k, id := range o.Jobs[i].Extra.After {
			if e.jobs[id] == nil && o.known[id] == "" {
				places = append(places, Place{id, i, k})
			}
		}
	}
	if places == nil {
		return nil
	}
	return &Unknown{places}
}

// afterEnded notes the jobs that a new one is to run after and that have not completed.
func (o *Submit) afterEnded(e *Engine, n *NewJob) {
	for _, id := range n.Extras().After {
		if s := o.known[id]; s.Ended() && s != jobs.Completed && !n.Extra.AfterAny {
			e.fail(id, s)
		}
	}
}
