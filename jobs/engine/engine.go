// Package engine has the rules of the scheduler: everything that lives, in memory, and the turn that changes it.
// A turn is a function of what is there, the time, and the requests: no I/O, no context, no lock. What it
// changed comes out as jobs.Changes, from which the same can be built again. An Engine belongs to one goroutine
// at a time.
package engine

import (
	"cmp"
	"container/list"
	"slices"
	"time"

	"github.com/tidwall/btree"

	"github.com/lokt-dev/lokt/internal/heap"
	"github.com/lokt-dev/lokt/jobs"
)

const (
	// a worker that waits for nothing and has no lease is forgotten so long after it was heard of
	workerLife   = 10 * time.Minute
	maxWorkers   = 10_000      // such workers are remembered at most
	lazyWrite    = time.Second // how long what a heartbeat reports, and statistics, may stay unstored
	sweepPerTurn = 1000        // memos and workers looked at in one turn, to forget them

	mostStatistics = 1000 // types and tags that have statistics of their own, of two hours
	others         = "…"  // stands for more of them
)

// entry is a living job, and where it stands. There may be a million, each of which costs as much as all its fields.
type entry struct {
	*jobs.Record
	*tenure      // nil without a lease
	pending bool // it is kept for a request, until its locks are taken
	touched bool // it is in engine.touched

	in      *shelf
	line    *line
	waitsIn *heap.Heap[*entry] // engine.timed or engine.backoffs, if its time is ahead
	at      int                // place in line or waitsIn
	since   time.Duration      // in line since then, or in engine.backoffs until then
}

// tenure is what is known of a lease in memory only.
type tenure struct {
	worker   *worker
	expires  time.Duration // unless there is a heartbeat
	runUntil time.Duration // never without a limit
	runTold  time.Duration // the same, as its worker may be told: no later than any other process has it
	alarm    time.Duration // deadline when it was last looked at: heartbeats move only the deadline
	alarmAt  int           // place in engine.deadlines
	beats    []*waiter     // that wait
}

// shelf lists living jobs by Revision.
type shelf = btree.Map[uint64, *entry]

// Engine is everything that lives. It is not safe for use by several goroutines.
type Engine struct {
	cfg     jobs.Config
	Now     Instant
	offset  time.Duration // of the wall clock against the other one
	ordered time.Duration // when Counters.Clock was right
	jobs.Counters
	tokenFloor uint64 // Living.TokenFloor

	jobs      map[string]*entry
	unknown   jobs.Record // of a job that is not there yet: empty
	shelves   [7]shelf    // queued jobs by class, leased ones, running ones, schedules
	groups    map[shape]*group
	timed     *heap.Heap[*entry] // by ReadyAt on the wall clock
	backoffs  *heap.Heap[*entry] // by since
	frozen    map[string]bool
	names     map[string]*name
	blocked   *heap.Heap[*name]
	paces     *heap.Heap[*line]     // that a rate closes, by until
	pendings  map[string]*waiter    // that a job is kept for, by lease ID
	unlocking map[string]*unlocking // by lease ID
	kept      int                   // units of these
	reserved  reservation
	claimant  claimant
	host      host
	locked    map[*line]bool // closed because a lock is taken
	leases    map[string]*entry
	leased    int      // units
	found     []*entry // leases of the heartbeats that are looked at
	deadlines *heap.Heap[*entry]
	limits    []*entry // with a declared runtime, by its end

	tenants     map[turn]*tenant
	mostTenants int      // of them before they are looked through
	keyed       int      // lines with a fairness key
	virtual     [4]int64 // time of the tenant that was served last, by class
	joins       [4]int64 // its time after that, at which others join

	workers  map[string]*worker
	heard    list.List          // of *worker, last comes first
	waiters  map[uint64]*waiter // by call
	ends     *heap.Heap[*waiter]
	arrivals uint64
	waiting  map[string]*profile // with requests, by key
	fresh    map[string]*profile // with requests of this turn
	aheads   int                 // of waiting, those of jobs ahead
	wake     bool                // something other than a request has made grants possible
	moved    int                 // weight of what this turn has changed
	more     bool                // it left some of that to the next turn, which is due at once
	draining bool
	asked    map[requestKey]*waiter
	granted  map[requestKey]*entry
	keys     map[string]*entry // living jobs by idempotency key
	memos    map[string]*memo
	fading   *heap.Heap[*memo] // by until

	followers map[string]map[uint64]*entry // jobs by Seq that run after a living one, by its ID
	failed    map[string]*failure
	failures  []*failure // the same, in the order in which they are attended to

	source string // of statistics

	record
}

