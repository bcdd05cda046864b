package jobs

import (
	"runtime"
	"time"
)

// A turn waits for requests for gatherTime at the longest, of which systems with coarse timers may make a millisecond, and only after a
// turn that answered so many that one more turn costs more than that.
const (
	gatherTime = 500 * time.Microsecond
	gatherFrom = 5
)

// gather lets those who are about to ask for something be in time for this turn: those who were answered by the last one often are,
// and what it costs to store a turn hardly depends on how many have a part in it. Where there are few, nobody waits.
func (m *Manager) gather() {
	runtime.Gosched()
	if m.answered < gatherFrom {
		return
	}
	m.mu.Lock()
	if len(m.queue) >= m.answered {
		m.mu.Unlock()
		return
	}
	m.want = m.answered
	m.mu.Unlock()
	late := time.NewTimer(gatherTime)
	defer late.Stop()
	select {
	case <-m.enough:
		return
	case <-late.C:
	case <-m.ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.want == 0 { // just now
		<-m.enough
	}
	m.want = 0
}

// turnWeight bounds what a turn takes in, so that no more has to be stored as one step, and written to tables, than takes a moment,
// however many ask at once. Weight is about how many rows there are to be written, and a kilobyte counts as one more. The payload of a job is stored
// again with whatever happens to it, so a request that concerns one counts for some.
const (
	turnWeight = 4096
	jobWeight  = 16
)

func (o submitOp) weight() (n int) {
	for i := range o.jobs {
		n += 1 + len(o.jobs[i].Tags) + len(o.jobs[i].Payload)>>10
	}
	return n
}

func (o askOp) weight() int      { return jobWeight }
func (o beatOp) weight() int     { return jobWeight + len(o.Checkpoint)>>10 }
func (o reportOp) weight() int   { return jobWeight + len(o.Metrics)>>10 }
func (o completeOp) weight() int { return jobWeight + (len(o.Result)+len(o.Error))>>10 }

// mostMoved is how many bytes of jobs a turn grants or takes back, which much may make possible or necessary at one moment: a type that is no longer
// frozen, or workers that are all gone. A job counts for moveWeight more than what it has been given.
const (
	mostMoved  = 8 << 20
	moveWeight = 1 << 10
)

// move takes note of a job that is granted or taken back.
func (e *engine) move(j *Job) {
	e.moved += moveWeight + len(j.Payload)
	if o := j.Output; o != nil {
		e.moved += len(o.Checkpoint) + len(o.Metrics) + len(o.Result) + len(o.Error)
	}
}

// full reports whether what else is to be moved is left to the next turn, which is due at once.
func (e *engine) full() bool {
	e.more = e.more || e.moved >= mostMoved
	return e.more
}

// take takes from the queue what is for this turn: the oldest, and one at least.
func (m *Manager) take() []*call {
	n, weight := 0, 0
	for n < len(m.queue) {
		w := 1
		if o, ok := m.queue[n].op.(interface{ weight() int }); ok {
			w = o.weight()
		}
		if weight += w; n > 0 && weight > turnWeight {
			break
		}
		n++
	}
	batch := m.queue[:n:n]
	if m.queue = m.queue[n:]; len(m.queue) == 0 {
		m.queue = nil
	}
	return batch
}
