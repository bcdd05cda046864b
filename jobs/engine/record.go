package engine

// The record of a turn: what is to be answered, and what is to be stored.

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// record collects what comes out of turns. What heartbeats change waits there for a turn that has something to store
// anyway, up to lazyWrite, and statistics for as long in any case.
type record struct {
	replies []Reply
	orders  []LockOrder
	refused []LockOrder   // see Outcome.Blocked
	must    bool          // there is something that must be stored before it is answered
	last    bool          // everything must, for there is no turn after this one
	due     time.Duration // when the rest must be stored; never if there is none
	touched []*entry
	recent  []*memo
	output  []jobs.Piece
	events  []jobs.Event
	stats   map[statKey]*statistic
	statsAt time.Duration // no statistics before

	// forgotten counts statistics that are not in memory any more. Those of that hour, if the wall clock is set
	// back to it, have another source, lest they replace them.
	forgotten int
}

// statKey tells statistics of this source apart.
type statKey struct {
	hour      int64
	kind, tag string
}

type statistic struct {
	jobs.Statistic
	fresh bool // changed since it was handed out
}

// answer answers a call, unless it is nobody's.
func (e *Engine) answer(id uint64, r Reply) {
	if r.ID = id; id != 0 {
		e.replies = append(e.replies, r)
	}
}

// touch notes that a job changed, and stores it with this turn.
func (e *Engine) touch(en *entry) {
	e.must = true
	e.mark(en)
}

// mark notes that a job changed, and stores it with a later turn.
func (e *Engine) mark(en *entry) {
	e.unfile(en)
	e.Revision++
	en.Revision, en.UpdatedAt = e.Revision, e.Now.Wall
	e.file(en)
	e.store(en)
}

// store has a job's record stored with a later turn, or with this one if others share the store.
func (e *Engine) store(en *entry) {
	e.must, e.due = e.must || e.cfg.Shared, min(e.due, plus(e.Now.Mono, lazyWrite))
	if !en.touched {
		en.touched = true
		e.moved += en.weight()
		e.touched = append(e.touched, en)
	}
}

// Lazy reports whether something waits to be stored.
func (e *Engine) Lazy() bool { return e.due != Never }

// unfile takes a job off its shelf, before its revision changes.
func (e *Engine) unfile(en *entry) {
	if en.in != nil {
		en.in.Delete(en.Revision)
	}
}

// file puts a job on its shelf.
func (e *Engine) file(en *entry) {
	if en.in = e.shelf(&en.Job); en.in != nil {
		en.in.Set(en.Revision, en)
	}
}

// shelf returns where a job is listed; nil if it has ended.
func (e *Engine) shelf(j *jobs.Job) *shelf {
	switch j.State {
	case jobs.Queued:
		return &e.shelves[j.Priority.Class()]
	case jobs.Leased:
		return &e.shelves[4]
	case jobs.Running:
		return &e.shelves[5]
	case jobs.Scheduled:
		return &e.shelves[6]
	}
	return nil
}

// depths counts the jobs that are queued.
func (e *Engine) depths() jobs.Depths {
	s := &e.shelves
	return jobs.Depths{High: s[0].Len(), Normal: s[1].Len(), Low: s[2].Len(), Background: s[3].Len()}
}

// note records an event, of a job or of none, to be stored with the job.
func (e *Engine) note(en *entry, ev jobs.Event) {
	e.Event++
	ev.Seq, ev.Time = e.Event, e.Now.Wall
	kind := ""
	if en != nil {
		kind, ev.JobID, ev.Attempt, ev.Token = en.Type, en.ID, en.Attempt, en.Token
		if en.Lease != nil {
			ev.LeaseID, ev.WorkerID = en.Lease.ID, en.Lease.WorkerID
		}
		for i, tag := range en.Tags {
			if tag != "" && !slices.Contains(en.Tags[:i], tag) {
				e.statistic("", tag).Events[ev.Type]++
			}
		}
	}
	e.statistic(kind, "").Events[ev.Type]++
	e.events = append(e.events, ev)
}

// statistic returns the statistics of this hour for jobs of a type or with a tag, or those of no job, to be added to.
func (e *Engine) statistic(kind, tag string) *statistic {
	hour := e.Now.Wall.Truncate(time.Hour)
	k := statKey{hour.Unix(), kind, tag}
	s := e.stats[k]
	switch full := len(e.stats) >= mostStatistics; {
	case s == nil && full && tag != "" && tag != others:
		return e.statistic("", others)
	case s == nil && full && kind != "" && kind != others:
		return e.statistic(others, "")
	case s == nil:
		source := e.source + "-" + strconv.Itoa(e.forgotten)
		s = &statistic{Statistic: jobs.Statistic{
			Hour: hour, Source: source, Type: kind, Tag: tag, Events: map[jobs.EventType]int64{},
		}}
		e.stats[k] = s
	}
	if !s.fresh {
		s.fresh = true
		e.due = min(e.due, max(e.statsAt, plus(e.Now.Mono, lazyWrite)))
	}
	return s
}

