package jobs

// The engine: everything that lives, in memory, and the turn that changes it. A turn is a function of what is there, the
// time, and the requests; it does no I/O. What it changed comes out as Changes, from which the same can be built again.

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"time"
)

const (
	workerLife   = 24 * time.Hour // a worker without leases is forgotten so long after it was heard of
	maxWorkers   = 100_000        // remembered; beyond, those heard of least recently and without leases are forgotten
	lazyWrite    = time.Second    // how long what a heartbeat reports may stay unstored
	sweepPerTurn = 500            // keys, request IDs and workers forgotten in one turn
)

// entry is a living job, and where it stands.
type entry struct {
	job      Job
	hold     *hold
	attempts []Attempt // that ended
	pending  *pending

	in       *chain[entry] // of its state
	inState  link[entry]
	counted  bool // among the queued
	line     *line
	inLine   link[entry]
	lateAt   int
	waitsIn  *heap[*entry] // engine.timed or engine.backoffs, if its time is ahead
	dueAt    int
	due      time.Duration // end of the backoff
	ready    time.Duration // in a line since then
	mark     What          // parts to be stored
	recorded bool          // it is in engine.touched
}

// engine is everything that lives. It is not safe for use by several goroutines.
type engine struct {
	cfg     Config
	now     instant
	offset  time.Duration // of the wall clock against the other one
	ordered time.Duration // when Counters.Clock was right
	Counters
	tokenFloor uint64 // Rows.TokenFloor

	jobs      map[string]*entry
	byState   map[State]*chain[entry] // newest change first
	depths    Depths
	byShape   map[shape]*group
	groups    []*group
	uniques   int           // groups of unique jobs
	timed     *heap[*entry] // by ReadyAt on the wall clock
	backoffs  *heap[*entry] // by due
	frozen    map[string]bool
	names     map[string]*name
	blocked   *heap[*name]
	pendings  map[string]*pending // by lease ID
	unlocking map[string][]string // locks that are being given back, by lease ID
	kept      int                 // units of these
	reserved  reservation
	leases    map[string]*hold
	holding   map[string]*hold // of these, whose jobs name locks
	leased    int              // units
	deadlines *heap[*hold]
	limits    []*hold // with a declared runtime, by its end

	workers   map[string]*worker
	recent    chain[worker] // heard of last comes first
	byProfile map[string]*profile
	profiles  chain[profile] // heard of last comes first
	waiters   map[uint64]*waiter
	ends      *heap[*waiter]
	arrivals  uint64
	waiting   []*profile // with asks
	fresh     []*profile // with asks of this turn
	wake      bool       // something other than an ask has made grants possible
	moved     int        // weight, in bytes, of the jobs that this turn granted or took back
	more      bool       // it left some of that to the next turn, which is due at once
	draining  bool
	asked     map[requestKey][]*waiter
	granted   map[requestKey]*hold
	answered  map[requestKey]*answer
	answers   *heap[*answer]
	keys      map[string]*key
	dyingKeys *heap[*key]
	metrics   *Metrics // what was counted since they were taken

	record
}

// answer is a request ID whose lease has ended.
type answer struct {
	Answered
	until time.Duration
	at    int
}

// key is an idempotency key.
type key struct {
	Key
	at int // place in engine.dyingKeys
}

