package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/lokttest"
	"github.com/lokt-dev/lokt/store/filestore"
)

// action is one thing that a client does.
type action struct {
	id      int
	names   []string
	nested  bool // one within the other, in this order
	o       lokt.Options
	touches int           // how often it uses what it holds
	gap     time.Duration // between two of them
	gives   time.Duration // up after this time, if not 0
	keeps   bool          // and does not give it back
	idle    time.Duration // before
	how     int           // the claim is held, or what else is done
	again   bool          // a lock that was lost is taken again, and a lease refreshed
	curious bool          // it asks what is on record
	paths   []string      // what its lease is about
	closes  bool          // it gives back all, for good
	ticket  ticket
}

// client is a process that follows a script.
type client struct {
	*actor
	locker  *lokt.Locker
	service lokt.Service
	todo    []action
	lives   int
	asks    []string      // what it waits for
	asked   time.Time     // since when, by the store's clock
	late    time.Duration // since when it should have had an answer
	held    lokt.Leases   // what it was handed
	limit   int
	told    map[string]bool // leases whose end was noted
	heard   grant           // what its last renewal was answered with
	runs    []*command
	store   *filestore.Store // lock files
	ticket  ticket           // with which it asks, or asked last
	over    bool             // another process goes on with that
}

// believes reports whether the client was told that it holds the lock, and nothing else since.
func (c *client) believes(l *lokt.Lease) bool {
	switch {
	case c.gone(l):
		return false
	case c.died: // and a command goes on that needs no renewals
		return l.Holder().TTL == 0
	case c.w.now() < max(c.until, c.dazed): // before it does anything it looks at its clock
		return l.Err() == nil
	}
	select {
	case <-l.Context().Done(): // its error would look at the clock, and hide that nothing else does
		return false
	default:
	}
	if c.dazed > 0 && c.rate <= 1 && l.Err() != nil { // and no timer of it is late
		c.w.broke("late loss", "lock %s: %s was not told soon after its clock had jumped that token %d is lost", l.Name(), c.name, l.Token())
	}
	return true
}

// is reports whether the owner is the client, in this life.
func (c *client) is(o lokt.Owner) bool { return o == c.locker.Owner() }

// lockNames are the locks of a course, and how many share each.
var lockNames = map[string]int{"a": 1, "b": 1, "s": 2}

var people = []string{"alice", "bob", "carol", "dave", "erin", "frank"}

// populate makes the processes of the course, and what they do.
func (w *world) populate(r *rand.Rand) {
	if w.kind == "files" {
		w.furnish(rand.New(rand.NewPCG(w.o.Seed, 1<<42)))
		return
	}
	w.net = w.kind != "store"
	if w.kind == "jobs" {
		w.employ(r)
		return
	}
	if w.net {
		for i := range 1 + r.IntN(2) {
			w.daemons = append(w.daemons, &daemon{})
			w.daemons[i].start(w.newActor(fmt.Sprint("daemon", i+1), r))
		}
	}
	ttl := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 20 * time.Second}[r.IntN(4)]
	n := 2 + r.IntN(len(people)-1)
	one, preempt := r.IntN(2) == 0, r.IntN(4) == 0
	if one && !preempt { // its checker knows only exclusive locks, and nothing of preemption
		w.history = lokttest.NewRecorder(nil)
		w.history.Slack = 1 // answers are lost
	}
	tickets := rand.New(rand.NewPCG(w.o.Seed, 1<<43))
	some := w.history == nil && tickets.IntN(3) == 0
	mixing := rand.New(rand.NewPCG(w.o.Seed, 1<<47))
	w.mixed = w.history == nil && mixing.IntN(2) == 0
	operator := rand.New(rand.NewPCG(w.o.Seed, 1<<44))
	operated := w.net && operator.IntN(2) == 0
	if operated { // and there are moments when nobody waits
		n = 2
	}
	for i := range n {
		c := &client{actor: w.newActor(people[i], r)}
		for k := range 1 + r.IntN(4) {
			if c.todo = append(c.todo, newAction(r, i*100+k, ttl, one, preempt)); some {
				c.todo[k] = withTicket(tickets, c.todo[k])
			}
			if w.mixed && c.todo[k].ticket.number == 0 {
				c.todo[k] = mix(mixing, c.todo[k])
			}
			if operated { // or most would be over before one has acted
				c.todo[k].touches, c.todo[k].gap = c.todo[k].touches+2, max(c.todo[k].gap, ttl/4)
			}
		}
		w.scripts = append(w.scripts, c)
		w.begin(c, 1)
	}
	if w.mixed {
		w.accompany(mixing, ttl)
	}
	if operated {
		w.operate(operator, ttl)
	}
}

