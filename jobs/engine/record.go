package engine

import "github.com/lokt-dev/lokt/jobs"

// The record of a turn: what is to be answered, and what is to be stored.

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// record collects what comes out of turns. What heartbeats change waits there for a turn that has something to store
// anyway, up to lazyWrite.
type record struct {
	requests int // of the turn
	replies  []Reply
	orders   []LockOrder

	must      bool          // there is something that must be stored before it is answered
	lazySince time.Duration // since when there is something that may wait
	Lazy      bool

	touched    []*entry
	unsaved    []*hold
	unleased   []string
	attempts   []jobs.Attempt
	newKeys    []string
	dropped    []string
	newAnswers []jobs.Answered
	forgot     []jobs.Answered
	events     []jobs.Event
	tallies    map[tallyKey]*jobs.Tally
	counts     map[countKey]int64
	newFrozen  bool
}

type tallyKey struct {
	hour    int64
	jobType string
}

type countKey struct {
	hour  int64
	event jobs.EventType
	tag   string
}

// expect makes room for what a turn of these requests brings, and returns them.
func (e *Engine) expect(all []Call) []Call {
	e.requests = len(all)
	e.replies = slices.Grow(e.replies, len(all))
	return all
}

func (e *Engine) reply(id uint64, result any) {
	e.replies = append(e.replies, Reply{ID: id, Result: result})
}
func (e *Engine) fail(id uint64, err error) { e.replies = append(e.replies, Reply{ID: id, Err: err}) }

func (e *Engine) answer(id uint64, result any, err error) {
	if err != nil {
		result = nil
	}
	e.replies = append(e.replies, Reply{id, result, err})
}

// touch notes that parts of a job changed, and stores them with this turn.
func (e *Engine) touch(en *entry, what jobs.What) {
	e.must = true
	e.mark(en, what)
}

// touchLazily notes that parts of a job changed, and stores them with a later turn.
func (e *Engine) touchLazily(en *entry, what jobs.What) {
	e.laze()
	e.mark(en, what)
}

func (e *Engine) laze() {
	if !e.Lazy {
		e.Lazy, e.lazySince = true, e.Now.Mono
	}
}

// pendingWrite reports whether something waits to be stored.
func (e *Engine) pendingWrite() bool { return e.Lazy }

func (e *Engine) mark(en *entry, what jobs.What) {
	j := &en.job
	e.Revision++
	j.Revision, j.UpdatedAt = e.Revision, e.Now.Wall
	e.file(en)
	en.mark |= what
	if !en.recorded {
		en.recorded = true
		e.touched = append(e.touched, en)
	}
}

// file puts a job first among those of its state, and counts it.
func (e *Engine) file(en *entry) {
	if en.in != nil {
		en.in.remove(en)
	}
	if en.in = e.byState[en.job.State]; en.in != nil {
		en.in.pushFront(en)
	}
	if queued := en.job.State == jobs.Queued; queued != en.counted {
		en.counted = queued
		n := 1
		if !queued {
			n = -1
		}
		switch en.job.Priority {
		case jobs.High:
			e.depths.High += n
		case jobs.Low:
			e.depths.Low += n
		case jobs.Background:
			e.depths.Background += n
		default:
			e.depths.Normal += n
		}
	}
}

// save stores a lease with this turn.
func (e *Engine) save(h *hold) {
	e.must = true
	e.keepLease(h)
}

// saveLazily stores a lease with a later turn.
func (e *Engine) saveLazily(h *hold) {
	e.laze()
	e.keepLease(h)
}

func (e *Engine) keepLease(h *hold) {
	if !h.unsaved {
		h.unsaved = true
		e.unsaved = append(e.unsaved, h)
	}
}

// note records an event, of a job or of none.
func (e *Engine) note(t jobs.EventType, en *entry, leaseID, workerID, code, reason string) {
	e.must = true
	e.noteLazily(t, en, leaseID, workerID, code, reason)
}

func (e *Engine) noteLazily(t jobs.EventType, en *entry, leaseID, workerID, code, reason string) {
	e.laze()
	e.Event++
	e.Metrics.Events[t]++
	ev := jobs.Event{Seq: e.Event, Time: e.Now.Wall, Type: t, LeaseID: leaseID, WorkerID: workerID, Code: code, Reason: reason}
	if e.counts == nil {
		e.counts = map[countKey]int64{}
	}
	hour := e.Now.Wall.Truncate(time.Hour).Unix()
	e.counts[countKey{hour, t, ""}]++
	if en != nil {
		ev.JobID, ev.Attempt, ev.Token = en.job.ID, en.job.Attempt, en.job.Token
		for i, tag := range en.job.Tags {
			if tag != "" && !slices.Contains(en.job.Tags[:i], tag) {
				e.counts[countKey{hour, t, tag}]++
			}
		}
	}
	if e.events == nil {
		e.events = make([]jobs.Event, 0, max(e.requests, 1)) // most make one
	}
	e.events = append(e.events, ev)
}

// tally returns the statistics of the hour and type, to be added to.
func (e *Engine) tally(jobType string) *jobs.Tally {
	hour := e.Now.Wall.Truncate(time.Hour)
	k := tallyKey{hour.Unix(), jobType}
	t := e.tallies[k]
	if t == nil {
		t = &jobs.Tally{Hour: hour, Type: jobType}
		if e.tallies == nil {
			e.tallies = map[tallyKey]*jobs.Tally{}
		}
		e.tallies[k] = t
	}
	return t
}