func newEngine(cfg Config) *engine {
	e := &engine{
		cfg: cfg.withDefaults(), jobs: map[string]*entry{}, byState: map[State]*chain[entry]{}, byShape: map[shape]*group{},
		frozen: map[string]bool{}, names: map[string]*name{}, pendings: map[string]*pending{}, unlocking: map[string][]string{}, leases: map[string]*hold{}, holding: map[string]*hold{},
		workers: map[string]*worker{}, byProfile: map[string]*profile{}, waiters: map[uint64]*waiter{}, asked: map[requestKey][]*waiter{},
		granted: map[requestKey]*hold{}, answered: map[requestKey]*answer{}, keys: map[string]*key{}, metrics: newMetrics(),
	}
	due := func(en *entry) *int { return &en.dueAt }
	e.timed = &heap[*entry]{place: due, before: func(a, b *entry) bool { return a.job.ReadyAt.Before(b.job.ReadyAt) }}
	e.backoffs = &heap[*entry]{place: due, before: func(a, b *entry) bool { return a.due < b.due }}
	e.blocked = &heap[*name]{place: func(n *name) *int { return &n.at }, before: func(a, b *name) bool { return a.until < b.until }}
	e.deadlines = &heap[*hold]{place: func(h *hold) *int { return &h.at }, before: func(a, b *hold) bool {
		return a.alarm < b.alarm || a.alarm == b.alarm && a.lease.ID < b.lease.ID
	}}
	e.ends = &heap[*waiter]{place: func(w *waiter) *int { return &w.at }, before: func(a, b *waiter) bool {
		return a.until < b.until || a.until == b.until && a.id < b.id
	}}
	e.answers = &heap[*answer]{place: func(a *answer) *int { return &a.at }, before: func(a, b *answer) bool { return a.until < b.until }}
	e.dyingKeys = &heap[*key]{place: func(k *key) *int { return &k.at }, before: func(a, b *key) bool { return a.Expires.Before(b.Expires) }}
	e.recent.link = func(w *worker) *link[worker] { return &w.recent }
	e.profiles.link = func(p *profile) *link[profile] { return &p.recent }
	for _, s := range []State{Queued, Leased, Running} {
		e.byState[s] = &chain[entry]{link: func(en *entry) *link[entry] { return &en.inState }}
	}
	return e
}

// op is a request to the engine: one of the types below.
type op any

type (
	submitOp struct{ jobs []newJob }
	newJob   struct {
		Spec
		id    string
		print [sha256.Size]byte // if there is a key
	}
	askOp struct {
		Request
		leaseID string  // of the lease, if there is one
		jitter  float64 // from 0 to 1
	}
	beatOp     struct{ Heartbeat }
	beatManyOp struct {
		workerID string
		leaseIDs []string
	}
	completeOp struct{ Completion }
	reportOp   struct{ Progress }
	cancelOp   struct{ jobID, reason string }
	revokeOp   struct{ leaseID, reason string }
	freezeOp   struct {
		jobType string
		frozen  bool
	}
	withdrawOp struct{ id uint64 }      // the client of that request has gone
	returnOp   struct{ leaseID string } // nobody was told of that lease
	drainOp    struct{ last bool }      // hand out nothing from now on; the last turn stores what heartbeats left
	lockedOp   struct {                 // the answer to lockTake
		order   lockOrder
		tokens  map[string]uint64 // of the locks, by name
		blocked string            // the lock that could not be had, if any
	}
	unlockedOp struct{ leaseID string } // the answer to lockFree
	vacantOp   struct{ lock string }    // somebody outside has given it back

	getOp     struct{ jobID string }
	listOp    struct{ Filter }
	statusOp  struct{}
	workersOp struct{}
)

// request is an op with the number under which it is answered, in this turn or a later one.
type request struct {
	id uint64
	op op
}

// reply is the answer to a request.
type reply struct {
	id     uint64
	result any
	err    error
}

// turned is what comes out of a turn.
type turned struct {
	changes Changes
	replies []reply
	orders  []lockOrder
}

// turn applies requests in order, hands out what can be handed out, and answers. What is read is what is there when all
// that is done.
func (e *engine) turn(now instant, requests []request) turned {
	e.begin(now)
	for _, r := range e.expect(requests) {
		e.apply(r.id, r.op)
	}
	for e.match(); e.timeOut(); { // an ask that gives up may let one with the same request ID ask
		e.match()
	}
	for _, r := range requests {
		e.read(r.id, r.op)
	}
	return e.finish()
}