func newEngine(cfg jobs.Config) *Engine {
	e := &Engine{
		cfg: cfg.WithDefaults(), jobs: map[string]*entry{},
		groups: map[shape]*group{},
		frozen: map[string]bool{}, names: map[string]*name{}, locked: map[*line]bool{}, pendings: map[string]*waiter{},
		unlocking: map[string]*unlocking{}, leases: map[string]*entry{},
		workers: map[string]*worker{}, waiting: map[string]*profile{}, fresh: map[string]*profile{},
		waiters: map[uint64]*waiter{}, asked: map[requestKey]*waiter{},
		granted: map[requestKey]*entry{}, keys: map[string]*entry{}, memos: map[string]*memo{},
		tenants: map[turn]*tenant{}, mostTenants: fewTenants,
		followers: map[string]map[uint64]*entry{}, failed: map[string]*failure{},
		record: record{due: Never, stats: map[statKey]*statistic{}},
	}
	at := func(en *entry) *int { return &en.at }
	e.timed = heap.New(at, func(a, b *entry) bool { return cmp.Or(a.ReadyAt.Compare(b.ReadyAt), cmp.Compare(a.Seq, b.Seq)) < 0 })
	e.backoffs = heap.New(at, func(a, b *entry) bool { return a.since < b.since })
	e.blocked = heap.New(func(n *name) *int { return &n.at }, func(a, b *name) bool { return a.until < b.until })
	e.paces = heap.New(func(l *line) *int { return &l.paceAt }, func(a, b *line) bool { return a.until < b.until })
	e.fading = heap.New(func(m *memo) *int { return &m.at }, func(a, b *memo) bool { return a.until < b.until })
	e.deadlines = heap.New(func(en *entry) *int { return &en.alarmAt }, func(a, b *entry) bool {
		return a.alarm < b.alarm || a.alarm == b.alarm && a.LeaseID < b.LeaseID
	})
	e.ends = heap.New(func(w *waiter) *int { return &w.at }, func(a, b *waiter) bool {
		return a.until < b.until || a.until == b.until && a.id < b.id
	})
	return e
}

// Op is a request to the engine: a type of this package with one of the methods below.
type Op any

// command is an Op with nothing to tell but that it is done.
type command interface{ do(e *Engine) }

// action is an Op that may change something, and has an answer.
type action interface {
	answer(e *Engine, id uint64) Reply
}

// query is an Op that only reads: it is answered at the end of the turn.
type query interface{ read(e *Engine) Reply }

// Call is an op with the number under which it is answered, in this turn or a later one.
type Call struct {
	ID uint64
	Op Op
}

// Reply is the answer to a request, with its number.
type Reply struct {
	ID     uint64
	Result any
	Err    error
	later  bool // it is none: the answer comes later
}

// Outcome is what comes out of a turn.
type Outcome struct {
	Changes jobs.Changes
	Replies []Reply
	Orders  []LockOrder
	Blocked []LockOrder // that were refused, each with nothing but the lock in question
	Taken   int         // how many of the requests were taken in: the first, and one at least
}

// Turn applies requests in order, hands out what can be handed out, and answers. What is read is what is there when all
// that is done. carryOut, if it is not nil, carries out orders at once, and returns the Op that says what came of one.
func (e *Engine) Turn(now Instant, requests []Call, carryOut func(LockOrder) Op) Outcome {
	e.begin(now)
	e.replies = slices.Grow(e.replies, len(requests))
	begun := e.moved
	for i, r := range requests {
		if i > 0 && e.moved-begun >= mostTaken {
			requests = requests[:i]
			break
		}
		e.moved += callWeight
		e.apply(r.ID, r.Op)
	}
	e.cascade()
	for e.match(); len(e.orders) > 0 && carryOut != nil; e.match() {
		for len(e.orders) > 0 {
			o := e.orders[0]
			e.orders = e.orders[1:]
			e.apply(0, carryOut(o))
		}
	}
	e.timeOut()
	for _, r := range requests {
		if q, ok := r.Op.(query); ok {
			e.answer(r.ID, q.read(e))
		}
	}
	out := e.finish()
	out.Taken = len(requests)
	return out
}

// timeOut answers the requests that waited for long enough.
func (e *Engine) timeOut() {
	for !e.more && e.ends.Len() > 0 && e.ends.Top().until <= e.Now.Mono { // otherwise there may be a job for it yet
		if w := e.ends.Top(); w.ask != nil {
			e.deny(w)
		} else {
			e.tell(w)
		}
	}
}

// begin moves to a moment, and does what time alone does.
func (e *Engine) begin(now Instant) {
	before := e.Now.Mono
	e.setNow(now)
	e.watchClock(before)
	e.moved, e.more = 0, false
	e.expire()
	for e.timed.Len() > 0 && !e.timed.Top().ReadyAt.After(e.Now.Wall) && !e.full() {
		e.arrive(e.timed.Top())
	}
	for e.backoffs.Len() > 0 && e.backoffs.Top().since <= e.Now.Mono {
		e.arrive(e.backoffs.Top())
	}
	for e.blocked.Len() > 0 && e.blocked.Top().until <= e.Now.Mono {
		e.unblock(e.blocked.Top())
	}
	for e.paces.Len() > 0 && e.paces.Top().until <= e.Now.Mono {
		e.reopen(e.paces.Top())
	}
	e.sweep()
}