func newAction(r *rand.Rand, id int, ttl time.Duration, one, preempt bool) action {
	a := action{id: id, names: []string{"a"}, touches: r.IntN(6), gap: randomly(r, time.Millisecond, 2*ttl), idle: randomly(r, time.Microsecond, ttl)}
	a.o = lokt.Options{TTL: ttl, Strict: true, Limit: 1}
	switch roll := r.IntN(10); {
	case roll < 4:
	case roll < 6:
		a.names = []string{"b"}
	case roll < 8 && !one:
		a.names, a.o.Limit = []string{"s"}, 1+min(r.IntN(3), 1)
	default:
		a.names, a.nested = []string{"a", "b"}, r.IntN(2) == 0
		if r.IntN(2) == 0 {
			slices.Reverse(a.names)
		}
	}
	if r.IntN(3) > 0 || a.nested {
		a.o.Wait = randomly(r, 100*time.Millisecond, 60*time.Second)
	}
	if r.IntN(5) == 0 {
		a.o.Priority = 1
		if preempt {
			a.o.Preempt = randomly(r, 10*time.Millisecond, time.Second)
		}
	}
	if r.IntN(8) == 0 {
		a.o.MaxHold = randomly(r, 100*time.Millisecond, 2*ttl)
	}
	if r.IntN(5) == 0 {
		a.gives = randomly(r, time.Millisecond, 20*time.Second)
	}
	a.keeps = r.IntN(8) == 0
	return a
}

// randomly returns a time between the two, short ones as often as long ones. No two are equal.
func randomly(r *rand.Rand, least, most time.Duration) time.Duration {
	f := float64(most) / float64(least)
	return time.Duration(float64(least)*math.Pow(f, r.Float64())) + time.Duration(r.IntN(1000))
}

// begin starts a life of the client.
func (w *world) begin(c *client, life int) {
	owner := lokt.Owner{ID: c.name, Session: fmt.Sprint(life), Process: lokt.Process{PID: life}}
	me, service := c.actor, lokt.Service(nil)
	if service = lokt.NewManager(session{w.db, me}); w.net {
		service = w.reach(me)
	}
	var store *filestore.Store
	if w.host != nil {
		store = c.openStore()
	}
	if w.history != nil {
		service = w.history.For(service)
	}
	c.service = ticketed{service, c}
	locker, err := lokt.NewLocker(c.service, owner, lokt.LockerOptions{
		Keeper:  &lokt.Keeper{Elapsed: me.elapsed},
		Observe: w.countEvent,
	})
	if err != nil {
		panic(err)
	}
	c.locker = locker
	me.again = func() bool { return w.revive(c) }
	w.script(func() {
		defer c.exit()
		if w.host != nil && (me.pass(me.ctx, pointWork, "starts") != fine || c.enter(store, life) != nil) {
			return
		}
		for !c.over && len(c.todo) > 0 && c.ctx.Err() == nil {
			next := c.todo[0]
			c.todo = c.todo[1:]
			if slices.Contains(w.o.Mask.Idle, next.id) || next.ticket.number > 1 && next.ticket.lease == c.ticket.lease {
				continue
			}
			w.sleep(next.idle)
			if me.pass(me.ctx, pointWork, "begins") != fine {
				break
			}
			w.actions = append(w.actions, next.id)
			if next.how > asGuard {
				c.ticket = ticket{}
			}
			switch next.how {
			case asLease, asFreeze:
				c.vows(next)
			case asLeader:
				c.campaigns(next)
			case asVisitor:
				c.visits(next)
			default:
				c.perform(w, next)
			}
		}
	})
}

// revive starts the client's program again, which goes on with the script, and reports whether there is more to do.
func (w *world) revive(c *client) bool {
	if len(c.todo) == 0 {
		return false
	}
	c.lives++
	again := &client{actor: w.newActor(c.name, w.late), todo: c.todo, lives: c.lives}
	c.todo = nil
	w.scripts = append(w.scripts, again)
	w.say(again.actor, "starts again")
	w.count("a client starts again")
	w.begin(again, again.lives+1)
	return true
}