// timeOut answers the requests that waited for long enough, and reports whether others are to be matched for that.
func (e *engine) timeOut() bool {
	for !e.more && e.ends.len() > 0 && e.ends.top().until <= e.now.mono { // otherwise there may be a job for it yet
		if w := e.ends.top(); w.ask != nil {
			e.deny(w)
		} else {
			e.dismiss(w)
			e.reply(w.id, e.beatAnswer(w.hold))
		}
	}
	return len(e.fresh) > 0
}

// begin moves to a moment, and does what time alone does.
func (e *engine) begin(now instant) {
	before := e.now.mono
	e.setNow(now)
	e.watchClock(before)
	e.moved, e.more = 0, false
	e.expire()
	for e.timed.len() > 0 && !e.timed.top().job.ReadyAt.After(e.now.wall) {
		e.arrive(e.timed.top())
	}
	for e.backoffs.len() > 0 && e.backoffs.top().due <= e.now.mono {
		e.arrive(e.backoffs.top())
	}
	for e.blocked.len() > 0 && e.blocked.top().until <= e.now.mono {
		e.unblock(e.blocked.top())
	}
	e.sweep()
}

// sweep forgets what is past its life, a bounded number at a time.
func (e *engine) sweep() {
	for n := 0; n < sweepPerTurn && e.dyingKeys.len() > 0 && !e.dyingKeys.top().Expires.After(e.now.wall); n++ {
		k := e.dyingKeys.top()
		e.dyingKeys.remove(k)
		delete(e.keys, k.Key.Key)
		e.dropped = append(e.dropped, k.Key.Key)
		e.must = true
	}
	for n := 0; n < sweepPerTurn && e.answers.len() > 0 && e.answers.top().until <= e.now.mono; n++ {
		a := e.answers.top()
		e.answers.remove(a)
		delete(e.answered, requestKey{a.WorkerID, a.RequestID})
		e.forgot = append(e.forgot, a.Answered)
		e.must = true
	}
	for n := 0; n < sweepPerTurn; n++ {
		w := e.recent.last
		if w == nil || w.busy > 0 || plus(w.seen, SeenFor) > e.now.mono {
			break
		}
		if len(e.workers) <= maxWorkers && plus(w.seen, workerLife) > e.now.mono {
			break
		}
		e.recent.remove(w)
		delete(e.workers, w.id)
	}
	for n := 0; n < sweepPerTurn; n++ {
		p := e.profiles.last
		if p == nil || p.asks.n > 0 || plus(p.seen, SeenFor) > e.now.mono {
			break
		}
		e.profiles.remove(p)
		delete(e.byProfile, p.key)
	}
}

// apply does what a request asks for. Answers to what only reads come later.
func (e *engine) apply(id uint64, o op) {
	switch o := o.(type) {
	case submitOp:
		e.submit(id, o.jobs)
	case askOp:
		e.ask(id, &o)
	case beatOp:
		e.beatOne(id, &o.Heartbeat)
	case beatManyOp:
		e.reply(id, e.beatAll(o.workerID, o.leaseIDs))
	case completeOp:
		applied, err := e.complete(&o.Completion)
		e.answer(id, applied, err)
	case reportOp:
		e.answer(id, nil, e.report(&o.Progress))
	case cancelOp:
		state, err := e.cancel(o.jobID, o.reason)
		e.answer(id, state, err)
	case revokeOp:
		e.answer(id, nil, e.revoke(o.leaseID, o.reason))
	case freezeOp:
		e.freeze(o.jobType, o.frozen)
		e.reply(id, nil)
	case withdrawOp:
		if w := e.waiters[o.id]; w != nil {
			if w.pending != nil {
				w.pending.waiter = nil
			}
			e.dismiss(w)
		}
		e.reply(id, nil)
	case returnOp:
		e.giveBack(o.leaseID)
		e.reply(id, nil)
	case drainOp:
		e.drain()
		e.must = e.must || o.last && e.lazy
		e.reply(id, nil)
	case lockedOp:
		e.locked(&o)
	case unlockedOp:
		e.unlocked(o.leaseID)
	case vacantOp:
		e.vacant(o.lock)
	}
}

