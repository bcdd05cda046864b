package engine

import (
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// NewJob is a job to be queued, under the ID that it will have.
type NewJob struct {
	jobs.Spec
	ID string
}

// Submit queues jobs, all of them or none. A job that is larger than there are units is refused, but not if it is there
// already, from when there were more. Ended says of jobs that have ended how they did: of those that Unknown asks for.
type Submit struct {
	Jobs  []NewJob
	Ended map[string]jobs.State

	known map[string]jobs.State // the same, and jobs that numbers of the list stand for
}

func (o Submit) answer(e *Engine, _ uint64) Reply {
	all, receipts := o.Jobs, make([]jobs.Receipt, len(o.Jobs))
	fresh := map[string]int{} // keys that are new with this request
	tooLarge, conflict := []int(nil), false
	for i := range all {
		n := &all[i]
		if n.Extra != nil && len(n.Extra.After) > 0 {
			o.resolve(i, receipts)
		}
		if n.IdempotencyKey != "" {
			first, twice := fresh[n.IdempotencyKey]
			old, known := e.used(n.IdempotencyKey)
			switch {
			case twice && all[first].Fingerprint() == n.Fingerprint():
				receipts[i] = jobs.Receipt{JobID: all[first].ID, State: n.state()}
				continue
			case twice, known && old.Print != n.Fingerprint():
				conflict = true
			case known:
				receipts[i] = jobs.Receipt{JobID: old.JobID, State: old.State}
				continue
			default:
				fresh[n.IdempotencyKey] = i
			}
		}
		if n.Units > e.cfg.Total {
			tooLarge = append(tooLarge, i)
		}
	}
	switch {
	case len(tooLarge) > 0:
		return Reply{Err: jobs.TooLargeError(tooLarge, e.cfg.Total)}
	case conflict:
		return Reply{Err: jobs.ErrConflict}
	}
	if err := o.unknown(e, receipts); err != nil {
		return Reply{Err: err}
	}
	for i := range all {
		if receipts[i].JobID == "" {
			o.afterEnded(e, &all[i])
			e.addJob(&all[i])
			receipts[i] = jobs.Receipt{JobID: all[i].ID, State: all[i].state()}
		}
	}
	return Reply{Result: receipts}
}

// addJob queues a new job, or has it wait for its first tick.
func (e *Engine) addJob(n *NewJob) {
	e.Seq++
	e.tick()
	en := &entry{Record: &jobs.Record{Job: jobs.Job{
		Spec: n.Spec, ID: n.ID, State: n.state(), CreatedAt: e.Now.Wall, ReadyAt: e.Now.Wall, Seq: e.Seq,
		Ord: place(e.Clock, n.Priority, e.cfg.AgeingStep),
	}}}
	j := &en.Job
	if !j.RunAt.IsZero() {
		j.RunAt = j.RunAt.UTC().Truncate(time.Millisecond)
		if j.RunAt.After(e.Now.Wall) {
			j.ReadyAt = j.RunAt
		}
	}
	if j.State == jobs.Scheduled {
		e.begun(en)
	}
	if len(j.Payload) == 0 {
		j.Payload = []byte("{}")
	}
	e.jobs[j.ID] = en
	e.touch(en)
	e.note(en, jobs.Event{Type: jobs.EventSubmit})
	if j.IdempotencyKey != "" {
		e.keys[j.IdempotencyKey] = en
	}
	e.queue(en, 0, true)
}

// used returns what an idempotency key was used for.
func (e *Engine) used(key string) (jobs.Memo, bool) {
	if en := e.keys[key]; en != nil {
		return jobs.Memo{JobID: en.ID, Print: en.Fingerprint(), State: en.State}, true
	}
	m := e.recall(keyMemo(key))
	if m == nil {
		return jobs.Memo{}, false
	}
	return m.Memo, true
}