// perform does what the action says.
func (c *client) perform(w *world, a action) {
	ctx, done := c.ctx, context.CancelFunc(func() {})
	if a.gives > 0 {
		ctx, done = context.WithTimeout(ctx, a.gives)
	}
	defer done()
	w.say(c.actor, "asks for %v, and waits up to %v, with priority %d", a.names, a.o.Wait.Round(time.Millisecond), a.o.Priority)
	if a.how == asGuard {
		owner := c.locker.Owner()
		a.o.Process = &owner.Process
	}
	c.asks, c.asked = a.names, time.Now().Add(-w.db.behind)
	answered := w.goOn(ctx, c, a)
	leases, err := c.acquire(ctx, a)
	if c.over = !answered(); c.over {
		return
	}
	c.asks = nil
	if err != nil {
		w.say(c.actor, "is refused: %s", w.reason(err))
		return
	}
	for _, l := range leases {
		w.say(c.actor, "holds %s with token %d", l.Name(), l.Token())
	}
	c.held, c.limit, c.told = leases, a.o.Limit, map[string]bool{}
	if a.how == asGuard {
		c.command(a)
		a.touches, a.keeps = 0, false
	}
	for range a.touches {
		w.sleep(a.gap)
		if c.pass(c.ctx, pointWork, "works") != fine {
			return
		}
		if err = leases.Err(); err != nil && a.again && len(leases) == 1 {
			leases, err = c.reclaims(leases[0], err)
		}
		if err != nil {
			w.say(c.actor, "stops: %s", w.reason(err))
			break
		}
		if c.tends(a, leases[0]) {
			break
		}
	}
	c.held = nil
	if a.closes {
		c.closes(leases)
		return
	}
	if a.keeps {
		w.say(c.actor, "forgets %v", a.names)
		for _, l := range leases {
			l.StopHeartbeat()
		}
		return
	}
	w.say(c.actor, "gives back %v", a.names)
	if err := leases.Release(c.ctx); err != nil {
		w.say(c.actor, "cannot give back: %s", w.reason(err))
		w.count("a release fails")
	}
}

// sleep lets time pass for a script, and less of it at the end of the course.
func (w *world) sleep(d time.Duration) {
	if w.calm {
		d = min(d, time.Second)
	}
	time.Sleep(d)
	w.idle() // whose mutex shows what the driver has done meanwhile
}

// acquire takes what the action names.
func (c *client) acquire(ctx context.Context, a action) (lokt.Leases, error) {
	if c.w.mixed && a.o.Wait == 0 && len(a.names) == 1 {
		l, got, err := c.locker.TryAcquire(ctx, a.names[0], a.o)
		if err == nil && !got {
			err = lokt.ErrHeld
		}
		return lokt.Leases{l}, err
	}
	if !a.nested {
		return c.locker.AcquireAll(ctx, a.names, a.o)
	}
	var all lokt.Leases
	within := ctx
	for _, name := range a.names {
		l, err := c.locker.Acquire(within, name, a.o)
		if err != nil {
			return nil, errors.Join(err, all.Release(c.ctx))
		}
		all, within = append(all, l), l.Context()
	}
	return all, nil
}

// reasons are why a client is not given what it asks for, or loses it.
var reasons = []struct {
	err  error
	what string
}{
	{lokt.ErrDeadlock, "waiting would be a circle"}, {lokt.ErrHeld, "another has it"}, {lokt.ErrLost, "the lock was lost"}, {lokt.ErrNotFound, "the lease is gone"},
	{lokt.ErrUnavailable, "the store is unavailable"}, {context.DeadlineExceeded, "the claimant gave up"}, {context.Canceled, "the claimant was cancelled"},
}

// reason is an error in words that do not differ from run to run.
func (w *world) reason(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			w.count(r.what)
			return r.what
		}
	}
	return err.Error()
}

// probe lets processes that nobody has seen before claim each lock, or submit a job.
func (w *world) probe() {
	for i, name := range []string{"a", "b", "s"} {
		c := &client{actor: w.newActor("prober"+name, w.late)}
		w.probers = append(w.probers, c)
		if w.board != nil {
			s := jobs.NewSpec()
			s.IdempotencyKey = c.name
			w.order(c, [][]jobs.Spec{{s}}, -1-i)
		} else if lockNames[name] == 1 || w.history == nil {
			c.todo = []action{{id: -1 - i, names: []string{name}, o: lokt.Options{Limit: lockNames[name], Wait: patience, TTL: 5 * time.Second}}}
			w.begin(c, 1)
		}
	}
	synctest.Wait()
}