// queue puts a queued job in line, or where it waits for its time: ReadyAt on the wall clock, or due.
func (e *engine) queue(en *entry, due time.Duration, byWall bool) {
	en.due = due
	switch {
	case byWall && en.job.ReadyAt.After(e.now.wall):
		en.waitsIn = e.timed
	case !byWall && due > e.now.mono:
		en.waitsIn = e.backoffs
	default:
		en.ready = e.now.mono
		e.enqueue(en)
		return
	}
	en.waitsIn.push(en)
}

// arrive puts a job in line whose time has come.
func (e *engine) arrive(en *entry) {
	en.waitsIn.remove(en)
	en.waitsIn = nil
	en.ready = e.now.mono
	e.enqueue(en)
}

// unqueue takes a job out of wherever it waits.
func (e *engine) unqueue(en *entry) {
	if en.waitsIn != nil {
		en.waitsIn.remove(en)
		en.waitsIn = nil
	}
	e.dequeue(en)
}

// drop forgets a job that has ended.
func (e *engine) drop(en *entry) { delete(e.jobs, en.job.ID) }

// free returns the units that could be handed out; it is negative if more are leased than there should be.
func (e *engine) free() int { return e.cfg.usable() - e.leased - e.kept }

// freeze closes or opens the lines of a type, or of all.
func (e *engine) freeze(jobType string, frozen bool) {
	if e.frozen[jobType] == frozen {
		return
	}
	what := EventFreeze
	if frozen {
		e.frozen[jobType] = true
	} else {
		what = EventUnfreeze
		delete(e.frozen, jobType)
	}
	e.newFrozen = true
	e.must = true
	e.note(what, nil, "", "", jobType, "")
	for _, g := range e.groups {
		for _, l := range g.lines {
			if jobType == "" || l.jobType == jobType {
				e.reopen(l)
			}
		}
	}
}

// drain answers all that wait, and hands out nothing from now on.
func (e *engine) drain() {
	e.draining = true
	waiters := make([]*waiter, 0, len(e.waiters))
	for _, w := range e.waiters {
		waiters = append(waiters, w)
	}
	slices.SortFunc(waiters, func(a, b *waiter) int { return cmp.Compare(a.id, b.id) })
	for _, w := range waiters {
		if w.pending == nil {
			e.ends.remove(w)
			w.until = e.now.mono
			e.ends.push(w)
		}
	}
}

// next returns the moment at which the engine has something to do without being asked; never if there is none.
func (e *engine) next() time.Duration {
	next := never
	consider := func(t time.Duration) { next = min(next, t) }
	if e.more {
		consider(e.now.mono)
	}
	if h := e.firstDeadline(); h != nil {
		consider(h.deadline())
	}
	if e.timed.len() > 0 { // the wall clock may be set: look at it now and then
		consider(plus(e.now.mono, min(e.timed.top().job.ReadyAt.Sub(e.now.wall), wallCheck)))
	}
	if e.backoffs.len() > 0 {
		consider(e.backoffs.top().due)
	}
	if e.blocked.len() > 0 {
		consider(e.blocked.top().until)
	}
	if e.ends.len() > 0 {
		consider(e.ends.top().until)
	}
	if e.pendingWrite() {
		consider(plus(e.lazySince, lazyWrite))
	}
	if r := &e.reserved; r.job != nil && len(e.waiting) > 0 {
		consider(plus(r.since, e.cfg.ReserveLimit))
		consider(r.lapses)
	}
	return next
}

// wallCheck is how often a job that waits for a time is compared with the wall clock.
const wallCheck = 10 * time.Second