// sweep forgets what is past its life, a bounded number at a time.
func (e *Engine) sweep() {
	for n := 0; n < sweepPerTurn && e.fading.Len() > 0 && e.fading.Top().until <= e.Now.Mono; n++ {
		e.forget(e.fading.Top())
	}
	at := e.heard.Back()
	for n := 0; n < sweepPerTurn && at != nil; n++ {
		w := at.Value.(*worker)
		if len(e.workers) <= maxWorkers && plus(w.seen, workerLife) > e.Now.Mono {
			break
		}
		at = at.Prev()
		if w.busy == 0 && w.asks == 0 {
			e.heard.Remove(w.recent)
			delete(e.workers, w.id)
		}
	}
}

// apply does what a request asks for. Answers to what only reads come later.
func (e *Engine) apply(id uint64, o Op) {
	switch o := o.(type) {
	case command:
		o.do(e)
		e.answer(id, Reply{})
	case action:
		if r := o.answer(e, id); !r.later {
			e.answer(id, r)
		}
	}
}

// queue puts a queued job in line, or where it waits for others or its time: ReadyAt on the wall clock, if that is ahead for RunAt's sake
// and not because the clock was set back, or due.
func (e *Engine) queue(en *entry, due time.Duration, byWall bool) {
	switch {
	case en.pending: // when it is known what became of its locks
		return
	case e.obstacle(en) != "":
		e.await(en)
		return
	case byWall && en.ReadyAt.After(e.Now.Wall) && en.RunAt.After(e.Now.Wall), en.State == jobs.Scheduled:
		en.waitsIn = e.timed
	case !byWall && due > e.Now.Mono:
		en.waitsIn, en.since = e.backoffs, due
	default:
		en.since = e.Now.Mono
		e.enqueue(en)
		return
	}
	en.waitsIn.Push(en)
}

// arrive puts a job in line whose time has come, or does what a schedule is for.
func (e *Engine) arrive(en *entry) {
	if e.unqueue(en); en.State == jobs.Scheduled {
		e.run(en)
		return
	}
	e.queue(en, 0, false)
}

// unqueue takes a job out of wherever it waits.
func (e *Engine) unqueue(en *entry) {
	if en.waitsIn != nil {
		en.waitsIn.Remove(en)
		en.waitsIn = nil
	}
	e.dequeue(en)
}

// drop forgets a job that has ended.
func (e *Engine) drop(en *entry) {
	delete(e.jobs, en.ID)
	if e.keys[en.IdempotencyKey] == en {
		delete(e.keys, en.IdempotencyKey)
	}
	if en.Extra != nil {
		e.unfollow(en)
	}
	if e.followers[en.ID] != nil {
		e.followed(&en.Job)
	}
}

// free returns the units that could be handed out; it is negative if more are leased than there should be.
func (e *Engine) free() int { return e.cfg.Usable() - e.leased - e.kept }

// Freeze closes or opens the queue to jobs of a type, or to all.
type Freeze struct {
	Type   string
	Frozen bool
}

func (o Freeze) do(e *Engine) {
	if e.frozen[o.Type] == o.Frozen {
		return
	}
	what := jobs.EventUnfreeze
	if delete(e.frozen, o.Type); o.Frozen {
		e.frozen[o.Type], what = true, jobs.EventFreeze
	}
	e.must = true
	e.note(nil, jobs.Event{Type: what, Code: o.Type})
	e.reopenAll()
}

// Drain answers all that wait, and hands out nothing from now on. The last turn stores everything.
type Drain struct{ Last bool }

func (o Drain) do(e *Engine) {
	e.draining, e.last = true, o.Last
	for _, w := range e.waiters {
		w.until = e.Now.Mono
		e.ends.Fix(w)
	}
}

// Next returns the moment at which the engine has something to do without being asked; never if there is none.
func (e *Engine) Next() time.Duration {
	next := min(e.soonest(), e.due)
	consider := func(t time.Duration) { next = min(next, t) }
	if e.more || len(e.failures) > 0 {
		consider(e.Now.Mono)
	}
	if e.timed.Len() > 0 { // the wall clock may be set: look at it now and then
		consider(plus(e.Now.Mono, min(e.timed.Top().ReadyAt.Sub(e.Now.Wall), wallCheck)))
	}
	if e.ends.Len() > 0 {
		consider(e.ends.Top().until)
	}
	if r := &e.reserved; r.job != nil && len(e.waiting) > 0 {
		consider(plus(r.since, e.cfg.ReserveLimit))
		consider(r.lapses)
	}
	if h := &e.host; h.job != nil && len(e.waiting) > 0 {
		consider(min(plus(h.since, e.cfg.ReserveLimit), plus(h.worker.seen, jobs.SeenFor)))
	}
	if c := &e.claimant; c.job != nil && !c.job.pending {
		consider(min(plus(c.since, e.cfg.ReserveLimit), c.lapses))
		if c.barred && c.wanted > e.Now.Mono {
			consider(c.wanted)
		}
	}
	return next
}

// wallCheck is how often a job that waits for a time is compared with the wall clock.
const wallCheck = 10 * time.Second
