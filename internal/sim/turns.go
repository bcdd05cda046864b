package sim

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// board is what is known of jobs from outside.
type board struct {
	config  jobs.Config
	keep    time.Duration // how long jobs are kept after their end; 0 for ever
	lock    string        // that some jobs name
	limit   jobs.Limit    // on it
	store   jobs.Store
	tasks   map[string]*task         // by key
	log     []*jobs.Changes          // that were stored
	records map[string]*jobs.Record  // as they were stored last
	memos   map[string]jobs.Memo     // the same
	starts  []time.Duration          // when jobs began that have the lock
	stopped map[string]time.Duration // jobs of which an operator knows that they are to end, and since when
	frozen  map[string]bool          // types of which an operator knows that they are
	latest  time.Time                // that was seen of the scheduler's clock
}

// booked looks at what a turn stores: who begins, and what is there then.
func (w *world) booked(c *jobs.Changes, now time.Time) {
	b := w.board
	if now.After(b.latest) {
		b.latest = now
	}
	if c.Empty() {
		return
	}
	for _, r := range c.Jobs { // in the order in which they were changed
		was, x := cmp.Or(b.records[r.ID], &jobs.Record{}), r.Extras()
		b.records[r.ID] = r
		since, stopped := b.stopped[r.ID]
		stopped = stopped && (r.State == jobs.Failed && r.Code != jobs.CodeRevoked || r.State == jobs.Expired)
		w.deny(stopped, "cancelled jobs", "job %s is %s, %s, %v after it was cancelled, or revoked", keyOf(&r.Job), r.State, r.Code, w.now()-since)
		w.deny(was.State.Ended(), "ends", "job %s was %s, and is %s", keyOf(&r.Job), was.State, r.State)
		if was.ID == "" && x.Ticks != nil && x.Cron == "" {
			w.ticked(r, *x.Ticks)
		}
		if r.Lease != nil && (was.Lease == nil || was.Lease.ID != r.Lease.ID) {
			w.granted(was, r)
		}
	}
	for _, m := range c.Memos {
		b.memos[m.ID] = m
	}
	b.log = append(b.log, c)
	units, holders := 0, 0
	for _, id := range slices.Sorted(maps.Keys(b.records)) {
		r := b.records[id]
		if r.Lease != nil {
			units, holders = units+r.Lease.Units, holders+len(r.Locks)
		}
		for _, id := range r.Extras().After {
			f := b.records[id]
			failed := f.State.Ended() && f.State != jobs.Completed && !r.Extra.AfterAny
			w.deny(!r.State.Ended() && failed || r.State.Active() && !f.State.Ended(), "after",
				"job %s is %s, and is to run after %s, which is %s", keyOf(&r.Job), r.State, keyOf(&f.Job), f.State)
		}
		x := r.Extras()
		late := w.calm && w.now()-w.calmSince > settleIn && r.State == jobs.Scheduled && now.Sub(x.Ticks.Next) > settleIn
		w.deny(late, "wedge", "schedule %s has not gone on, and should have at %v: it is %v", keyOf(&r.Job), x.Ticks, now)
	}
	w.deny(units > b.config.Total || holders > b.limit.Slots, "capacity",
		"jobs of %d units are leased, and there are %d; %d of them have one lock", units, b.config.Total, holders)
}

// granted looks whether a job might be handed out.
func (w *world) granted(was, r *jobs.Record) {
	b, key, l := w.board, keyOf(&r.Job), w.board.limit
	since, stopped := b.stopped[r.ID]
	w.deny(stopped, "cancelled jobs", "job %s is granted %v after it was cancelled, or revoked", key, w.now()-since)
	w.deny(b.frozen[""] || b.frozen[r.Type], "freezes", "job %s is granted, and its type, %q, is frozen", key, r.Type)
	w.deny(r.Token <= was.Token || r.Lease.Token != r.Token, "tokens", "job %s is granted with token %d, and had %d", key, r.Lease.Token, was.Token)
	w.deny(r.Attempt > r.MaxAttempts || r.RunAt.After(b.latest) || r.Extras().Cron != "", "grants",
		"job %s is granted at %v: attempt %d of %d, not before %v, schedule %q", key, b.latest, r.Attempt, r.MaxAttempts, r.RunAt, r.Extras().Cron)
	if l.Starts > 0 && len(r.Locks) > 0 {
		if n := len(b.starts) - max(l.Burst, 1); n >= 0 && !w.allowed[setClock] && !w.allowed[sleepAll] { // which may have it forgotten
			w.deny(w.now()-b.starts[n] < l.Every()-time.Millisecond, "rates",
				"job %s is granted %v after another, at a rate of %d in %v", key, w.now()-b.starts[n], l.Starts, l.Per)
		}
		b.starts = append(b.starts, w.now())
	}
}

