package engine

// Schedules: jobs that are never leased. When its tick has come, a schedule submits a copy of itself and moves on to the next
// tick in the same turn, so that there is one run for it, whoever dies.

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// state returns that of the job when it is submitted.
func (n *NewJob) state() jobs.State {
	if n.Extras().Cron != "" {
		return jobs.Scheduled
	}
	return jobs.Queued
}

// begun has a new schedule wait for the first tick after now that is not before its RunAt.
func (e *Engine) begun(en *entry) {
	if c, err := jobs.ParseCron(en.Extra.Cron); err == nil { // it was checked
		next := c.Next(e.Now.Wall)
		if en.RunAt.After(next) {
			next = c.Next(en.RunAt.Add(-time.Millisecond))
		}
		en.ReadyAt, en.ticks().Next = next, next
	}
}

// ticks returns what is kept of a schedule or a run, to be changed: nobody else has it.
func (en *entry) ticks() *jobs.Ticks {
	t := jobs.Ticks{}
	if en.Extras().Ticks != nil {
		t = *en.Extra.Ticks
	}
	en.Extra = new(en.Extras())
	en.Extra.Ticks = &t
	return &t
}

// run submits a schedule's job for the last tick that has come, however many have, unless the job before has not ended.
func (e *Engine) run(en *entry) {
	c, err := jobs.ParseCron(en.Extra.Cron)
	if err != nil { // here the time zone is not known
		en.Reason = err.Error()
		e.endJob(en, jobs.Failed, jobs.Event{Code: jobs.CodeFailed})
		return
	}
	tick, t := c.Last(en.ReadyAt, e.Now.Wall), en.ticks()
	if e.jobs[t.LastRun] != nil {
		t.Skipped++
		e.note(en, jobs.Event{Type: jobs.EventSkip, Reason: "job " + t.LastRun + " has not ended"})
	} else {
		id := sha256.Sum256(fmt.Append(nil, en.ID, tick.UnixMilli()))
		n := NewJob{Spec: en.Again(), ID: fmt.Sprintf("%012x%x", tick.UnixMilli(), id[:10])}
		n.Extra.Cron, n.Extra.Ticks = "", &jobs.Ticks{Schedule: en.ID, Tick: tick}
		e.addJob(&n)
		t.Last, t.LastRun, t.Skipped = tick, n.ID, 0
	}
	t.Next = c.Next(tick)
	en.ReadyAt = t.Next
	e.touch(en)
	e.queue(en, 0, true)
}