// finish hands out what the turn brought.
func (e *Engine) finish() Outcome {
	t := Outcome{Replies: e.replies, Orders: e.orders}
	e.replies, e.orders = nil, nil
	if e.must || e.Lazy && (e.cfg.Shared || e.Now.Mono >= plus(e.lazySince, lazyWrite)) {
		t.Changes = e.flush()
	}
	return t
}

// flush returns all that is to be stored.
func (e *Engine) flush() jobs.Changes {
	c := jobs.Changes{
		Time: e.Now.Wall, Unleased: e.unleased, Attempts: e.attempts, Dropped: e.dropped, Answered: e.newAnswers, Forgot: e.forgot,
		Events: e.events, Counters: e.Counters,
	}
	ended := 0
	for _, en := range e.touched {
		if en.job.State.Ended() {
			ended++
		}
	}
	if ended > 0 {
		c.Ended = make([]jobs.Job, 0, ended)
	}
	if ended < len(e.touched) {
		c.Jobs = make([]jobs.JobChange, 0, len(e.touched)-ended)
	}
	slices.SortFunc(e.touched, func(a, b *entry) int { return cmp.Compare(a.job.Revision, b.job.Revision) })
	for _, en := range e.touched {
		if en.job.State.Ended() {
			c.Ended = append(c.Ended, en.job)
		} else {
			c.Jobs = append(c.Jobs, jobs.JobChange{Job: en.job, What: en.mark})
		}
		en.mark, en.recorded = 0, false
	}
	if len(e.unsaved) > 0 {
		c.Leases = make([]jobs.Lease, 0, len(e.unsaved))
	}
	for _, h := range e.unsaved {
		if e.leases[h.lease.ID] == h {
			c.Leases = append(c.Leases, h.lease)
		}
		h.unsaved = false
	}
	slices.Sort(e.newKeys)
	for _, name := range slices.Compact(e.newKeys) {
		if k := e.keys[name]; k != nil {
			c.Keys = append(c.Keys, k.Key)
		}
	}
	for _, t := range e.tallies {
		c.Tallies = append(c.Tallies, *t)
	}
	slices.SortFunc(c.Tallies, func(a, b jobs.Tally) int { return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Type, b.Type)) })
	if len(e.counts) > 0 {
		c.Counts = make([]jobs.Count, 0, len(e.counts))
	}
	for k, n := range e.counts {
		c.Counts = append(c.Counts, jobs.Count{Hour: time.Unix(k.hour, 0).UTC(), Event: k.event, Tag: k.tag, N: n})
	}
	slices.SortFunc(c.Counts, func(a, b jobs.Count) int {
		return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Event, b.Event), cmp.Compare(a.Tag, b.Tag))
	})
	if e.newFrozen {
		c.Frozen, c.Refrozen = slices.Sorted(maps.Keys(e.frozen)), true
	}
	e.forgetRecord()
	return c
}

// forgetRecord empties the record, but for what replies and orders there are. What others have now is left to them; the
// rest is used again.
func (e *Engine) forgetRecord() {
	clear(e.touched)
	clear(e.unsaved)
	clear(e.tallies)
	if clear(e.counts); len(e.events) > 1024 {
		e.counts = nil
	}
	e.record = record{
		replies: e.replies, orders: e.orders, touched: reuse(e.touched), unsaved: reuse(e.unsaved), tallies: e.tallies, counts: e.counts,
	}
}

// reuse returns the slice empty, unless it has become large.
func reuse[T any](s []T) []T {
	if cap(s) > 4096 {
		return nil
	}
	return s[:0]
}

// jobWeight is what a request that concerns one job counts for in a turn: its payload is stored again.
const jobWeight = 16

// Weight returns about how many rows there are to be written for a request; a kilobyte counts as one more.
func Weight(o Op) int {
	switch o := o.(type) {
	case Submit:
		n := 0
		for i := range o.Jobs {
			n += 1 + len(o.Jobs[i].Tags) + len(o.Jobs[i].Payload)>>10
		}
		return n
	case Request:
		return jobWeight
	case Heartbeat:
		return jobWeight + len(o.Checkpoint)>>10
	case Report:
		return jobWeight + len(o.Metrics)>>10
	case Complete:
		return jobWeight + (len(o.Result)+len(o.Error))>>10
	}
	return 1
}

// mostMoved is how many bytes of jobs a turn grants or takes back, which much may make possible or necessary at one moment: a type that is no longer
// frozen, or workers that are all gone. A job counts for moveWeight more than what it has been given.
const (
	mostMoved  = 8 << 20
	moveWeight = 1 << 10
)

// move takes note of a job that is granted or taken back.
func (e *Engine) move(j *jobs.Job) {
	e.moved += moveWeight + len(j.Payload)
	if o := j.Output; o != nil {
		e.moved += len(o.Checkpoint) + len(o.Metrics) + len(o.Result) + len(o.Error)
	}
}

// full reports whether what else is to be moved is left to the next turn, which is due at once.
func (e *Engine) full() bool {
	e.more = e.more || e.moved >= mostMoved
	return e.more
}