// ticked looks whether a schedule might submit a job for a tick.
func (w *world) ticked(r *jobs.Record, t jobs.Ticks) {
	w.count("a schedule has a job done")
	since, stopped := w.board.stopped[t.Schedule]
	w.deny(stopped, "cancelled jobs", "schedule %s goes on %v after it was cancelled", t.Schedule, w.now()-since)
	w.deny(t.Tick.After(w.board.latest), "ticks", "schedule %s has a job for %v, and it is %v", t.Schedule, t.Tick, w.board.latest)
	for id, o := range w.board.records {
		x := o.Extras().Ticks
		w.deny(id != r.ID && x != nil && x.Schedule == t.Schedule && (!t.Tick.After(x.Tick) || !o.State.Ended()), "ticks",
			"schedule %s has a job for %v, and had one for %v, which is %s", t.Schedule, t.Tick, x, o.State)
	}
}

// turns is the scheduler's store as a daemon sees it.
type turns struct {
	jobs.Store
	a       *actor
	seen    int           // how many of the turns that were stored
	busy    bool          // it is asked for something
	told    bool          // it is about to be, that others have stored something
	changed chan struct{} // has something then
}

// sharer is the same where several daemons have it.
type sharer struct{ *turns }

// Changed implements jobs.Sharer.
func (s sharer) Changed() <-chan struct{} { return s.changed }

// now is the time by the store's clock; zero if the scheduler's own is to be used.
func (s *turns) now() (now time.Time) {
	if s.a.w.board.config.Shared {
		now = time.Now().Add(-s.a.w.db.behind)
	}
	return now
}

// Update implements jobs.Store.
func (s *turns) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	s.busy = true
	defer func() { s.busy = false }()
	if f := s.a.pass(ctx, pointChange, "changes jobs"); f != fine && f != twice {
		return failure(ctx, f)
	}
	w := s.a.w
	step := lokt.NewStep(func(name string) (lokt.Snapshot, error) { return w.db.look(name), nil }) // nobody else moves meanwhile
	c := turn(jobs.Facts{Now: s.now(), Others: w.board.since(s.seen), Locks: step})
	w.booked(&c, cmp.Or(s.now(), time.Now()))
	s.seen = len(w.board.log)
	if err := s.Store.Update(context.Background(), func(jobs.Facts) jobs.Changes { return c }); err != nil {
		return err
	}
	for _, d := range w.daemons {
		if d.turns != s && !c.Empty() {
			d.turns.hear()
		}
	}
	for _, change := range step.Changes() {
		_ = w.db.commit(ctx, change.Lock.Name, func(lokt.Snapshot) lokt.Change { return change })
	}
	return failure(ctx, s.a.pass(ctx, pointAnswer, "hears that jobs are changed"))
}

// Load implements jobs.Store.
func (s *turns) Load(ctx context.Context) (jobs.Changes, error) {
	s.busy = true
	defer func() { s.busy = false }()
	if f := s.a.pass(ctx, pointRead, "loads jobs"); f != fine {
		return jobs.Changes{}, failure(ctx, f)
	}
	c, err := s.Store.Load(context.Background())
	c.Now, c.Memos, s.seen = s.now(), nil, len(s.a.w.board.log)
	for _, m := range s.a.w.board.memos { // those that the store's clock says are over the rules forget themselves
		c.Memos = append(c.Memos, m)
	}
	slices.SortFunc(c.Jobs, func(a, b *jobs.Record) int { return cmp.Compare(a.Revision, b.Revision) })
	slices.SortFunc(c.Memos, func(a, b jobs.Memo) int { return cmp.Compare(a.ID, b.ID) })
	return c, err
}

// hear has the daemon look at what others have stored, once it can.
func (s *turns) hear() {
	if s.told {
		return
	}
	s.told = true
	s.a.w.running.Go(func() {
		const what = "hears that others changed jobs"
		for s.a.pass(s.a.ctx, pointRead, what); s.busy && s.a.ctx.Err() == nil; s.a.pass(s.a.ctx, pointRead, what) {
			time.Sleep(20 * time.Millisecond)
		}
		s.a.w.count("a daemon hears of another's jobs")
		s.told = false // a message that is lost is followed by another
		select {
		case s.changed <- struct{}{}:
		default:
		}
	})
}

// leased has steps say for which lease a lock is changed: those of several jobs that share it are told apart by that.
type leased struct {
	lokt.Service
	w *world
}

func forLease(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, originKey{}, "lease "+id)
}

// Acquire implements lokt.Service.
func (s leased) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	if !c.Strict {
		s.w.count("a scheduler stands in a queue for a job")
	}
	return s.Service.Acquire(forLease(ctx, c.LeaseID), c)
}

// Renew implements lokt.Service.
func (s leased) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	return s.Service.Renew(forLease(ctx, r.LeaseID), r)
}

// Release implements lokt.Service.
func (s leased) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	return s.Service.Release(forLease(ctx, t.LeaseID), t)
}

// since returns what was stored after so many turns, each record and memo as it is now; nil if nothing.
func (b *board) since(seen int) *jobs.Changes {
	if seen == len(b.log) {
		return nil
	}
	all := *b.log[len(b.log)-1]
	all.Jobs, all.Memos = nil, nil
	changed := map[string]bool{}
	for _, c := range b.log[seen:] {
		for _, r := range c.Jobs {
			changed[r.ID] = true
		}
		all.Memos = append(all.Memos, c.Memos...) // the last of an ID counts
	}
	for id := range changed {
		all.Jobs = append(all.Jobs, new(*b.records[id]))
	}
	return &all
}
