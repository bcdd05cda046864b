package daemon

import (
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// queued knows since when the jobs in the queue could run, to tell the oldest of each priority without looking at all.
type queued struct {
	mu    sync.Mutex
	ready map[string]time.Time // by job
	line  map[jobs.Priority]*line
}

// line are queued jobs by when they could run. Those that left stay until they are first.
type line []waitingJob

type waitingJob struct {
	id    string
	ready time.Time
}

func newQueued() *queued {
	q := &queued{}
	q.fill(nil)
	return q
}

// reset forgets everything but these jobs. It returns before it has, because nobody who starts should wait for that; whoever wants to
// know something does.
func (q *queued) reset(all []jobs.Job) {
	q.mu.Lock()
	go func() {
		defer q.mu.Unlock()
		q.fill(all)
	}()
}

// fill does what reset says. The mutex is held.
func (q *queued) fill(all []jobs.Job) {
	q.ready, q.line = make(map[string]time.Time, len(all)), map[jobs.Priority]*line{}
	for _, p := range jobs.Priorities() {
		q.line[p] = &line{}
	}
	for i := range all {
		j := &all[i]
		if j.State != jobs.Queued {
			continue
		}
		q.ready[j.ID] = j.ReadyAt
		if l := q.line[j.Priority]; l != nil {
			*l = append(*l, waitingJob{j.ID, j.ReadyAt})
		}
	}
	for _, l := range q.line {
		heap.Init(l)
	}
}

// follow applies what was stored.
func (q *queued) follow(c *jobs.Changes) {
	if len(c.Jobs) == 0 && len(c.Ended) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range c.Jobs {
		q.note(&c.Jobs[i].Job)
	}
	for i := range c.Ended {
		delete(q.ready, c.Ended[i].ID)
	}
	for _, l := range q.line {
		if l.Len() > 2*len(q.ready)+1000 { // mostly jobs that have left
			*l = slices.DeleteFunc(*l, func(w waitingJob) bool { return !q.waits(w) })
			heap.Init(l)
		}
	}
}

// waits reports whether the job is still queued. The mutex is held.
func (q *queued) waits(w waitingJob) bool {
	since, in := q.ready[w.id]
	return in && since.Equal(w.ready)
}

// note keeps a job, or forgets it if it is not queued. The mutex is held.
func (q *queued) note(j *jobs.Job) {
	if j.State != jobs.Queued {
		delete(q.ready, j.ID)
		return
	}
	if q.waits(waitingJob{j.ID, j.ReadyAt}) {
		return
	}
	q.ready[j.ID] = j.ReadyAt
	if l := q.line[j.Priority]; l != nil {
		heap.Push(l, waitingJob{j.ID, j.ReadyAt})
	}
}

// age returns for how long the oldest job of the priority could have run; 0 if there is none.
func (q *queued) age(p jobs.Priority, now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.line[p]
	for l.Len() > 0 {
		if first := (*l)[0]; q.waits(first) {
			return max(now.Sub(first.ready), 0)
		}
		heap.Pop(l)
	}
	return 0
}

func (l *line) Len() int           { return len(*l) }
func (l *line) Less(i, j int) bool { return (*l)[i].ready.Before((*l)[j].ready) }
func (l *line) Swap(i, j int)      { (*l)[i], (*l)[j] = (*l)[j], (*l)[i] }
func (l *line) Push(x any)         { *l = append(*l, x.(waitingJob)) }
func (l *line) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}