// history returns the statistics in memory, or only those of them that are not stored yet.
func (e *Engine) history(fresh bool) []jobs.Statistic {
	var all []jobs.Statistic
	for _, s := range e.stats {
		if s.fresh || !fresh {
			n := s.Statistic
			n.Events, n.Waits, n.Runs = maps.Clone(n.Events), n.Waits.Clone(), n.Runs.Clone()
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b jobs.Statistic) int {
		return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Tag, b.Tag))
	})
	return all
}

// finish hands out what the turn brought.
func (e *Engine) finish() Outcome {
	t := Outcome{Replies: e.replies, Orders: e.orders, Blocked: e.refused}
	e.replies, e.orders, e.refused = nil, nil, nil
	if e.must || e.last || e.due <= e.Now.Mono {
		t.Changes = e.flush()
	}
	return t
}

// flush returns all that is to be stored. What it hands out is never changed.
func (e *Engine) flush() jobs.Changes {
	c := jobs.Changes{Events: e.events, Output: e.output, Frozen: slices.Sorted(maps.Keys(e.frozen)),
		Counters: e.Counters}
	c.Jobs = make([]*jobs.Record, 0, len(e.touched))
	slices.SortFunc(e.touched, func(a, b *entry) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, en := range e.touched {
		c.Jobs = append(c.Jobs, en.record())
		en.touched = false
	}
	for _, m := range e.recent {
		m.fresh = false
		c.Memos = append(c.Memos, m.Memo)
	}
	clear(e.touched)
	clear(e.recent)
	e.touched, e.recent, e.events = e.touched[:0], e.recent[:0], nil
	e.output = nil
	e.must, e.due = false, Never
	if e.last || e.statsAt <= e.Now.Mono {
		c.Stats = e.history(true)
		for k, s := range e.stats {
			if s.fresh = false; s.Hour.Add(time.Hour).Before(e.Now.Wall) {
				delete(e.stats, k)
				e.forgotten++
			}
		}
		e.statsAt, e.last = plus(e.Now.Mono, lazyWrite), false
	} else if len(e.stats) > 0 {
		e.due = e.statsAt
	}
	return c
}

// record returns what is stored of a job.
func (en *entry) record() *jobs.Record {
	r := new(*en.Record)
	r.Attempts = slices.Clip(r.Attempts)
	if r.Lease != nil {
		r.Lease = new(*r.Lease)
	}
	return r
}

// memo is what is remembered until a moment: an idempotency key whose job has ended, or a request whose lease has.
type memo struct {
	jobs.Memo
	until time.Duration
	at    int  // place in engine.fading
	fresh bool // it changed since it was stored; of rates only, which change in place
}

// keyMemo and requestKey.memo are the IDs of memos.
func keyMemo(key string) string { return "key " + key }

func (k requestKey) memo() string { return "request " + strconv.Quote(k.worker) + " " + k.request }

// remember keeps a memo for so long, and has it stored with this turn.
func (e *Engine) remember(m jobs.Memo, life time.Duration) {
	m.Expires = e.Now.Wall.Add(life)
	e.recent = append(e.recent, e.putMemo(m, life))
	e.must = true
}

func (e *Engine) putMemo(m jobs.Memo, life time.Duration) *memo {
	if old := e.memos[m.ID]; old != nil {
		e.forget(old)
	}
	kept := &memo{Memo: m, until: plus(e.Now.Mono, life)}
	e.memos[m.ID] = kept
	e.fading.Push(kept)
	return kept
}

func (e *Engine) forget(m *memo) {
	e.fading.Remove(m)
	delete(e.memos, m.ID)
}

// recall returns a memo that has not expired, or nil.
func (e *Engine) recall(id string) *memo {
	if m := e.memos[id]; m != nil && m.until > e.Now.Mono {
		return m
	}
	return nil
}

// What a turn changes is bounded, in bytes, lest more has to be stored as one step than takes a moment: requests are
// taken in up to mostTaken, and jobs granted or taken back up to mostMoved, because a type that is no longer frozen, or
// workers that are all gone, can make many possible or necessary. What is left is for the next turn, which is due at once.
const (
	mostTaken    = 4 << 20
	mostMoved    = 8 << 20
	callWeight   = 1 << 10
	recordWeight = 4 << 10 // of a job, beside what it has been given
)

// weight returns how much it is to store a job.
func (en *entry) weight() int {
	w := recordWeight + len(en.Payload) + len(en.Tags)<<10
	if o := en.Output; o != nil {
		w += len(o.Checkpoint) + len(o.Metrics) + len(o.Result) + len(o.Error)
	}
	return w
}

// full reports whether what else is to be granted or taken back is left to the next turn.
func (e *Engine) full() bool {
	e.more = e.more || e.moved >= mostMoved
	return e.more
}
